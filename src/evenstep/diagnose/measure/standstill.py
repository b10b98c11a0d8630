"""An operation that somebody entered and did not leave, and how long it has been in flight."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evenstep.trace.columns import Columns
from evenstep.trace.spool.layout import SYNCHRONIZING_OPS, Flag, Kind, Op
from evenstep.trace.trace import Trace

Array = npt.NDArray[Any]

#: The side of a call whose size all members must bring alike.
_ALIKE: Mapping[int, str] = {
    int(op): side
    for side, ops in (
        ("bytes_in", (Op.ALL_REDUCE, Op.BROADCAST, Op.REDUCE, Op.ALL_GATHER, Op.GATHER)),
        ("bytes_out", (Op.REDUCE_SCATTER, Op.SCATTER)),
    )
    for op in ops
}


class Call(NamedTuple):
    """What a rank entered. `size` is None where members may differ in it."""

    op: int
    size: int | None
    dtype: int
    name: int  # where it was called from: index of `Trace.names`


class Stuck(NamedTuple):
    """The first operation of a group that was never left by somebody."""

    group: int
    sequence: int
    op: int
    step: int
    waiting: list[int]
    missing: list[int]
    different: list[int]  # ranks that entered another operation, or another size, at that place
    since_ns: int  # in flight for so long at the end of the trace
    calls: Mapping[int, Call] = {}  # what each rank entered there
    untraced: tuple[int, ...] = ()  # members without a trace
    pause_ns: int | None = None  # of a dump: the longest pause between operations before
    timed: bool = True  # whether since_ns is known, not only a lower bound
    peer: int = -1  # of a message
    entered_ns: int = 0  # when the first of the waiting entered it, on its own clock


def unfinished(trace: Trace, kind: Kind = Kind.COLLECTIVE) -> Columns:
    """Operations that nobody finished: without an exit on ranks that did not end their trace
    themselves or ended by an exception, or ended by an error (a timeout, a peer that is gone)."""
    events = trace.of_kind(kind)
    wanted = (events.flags & int(Flag.FAILED)) != 0
    still = [r for r, info in trace.ranks.items() if not info.closed or "raised" in info.facts]
    if still:  # the columns of a large run are read from its files: no more of them than needed
        wanted |= (events.exit_ns == 0) & np.isin(events["rank"], still)
        if kind is Kind.COLLECTIVE:
            wanted |= _without_all(events) & np.isin(events["rank"], still)
    return events.select(wanted)


def _without_all(events: Columns) -> Array:
    """Collectives that end when all have entered, and that a member of the group had not reached.

    However they ended, it was by an error: a backend's threads do not always say so. A member that
    was never seen in the group tells nothing.
    """
    found = np.zeros(len(events), bool)
    waits = np.isin(events.op, [int(op) for op in SYNCHRONIZING_OPS])
    for group in np.unique(events.group[events.group >= 0]):
        mine = np.flatnonzero(events.group == group)
        sequence, ranks = events.group_seq[mine], events["rank"][mine]
        last = [sequence[ranks == rank].max() for rank in np.unique(ranks)]
        found[mine] = waits[mine] & (sequence > min(last))
    return found


def call_of(rows: Columns, index: int) -> Call:
    """What the rank of a row entered."""
    op = int(rows.op[index])
    side = _ALIKE.get(op)
    size = int(rows[side][index]) if side else None
    dtype = int(rows.dtype[index]) if side else 0
    return Call(op, size, dtype, int(rows.name[index]))


def in_flight(trace: Trace, waiting: Columns) -> tuple[int, bool]:
    """How long the first of them had waited when the last rank on its clock is heard of, and
    whether that is all: a dump that was copied does not tell when it was written."""
    enter_ns, exit_ns = int(waiting.enter_ns[0]), int(waiting.exit_ns[0])
    if exit_ns > 0:  # it ended by an error
        return exit_ns - enter_ns, True
    info = trace.ranks[int(waiting["rank"][0])]
    last = _last_heard(trace, info.clock)
    if "dump" not in info.facts:
        return last - enter_ns, True
    written = info.facts["dump"].get("written_ns")
    return max(last, written or 0) - enter_ns, written is not None


def _last_heard(trace: Trace, clock: str) -> int:
    """The last moment on a clock that any record, heartbeat or launcher knows of."""
    near = {rank: info for rank, info in trace.ranks.items() if info.clock == clock}
    events = trace.events
    mine = np.isin(events["rank"], list(near))
    latest = [int(events[name][mine].max()) for name in ("enter_ns", "exit_ns") if mine.any()]
    latest += [int(info.facts.get("heartbeat_ns", 0)) for info in near.values()]
    ends = (info.facts.get("ended") or {} for info in near.values())
    latest += [int(end.get("monotonic_ns", 0)) for end in ends]
    return max(latest, default=0)


def longest_pause(trace: Trace, ranks: Iterable[int]) -> int | None:
    """The longest pause between operations of these ranks in the last half of their dumps.

    The first half may hold start-up and compilation. None for a trace that is no dump.
    """
    pauses = []
    for rank in ranks:
        if "dump" not in trace.ranks[rank].facts:
            return None
        enter = np.sort(trace.events.enter_ns[trace.events["rank"] == rank])
        gaps = np.diff(enter[len(enter) // 2 :])
        pauses.append(int(gaps.max()) if len(gaps) else 0)
    return max(pauses, default=0)
