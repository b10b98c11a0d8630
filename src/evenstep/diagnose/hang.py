"""`hang`: a collective that some ranks entered and never left, and who did not come."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from evenstep.diagnose import words
from evenstep.diagnose.case import Case
from evenstep.diagnose.finding import Effect, Evidence, Finding, Option, When
from evenstep.trace.columns import Columns
from evenstep.trace.layout import Kind, Op
from evenstep.trace.trace import Trace

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
    """Collectives without an exit, on ranks that did not end their trace themselves."""
    events = trace.of_kind(Kind.COLLECTIVE)
    unfinished = [rank for rank, info in trace.ranks.items() if not info.closed]
    return events.select((events.exit_ns == 0) & np.isin(events["rank"], unfinished))


def stuck(trace: Trace) -> list[Stuck]:
    """The earliest open collective of each group."""
    events = trace.of_kind(Kind.COLLECTIVE)
    pending = open_collectives(trace)
    found = []
    for group in np.unique(pending.group[pending.group >= 0]):
        mine = pending.select(pending.group == group)
        sequence = int(mine.group_seq.min())
        entered = events.select((events.group == group) & (events.group_seq == sequence))
        waiting = mine.select(mine.group_seq == sequence)
        op, size = int(waiting.op[0]), int(waiting.bytes_in[0])
        members = [rank for rank in trace.groups[group].ranks if rank in trace.ranks]
        present = {int(rank) for rank in entered["rank"]}
        odd = (entered.op != op) | (entered.bytes_in != size) & (op == int(Op.ALL_REDUCE))
        found.append(
            Stuck(
                group=int(group),
                sequence=sequence,
                op=op,
                step=int(waiting.step[0]),
                waiting=[int(rank) for rank in waiting["rank"]],
                missing=[rank for rank in members if rank not in present],
                different=[int(rank) for rank in entered["rank"][odd]],
                since_ns=_in_flight(trace, waiting),
            )
        )
    return found


def _in_flight(trace: Trace, waiting: Columns) -> int:
    """How long the first of them had waited when its own trace ends."""
    rank = int(waiting["rank"][0])
    mine = trace.events.select(trace.events["rank"] == rank)
    return int(np.maximum(mine.enter_ns, mine.exit_ns).max() - waiting.enter_ns[0])


def describe(trace: Trace, place: Stuck) -> str:
    """ "all_reduce 124 of default_pg"."""
    group = trace.groups[place.group].name
    return f"{Op(place.op).name.lower()} {place.sequence} of group {group}"


def find(case: Case) -> list[Finding]:
    """Groups that were stuck for much longer than a step takes."""
    step = float(np.median(case.grid.step_ns)) if len(case.grid.steps) else 0.0
    limit = max(SHORTEST_NS, STEPS * step)
    return [_finding(case, place) for place in stuck(case.trace) if place.since_ns > limit]


def _finding(case: Case, place: Stuck) -> Finding:
    culprits = place.missing or place.different
    share = place.since_ns / (place.since_ns + case.grid.total_ns)
    what = describe(case.trace, place)
    if place.missing:
        cause = f"{case.named(place.missing)} never entered it"
    elif place.different:
        cause = f"{case.named(place.different)} entered another operation or size at that place"
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
