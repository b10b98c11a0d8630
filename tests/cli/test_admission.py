import os

import pytest

from evenstep.cli.run import Admission, admit, spans_nodes
from evenstep.errors import UsageError
from evenstep.trace.spool.folder import RunFolder, run_facts

TRAIN = ["python", "train.py"]
JOB = {"SLURM_JOB_ID": "991"}


def earlier(path, *, run_id="991", command=TRAIN, **facts):
    """A run that is in the folder already, by default from another machine."""
    run = RunFolder(path)
    known = run_facts(run_id=run_id, command=command, environ={}, versions={})
    run.write(known | {"hostname": "elsewhere"} | facts)
    os.close(run.claim(0, 0))
    return run


def ended(path, **facts):
    """The same on this machine, its launcher gone: no process has number 0."""
    return earlier(path, hostname=os.uname().nodename, pid=0, **facts)


def test_a_nameless_run_on_one_node_is_called_after_its_folder(tmp_path):
    assert admit(RunFolder(tmp_path / "r"), TRAIN, {}, force=False) == Admission(
        "r", passes_id=True
    )


def test_ranks_of_several_nodes_find_a_common_name_themselves(tmp_path):
    line = ["torchrun", "--nnodes", "2", "train.py"]
    assert not admit(RunFolder(tmp_path / "r"), line, {}, force=False).passes_id


@pytest.mark.parametrize("option", [["--rdzv-id", "j"], ["--rdzv_id=j"]])
def test_torchruns_rendezvous_names_the_run(tmp_path, option):
    line = ["torchrun", *option, "train.py"]
    assert admit(RunFolder(tmp_path), line, {}, force=False) == Admission("j", passes_id=True)


def test_a_launcher_on_another_node_joins(tmp_path):
    run = earlier(tmp_path)
    assert admit(run, TRAIN, JOB, force=False).first_attempt is None


@pytest.mark.parametrize(
    "meeting",
    [
        ["--master-addr", "n0", "--master-port=29500", "--node-rank", "RANK"],
        ["--main_process_ip=n0", "--main_process_port", "29500", "--machine_rank=RANK"],
        ["--rdzv-endpoint", "n0-29500", "--local-addr", "nRANK"],
    ],
)
def test_a_launcher_joins_from_where_the_nodes_meet_under_its_own_rank(tmp_path, meeting):
    lines = [
        ["torchrun", "--nnodes=2", *(word.replace("RANK", rank) for word in meeting), "train.py"]
        for rank in "01"
    ]
    run = earlier(tmp_path, run_id="n0-29500", command=lines[0])
    assert admit(run, lines[1], {}, force=False) == Admission("n0-29500", passes_id=True)
    with pytest.raises(UsageError, match="holds another run"):
        admit(run, [*lines[1], "--lr", "1"], {}, force=False)


def test_a_launcher_that_has_ended_here_is_followed_by_a_new_attempt(tmp_path):
    assert admit(ended(tmp_path), TRAIN, JOB, force=False).first_attempt == 1


def test_a_requeued_job_is_counted_by_slurm(tmp_path):
    requeued = JOB | {"SLURM_RESTART_COUNT": "1"}
    assert admit(ended(tmp_path), TRAIN, requeued, force=False).first_attempt is None


@pytest.mark.parametrize(("later", "attempt"), [(0, None), (1, 1)])
def test_a_process_number_used_again_is_not_the_launcher(tmp_path, later, attempt):
    ours = run_facts(run_id="991", command=TRAIN, environ={}, versions={})
    ours["started_ticks"] -= later
    run = earlier(tmp_path, **ours)
    assert admit(run, TRAIN, JOB, force=False).first_attempt == attempt


@pytest.mark.parametrize(
    ("command", "environ"),
    [(["python", "other.py"], JOB), (TRAIN, {"SLURM_JOB_ID": "7"}), (TRAIN, {})],
)
def test_another_command_or_job_is_refused(tmp_path, command, environ):
    with pytest.raises(UsageError, match="another run"):
        admit(ended(tmp_path), command, environ, force=False)


def test_a_restart_on_several_nodes_that_nobody_counts_is_refused(tmp_path):
    with pytest.raises(UsageError, match="another run"):
        admit(ended(tmp_path), TRAIN, JOB | {"SLURM_NNODES": "2"}, force=False)


def test_a_damaged_description_counts_as_another_run(tmp_path):
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(UsageError, match="another run"):
        admit(RunFolder(tmp_path), TRAIN, JOB, force=False)


def test_a_folder_with_other_files_is_no_run(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    assert admit(RunFolder(tmp_path), TRAIN, {}, force=False).passes_id


@pytest.mark.parametrize(
    ("line", "several"),
    [
        ("torchrun --nnodes=2 a.py", True), ("torchrun --nnodes 1 a.py", False),
        ("torchrun --nnodes 1:4 a.py", True), ("accelerate launch --num_machines 2 a.py", True),
        ("torchrun a.py", False),
    ],
)  # fmt: skip
def test_options_tell_whether_there_are_other_nodes(line, several):
    assert spans_nodes(line.split(), {}) is several
