"""An MPI program in C, observed by the preloaded shim; and the shim's files, without MPI."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import evenstep
from evenstep.errors import UsageError
from evenstep.hooks.mpi.pmpi import collect
from evenstep.hooks.mpi.pmpi.collect import CALL, communicators
from evenstep.trace.spool.layout import NO_PEER, Flag, Kind, Op, Phase
from evenstep.trace.trace import match_messages
from tests.hooks.conftest import lateness_ns

SOURCE = Path(__file__).parents[2] / "src"
PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
MPICC, MPIEXEC = (shutil.which(name, path=PATH) for name in ("mpicc", "mpiexec"))
ENVIRON = {**os.environ, "PATH": PATH, "PYTHONPATH": str(SOURCE), "EVENSTEP_VERDICT": "0"}
LATE_S = 0.03
PROGRAM = r"""
#include <mpi.h>
#include <unistd.h>
int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank, size;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    double sent[1000] = {1}, sum[1000], got;
    MPI_Comm copy;
    MPI_Comm_dup(MPI_COMM_WORLD, &copy);
    MPI_Bcast(sent, 10, MPI_DOUBLE, 1, copy);
    for (int step = 0; step < 40; step++) {
        usleep(4000 + (rank == 1 ? LATE_US : 0));
        MPI_Allreduce(sent, sum, 1000, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        MPI_Request both[2];
        MPI_Isend(sent, 1, MPI_DOUBLE, (rank + 1) % size, 7, MPI_COMM_WORLD, &both[0]);
        MPI_Irecv(&got, 1, MPI_DOUBLE, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &both[1]);
        MPI_Waitall(2, both, MPI_STATUSES_IGNORE);
    }
    MPI_Finalize();
    return 0;
}
""".replace("LATE_US", str(int(LATE_S * 1e6)))

with_mpi = pytest.mark.skipif(
    MPICC is None or MPIEXEC is None or shutil.which("cc") is None,
    reason="there is no C compiler for MPI (mpicc, mpiexec)",
)


FREED = r"""
#include <mpi.h>
int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    double value = 1;
    MPI_Request request;
    for (int at = 0; at < 4100; at++) {
        MPI_Irecv(&value, 1, MPI_DOUBLE, 1 - rank, 7, MPI_COMM_WORLD, &request);
        MPI_Send(&value, 1, MPI_DOUBLE, 1 - rank, 7, MPI_COMM_WORLD);
        if (at % 128 == 127) MPI_Barrier(MPI_COMM_WORLD);
        MPI_Request_free(&request);
    }
    MPI_Irecv(&value, 1, MPI_DOUBLE, 1 - rank, 8, MPI_COMM_WORLD, &request);
    MPI_Send(&value, 1, MPI_DOUBLE, 1 - rank, 8, MPI_COMM_WORLD);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    MPI_Comm half, between;
    MPI_Comm_split(MPI_COMM_WORLD, rank, 0, &half);
    MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, 1 - rank, 9, &between);
    MPI_Bcast(&value, 1, MPI_DOUBLE, rank ? 0 : MPI_ROOT, between);
    MPI_Finalize();
    return 0;
}
"""


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    """The trace of two ranks of the C program."""
    return traced(tmp_path_factory.mktemp("shim"), PROGRAM)


@pytest.fixture(scope="module")
def freed(tmp_path_factory):
    """The same of one that waits for few of its requests, with groups of ranks on two sides."""
    return traced(tmp_path_factory.mktemp("freed"), FREED)


def traced(folder, program):
    (folder / "program.c").write_text(program)
    subprocess.run([MPICC, "-o", folder / "program", folder / "program.c"], env=ENVIRON, check=True)
    wrapped = [sys.executable, "-m", "evenstep", "run", "--mpi-shim", "--out", str(folder / "r")]
    done = subprocess.run(
        [*wrapped, "--", MPIEXEC, "-n", "2", str(folder / "program")],
        env=ENVIRON | {"XDG_CACHE_HOME": str(folder)}, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return evenstep.load(folder / "r")


@with_mpi
def test_a_c_program_leaves_its_collectives_with_root_size_and_group(trace):
    rows = trace.of_kind(Kind.COLLECTIVE)
    mine = rows.select(rows["rank"] == 0)
    assert mine.op.tolist() == [Op.BROADCAST, *[Op.ALL_REDUCE] * 40]
    assert mine.bytes_in.tolist() == [80, *[8000] * 40]  # doubles
    assert mine.peer_or_root[0] == 1
    assert len(set(mine.group.tolist())) == 2  # the world and its copy


@with_mpi
def test_its_messages_find_their_other_ends(trace):
    rows = trace.of_kind(Kind.POINT_TO_POINT)
    pairs = match_messages(rows)
    assert len(rows) == 2 * len(pairs.send) == 160
    assert set(rows.payload.tolist()) == {7}
    assert (rows.flags & Flag.ASYNC).all()


@with_mpi
def test_its_steps_are_what_repeats(trace):
    steps = trace.of_kind(Kind.STEP)
    counts = [int((steps["rank"] == rank).sum()) for rank in (0, 1)]
    assert counts == [41, 41]  # what comes before the loop is one, too


@with_mpi
def test_its_late_rank_enters_as_late_as_it_sleeps(trace):
    assert lateness_ns(trace, Op.ALL_REDUCE) > LATE_S / 2 * 1e9  # others may hold it up, too


@with_mpi
def test_requests_that_are_freed_leave_the_others_their_ends(freed):
    rows = freed.of_kind(Kind.POINT_TO_POINT)
    received = rows.select(rows.op == Op.RECV)
    assert len(received) == 2 * 4101
    assert (received.exit_ns[received.payload == 8] > 0).all()
    assert (received.exit_ns[received.payload == 7] == 0).all()


@with_mpi
def test_both_sides_of_an_intercommunicator_name_the_same_group(freed):
    rows = freed.of_kind(Kind.COLLECTIVE)
    between = rows.select(rows.op == Op.BROADCAST)
    assert len(between) == 2
    assert len(set(between.group.tolist())) == 1


def test_without_a_compiler_the_message_says_what_to_do():
    with pytest.raises(UsageError, match="no mpicc on PATH; load your MPI's module"):
        collect.library({"PATH": "/nowhere"})


def test_a_compiler_that_fails_is_quoted(tmp_path):
    broken = tmp_path / "mpicc"
    broken.write_text("#!/bin/sh\necho 'no mpi.h here' >&2\nexit 1\n")
    broken.chmod(0o755)
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin", "XDG_CACHE_HOME": str(tmp_path)}
    with pytest.raises(UsageError, match=r"cannot compile evenstep_pmpi\.c: no mpi\.h here"):
        collect.library(environ)


def put_rank(folder, calls, rank=0):
    """A rank's two files as the shim leaves them, without an end (as after a kill)."""
    place = folder / "attempt-000"
    place.mkdir(exist_ok=True)
    identity = {"rank": rank, "world": 2, "local_rank": rank, "pid": 1, "hostname": "a",
                "boot_id": "b", "anchor_monotonic_ns": 1, "anchor_realtime_ns": 1}  # fmt: skip
    world = {"communicator": 1, "parent": 0, "by": "", "name": "MPI_COMM_WORLD", "ranks": [0, 1]}
    text = "\n".join(json.dumps(line) for line in (identity, world)) + '\n{"communicator'
    (place / f"rank-{rank:05d}.ranks").write_text(text)
    (place / f"rank-{rank:05d}.calls").write_bytes(b"".join(calls) + bytes(640))


