"""`synchronization_amplification`: small delays, nobody's in particular, become everybody's.

Amplification is step-time growth caused by waiting over the mean delay of a rank: with delays
x_i, growth is E[max x_i] − E[x], so that one rank hit at a time in n gives n − 1, and no spread 0.
"""

from __future__ import annotations

import numpy as np

from evenstep.diagnose.finding import Evidence, Finding, Where
from evenstep.diagnose.lateness.case import Array, Case
from evenstep.diagnose.levels import ROUND_STEPS, SMALLEST_SHARE
from evenstep.diagnose.measure.patterns import throughout
from evenstep.diagnose.modes import projection
from evenstep.diagnose.sentences import found
from evenstep.statistics.interval import Share


def amplification(case: Case) -> float | None:
    """Growth of the step by waiting over a rank's mean delay; None where nothing is delayed."""
    work = _unattributed(case)
    if work.shape[1] < 2 or not len(work):
        return None
    delay = np.maximum(work - np.nanquantile(work, 0.05, axis=0), 0)
    mean = float(np.nanmean(delay))
    return float(np.nanmax(delay, axis=1).mean() - mean) / mean if mean > 0 else None


def _unattributed(case: Case) -> Array:
    """Own work of the ranks without those named for it, nan; steps and ranks with any left."""
    late = case.delays.any
    work = np.where(late, np.nan, case.grid.work_ns.astype(float))
    work = work[np.count_nonzero(~late, axis=1) > 1]
    return np.asarray(work[:, ~np.isnan(work).all(axis=0)])


def find(case: Case) -> list[Finding]:
    """What is left of the loss when every delay that has a culprit is taken out."""
    if case.contended or not len(case.grid.steps):
        return []
    share = case.share(case.claims.rest_ns)
    factor = amplification(case)
    if factor is None:
        return []
    work = _unattributed(case)
    spread = float(np.median(np.nanmax(work, axis=1) - np.nanmin(work, axis=1)))
    total = float(case.grid.duration_ns.sum())
    waited = float(case.grid.wait_ns.sum()) / total if total else 0.0
    gain = share.value * (1 - 1 / np.sqrt(ROUND_STEPS))
    low, high = gain - (share.value - share.low), gain + (share.high - share.value)
    others = case.share(case.delays.all_loss_ns.sum(axis=1)).value >= SMALLEST_SHARE
    named = "apart from the ranks named, " if others else ""
    return [
        found(
            "synchronization_amplification",
            share,
            numbers={
                "spread": spread, "apart": named, "factor": 1 + factor, "round": ROUND_STEPS,
            },
            where=Where(),
            when=throughout(case.grid.steps),
            projected=projection.by_noise(share, len(case.grid.ranks)),
            options={"cores": share, "rounds": Share(gain, max(0.0, low), min(1.0, high))},
            evidence=[
                Evidence("amplification", round(factor, 3), 0.0, "factor"),
                Evidence("spread_of_own_work", round(spread), 0, "ns"),
                Evidence("wait_share", round(waited, 4), 0.0, "share"),
            ],
            change=case.costs.even if case.costs and case.trace.operations is None else None,
        )
    ]  # fmt: skip
