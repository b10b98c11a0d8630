"""`hang`: a collective that some ranks entered and never left, and who did not come."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from evenstep.diagnose import words
from evenstep.diagnose.finding import Effect, Evidence, Finding, Option, When
from evenstep.trace.columns import Columns
from evenstep.trace.layout import Flag, Kind, Op
from evenstep.trace.trace import Trace

if TYPE_CHECKING:
    from evenstep.diagnose.case import Case

SHORTEST_NS = 2_000_000_000  # in flight for less than this may just be a slow step
STEPS = 10  # … and for less than so many median steps


class Stuck(NamedTuple):
    """The first collective of a group that was never left by somebody."""

    group: int
    sequence: int
    op: int
    step: int
    waiting: list[int]
    missing: list[int]
    different: list[int]  # ranks that entered another operation, or another size, at that place
    since_ns: int  # in flight for so long at the end of the trace


def open_collectives(trace: Trace) -> Columns:
    """Collectives that nobody finished: without an exit on ranks that did not end their trace
    themselves, or ended by an error (a timeout)."""
    events = trace.of_kind(Kind.COLLECTIVE)
    unfinished = [rank for rank, info in trace.ranks.items() if not info.closed]
    never_left = (events.exit_ns == 0) & np.isin(events["rank"], unfinished)
    return events.select(never_left | ((events.flags & int(Flag.FAILED)) != 0))


def stuck(trace: Trace) -> list[Stuck]:
    """The earliest open collective of each group, without those that only wait for another's.

    A rank that hangs in one group and so keeps the next one waiting is a victim. Where all wait
    for one another in a circle, all are told.
    """
    events = trace.of_kind(Kind.COLLECTIVE)
    pending = open_collectives(trace)
    found = []
    for group in np.unique(pending.group[pending.group >= 0]):
        mine = pending.select(pending.group == group)
        sequence = int(mine.group_seq.min())
        entered = events.select((events.group == group) & (events.group_seq == sequence))
        waiting = mine.select(mine.group_seq == sequence)
        members = [rank for rank in trace.groups[group].ranks if rank in trace.ranks]
        present = {int(rank) for rank in entered["rank"]}
        common, different = _different(entered)
        found.append(
            Stuck(
                group=int(group),
                sequence=sequence,
                op=common,
                step=int(waiting.step[0]),
                waiting=[int(rank) for rank in waiting["rank"]],
                missing=[rank for rank in members if rank not in present],
                different=different,
                since_ns=_in_flight(trace, waiting),
            )
        )
    held_up = {rank for place in found for rank in place.waiting}
    roots = [place for place in found if not place.missing or set(place.missing) - held_up]
    return [
        place._replace(missing=[rank for rank in place.missing if rank not in held_up])
        for place in roots
    ] or found


def _different(entered: Columns) -> tuple[int, list[int]]:
    """The operation most ranks entered, and who entered another one, or another size of it.

    Without a majority all of them differ.
    """
    sized = np.where(entered.op == int(Op.ALL_REDUCE), entered.bytes_in.astype(np.int64), 0)
    calls = [(int(op), int(size)) for op, size in zip(entered.op, sized, strict=True)]
    (usual, votes), *others = Counter(calls).most_common()
    tied = bool(others) and others[0][1] == votes
    odd = [int(r) for r, call in zip(entered["rank"], calls, strict=True) if tied or call != usual]
    return usual[0], odd


def _in_flight(trace: Trace, waiting: Columns) -> int:
    """How long the first of them had waited when the last rank on its clock is heard of."""
    clock = trace.ranks[int(waiting["rank"][0])].clock
    near = [rank for rank, info in trace.ranks.items() if info.clock == clock]
    heard = trace.events.select(np.isin(trace.events["rank"], near))
    last = int(np.maximum(heard.enter_ns, heard.exit_ns).max())
    if waiting.exit_ns[0] > 0:  # it ended by an error
        last = int(waiting.exit_ns[0])
    return last - int(waiting.enter_ns[0])


def long_enough(places: list[Stuck], step_ns: float) -> list[Stuck]:
    """Those that were stuck for much longer than a step takes."""
    limit = max(SHORTEST_NS, STEPS * step_ns)
    return [place for place in places if place.since_ns > limit]


def describe(trace: Trace, place: Stuck) -> str:
    """ "all_reduce 124 of default_pg"."""
    group = trace.groups[place.group].name
    return f"{Op(place.op).name.lower()} {place.sequence} of group {group}"


def find(case: Case) -> list[Finding]:
    """Groups that were stuck for much longer than a step takes."""
    return [_finding(case, place) for place in case.stuck]


def _finding(case: Case, place: Stuck) -> Finding:
    culprits = place.missing or place.different
    together = sum(other.since_ns for other in case.stuck)  # the same time is lost once
    share = place.since_ns / together * case.hung_ns / (case.hung_ns + case.grid.total_ns)
    what = describe(case.trace, place)
    if place.missing:
        cause = f"{case.named(place.missing)} never entered it"
    elif place.different:
        entered = "entered another operation or size at that place than the others"
        if len(place.different) > 1 and set(place.different) >= set(place.waiting):
            entered = "entered different operations or sizes at that place"
        cause = f"{case.named(place.different)} {entered}"
    else:
        cause = (
            "every traced rank entered it: a rank without a trace, or the transport, is at fault"
        )
    return Finding(
        mode="hang",
        layer="framework" if culprits else "fabric",
        severity=round(min(share, 1.0), 4),
        confidence=0.9 if culprits else 0.5,
        observation=f"{words.ranks(place.waiting)} hung in {what}, {_for(place)}",
        cause=cause,
        where=case.where(culprits),
        when=When([(place.step, place.step)], "transient"),
        effect=Effect(round(min(share, 1.0), 4)),
        options=[
            Option(
                "look at the stack of the rank that did not come (py-spy dump), then at what "
                "differs in its control flow before this collective",
                None,
                None,
                None,
                "none",
                "the last records of every rank",
            )
        ],
        evidence=[Evidence("in_flight_at_the_end", place.since_ns, round(0.0), "ns")],
    )


def _for(place: Stuck) -> str:
    return f"for {words.duration(place.since_ns)} when the trace ends"


def endings(trace: Trace) -> list[str]:
    """For the limits: ranks whose trace has no end, and what they were in."""
    told = {}
    for place in stuck(trace):
        for rank in place.waiting:
            told[rank] = f", inside {describe(trace, place)} (step {place.step})"
    return [
        f"rank {rank} did not end its trace (killed, or still running){told.get(rank, '')}"
        for rank, info in trace.ranks.items()
        if not info.closed
    ]
