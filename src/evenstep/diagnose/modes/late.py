"""A finding of late cells: whose they are, what they cost, and who waits for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from evenstep import words
from evenstep.diagnose.finding import Evidence, Finding, Projection
from evenstep.diagnose.lateness.case import Array, Case
from evenstep.diagnose.lateness.delays import Cause
from evenstep.diagnose.measure.recurrence import by_chance, constant, when
from evenstep.diagnose.sentences import found
from evenstep.statistics.interval import Share, share_of


def late(
    case: Case,
    name: str,
    cells: Array,
    cause: Cause = Cause.WORK,
    *,
    layer: str = "",
    numbers: Mapping[str, Any],
    options: Sequence[str] | Mapping[str, Share | None],
    evidence: Sequence[Evidence] = (),
) -> Finding:
    """What cells (steps × ranks, boolean) that are late for one cause cost, as a finding.

    `name`, `layer` and `options` are as of `found`; options without a gain give back all of it.
    Beside `numbers` sentences may use `waiting`, `who`, `lead` (or that they take turns), `those`
    and `hosts`.
    """
    share, ranks = case.share(case.loss(cells, cause)), case.culprits(cells, cause)
    recurs, where = (
        when(cells & np.isin(case.grid.ranks, ranks), case.grid.steps),
        case.where(ranks),
    )
    turns = f"the late rank changes ({words.ranks(ranks)} take turns)"
    return found(
        name,
        share,
        layer=layer,
        numbers={
            "waiting": case.waiting(cells),
            "who": case.named(ranks),
            "lead": turns if recurs.pattern == "rotating" else case.named(ranks),
            "those": ranks,
            "hosts": words.some(where.nodes) or "its host",
            **numbers,
        },
        where=where,
        when=recurs,
        projected=_projected(case, cells, share, recurs.pattern == "chronic" or len(ranks) == 1),
        options=options if isinstance(options, Mapping) else dict.fromkeys(options, share),
        evidence=[*case.wait_evidence(cells), *evidence],
        change=case.relieved(cells, cause),
    )


def _projected(case: Case, cells: Array, share: Share, same: bool) -> list[Projection]:
    """Of the same culprits always, or of one, the same share at any size; of several now and then,
    delays that do not know of others."""
    ranks = len(case.grid.ranks)
    if same:
        return constant(share, ranks)
    return by_chance(share, ranks, share_of(cells.any(axis=1).astype(float), np.ones(len(cells))))
