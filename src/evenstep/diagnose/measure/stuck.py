"""What a job stands still in, and for whom.

A rank that waits in a collective waits for the members that have not entered it, or that entered
something else in its place; one that waits in a message waits for its peer. Who waits himself is a
victim: followed from rank to rank, this leads to those who wait for nobody.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np

from evenstep.diagnose.measure.standstill import (
    EnteredCall,
    Stuck,
    call_of,
    in_flight,
    longest_pause,
    unanswered,
    unfinished,
)
from evenstep.trace.columns import Columns
from evenstep.trace.spool.layout import SYNCHRONIZING_OPS, Kind, Op
from evenstep.trace.trace import Trace

SHORTEST_NS = 500_000_000  # in flight for less than this may just be a slow step
STEPS = 20  # … and for less than so many of the longest steps (their 99 % quantile)
SHORTEST_IN_DUMP_NS = 100_000_000  # a dump is written because something is wrong
HISTORY, CONTEXT = 4096, 64  # calls looked back at, and compared with those that led to a hang
PAUSES = 3  # … and for less than so many of the longest pauses between operations


def stuck(trace: Trace) -> list[Stuck]:
    """The earliest open operation of each group, without those that only wait for another's.

    A rank that hangs in one group and so keeps the next one waiting is a victim. Where all wait
    for one another in a circle, all are told.
    """
    found = _collectives(trace) + unanswered(trace)
    held_up = {rank for place in found for rank in place.waiting}
    roots = [place for place in found if not place.missing or set(place.missing) - held_up]
    explained = [place for place in roots if place.missing or place.different or place.untraced]
    told = [
        place._replace(missing=[rank for rank in place.missing if rank not in held_up])
        for place in explained or roots
    ]
    behind = [bool(set(place.missing) & held_up) for place in explained or roots]
    named = {r for place, late in zip(told, behind, strict=True) if not late for r in place.missing}
    return [
        place
        for place, late in zip(told, behind, strict=True)
        if not late or set(place.missing) - named
    ] or found


def long_enough(places: list[Stuck], step_ns: float) -> list[Stuck]:
    """Those that were stuck for much longer than a step takes.

    A dump has no steps: there the longest pause between operations stands in. Calls that differ, or
    a dump that does not tell how long, are reason enough.
    """
    return [
        place
        for place in places
        if not place.timed
        or (place.pause_ns is not None and place.different)
        or place.since_ns > limit_ns(place, step_ns)
    ]


def limit_ns(place: Stuck, step_ns: float) -> float:
    """What is in flight for longer than this hangs, where the longest steps take `step_ns`."""
    if place.pause_ns is None:
        return max(SHORTEST_NS, STEPS * step_ns)
    return max(SHORTEST_IN_DUMP_NS, PAUSES * place.pause_ns)


# -- collectives -----------------------------------------------------------------------------------


def _collectives(trace: Trace) -> list[Stuck]:
    pending = unfinished(trace)
    if not len(pending):
        return []
    events = trace.of_kind(Kind.COLLECTIVE)
    found = []
    for group in np.unique(pending.group[pending.group >= 0]):
        mine = pending.select(pending.group == group)
        for sequence in np.unique(mine.group_seq):
            waiting = mine.select(mine.group_seq == sequence)
            place = _place(trace, events, waiting)
            if place is not None:
                found.append(place)
                break
    return found


def _place(trace: Trace, events: Columns, waiting: Columns) -> Stuck | None:
    """Who waits for whom in a collective; None where some have finished it.

    A dump may be written on one rank a moment before the next: what others have left is no hang.
    """
    group, sequence = int(waiting.group[0]), int(waiting.group_seq[0])
    entered = events.select((events.group == group) & (events.group_seq == sequence))
    calls = {int(r): call_of(entered, i) for i, r in enumerate(entered["rank"])}
    common, different = _different(calls)
    if len(different) == len(calls) > 1:
        different = _unusual(events, waiting, calls) or different
    passed = _passed(trace, events, group, sequence) - set(calls)
    finished = (entered.exit_ns > 0) & ~np.isin(entered["rank"], waiting["rank"])
    left = bool(passed) or bool(finished.any())
    if left and not different and common in SYNCHRONIZING_OPS:
        return None
    everybody = trace.groups[group].ranks
    since_ns, timed = in_flight(trace, waiting)
    return Stuck(
        group=group,
        sequence=sequence,
        op=int(common),
        step=int(waiting.step[0]),
        waiting=[int(rank) for rank in waiting["rank"]],
        missing=[r for r in everybody if r in trace.ranks and r not in calls and r not in passed],
        different=different,
        since_ns=since_ns,
        calls=calls,
        untraced=tuple(rank for rank in everybody if rank not in trace.ranks),
        pause_ns=longest_pause(trace, [int(rank) for rank in waiting["rank"]]),
        timed=timed,
        entered_ns=int(waiting.enter_ns.min()),
    )


def _different(calls: Mapping[int, EnteredCall]) -> tuple[Op, list[int]]:
    """The operation most ranks entered, and who entered another one, or another size of it.

    Without a majority all of them differ.
    """
    kinds = {rank: call[:3] for rank, call in calls.items()}
    (usual, votes), *others = Counter(kinds.values()).most_common()
    tied = bool(others) and others[0][1] == votes
    odd = sorted(rank for rank, kind in kinds.items() if tied or kind != usual)
    return Op(usual[0]), odd


def _unusual(events: Columns, waiting: Columns, calls: Mapping[int, EnteredCall]) -> list[int]:
    """Where no majority tells: who did not call what followed when the same was called before.

    Training repeats its collectives; the longest repetition of the calls that led here counts.
    """
    group, sequence, rank = (waiting[name][0] for name in ("group", "group_seq", "rank"))
    own = events.select((events.group == group) & (events["rank"] == rank))
    own = own.select(own.group_seq < sequence).sorted_by("group_seq")
    own = own.select(slice(-HISTORY, None))
    kinds = [call_of(own, index)[:3] for index in range(len(own))]
    followed, longest = None, 0
    for end in range(len(kinds) - 1, 0, -1):
        alike = 0
        while alike < min(end, CONTEXT) and kinds[end - 1 - alike] == kinds[-1 - alike]:
            alike += 1
        if alike > longest:
            followed, longest = kinds[end], alike
    odd = sorted(rank for rank, call in calls.items() if call[:3] != followed)
    return odd if len(odd) < len(calls) else []


def _passed(trace: Trace, events: Columns, group: int, sequence: int) -> set[int]:
    """Ranks that are known to have got beyond a collective their ring no longer holds."""
    found = {
        rank
        for rank, info in trace.ranks.items()
        if (info.facts.get("dump") or {}).get("reached", {}).get(str(group), -1) > sequence
    }
    wrapped = [rank for rank, info in trace.ranks.items() if info.dropped]
    if wrapped:
        later = (events.group == group) & (events.group_seq > sequence)
        found |= set(np.unique(events["rank"][later]).tolist()) & set(wrapped)
    return found