def call(seq, enter_ns, exit_ns, kind=1, op=int(Op.BARRIER)):
    """One call on the world."""
    return CALL.pack(seq, enter_ns, exit_ns, 0, 0, 0, -1, 0, 1, kind, op, 0, 1, 0, 0)


def test_a_killed_rank_shows_what_it_hung_in(tmp_path):
    put_rank(tmp_path, [call(1, 100, 200), call(2, 300, 0)])
    assert collect.collect(tmp_path, run_id="r") == 1
    trace = evenstep.load(tmp_path)
    assert trace.of_kind(Kind.COLLECTIVE).exit_ns.tolist() == [200, 0]
    assert not trace.ranks[0].closed


def test_marked_steps_are_taken_as_they_are(tmp_path):
    calls = [call(n, 100 * n, 100 * n + 50, kind=6 if n % 3 == 0 else 1) for n in range(1, 10)]
    put_rank(tmp_path, calls)
    collect.collect(tmp_path, run_id="r")
    steps = evenstep.load(tmp_path).of_kind(Kind.STEP)
    assert steps.exit_ns.tolist() == [350, 650, 950]


def test_a_rank_that_has_a_spool_keeps_it(tmp_path):
    put_rank(tmp_path, [call(1, 100, 200)])
    spool = tmp_path / "attempt-000/rank-00000.spool"
    spool.write_text("of the agent")
    assert collect.collect(tmp_path, run_id="r") == 0
    assert [file.name for file in spool.parent.iterdir()] == [spool.name]


