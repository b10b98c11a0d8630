"""From an intervention to a finding: what the run's replay gains without a cause.

A mode gives the intervention (a `Change` of the graph, or late cells to relieve), its evidence, and
the numbers of its sentences. The cost, its interval, the cost at other sizes and the gain of each
remedy follow from the replay.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from evenstep import words
from evenstep.diagnose.finding import Evidence, Finding, Projection, When, Where
from evenstep.diagnose.graph.replay import Change
from evenstep.diagnose.lateness.case import Array, Case
from evenstep.diagnose.lateness.delays import Cause
from evenstep.diagnose.measure.recurrence import by_chance, constant, throughout, when
from evenstep.diagnose.sentences import make_finding
from evenstep.statistics.interval import Share, share_of

NOBODY = Where()


class Gain(NamedTuple):
    """What the run gains by an intervention, as a share of the step time."""

    share: Share
    #: To the run without the cause, alone or on top of another change; None: it cannot be replayed.
    change: Change | Callable[[Change], Change] | None = None
    saved_ns: Array | float = 0.0  # of each step; 0 where only the share is known


def gain_of(case: Case, change: Change) -> Gain:
    """What the replay gains by a change alone; beside another cause it may gain more."""
    saved_ns = case.saved(change)
    return Gain(case.share(saved_ns), change, saved_ns)


def finding_of(
    case: Case,
    name: str,
    gain: Change | Gain,
    *,
    numbers: Mapping[str, Any],
    options: Sequence[str] | Mapping[str, Share | None],
    where: Where = NOBODY,
    at: When | None = None,
    projected: Callable[[Share, int], list[Projection]] | None = None,
    evidence: Sequence[Evidence] = (),
    layer: str = "",
    confidence: float | None = None,
) -> list[Finding]:
    """The finding of a cause, as a list.

    `name`, `numbers`, `layer` and `confidence` are those of `make_finding`. Options without a gain
    of their own give back the whole gain. `at` defaults to all steps; `projected` takes the share
    and the number of ranks.
    """
    if isinstance(gain, Change):
        gain = gain_of(case, gain)
    share = gain.share
    finding = make_finding(
        name, share, numbers=numbers, where=where, when=at or throughout(case.grid.steps),
        layer=layer, confidence=confidence,
        projected=projected(share, len(case.grid.ranks)) if projected else (),
        options=options if isinstance(options, Mapping) else dict.fromkeys(options, share),
        evidence=evidence, change=gain.change,
    )  # fmt: skip
    return [finding]


def finding_of_late(
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
    """The finding of cells (steps × ranks, boolean) that are late for one cause, if there are any.

    `nobody`: no rank is named as a culprit. Sentences may use, beside `numbers`, `waiting`, `who`,
    `lead` (the culprits, or that they take turns), `those` and `hosts`.
    """
    if not cells.any():
        return []
    ranks = case.culprits(cells, cause)
    recurs = when(cells & np.isin(case.grid.ranks, ranks), case.grid.steps)
    where, rotates = case.where(ranks), recurs.pattern == "rotating"
    turns = f"the late rank changes ({words.ranks(ranks)} take turns)"
    hits = share_of(cells.any(axis=1).astype(float), np.ones(len(cells)))
    same = recurs.pattern == "chronic" or len(ranks) == 1
    return finding_of(
        case,
        name,
        Gain(case.share(case.loss(cells, cause)), case.relieved(cells, cause)),
        layer=layer,
        numbers={
            "waiting": case.waiting_in_words(cells),
            "who": case.ranks_in_words(ranks),
            "lead": turns if rotates else case.ranks_in_words(ranks),
            "those": ranks,
            "hosts": words.some(where.nodes) or "its host",
            **numbers,
        },
        where=NOBODY if nobody else where,
        at=recurs,
        # delays of several ranks now and then are independent of each other
        projected=constant if same else partial(by_chance, hits=hits),
        options=options,
        evidence=[*case.wait_evidence(cells), *evidence],
    )
