"""What the training threads of late ranks were seen in, from the looks at them (`Kind.STACK`).

What a rank does in a step that others do as long is no reason for being late. So a place counts by
the time that it takes of a step beyond what it takes on the median of the other ranks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from evenstep import words
from evenstep.diagnose.finding import TERMINAL, CallStack, Finding
from evenstep.trace.columns import Columns
from evenstep.trace.spool.layout import Kind
from evenstep.trace.trace import Trace

SEPARATOR = " < "
NAMED = 0.1  # share of the looks from which a place stands in the sentence
STACKS_OF_A_RANK, RANKS_TOLD = 3, 8


class Looks(NamedTuple):
    """The looks at one rank: how many, and for each innermost function how many saw which stack."""

    total: int
    places: Mapping[str, Mapping[str, int]]

    def share(self, place: str) -> float:
        """Of the looks, in which the thread was there."""
        return sum(self.places.get(place, {}).values()) / max(self.total, 1)


def with_stacks(trace: Trace, finding: Finding) -> Finding:
    """The finding with what its culprits were seen in; of a hang, what everybody was; of a death,
    where the exception came from."""
    if finding.mode == "rank_failed":
        frames = {rank: _raised(trace, rank) for rank in finding.where.ranks}
        stacks = [CallStack(rank, 1.0, found) for rank, found in frames.items() if found]
        return replace(finding, stacks=stacks)
    rows = trace.of_kind(Kind.STACK)
    if not len(rows) or not (finding.where.ranks or finding.mode in TERMINAL):
        return finding
    if finding.mode in TERMINAL:
        stacks = _at_the_end(trace, rows, finding.when.steps[-1][1] if finding.when.steps else 0)
        told = [each for each in stacks if each.rank in finding.where.ranks]
        cause = (
            f"{finding.cause}; it was in {words.own_place(told[0].frames)}"
            if told
            else finding.cause
        )
        return replace(finding, stacks=stacks, cause=cause)
    stacks = _of_late(trace, rows, finding.where.ranks[:RANKS_TOLD])
    if not stacks:
        return finding
    first = stacks[0]
    of = f" of the looks at rank {first.rank}"
    seen = f"; in {words.percent(first.share)}{of} it was in {words.own_place(first.frames)}"
    return replace(finding, stacks=stacks, cause=finding.cause + seen)


def _raised(trace: Trace, rank: int) -> list[str]:
    """The frames of the exception that ended a rank."""
    return list((trace.ranks[rank].facts.get("raised") or {}).get("frames") or ())


def _at_the_end(trace: Trace, rows: Columns, step: int) -> list[CallStack]:
    """The last look at each rank from this step on."""
    rows = rows.select(rows.step >= step).sorted_by("exit_ns")
    last = {int(rank): index for index, rank in enumerate(rows["rank"])}
    return [
        CallStack(rank, 1.0, trace.names[int(rows.name[index])].split(SEPARATOR))
        for rank, index in sorted(last.items())
    ]


def _of_late(trace: Trace, rows: Columns, ranks: Sequence[int]) -> list[CallStack]:
    """What these ranks were in for longer than the others, the most first."""
    looks = {int(rank): _looks(trace, rows, int(rank)) for rank in np.unique(rows["rank"])}
    step_ns = _step_ns(trace, list(looks))
    found = []
    for rank in (rank for rank in ranks if rank in looks):
        others = [other for other in looks if other not in ranks]
        excess = {
            place: looks[rank].share(place) * step_ns[rank] - _usual(looks, step_ns, others, place)
            for place in looks[rank].places
        }
        worst = sorted((p for p in excess if excess[p] > 0), key=lambda p: (-excess[p], p))
        for place in worst[:STACKS_OF_A_RANK]:
            share, seen = looks[rank].share(place), looks[rank].places[place]
            text = max(sorted(seen), key=lambda each: seen[each])
            if share >= NAMED:
                found.append(CallStack(rank, round(share, 3), text.split(SEPARATOR)))
    return found


def _looks(trace: Trace, rows: Columns, rank: int) -> Looks:
    mine = rows.select(rows["rank"] == rank)
    places: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for name, count in zip(mine.name, mine.payload, strict=True):
        text = trace.names[int(name)]
        places[_function(text.partition(SEPARATOR)[0])][text] += int(count)
    return Looks(int(mine.payload.sum()), places)


def _function(frame: str) -> str:
    """A frame without its line: a loop is one place."""
    file, _, rest = frame.rpartition(":")
    return f"{file} {rest.partition(' ')[2]}"


def _step_ns(trace: Trace, ranks: Sequence[int]) -> dict[int, float]:
    """How long a step is on each rank; 1 where no summary tells."""
    rows, owner = trace.summaries, trace.summary_rank
    means = {}
    for rank in ranks:
        mine = rows[owner == rank]
        count = int(mine["count"].sum()) if len(mine) else 0
        means[rank] = float(mine["step_sum_ns"].sum()) / count if count else 1.0
    return means


def _usual(
    looks: Mapping[int, Looks], step_ns: Mapping[int, float], others: Sequence[int], place: str
) -> float:
    """The time the median of the others spends in a place in a step."""
    times = [looks[other].share(place) * step_ns[other] for other in others]
    return float(np.median(times)) if times else 0.0
