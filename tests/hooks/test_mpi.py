"""A real job of two mpi4py ranks, observed by `evenstep run` without torch."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import evenstep
from evenstep.trace.spool.layout import NO_PEER, Flag, Kind, Op
from evenstep.trace.trace import match_messages
from tests.hooks.conftest import lateness_ns

pytest.importorskip("mpi4py", reason="mpi4py is not installed")
HERE = Path(__file__).parent
SOURCE = HERE.parents[1] / "src"
PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
MPIEXEC = shutil.which("mpiexec", path=PATH)
pytestmark = pytest.mark.skipif(MPIEXEC is None, reason="there is no mpiexec")
LATE_S = 0.03


def environ(**more):
    """Two ranks on two cores: MPI spins, so nothing else may."""
    return {**os.environ, "PYTHONPATH": str(SOURCE), "PATH": PATH, "EVENSTEP_VERDICT": "0", **more}


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """What `mpiexec evenstep run python …` printed, and where the run lies."""
    folder = tmp_path_factory.mktemp("mpi") / "run"
    program = [sys.executable, str(HERE / "mpi_job.py"), str(LATE_S)]
    wrapped = [sys.executable, "-m", "evenstep", "run", "--out", str(folder), "--", *program]
    done = subprocess.run(
        [MPIEXEC, "-n", "2", *wrapped], env=environ(), capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done, folder


@pytest.fixture(scope="module")
def trace(job):
    return evenstep.load(job[1])


@pytest.fixture(scope="module")
def scene(trace):
    """A rank's collectives and messages inside a span of the job."""

    def of(name, rank=0):
        events = trace.events.select(trace.events["rank"] == rank)
        span = events.select(events.name == trace.names.index(name))
        inside = (events.enter_ns >= span.enter_ns[0]) & (events.enter_ns <= span.exit_ns[0])
        moves = np.isin(events.kind, [Kind.COLLECTIVE, Kind.POINT_TO_POINT])
        return events.select(inside & moves)

    return of


def test_both_ranks_are_there_and_torch_was_not_needed(trace):
    assert sorted(trace.ranks) == [0, 1]
    assert {info.identity["world"] for info in trace.ranks.values()} == {2}
    assert not any(info.identity["versions"]["torch"] for info in trace.ranks.values())


def test_a_program_gets_its_answers_and_its_methods_back(job):
    assert job[0].stdout.count("restored True 2.0") == 2


def test_blocking_calls_are_recorded_with_operation_and_size(scene):
    seen = scene("blocking")
    assert seen.op.tolist() == [
        Op.ALL_REDUCE, Op.ALL_REDUCE, Op.BROADCAST, Op.REDUCE, Op.ALL_GATHER, Op.BARRIER
    ]  # fmt: skip
    assert seen.bytes_in.tolist() == [32, 32, 32, 32, 32, 0]  # 8 floats of 4 bytes
    assert seen.bytes_out[4] == 64  # of two ranks
    assert (seen.flags & Flag.HOST_BLOCKED).all()
    assert not (seen.flags & Flag.ASYNC).any()


def test_a_root_is_recorded_where_there_is_one(scene):
    none = NO_PEER
    assert scene("blocking").peer_or_root.tolist() == [none, none, 1, 1, none, none]


def test_pickled_calls_are_recorded_with_their_size_unknown(scene):
    seen = scene("pickled")
    assert seen.op.tolist() == [Op.ALL_REDUCE, Op.BROADCAST, Op.BARRIER]
    assert not seen.bytes_in.any()


def test_what_does_not_block_ends_with_the_wait(scene):
    seen = scene("later")
    assert seen.op.tolist() == [Op.ALL_REDUCE, Op.BARRIER]
    assert (seen.flags & Flag.ASYNC).all()
    assert (seen.exit_ns > seen.enter_ns).all()


def test_communicators_are_told_apart_though_their_handles_come_back(scene, trace):
    numbers = scene("groups").group.tolist()
    assert len(set(numbers)) == 4
    assert [trace.groups[number].ranks for number in numbers] == [(0,), (0, 1), (0,), (0, 1)]


def test_a_call_that_mpi_refuses_goes_unrecorded_and_all_others_do_not(scene):
    assert scene("refused").op.tolist() == [Op.BARRIER] * 4  # of the world, after each of them


def test_ranks_agree_on_every_identity(trace):
    rows = trace.of_kind(Kind.COLLECTIVE)
    both = np.array([len(group.ranks) == 2 for group in trace.groups])[rows.group]
    names = [
        sorted(zip(rows.group[mine], rows.group_seq[mine], rows.op[mine], strict=True))
        for mine in (both & (rows["rank"] == rank) for rank in (0, 1))
    ]
    assert names[0] == names[1]


def test_each_message_finds_its_other_end_even_where_the_receiver_left_all_open(trace):
    rows = trace.of_kind(Kind.POINT_TO_POINT)
    pairs = match_messages(rows)
    assert len(rows) == 2 * len(pairs.send) == 12  # and nothing to PROC_NULL
    assert sorted(rows.payload[pairs.receive].tolist()) == [5, 6, 7, 7, 8, 8]


def test_what_repeats_is_a_step(trace):
    steps = trace.of_kind(Kind.STEP)
    loop = steps.select(steps.exit_ns - steps.enter_ns > LATE_S * 1e9)
    assert [int((loop["rank"] == rank).sum()) for rank in (0, 1)] == pytest.approx([40, 40], abs=1)


def test_the_late_rank_enters_as_late_as_it_sleeps(trace):
    assert lateness_ns(trace, Op.ALL_REDUCE) > LATE_S / 2 * 1e9  # others may hold it up, too


def test_the_launcher_may_stand_behind_evenstep(tmp_path):
    program = (
        "from mpi4py import MPI\n"
        "for _ in range(8): MPI.COMM_WORLD.Barrier()\n"
    )  # fmt: skip
    wrapped = [sys.executable, "-m", "evenstep", "run", "--out", str(tmp_path / "r"), "--"]
    done = subprocess.run(
        [*wrapped, MPIEXEC, "-n", "2", sys.executable, "-c", program],
        env=environ(), capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    trace = evenstep.load(tmp_path / "r")
    assert len(trace.of_kind(Kind.STEP)) == 16


def test_the_example_learns_what_it_should():
    example = HERE.parents[1] / "examples/mpi/averaging.py"
    done = subprocess.run(
        [MPIEXEC, "-n", "2", sys.executable, str(example), "--steps", "40", "--delay-ms", "0"],
        env=environ(), capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.rpartition(":")[2]) < 0.01  # 40 steps of 0.2: 0.8^40 is 0.0001
