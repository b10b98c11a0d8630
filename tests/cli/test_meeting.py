"""Ranks that wait in `init_process_group` for one that has not come, before any of them records."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time

import pytest

from evenstep.cli import deaths
from evenstep.cli.main import main
from evenstep.trace.spool import folder
from evenstep.trace.spool.files import write_whole
from evenstep.trace.spool.folder import RunFolder, started_ticks
from evenstep.trace.spool.identity import Identity
from evenstep.watch.frame import frame
from evenstep.watch.run import LiveRun
from evenstep.words import meeting
from tests.environment import plain

NOBODY = 2**22 + 1  # above the largest process id there can be (proc(5), pid_max)
PATIENCE_S = 120.0
#: Rank 2 comes when it is told to.
LATE = """
import os, sys, time
import torch.distributed as dist
while os.environ["RANK"] == "2" and not os.path.exists(sys.argv[1]):
    time.sleep(0.02)
dist.init_process_group("gloo")
assert not any(name.endswith(f"{dist.get_rank()}.joining") for name in os.listdir(sys.argv[2]))
dist.destroy_process_group()
"""


def mark(run, rank, **other):
    """The mark of a rank of four that this process is, but for what is given."""
    identity = Identity("job", 0, rank, rank, world=4, node=0, launcher="torchrun")
    facts = identity.header() | {"started_ticks": started_ticks(os.getpid())}
    facts |= {"call": "init_process_group"} | other
    write_whole(run.joining_path(rank), json.dumps(facts))


def test_a_launcher_and_watch_tell_who_has_not_come_while_the_others_wait(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.setattr(deaths, "MEETING_S", 0.0)
    job, go, folder = tmp_path / "late.py", tmp_path / "go", tmp_path / "run"
    job.write_text(LATE)
    command = [sys.executable, "-m", "evenstep", "run", "--out", folder, "--", sys.executable, "-m"]
    command += ["torch.distributed.run", "--nproc-per-node", "3", job, go, folder]
    said = []
    run, watch = LiveRun(folder), deaths.RankExits(RunFolder(folder), said.append)
    path = os.pathsep.join(sys.path)
    done = subprocess.Popen(command, env=plain(PYTHONPATH=path, EVENSTEP_VERDICT="0"))
    deadline = time.monotonic() + PATIENCE_S
    while not (said and "0 and 1" in said[-1]) and time.monotonic() < deadline:
        watch._report_meeting()
        time.sleep(0.02)
    run.refresh()
    go.touch()
    assert done.wait(PATIENCE_S) == 0
    who = "ranks 0 and 1 of 3 wait in init_process_group"
    assert said[-1].startswith(f"{who} for ")
    assert said[-1].endswith("; rank 2 has not come")
    told = frame(run, []).verdict
    assert re.fullmatch(f"waiting for the first rank: {who} for .*s; rank 2 has not come", told)
    assert RunFolder(folder).meeting() is None
    watch._report_meeting()
    assert said[-1] == "rank 2 came: all ranks have met"


def test_waiting_is_told_after_a_while_and_then_at_doubling_times(tmp_path, monkeypatch):
    said, now_s, began_s = [], [0], time.time()
    monkeypatch.setattr("evenstep.trace.spool.folder.time.time", lambda: began_s + now_s[0])
    monkeypatch.setattr(deaths.time, "monotonic_ns", lambda: now_s[0] * 10**9)
    watch = deaths.RankExits(RunFolder(tmp_path), said.append)
    mark(RunFolder(tmp_path), 0)
    os.utime(RunFolder(tmp_path).joining_path(0), (began_s, began_s))
    for now_s[0] in range(85):
        watch._report_meeting()
    told = [f"rank 0 of 4 waits in init_process_group for {s} s" for s in (10, 20, 40, 80)]
    assert [each.partition(";")[0] for each in said] == told
    RunFolder(tmp_path).clear()
    now_s[0] = 100
    watch._report_meeting()
    mark(RunFolder(tmp_path), 0)
    os.utime(RunFolder(tmp_path).joining_path(0), (began_s + 100, began_s + 100))
    for now_s[0] in range(101, 108):
        watch._report_meeting()
    assert len(said) == 4


def test_marks_of_the_dead_of_earlier_attempts_and_of_no_sense_count_for_nothing(tmp_path):
    run = RunFolder(tmp_path)
    mark(run, 0, pid=NOBODY)
    mark(run, 1, boot_id="before the host started again")
    assert run.meeting() is None
    mark(run, 1, attempt=1)
    mark(run, 2, hostname="elsewhere", pid=NOBODY)  # of the attempt before
    run.joining_path(3).write_text("[")
    assert (run.meeting().waiting, run.meeting().absent) == ([1], [0, 2, 3])
    os.close(run.claim(1, 3))  # it is through
    assert run.meeting().absent == [0, 2]


def test_a_launcher_that_looks_often_reads_a_mark_once(tmp_path, monkeypatch):
    """Thousands of ranks leave as many, on a filesystem that all launchers share."""
    read, reader = [], folder.read_facts
    monkeypatch.setattr(folder, "read_facts", lambda path: read.append(path.name) or reader(path))
    run = RunFolder(tmp_path)
    watch = deaths.RankExits(run, print)
    for rank in range(3):
        mark(run, rank, hostname=f"node{rank}", pid=NOBODY)
    for _ in range(3):
        watch._discover()
        watch._report_meeting()
    assert read == [run.joining_path(rank).name for rank in range(3)]
    mark(run, 1, raised={})
    assert run.meeting().waiting == [0, 2]
    assert len(read) == 4


def test_only_the_launcher_of_the_first_that_waits_tells(tmp_path):
    run = RunFolder(tmp_path)
    mark(run, 0, hostname="elsewhere")
    mark(run, 1)
    assert run.meeting().waiting == [0, 1]
    assert run.meeting(here=True) is None


@pytest.mark.parametrize(
    ("nodes", "absent"), [(1, "has not come"), (2, "has not come or records elsewhere")]
)
def test_ranks_of_another_node_may_record_in_another_folder(tmp_path, nodes, absent):
    run = RunFolder(tmp_path)
    for rank in range(3):
        mark(run, rank, nodes=nodes)
    told = meeting(run.meeting()._replace(waited_s=12.3))
    assert told == f"ranks 0-2 of 4 wait in init_process_group for 12.3 s; rank 3 {absent}"


def test_who_meets_elsewhere_is_told(tmp_path):
    run = RunFolder(tmp_path)
    for rank in range(4):
        raised = {"raised": {}} if rank == 0 else {}  # has come, and does not wait any more
        mark(run, rank, **raised, place="10.0.0.9:1" if rank == 2 else "10.0.0.1:1")
    who = "ranks 1-3 of 4 wait in init_process_group"
    told = "rank 2 meets the others at 10.0.0.9:1, ranks 0, 1 and 3 at 10.0.0.1:1"
    assert meeting(run.meeting()._replace(waited_s=60)) == f"{who} for 60 s; {told}"


def test_a_launcher_leaves_no_mark_of_its_ended_ranks_which_others_could_not_tell_from_waiting(
    tmp_path,
):
    run = RunFolder(tmp_path)
    mark(run, 0)
    mark(run, 1, pid=NOBODY)
    mark(run, 2, hostname="elsewhere", pid=NOBODY)
    launcher = deaths.RankExits(run, print)
    launcher.start()
    launcher.finish()
    assert sorted(path.name for path in run.files()) == [
        run.joining_path(0).name, run.joining_path(2).name
    ]  # fmt: skip


def test_of_ranks_that_ended_in_the_call_watch_says_that_none_has_started(tmp_path, capsys):
    mark(RunFolder(tmp_path), 0, pid=NOBODY)
    assert main(["watch", "--once", str(tmp_path)]) == 2
    assert "no rank has started" in capsys.readouterr().err
    mark(RunFolder(tmp_path), 0)
    assert main(["watch", "--once", str(tmp_path)]) == 0
    assert "rank 0 of 4 waits in init_process_group" in " ".join(capsys.readouterr().out.split())
