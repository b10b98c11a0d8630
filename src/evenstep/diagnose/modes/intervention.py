"""From an intervention to a finding: the run replayed without something, and what that gains.

A mode says what it would change (a `Change` of the graph, or late cells to be relieved), what shows
that it is so, and the numbers of its sentences. What it costs, how surely, at other sizes, and what
each remedy gives back follow from the replay alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from evenstep import words
from evenstep.diagnose.finding import Evidence, Finding, Projection, When, Where
from evenstep.diagnose.graph.replay import Change
from evenstep.diagnose.lateness.case import Array, Case
from evenstep.diagnose.lateness.delays import Cause
from evenstep.diagnose.levels import SMALLEST_SHARE
from evenstep.diagnose.measure.recurrence import by_chance, constant, throughout, when
from evenstep.diagnose.sentences import worded
from evenstep.statistics.interval import Share, share_of

NOBODY = Where()


def found(
    case: Case,
    name: str,
    without: Change | Share,
    *,
    numbers: Mapping[str, Any],
    options: Sequence[str] | Mapping[str, Share | None],
    where: Where = NOBODY,
    at: When | None = None,
    projected: Callable[[Share, int], list[Projection]] | None = None,
    evidence: Sequence[Evidence] = (),
    change: Change | Callable[[Change], Change] | None = None,
    layer: str = "",
    confidence: float | None = None,
) -> list[Finding]:
    """What the run gains `without` something, as a finding; none where that is not worth telling.

    Of a share that is known already `change` is what gives it back. `name` and `layer` are as of
    `worded`; options without a gain give back all of it. It is so in all steps but for `at`;
    `projected` takes the share and the number of ranks.
    """
    if isinstance(without, Change):
        share, change = case.share(case.saved(without)), change or without
        if share.value < SMALLEST_SHARE:
            return []
    else:
        share = without
    finding = worded(
        name,
        share,
        numbers=numbers,
        where=where,
        when=at or throughout(case.grid.steps),
        layer=layer,
        confidence=confidence,
        projected=projected(share, len(case.grid.ranks)) if projected else (),
        options=options if isinstance(options, Mapping) else dict.fromkeys(options, share),
        evidence=evidence,
        change=change,
    )
    return [finding]


def late(
    case: Case,
    name: str,
    cells: Array,
    cause: Cause = Cause.WORK,
    *,
    layer: str = "",
    nobody: bool = False,
    numbers: Mapping[str, Any],
    options: Sequence[str] | Mapping[str, Share | None],
    evidence: Sequence[Evidence] = (),
) -> list[Finding]:
    """What cells (steps × ranks, boolean) that are late for one cause cost, as a finding; none
    where there are no such cells. `nobody`: none of their ranks is to blame for it.

    Beside `numbers` sentences may use `waiting`, `who`, `lead` (or that they take turns), `those`
    and `hosts`.
    """
    if not cells.any():
        return []
    ranks = case.culprits(cells, cause)
    recurs = when(cells & np.isin(case.grid.ranks, ranks), case.grid.steps)
    where, rotates = case.where(ranks), recurs.pattern == "rotating"
    turns = f"the late rank changes ({words.ranks(ranks)} take turns)"
    hits = share_of(cells.any(axis=1).astype(float), np.ones(len(cells)))
    same = recurs.pattern == "chronic" or len(ranks) == 1
    return found(
        case,
        name,
        case.share(case.loss(cells, cause)),
        layer=layer,
        numbers={
            "waiting": case.waiting(cells),
            "who": case.named(ranks),
            "lead": turns if rotates else case.named(ranks),
            "those": ranks,
            "hosts": words.some(where.nodes) or "its host",
            **numbers,
        },
        where=NOBODY if nobody else where,
        at=recurs,
        # delays of several now and then do not know of one another
        projected=constant if same else partial(by_chance, hits=hits),
        options=options,
        evidence=[*case.wait_evidence(cells), *evidence],
        change=case.relieved(cells, cause),
    )