@pytest.mark.parametrize("line", ['{"communicator": 2}', '{"communicator": [], "ranks": 5}'])
def test_of_a_description_that_makes_no_sense_no_spool_is_made(tmp_path, line):
    put_rank(tmp_path, [call(1, 100, 200)])
    text = (tmp_path / "attempt-000/rank-00000.ranks").read_text()
    (tmp_path / "attempt-000/rank-00000.ranks").write_text(f"{text.splitlines()[0]}\n{line}\n")
    assert collect.collect(tmp_path, run_id="r") == 0
    assert not list((tmp_path / "attempt-000").glob("*.spool"))
    assert not list((tmp_path / "attempt-000").glob("*.making"))


def test_a_description_ends_where_it_nests_without_end(tmp_path):
    put_rank(tmp_path, [call(1, 100, 200)])
    with (tmp_path / "attempt-000/rank-00000.ranks").open("a") as described:
        described.write("\n" + "[" * 9_000)
    assert collect.collect(tmp_path, run_id="r") == 1


def test_communicators_made_alike_are_numbered_in_their_order():
    made = [{"communicator": n, "parent": 1, "by": "Split", "name": "", "ranks": ranks}
            for n, ranks in ((2, [0, 1]), (3, [2, 3]), (4, [0, 1]))]  # fmt: skip
    world = {"communicator": 1, "parent": 0, "by": "", "name": "world", "ranks": [0, 1, 2, 3]}
    names = [one.name for one in communicators([world, *made]).values()]
    assert names == ["world", "world.Split", "world.Split", "world.Split (2)"]


def test_every_call_is_the_record_of_what_it_says(tmp_path):
    """Collectives, messages with tags, one of them later, one of another thread, and two waits."""
    fields = [  # times, bytes in and out, CPU time, peer, tag, communicator, kind, op, later
        (100, 200, 8, 16, 0, -1, 0, 1, 1, Op.ALL_REDUCE, 0),
        (300, 310, 32, 0, 0, 1, 7, 1, 2, Op.SEND, 0),
        (320, 330, 0, 32, 0, 1, 9, 1, 2, Op.RECV, 2),
        (340, 350, 32, 0, 0, 1, 7, 1, 2, Op.SEND, 0),
        (400, 500, 8, 16, 0, 0, 0, 1, 1, Op.BROADCAST, 0),
        (1000, 21_000, 0, 0, 0, -1, 0, 1, 3, 0, 0),
        (30_000, 49_999, 0, 0, 0, -1, 0, 1, 3, 0, 0),  # too short to be told
    ]
    put_rank(tmp_path, [CALL.pack(n + 1, *row, 1, n == 3, 0) for n, row in enumerate(fields)])
    collect.collect(tmp_path, run_id="r")
    trace = evenstep.load(tmp_path)
    blocked, later = int(Flag.HOST_BLOCKED), int(Flag.ASYNC | Flag.EXIT_UPPER_BOUND)
    names = "op", "bytes_in", "bytes_out", "payload", "peer_or_root", "group_seq", "flags", "thread"
    rows = trace.of_kind(Kind.COLLECTIVE, Kind.POINT_TO_POINT).sorted_by("enter_ns")
    assert list(zip(*(rows[name].tolist() for name in names), strict=True)) == [
        (Op.ALL_REDUCE, 8, 16, 0, NO_PEER, 0, blocked, 0),
        (Op.SEND, 32, 0, 7, 1, 0, blocked, 0),
        (Op.RECV, 0, 32, 9, 1, 0, later, 0),
        (Op.SEND, 32, 0, 7, 1, 1, blocked, 1),
        (Op.BROADCAST, 8, 16, 0, 0, 1, blocked, 0),
    ]
    assert {trace.groups[group].ranks for group in rows.group.tolist()} == {(0, 1)}
    waits = trace.of_kind(Kind.PHASE)
    assert (waits.op.tolist(), waits.group_seq.tolist()) == ([Phase.SYNC], [20_000])


