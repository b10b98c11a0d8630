"""Messages whose other end was never called: a receive without its send, or the reverse.

A message is known by its group, ends, direction, tag and number. Where a ring has lost its oldest
records numbers do not compare; then an open call of the other direction counts as the other end.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evenstep.diagnose.measure.standstill import (
    Stuck,
    call_of,
    in_flight,
    longest_pause,
    unfinished,
)
from evenstep.trace.columns import Columns
from evenstep.trace.spool.layout import Kind, Op
from evenstep.trace.trace import Trace


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
