"""`input_pipeline`: batches are not ready when the step begins, on one rank or on all."""

from __future__ import annotations

import numpy as np

from evenstep import words
from evenstep.diagnose.finding import Evidence, Finding, Where
from evenstep.diagnose.lateness.case import Case
from evenstep.diagnose.lateness.delays import Cause
from evenstep.diagnose.levels import NAMED
from evenstep.diagnose.measure.patterns import throughout, when
from evenstep.diagnose.modes import projection
from evenstep.diagnose.sentences import found
from evenstep.trace.spool.layout import Phase

COMMON = 0.25  # of the longest: where every rank waits so much for input, it is everybody's


def find(case: Case) -> list[Finding]:
    """Ranks whose input is late, or all of the input where every rank waits for it."""
    findings = [_everybody(case) or _late_ranks(case)]
    return [finding for finding in findings if finding]


def _late_ranks(case: Case) -> Finding | None:
    cells = case.delays.cells(Cause.INPUT)
    if not cells.any():
        return None
    share = case.share(case.loss(cells, Cause.INPUT))
    ranks = case.culprits(cells, Cause.INPUT)
    columns, where = np.isin(case.grid.ranks, ranks), case.where(ranks)
    recurrence = when(cells & columns, case.grid.steps)
    rotates = recurrence.pattern == "rotating"
    turns = f"the late rank changes ({words.ranks(ranks)} take turns)"
    values = case.grid.phase_ns[Phase.INPUT]
    others = values[:, ~columns]
    expected = round(float(np.median(others))) if others.size else 0
    mine = round(float(np.median(values[:, columns])))
    return found(
        "input_pipeline.rank",
        share,
        numbers={
            "waiting": case.waiting(cells),
            "who": turns if rotates else case.named(ranks),
            "those": ranks,
            "more": case.typical_excess_ns(cells, Cause.INPUT),
            "hosts": words.some(where.nodes) or "its host",
        },
        where=where,
        when=recurrence,
        projected=projection.constant(share, len(case.grid.ranks)),
        options={"loader": share, "host": share},
        evidence=[*case.wait_evidence(cells), Evidence("input_per_step", mine, expected, "ns")],
        change=case.relieved(cells, Cause.INPUT),
    )


def _everybody(case: Case) -> Finding | None:
    """All input, where even the ranks that wait least for it wait: nobody in particular is late."""
    values = case.grid.phase_ns[Phase.INPUT]
    if not values.size:
        return None
    each, usual = np.median(values, axis=0), float(np.median(values))
    if each.min() < COMMON * max(each.max(), 1.0):
        return None
    change = case.taken(values, Cause.INPUT)
    share = case.share(case.saved(change))
    if share.value < NAMED:  # handing a batch over takes time, too
        return None
    return found(
        "input_pipeline.everybody",
        share,
        numbers={"usual": usual},
        where=Where(),
        when=throughout(case.grid.steps),
        projected=projection.constant(share, len(case.grid.ranks)),
        options={"workers": share, "storage": share},
        evidence=[Evidence("input_per_step", round(usual), 0, "ns")],
        change=change,
    )