def test_a_step_is_its_own_time_and_what_blocked_its_thread(tmp_path):
    """Marks at 1000 and 3000 ns; the thread used 500 and then 900 ns of the processor."""
    fields = [  # times, CPU time, kind, op, later, thread
        (100, 400, 0, 1, Op.ALL_REDUCE, 0, 0),
        (500, 600, 0, 2, Op.SEND, 0, 0),  # a send waits for nobody
        (600, 700, 0, 1, Op.ALL_REDUCE, 2, 0),  # it does not block
        (700, 800, 0, 1, Op.ALL_REDUCE, 0, 1),  # another thread
        (1000, 1000, 500, 6, 0, 0, 0),
        (1500, 1700, 0, 3, 0, 0, 0),
        (3000, 3000, 1400, 6, 0, 0, 0),
    ]
    calls = [CALL.pack(n + 1, enter, leave, 0, 0, cpu, -1, 0, 1, kind, op, later, 1, thread, 0)
             for n, (enter, leave, cpu, kind, op, later, thread) in enumerate(fields)]  # fmt: skip
    put_rank(tmp_path, calls)
    collect.collect(tmp_path, run_id="r")
    trace = evenstep.load(tmp_path)
    steps = trace.of_kind(Kind.STEP)
    assert list(zip(steps.enter_ns, steps.exit_ns, steps.group_seq, strict=True)) == [
        (100, 1000, 0), (1000, 3000, 900),  # what the first used before its first call is not known
    ]  # fmt: skip
    phases = trace.summaries["phase_ns"]
    assert phases[:, Phase.SYNC].tolist() == [300, 200]
    assert phases[:, Phase.OTHER].tolist() == [600, 1800]


def ring(*, uniform=1, kind=1, op=int(Op.ALL_REDUCE), communicator=1, thread=0, fields=()):
    """Sixty calls of a loop, each of `fields` (bytes, peer, tag) in turn, of 10 ns every 100."""
    return [
        collect.RingCall(n + 1, 100 * n, 100 * n + 10, size, 0, 0, peer, tag, communicator, kind,
                         op, 0, uniform, thread, 0)
        for n in range(60) for size, peer, tag in [fields[n % len(fields)]]
    ]  # fmt: skip


GROUPS = communicators(
    [{"communicator": n, "parent": 0, "by": "", "name": f"c{n}", "ranks": ranks}
     for n, ranks in ((1, [0, 1]), (2, [0]), (3, [0, 1]))]
)  # fmt: skip


@pytest.mark.parametrize(
    ("what", "fields", "period"),
    [
        ({}, [(8, -1, 0), (16, -1, 0)], 2),
        ({"uniform": 0}, [(8, -1, 0), (16, -1, 0)], 1),  # sizes of a rank's own tell no calls apart
        ({"op": int(Op.BROADCAST)}, [(8, 0, 0), (8, 1, 0), (8, 1, 0)], 3),
        ({"kind": 2, "op": int(Op.SEND)}, [(8, 1, 0), (8, 1, 7)], 2),
        ({"kind": 2, "op": int(Op.SEND)}, [(8, 1, 0), (16, 1, 0)], 1),  # nor of messages
    ],
)
def test_calls_that_come_again_end_steps_by_what_all_ranks_know_of_them(what, fields, period):
    calls = ring(**what, fields=fields)
    ends, how = collect.step_ends(calls, GROUPS)
    assert [call.seq for call in ends] == list(range(period, 61, period))
    assert f"{period} MPI calls come again and again" in how


@pytest.mark.parametrize("what", [{"communicator": 2}, {"thread": 1}, {"kind": 3}])
def test_calls_of_a_rank_alone_of_other_threads_and_waits_end_no_step(what):
    calls = ring(**what, fields=[(8, -1, 0)])
    ends, how = collect.step_ends(calls, GROUPS)
    assert (ends, how.partition(":")[0]) == ([], "no step was told")
    beside = ring(fields=[(8, -1, 0)])
    both = sorted([*calls, *(one._replace(enter_ns=one.enter_ns + 50) for one in beside)],
                  key=lambda one: one.enter_ns)  # fmt: skip
    assert collect.step_ends(both, GROUPS)[0] == [
        one for one in both if (one.communicator, one.thread, one.kind) == (1, 0, 1)
    ]


def test_a_step_that_a_killed_rank_hung_in_has_not_ended():
    calls = ring(fields=[(8, -1, 0)])
    calls[-1] = calls[-1]._replace(exit_ns=0)
    assert collect.step_ends(calls, GROUPS)[0] == calls[:-1]


def test_the_end_that_a_rank_wrote_closes_its_trace(tmp_path):
    put_rank(tmp_path, [call(1, 100, 200)])
    described = tmp_path / "attempt-000/rank-00000.ranks"
    text = described.read_text().rpartition("\n")[0] + '\n{"closed_ns": 777}\n'
    described.write_text(text)
    assert collect.collect(tmp_path, run_id="r") == 1
    trace = evenstep.load(tmp_path)
    assert trace.ranks[0].closed
    assert trace.ranks[0].facts["closed"] == {"monotonic_ns": 777, "reason": "MPI_Finalize"}


def test_a_rank_that_made_no_call_has_no_step(tmp_path):
    put_rank(tmp_path, [])
    assert collect.collect(tmp_path, run_id="r") == 1
    trace = evenstep.load(tmp_path)
    assert len(trace.events) == 0
    assert sorted(trace.ranks) == [0]
