"""Ranks that end before they attach are told by their launcher, which knows them as processes."""

import json
import os
import signal
import subprocess
import sys

import pytest

from evenstep.cli import processes
from evenstep.cli.deaths import RankExits
from evenstep.cli.main import main
from evenstep.cli.processes import StartedRanks
from evenstep.cli.run import is_rank_zeros_node
from evenstep.trace.reader import read_spool
from evenstep.trace.spool.folder import RunFolder, process_stat, started_ticks
from evenstep.trace.spool.identity import Identity
from evenstep.trace.spool.spool import Spool
from tests.cli.test_deaths import until
from tests.environment import plain

TORCHRUN = {"TORCHELASTIC_RUN_ID": "job", "RANK": "1", "WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "3"}
PATIENCE_S = 60.0


@pytest.fixture
def run(tmp_path):
    return RunFolder(tmp_path / "run")


@pytest.fixture
def start(run):
    """Start a process as a launcher starts a rank: it waits for its input, then runs this code."""
    started = []

    def start(code="", **environ):
        given = {"EVENSTEP_OUT": str(run.path), **TORCHRUN, **environ}
        given = {name: value for name, value in given.items() if value is not None}
        started.append(
            subprocess.Popen(
                [sys.executable, "-c", f"print(flush=True); input()\n{code}"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=plain(**given),
            )
        )
        started[-1].stdout.readline()
        return started[-1]

    yield start
    for each in started:
        each.kill()
        each.wait(PATIENCE_S)


def go(process):
    process.stdin.write("\n")
    process.stdin.flush()


def followed(run, *processes, act=go):
    """What is said of processes whose ranks are known, and that then end one after the other."""
    said = []
    watch = RankExits(run, said.append)
    watch.start()
    for process in processes:
        until(lambda pid=process.pid: pid in {each.pid for each in watch._ranks.values()})
    for process in processes:
        act(process)
        until(lambda pid=process.pid: pid not in {each.pid for each in watch._ranks.values()})
        process.wait(PATIENCE_S)
    watch.finish()
    return said


def test_a_rank_that_ends_before_it_attaches_has_died_first(run, start, capsys):
    """As for want of a module; what is left of the job is ended by torchrun, and is no cause."""
    first, left = start("import sys; sys.exit(3)"), start(RANK="0")
    said = followed(run, first, left, act=lambda p: p.terminate() if p is left else go(p))
    assert said == [f"rank 1 (process {first.pid}) died: exit code 3 before it had attached"]
    (path,) = run.spools(0)
    spool = read_spool(path)
    assert spool.identity["rank"] == 1
    assert spool.identity["pid"] == first.pid
    assert main(["diagnose", str(run.path)]) == 1
    assert "Rank 1" in capsys.readouterr().out
    assert is_rank_zeros_node(run, {})


def test_what_the_call_has_raised_is_told(run, start):
    failed = start("import os; os._exit(1)", RANK="0")
    identity = Identity("job", 0, 0, 0, world=3, node=0, launcher="torchrun")
    mark = identity.header() | {"pid": failed.pid, "started_ticks": started_ticks(failed.pid)}
    mark["call"] = "init_process_group"
    mark["raised"] = {"type": "DistNetworkError", "message": "no route", "frames": []}
    run.path.mkdir()
    run.joining_path(0).write_text(json.dumps(mark))
    assert run.meeting() is None
    (told,) = followed(run, failed, act=lambda p: p.terminate())  # it had failed before
    assert told.endswith("died: DistNetworkError inside init_process_group: no route")
    assert run.files() == run.spools(0)


def test_what_the_call_has_raised_on_another_host_is_not_of_the_process_of_that_number(run, start):
    """In containers the numbers of processes are few, and alike on each host."""
    asked_to_end = start(RANK="0")
    mark = Identity("job", 0, 2, 0, world=3, node=1, launcher="torchrun").header()
    mark |= {"pid": asked_to_end.pid, "hostname": "elsewhere", "call": "init_process_group"}
    mark["raised"] = {"type": "DistNetworkError", "message": "no route", "frames": []}
    run.path.mkdir()
    run.joining_path(2).write_text(json.dumps(mark))
    assert followed(run, asked_to_end, act=lambda p: p.terminate()) == []
    assert run.attempts() == []


def test_who_meets_elsewhere_is_told_where_the_call_fails(run, start):
    ranks = [start("import os; os._exit(1)", RANK=str(number)) for number in range(3)]
    run.path.mkdir()
    for number, rank in enumerate(ranks):
        mark = Identity("job", 0, number, number, 3, 0, "torchrun").header() | {"pid": rank.pid}
        mark |= {"started_ticks": started_ticks(rank.pid), "place": f"10.0.0.{number // 2}:1"}
        mark["call"] = "init_process_group"
        run.joining_path(number).write_text(json.dumps(mark))
    (told,) = followed(run, *ranks)
    apart = "rank 2 meets the others at 10.0.0.1:1, ranks 0 and 1 at 10.0.0.0:1"
    assert told.endswith(f"died: {apart}: exit code 1 inside init_process_group")


@pytest.mark.parametrize("number", [signal.SIGTERM, None])
def test_of_who_is_asked_to_end_or_ends_well_before_it_attaches_nothing_is_told(run, start, number):
    act = (lambda p: p.send_signal(number)) if number else go
    rank = start()
    assert followed(run, rank, act=act) == []
    assert run.attempts() == []


def test_what_a_rank_has_started_is_none_nor_is_what_another_run_has(run, start):
    """Loader workers inherit a rank's environment, and so do its trackers."""
    code = "import subprocess, sys; child = subprocess.Popen(['sleep', '60']); print(child.pid, "
    code += "flush=True); input(); child.kill(); child.wait()"
    rank = start(code)
    start(EVENSTEP_OUT="/elsewhere")
    go(rank)
    child = int(rank.stdout.readline())
    found = StartedRanks(run)
    seen = [(each["pid"], each["rank"]) for _ in range(2) for each in found.find()]
    assert set(seen) == {(rank.pid, 1)}
    assert child not in {pid for pid, _ in seen}
    assert list(found.find()) == []
    go(rank)
    rank.wait(PATIENCE_S)


def test_what_a_rank_leaves_behind_is_no_rank_of_a_later_start(run, start, monkeypatch):
    """As an upload in the background that its script begins at the end."""
    upload = start("import os; os._exit(1)")
    stat = process_stat(upload.pid)
    orphan = [stat[0], "1", *stat[2:]]
    monkeypatch.setattr("evenstep.cli.processes.process_stat", lambda pid: orphan)
    gone = Identity("job", 0, 1, 1, world=3, node=0, launcher="torchrun").header() | {"pid": 0}
    Spool.create(run.spool_path(0, 1), gone, ring_bytes=1, summary_bytes=1).shut()
    said = []
    watch = RankExits(run, said.append)
    watch._discover()
    go(upload)
    until(lambda: process_stat(upload.pid)[0] == "Z")
    watch._record_exits(0)
    assert (said, run.attempts()) == ([], [0])


def test_a_launcher_on_each_node_is_no_rank_though_a_scheduler_numbers_it(run, start, monkeypatch):
    """As torchrun in a pod of Kubernetes' PyTorchJob, or as a step of Slurm."""
    pod = {"RANK": "0", "WORLD_SIZE": "2"}
    for name, value in pod.items():
        monkeypatch.setenv(name, value)
    start(**dict.fromkeys(TORCHRUN) | pod)
    for name in pod:
        monkeypatch.delenv(name)
    start(**dict.fromkeys(TORCHRUN), SLURM_PROCID="1", SLURM_NTASKS="2")
    for name, value in pod.items():
        monkeypatch.setenv(name, value)
    rank = start(RANK="0")
    assert {each["pid"] for each in StartedRanks(run).find()} == {rank.pid}


def test_a_rank_whose_child_attaches_is_that_child(run, start):
    """As of a shell script that torchrun starts; its own exit code is that of the child."""
    shell, python, said = start(), start(), []
    watch = RankExits(run, said.append)
    watch._discover()
    followed_first = next(each.pid for each in watch._ranks.values())
    other = python if followed_first == shell.pid else shell
    identity = Identity("job", 0, 1, 1, world=3, node=0, launcher="torchrun").header()
    identity |= {"pid": other.pid, "started_ticks": started_ticks(other.pid)}
    Spool.create(run.spool_path(0, 1), identity, ring_bytes=1, summary_bytes=1).shut()
    watch._discover()
    assert [each.pid for each in watch._ranks.values()] == [other.pid]
    assert not watch._unattached.keys() & {other.pid}
    os.kill(other.pid, signal.SIGKILL)
    watch._record_exits(PATIENCE_S)
    assert said == [f"rank 1 (process {other.pid}) died: SIGKILL"]


def test_the_end_of_a_shell_whose_child_has_just_attached_is_not_the_childs(run, start):
    """The launcher learns of both at once."""
    both, said = {each.pid: each for each in (start(), start())}, []
    watch = RankExits(run, said.append)
    watch._discover()
    shell = next(each.pid for each in watch._ranks.values())
    (child,) = both.keys() - {shell}
    identity = Identity("job", 0, 1, 1, world=3, node=0, launcher="torchrun").header()
    identity |= {"pid": child, "started_ticks": started_ticks(child)}
    Spool.create(run.spool_path(0, 1), identity, ring_bytes=1, summary_bytes=1).shut()
    os.kill(shell, signal.SIGKILL)
    until(lambda: process_stat(shell)[0] == "Z")
    watch._record_exits(PATIENCE_S)
    assert [each.pid for each in watch._ranks.values()] == [child]
    assert said == []


def test_without_pidfd_a_rank_that_waits_is_noted_once_however_often_it_is_seen(run, monkeypatch):
    """As by a kernel before Linux 5.3."""

    def fail(pid):
        raise OSError

    monkeypatch.setattr(os, "pidfd_open", fail)
    mark = Identity("job", 0, 1, 1, world=3, node=0, launcher="torchrun").header()
    mark |= {"started_ticks": started_ticks(os.getpid()), "call": "init_process_group"}
    run.path.mkdir()
    run.joining_path(1).write_text(json.dumps(mark))
    watch = RankExits(run, print)
    for _ in range(3):
        watch._discover()
    assert [each.pid for each in watch._missed] == [os.getpid()]


def test_of_two_launchers_on_one_host_one_tells(run, start):
    """As of two nodes that are tried on one machine, with one folder."""
    rank, said = start("import os; os._exit(2)"), []
    both = [RankExits(run, said.append) for _ in range(2)]
    for watch in both:
        watch._discover()
    go(rank)
    until(lambda: process_stat(rank.pid)[0] == "Z")
    for watch in both:
        watch._record_exits(PATIENCE_S)
    assert said == [f"rank 1 (process {rank.pid}) died: exit code 2 before it had attached"]


def test_an_environment_is_read_whatever_it_holds():
    """Values with `=`, entries without, letters of no encoding; of a process that is gone none."""
    given = {"A": "b=c=d", "EMPTY": "", "ODD": os.fsdecode(b"\xff")}
    child = subprocess.Popen(["sleep", "60"], env=given)
    try:
        until(lambda: processes._environment(str(child.pid)).get("A"))
        assert processes._environment(str(child.pid)) == given | {"ODD": "\ufffd"}
    finally:
        child.kill()
        child.wait()
    assert processes._environment(str(child.pid)) == {}
