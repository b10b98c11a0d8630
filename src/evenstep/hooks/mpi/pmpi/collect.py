"""Convert the shim's files into spools: infer steps, record waits as phases, name groups.

The shim is built with the MPI's own compiler wrapper, once for each MPI.

Standard library only, like all code that records; a rank's calls are read one by one, at about 5
microseconds each.
"""

from __future__ import annotations

import json
import shlex
import shutil
import struct
import subprocess
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from evenstep.agent.recording.entries import GroupState
from evenstep.compiled import LibrarySource, build
from evenstep.errors import EvenstepError, UsageError
from evenstep.hooks.mpi.groups import numbered
from evenstep.hooks.repeating import MESSAGE, Cycle
from evenstep.trace.ranks import group_uid
from evenstep.trace.spool.layout import NO_PEER, Flag, Kind, Op, Phase
from evenstep.trace.spool.spool import Spool
from evenstep.trace.spool.summary import COUNTERS, StepSummary, SummaryLog

CALL = struct.Struct("<QqqQQqiiHBBBBBB")  # `struct call` of evenstep_pmpi.c
_COLLECTIVE, _MESSAGE, _WAIT, _STEP = 1, 2, 3, 6
_BLOCKING_FLAGS = int(Flag.HOST_BLOCKED)
_LATER_FLAGS = int(Flag.ASYNC | Flag.EXIT_UPPER_BOUND)
SHORTEST_WAIT_NS = 20_000  # as the recorder has it
LIMIT = (
    "seen by the MPI shim: collectives, messages and waits; nothing of what happens between them, "
    "and neither persistent requests, one-sided operations, files nor neighbourhood collectives"
)


#: Errors of damaged files.
_DAMAGE = (struct.error, LookupError, TypeError, ValueError, AttributeError, EvenstepError)
SOURCE = Path(__file__).with_name("evenstep_pmpi.c")


class RingCall(NamedTuple):
    """One call of the ring."""

    seq: int
    enter_ns: int
    exit_ns: int
    bytes_in: int
    bytes_out: int
    cpu_ns: int
    peer: int
    tag: int
    communicator: int
    kind: int
    op: int
    later: int  # 2 where it does not block
    uniform: int
    thread: int
    reserved: int


def collect(folder: Path, *, run_id: str) -> int:
    """Make a spool of every rank's calls; return how many were made.

    A rank with a spool was observed inside Python as well, which records more: that spool stays.
    Damaged files make no spool.
    """
    made = 0
    for calls in sorted(folder.glob("attempt-*/rank-*.calls")):
        spool = calls.with_suffix(".spool")
        if not spool.exists():
            with suppress(*_DAMAGE):
                made += _convert(calls, spool, run_id)
        if spool.exists():
            calls.unlink()
            calls.with_suffix(".ranks").unlink(missing_ok=True)
    return made


def _convert(calls: Path, spool: Path, run_id: str) -> bool:
    lines = list(_lines(calls.with_suffix(".ranks")))
    if not lines or "rank" not in lines[0]:
        return False
    known = sorted(read(calls))
    attempt = int(calls.parent.name.removeprefix("attempt-") or 0)
    scratch = spool.with_suffix(".making")
    scratch.unlink(missing_ok=True)
    try:
        _write(scratch, _identity(lines[0], run_id, attempt), lines, known)
        scratch.replace(spool)
    finally:
        scratch.unlink(missing_ok=True)
    return True


