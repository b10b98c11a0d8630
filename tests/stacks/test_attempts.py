"""Ranks whose number changes: torchrun starts them anew with the restart count they had."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from evenstep.attachment.attempts import APART_S, renumber
from evenstep.trace.spool import folder as folder_module
from evenstep.trace.spool.folder import RunFolder, process_start_s
from evenstep.trace.spool.identity import Identity
from evenstep.trace.spool.spool import Spool

NOBODY = 2**22 + 1  # above the largest process id there can be (proc(5), pid_max)
ME = Identity("job", 0, rank=1, local_rank=1, world=2, node=0, launcher="torchrun")


@pytest.fixture
def folder(tmp_path):
    return RunFolder(tmp_path)


def leave(folder, identity, *, pid=NOBODY, age_s=60.0, started_ticks=None):
    """A spool as `identity` has written it, `age_s` before this process began."""
    path = folder.spool_path(identity.attempt, identity.rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    began_ns = round((process_start_s(os.getpid()) - age_s) * 1e9)
    header = identity.header() | {"pid": pid, "anchor_realtime_ns": began_ns}
    header["started_ticks"] = started_ticks or folder_module.started_ticks(pid)
    Spool.create(path, header, ring_bytes=20_000, summary_bytes=10_000).shut()


def test_the_first_start_keeps_its_number(folder):
    assert renumber(ME, folder) == ME


def test_a_rank_that_was_here_before_and_died_is_a_new_attempt(folder):
    leave(folder, ME)
    assert renumber(ME, folder).attempt == 1


def test_a_child_of_a_living_rank_is_none(folder):
    leave(folder, ME, pid=os.getpid())
    assert renumber(ME, folder).attempt == 0


def test_a_number_that_another_process_has_by_now_is_nobodys(folder):
    leave(folder, ME, pid=os.getpid(), started_ticks=folder_module.started_ticks(os.getpid()) - 1)
    assert renumber(ME, folder).attempt == 1


def test_a_process_that_has_ended_and_is_not_reaped_lives_no_more(folder):
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    leave(folder, ME, pid=child.pid)
    child.wait()
    assert renumber(ME, folder).attempt == 1


def test_a_process_may_have_any_bytes_for_its_name(folder):
    """The kernel cuts a name after 15 bytes, also within a letter."""
    name = Path("/proc/self/comm")
    before = name.read_bytes()
    try:
        name.write_bytes(") \N{LATIN SMALL LETTER E WITH ACUTE}".encode() * 9)
        leave(folder, ME, pid=os.getpid())
        assert renumber(ME, folder).attempt == 0
        assert process_start_s(os.getpid())
    finally:
        name.write_bytes(before.rstrip())


def test_without_a_boot_id_nobody_is_known_to_live(folder, monkeypatch):
    for module in ("trace.spool.folder", "trace.spool.identity"):
        monkeypatch.setattr(f"evenstep.{module}.boot_id", lambda: "")
    leave(folder, ME, pid=os.getpid())
    assert renumber(ME, folder).attempt == 1


def test_a_rank_that_moved_to_another_node_left_its_spool_to_the_dead(folder, monkeypatch):
    leave(folder, ME, pid=os.getpid())
    monkeypatch.setattr("evenstep.trace.spool.folder.hostname", lambda: "another")
    assert renumber(ME, folder).attempt == 1


def test_a_rank_new_to_the_job_joins_the_attempt_of_the_others(folder):
    leave(folder, ME._replace(rank=0, world=1))
    assert renumber(ME, folder).attempt == 1


def test_ranks_of_one_start_need_not_begin_at_once(folder):
    leave(folder, ME._replace(rank=0), pid=os.getpid(), age_s=APART_S / 2)
    assert renumber(ME, folder).attempt == 0


def test_every_start_has_its_own_attempt(folder):
    for attempt in range(3):
        assert renumber(ME, folder).attempt == attempt
        leave(folder, ME._replace(attempt=attempt))


def test_another_runs_folder_is_left_alone(folder):
    leave(folder, ME._replace(run_id="another"))
    assert renumber(ME, folder).attempt == 0


def test_only_torchrun_forgets_to_count(folder):
    slurm = ME._replace(launcher="slurm")
    leave(folder, slurm)
    assert renumber(slurm, folder) == slurm


def test_a_damaged_spool_says_nothing(folder):
    path = folder.spool_path(0, 1)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"EVNSTEP")
    assert renumber(ME, folder).attempt == 0
