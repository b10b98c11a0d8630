import errno
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from evenstep.errors import SpoolError, TraceError
from evenstep.trace.spool import folder
from evenstep.trace.spool.folder import (
    RunFolder,
    default_path,
    loaded_versions,
    process_start_s,
    recorded_command,
    recorded_environment,
    run_facts,
    starter_pid,
)

PACKAGE_PARENT = str(Path(folder.__file__).parents[2])


def together(script, *arguments, processes=2):
    """Run a script in several processes at once; what each printed, sorted."""
    command = [sys.executable, "-c", script, *map(str, arguments)]
    environ = os.environ | {"PYTHONPATH": PACKAGE_PARENT}
    children = [
        subprocess.Popen(command, stdout=subprocess.PIPE, env=environ, text=True)
        for _ in range(processes)
    ]
    return sorted(child.communicate()[0].strip() for child in children)


def test_a_spool_lies_under_its_attempt_and_rank(tmp_path):
    assert RunFolder(tmp_path).spool_path(2, 7) == tmp_path / "attempt-002/rank-00007.spool"


def test_of_two_processes_one_claims_a_rank(tmp_path):
    script = (
        "import sys; from evenstep.trace.spool.folder import RunFolder\n"
        "print(RunFolder(sys.argv[1]).claim(0, 0) is not None)"
    )
    assert together(script, tmp_path) == ["False", "True"]


def test_a_claim_is_an_empty_file_open_for_writing(tmp_path):
    fd = RunFolder(tmp_path).claim(0, 3)
    os.write(fd, b"x")
    os.close(fd)
    assert RunFolder(tmp_path).spool_path(0, 3).read_bytes() == b"x"


def test_another_attempt_of_the_same_rank_is_free(tmp_path):
    run = RunFolder(tmp_path)
    os.close(run.claim(0, 0))
    os.close(run.claim(1, 0))
    assert run.attempts() == [0, 1]


def test_a_folder_that_cannot_be_made_is_named_with_the_remedy(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SpoolError, match=r"rank-00000\.spool.*EVENSTEP_OUT"):
        RunFolder(tmp_path / "file").claim(0, 0)


def test_a_full_disk_leaves_no_folder_but_one_that_was_there(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(folder, "write_whole", full)
    (tmp_path / "old").mkdir()
    for name in ("new", "old"):
        with pytest.raises(SpoolError, match="No space left on device"):
            RunFolder(tmp_path / name).write({})
    assert [path.name for path in tmp_path.iterdir()] == ["old"]


def test_of_two_processes_the_first_to_write_run_json_wins(tmp_path):
    script = (
        "import os, sys; from evenstep.trace.spool.folder import RunFolder\n"
        "print(RunFolder(sys.argv[1]).write({'pid': os.getpid()}))"
    )
    assert together(script, tmp_path, processes=3) == ["False", "False", "True"]
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_run_json_is_published_whole_where_there_are_no_hard_links(tmp_path, monkeypatch):
    def no_links(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    run = RunFolder(tmp_path)
    assert [run.write({"run_id": "a"}), run.write({"run_id": "b"})] == [True, False]
    assert run.read() == {"schema": folder.SCHEMA, "run_id": "a"}


def test_rank_zero_completes_only_what_the_launcher_did_not_know(tmp_path):
    run = RunFolder(tmp_path)
    run.write({"run_id": "a", "world": None, "versions": {"evenstep": "1", "torch": None}})
    run.complete({"run_id": "b", "world": 4, "versions": {"evenstep": "2", "torch": "2.13"}})
    assert run.read() == {
        "schema": folder.SCHEMA, "run_id": "a", "world": 4,
        "versions": {"evenstep": "1", "torch": "2.13"},
    }  # fmt: skip


@pytest.mark.parametrize("text", ["{", "[]"])
def test_a_damaged_run_json_is_named(tmp_path, text):
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(TraceError, match=r"run\.json"):
        RunFolder(tmp_path).read()


def test_clearing_a_run_leaves_other_peoples_files(tmp_path):
    run = RunFolder(tmp_path)
    run.write({})
    os.close(run.claim(0, 0))
    (tmp_path / "notes.txt").write_text("mine")
    run.clear()
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_all_children_of_one_process_agree_on_the_default_folder(tmp_path):
    script = (
        "import os, sys; from pathlib import Path\n"
        "from evenstep.trace.spool.folder import default_path\n"
        "print(default_path(Path(sys.argv[1]), os.getppid()))"
    )
    first, second = together(script, tmp_path)
    assert first == second == str(default_path(tmp_path, os.getpid()))
    assert first.endswith(f"-{os.getpid()}")


def test_ranks_a_script_spawns_agree_with_the_script():
    script = (
        "import multiprocessing, os; from evenstep.trace.spool.folder import starter_pid\n"
        "def rank(): print(starter_pid('single') == os.getppid(), flush=True)\n"
        "child = multiprocessing.get_context('fork').Process(target=rank)\n"
        "child.start(); child.join(); print(starter_pid('single') == os.getpid())"
    )
    assert together(script, processes=1) == ["True\nTrue"]


def test_ranks_of_a_launcher_are_named_by_it():
    assert starter_pid("torchrun") == os.getppid()


def test_a_container_without_a_visible_parent_uses_the_process_itself(tmp_path):
    assert default_path(tmp_path, 0) == default_path(tmp_path, os.getpid())


def test_a_process_starts_between_boot_and_now():
    assert 0 < process_start_s(1) <= process_start_s(os.getpid()) <= time.time() + 1


def test_secrets_are_never_recorded():
    environ = {
        "NCCL_DEBUG": "INFO", "TORCH_HUB_TOKEN": "t", "EVENSTEP_API_KEY": "k", "HOME": "/h",
        "TORCH_MIRROR": "https://me:pass@example.org", "OMP_NUM_THREADS": "2",
    }  # fmt: skip
    assert recorded_environment(environ) == {"NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "2"}


def test_run_facts_are_json_and_say_what_is_unknown(tmp_path):
    facts = run_facts(
        run_id="a", command=["python", "train.py"], environ={}, versions=loaded_versions("0.1")
    )
    written = json.loads(json.dumps(facts))
    assert written["world"] is None
    assert written["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))


@pytest.mark.parametrize(
    "text", [b"[" * 100_000, b"\xff", b"{" + b" " * (1 << 20) + b"}", b"1", b""]
)
def test_facts_that_are_none_are_one_sentence(tmp_path, text):
    folder = RunFolder(tmp_path)
    folder.facts_path.write_bytes(text)
    with pytest.raises(TraceError, match=r"run\.json"):
        folder.read()


def test_a_rank_that_is_all_there_is_started_itself():
    """Its shell may start another within the same second."""
    assert starter_pid("environment", 1) == os.getpid()
    assert starter_pid("environment", 2) == os.getppid()


def test_a_command_is_recorded_without_its_secrets():
    given = ["train.py", "--api-key", "hunter2", "--hub_token=hunter2", "--tokenizer", "gpt2"]
    kept = ["train.py", "--api-key", "…", "--hub_token=…", "--tokenizer", "gpt2"]
    assert recorded_command(given) == kept
    assert recorded_command(["s3://u:p@h/x", "--key", "--lr", "1"]) == ["…", "--key", "--lr", "1"]