def read(path: Path) -> Iterator[RingCall]:
    """The calls of a ring, without those that were being written when the program was killed."""
    data = path.read_bytes()
    for fields in CALL.iter_unpack(data[: len(data) // CALL.size * CALL.size]):
        if fields[0]:
            yield RingCall(*fields)


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """The complete lines of a description; the last may be cut off."""
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return
    for line in text.splitlines():
        try:
            yield json.loads(line)
        except (ValueError, RecursionError):
            return


def _identity(described: dict[str, Any], run_id: str, attempt: int) -> dict[str, Any]:
    own = {key: value for key, value in described.items() if key != "library"}
    versions = {"mpi": described.get("library", "").strip()}
    more = {"run_id": run_id, "attempt": attempt, "launcher": "pmi", "node": 0, "nodes": 1}
    return {**own, **more, "versions": versions}


# -- steps -----------------------------------------------------------------------------------------


def step_ends(calls: list[RingCall], groups: dict[int, Communicator]) -> tuple[list[RingCall], str]:
    """The calls with which steps ended, and in words how they were found or why there are none."""
    marks = [call for call in calls if call.kind == _STEP]
    if marks:
        return marks, ""
    cycle, ends = Cycle(), []
    for call in calls:
        if call.kind not in (_COLLECTIVE, _MESSAGE) or call.thread:
            continue
        width, signature = _signature(call, groups)
        if width == 1:
            continue
        if not cycle.known:
            ends += _last_of(cycle.learn(width, signature, call))
        elif cycle.ends(width, signature):
            ends.append(call)
    ends += _last_of(cycle.conclude())
    ends = [call for call in ends if call.exit_ns]
    if not ends:
        return [], "no step was told: nothing marks them (MPI_Pcontrol(1) would), nothing repeats"
    return ends, (
        f"nothing marks them (MPI_Pcontrol(1) would): {cycle.period} MPI calls come again and "
        "again, and each time was taken as a step"
    )


def _last_of(steps: list[list[RingCall]]) -> list[RingCall]:
    return [step[-1] for step in steps[:-1]]


def _signature(call: RingCall, groups: dict[int, Communicator]) -> tuple[int, tuple[Any, ...]]:
    group = groups.get(call.communicator)
    ranks = len(group.ranks) if group else 0
    if call.kind == _MESSAGE:
        return MESSAGE, (call.communicator, call.op, call.peer, call.tag)
    size = call.bytes_in if call.uniform else 0
    return ranks, (group.uid if group else "", call.op, size, call.peer)


# -- the spool -------------------------------------------------------------------------------------


def _write(
    path: Path, identity: dict[str, Any], lines: list[dict[str, Any]], calls: list[RingCall]
) -> None:
    groups = communicators(lines)
    ends, how = step_ends(calls, groups)
    spool = Spool.create(
        path, identity, ring_bytes=112 * (2 * len(calls) + 64),
        summary_bytes=512 * (2 * len(ends) + 256),
    )  # fmt: skip
    numbers = {
        number: GroupState.entered(spool, one.name, one.ranks, shown=one.shown, backend="mpi").index
        for number, one in groups.items()
    }
    spool.add_fact("hooks", {"mechanism": "the MPI shim", "unseen": []})
    for key, value in (("background", LIMIT), ("steps", how)):
        if value:
            spool.add_fact(key, value)
    _put_calls(spool, calls, groups, numbers, [call.exit_ns for call in ends])
    _put_steps(spool, calls, ends)
    closed = next((line["closed_ns"] for line in lines if "closed_ns" in line), None)
    if closed is not None:
        spool.add_fact("closed", {"monotonic_ns": closed, "reason": "MPI_Finalize"})
    spool.shut()


def _put_calls(
    spool: Spool,
    calls: list[RingCall],
    groups: dict[int, Communicator],
    numbers: dict[int, int],
    ends_ns: list[int],
) -> None:
    """Collectives, messages and waits as records, each in its step and its order."""
    order: dict[tuple[int, ...], int] = {}
    for call in calls:
        step = bisect_left(ends_ns, call.enter_ns)
        if call.kind == _WAIT and call.exit_ns - call.enter_ns >= SHORTEST_WAIT_NS:
            took = call.exit_ns - call.enter_ns
            spool.put(
                call.enter_ns, call.exit_ns, int(Kind.PHASE), int(Phase.SYNC), step, group_seq=took
            )
        if call.kind not in (_COLLECTIVE, _MESSAGE):
            continue
        group = groups.get(call.communicator)
        message = call.kind == _MESSAGE
        peer = group.ranks[call.peer] if group and 0 <= call.peer < len(group.ranks) else NO_PEER
        key = (call.communicator, *((peer, call.op, call.tag) if message else ()))
        place = order[key] = order.get(key, -1) + 1
        spool.put(
            call.enter_ns, call.exit_ns, int(Kind.POINT_TO_POINT if message else Kind.COLLECTIVE),
            call.op, step, 0, numbers.get(call.communicator, 0), place, call.bytes_in,
            call.bytes_out, _LATER_FLAGS if call.later else _BLOCKING_FLAGS, peer,
            thread=call.thread, payload=max(call.tag, 0) if message else 0,
        )  # fmt: skip


def _put_steps(spool: Spool, calls: list[RingCall], ends: list[RingCall]) -> None:
    """A record and a summary of every step that ended; the first begins with the first call."""
    if not calls:
        return
    summaries = SummaryLog(spool.summary_view(), spool.regions.summary_capacity)
    start_ns, cpu_ns = calls[0].enter_ns, 0
    blocked = _blocked_by_step(calls, [call.exit_ns for call in ends])
    for number, call in enumerate(ends):
        used = max(call.cpu_ns - cpu_ns, 0) if number else 0
        spool.put(start_ns, call.exit_ns, int(Kind.STEP), 0, number, group_seq=used, peer=0)
        phases = [0] * len(Phase)
        phases[Phase.SYNC] = min(blocked[number], call.exit_ns - start_ns)
        phases[Phase.OTHER] = call.exit_ns - start_ns - phases[Phase.SYNC]
        counted = [used if name == "cpu_ns" else 0 for name in COUNTERS]
        summaries.append(StepSummary(number, number, start_ns, call.exit_ns, 0, phases, counted))
        start_ns, cpu_ns = call.exit_ns, call.cpu_ns
    summaries.release()


def _blocked_by_step(calls: list[RingCall], ends_ns: list[int]) -> list[int]:
    """How long the main thread was blocked in each step, and after the last."""
    found = [0] * (len(ends_ns) + 1)
    for call in calls:
        waits = call.kind == _WAIT or (not call.later and call.op != int(Op.SEND))
        if waits and not call.thread and call.exit_ns:
            found[bisect_left(ends_ns, call.enter_ns)] += call.exit_ns - call.enter_ns
    return found


# -- communicators, named so that all their members agree -----------------------------------------


class Communicator(NamedTuple):
    """A communicator's members and name."""

    name: str  # the same on every member, and of no other communicator
    shown: str
    ranks: tuple[int, ...]  # global, in the order of the communicator's own

    @property
    def uid(self) -> str:
        """The identity all members agree on."""
        return group_uid(self.ranks, self.name)


def communicators(lines: list[dict[str, Any]]) -> dict[int, Communicator]:
    """The communicators of a description, by the rank's own number.

    A name has the parent, the call, and the number among those made alike with the same ranks: its
    members have made the same calls in the same order.
    """
    found: dict[int, Communicator] = {}
    made: Counter[tuple[str, tuple[int, ...]]] = Counter()
    for line in lines:
        if "communicator" not in line:
            continue
        ranks = tuple(rank for rank in line["ranks"] if rank >= 0)
        parent = found.get(line["parent"])
        name = line["name"] or "communicator"
        if parent is not None:
            name = f"{parent.name}.{line['by']}"
        name = numbered(made, name, ranks)
        found[line["communicator"]] = Communicator(name, line["name"] or name, ranks)
    return found


def library(environ: Mapping[str, str]) -> Path:
    """The shim for the MPI whose `mpicc` is first on PATH; compiled if necessary.

    Raises `UsageError` where there is no such wrapper, or it cannot compile.
    """
    wrapper = environ.get("MPICC") or "mpicc"
    compiler = shutil.which(wrapper, path=environ.get("PATH"))
    if compiler is None:
        raise UsageError(
            f"--mpi-shim needs a C compiler for MPI, and there is no {wrapper} on PATH; load your "
            "MPI's module or name its wrapper in MPICC (mpi4py programs need no shim)"
        )
    shown = subprocess.run([compiler, "-show"], capture_output=True, text=True, check=False)
    built = build(
        LibrarySource(SOURCE, against=(shown.stdout,), compiler=shlex.quote(compiler)), environ
    )
    if built.path is None:
        raise UsageError(f"--mpi-shim: {built.reason}")
    return built.path
