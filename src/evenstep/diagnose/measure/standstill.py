"""An operation that somebody entered and did not leave, and how long it has been in flight."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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


class EnteredCall(NamedTuple):
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
    calls: Mapping[int, EnteredCall] = {}  # what each rank entered there
    untraced: tuple[int, ...] = ()  # members without a trace
    pause_ns: int | None = None  # of a dump: the longest pause between operations before
    timed: bool = True  # whether since_ns is known, not only a lower bound
    peer: int = -1  # of a message
    entered_ns: int = 0  # when the first of the waiting entered it, on its own clock


def unfinished(trace: Trace, kind: Kind = Kind.COLLECTIVE) -> Columns:
    """Operations that nobody finished: without an exit on ranks that did not end their trace
    themselves or ended by an exception, or ended by an error (a timeout, a peer that is gone)."""
    events = trace.of_kind(kind)
    still = [r for r, info in trace.ranks.items() if not info.closed or "raised" in info.facts]
    # the columns of a large run are read from its files: no more of them than needed
    if not still and not trace.flagged(kind, Flag.FAILED):
        return events.select(slice(0, 0))
    wanted = (events.flags & int(Flag.FAILED)) != 0
    if still:
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


def call_of(rows: Columns, index: int) -> EnteredCall:
    """What the rank of a row entered."""
    op = int(rows.op[index])
    side = _ALIKE.get(op)
    size = int(rows[side][index]) if side else None
    dtype = int(rows.dtype[index]) if side else 0
    return EnteredCall(op, size, dtype, int(rows.name[index]))


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


# -- messages whose other end was never called -----------------------------------------------------
# One is known by its group, ends, direction, tag and number. Where a ring has lost its oldest
# records numbers do not compare; then an open call of the other direction counts as the other end.


def unanswered(trace: Trace) -> list[Stuck]:
    """Messages whose other end was never called, one place per peer that is waited for."""
    pending = unfinished(trace, Kind.POINT_TO_POINT)
    if not len(pending):
        return []
    events = trace.of_kind(Kind.POINT_TO_POINT)
    pending = pending.sorted_by("enter_ns")
    first: dict[tuple[int, int, int], list[int]] = {}
    seen: set[tuple[int, int, int]] = set()
    for index in range(len(pending)):
        rank, peer, op = (int(pending[name][index]) for name in ("rank", "peer_or_root", "op"))
        if (rank, peer, op) in seen:
            continue
        seen.add((rank, peer, op))
        if not _answered(trace, events, pending, index):
            first.setdefault((int(pending.group[index]), peer, op), []).append(index)
    places = [_message(trace, pending.select(np.array(rows))) for rows in first.values()]
    return [place for n, place in enumerate(places) if not _mirrored(place, places[:n])]


def _mirrored(place: Stuck, before: Sequence[Stuck]) -> bool:
    """Whether it is the other end of a message that has been told: both called, neither left."""
    return not place.missing and any(
        not other.missing and other.peer in place.waiting and place.peer in other.waiting
        for other in before
    )


def _answered(trace: Trace, events: Columns, pending: Columns, index: int) -> bool:
    """Whether the peer has finished its side: the message was merely not seen to end here."""
    matching = _other_side(trace, events, pending, index)
    return bool((matching.exit_ns > 0).any()) if matching is not None else False


def _other_side(trace: Trace, events: Columns, pending: Columns, index: int) -> Columns | None:
    """The peer's calls of the same message; None where they cannot be told from others."""
    rank, peer = int(pending["rank"][index]), int(pending.peer_or_root[index])
    if peer not in trace.ranks or trace.ranks[peer].dropped or trace.ranks[rank].dropped:
        return None
    op = int(Op.RECV if pending.op[index] == int(Op.SEND) else Op.SEND)
    same = (events["rank"] == peer) & (events.peer_or_root == rank) & (events.op == op)
    for name in ("group", "group_seq", "payload"):
        same &= events[name] == pending[name][index]
    return events.select(same)


def _message(trace: Trace, waiting: Columns) -> Stuck:
    peer, group = int(waiting.peer_or_root[0]), int(waiting.group[0])
    events = trace.of_kind(Kind.POINT_TO_POINT)
    other = _other_side(trace, events, waiting, 0)
    came = _came(events, waiting) if other is None else bool(len(other))
    ranks = [int(rank) for rank in waiting["rank"]]
    since_ns, timed = in_flight(trace, waiting)
    differs = other is not None and len(other) > 0 and _sizes_differ(waiting, other)
    return Stuck(
        group=group,
        sequence=int(waiting.group_seq[0]),
        op=int(waiting.op[0]),
        step=int(waiting.step[0]),
        waiting=ranks,
        missing=[peer] if peer in trace.ranks and not came else [],
        different=sorted({ranks[0], peer}) if differs else [],
        since_ns=since_ns,
        calls={rank: call_of(waiting, index) for index, rank in enumerate(ranks)},
        untraced=(peer,) if peer >= 0 and peer not in trace.ranks else (),
        pause_ns=longest_pause(trace, ranks),
        timed=timed,
        peer=peer,
        entered_ns=int(waiting.enter_ns.min()),
    )


def _came(events: Columns, waiting: Columns) -> bool:
    """Whether the peer has any open call of the other direction, where counts do not compare."""
    rank, peer = int(waiting["rank"][0]), int(waiting.peer_or_root[0])
    op = int(Op.RECV if waiting.op[0] == int(Op.SEND) else Op.SEND)
    same = (events["rank"] == peer) & (events.peer_or_root == rank) & (events.op == op)
    return bool((same & (events.exit_ns == 0)).any())


def _sizes_differ(waiting: Columns, other: Columns) -> bool:
    mine, theirs = int(waiting.bytes_in[0]), int(other.bytes_in[0])
    side = (int(waiting.bytes_out[0]), int(other.bytes_out[0]))
    return max(mine, side[0]) != max(theirs, side[1])
