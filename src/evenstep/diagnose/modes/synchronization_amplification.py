"""`synchronization_amplification`: small delays, nobody's in particular, become everybody's.

Amplification is step-time growth caused by waiting over the mean delay of a rank: with delays
x_i, growth is E[max x_i] − E[x], so that one rank hit at a time in n gives n − 1, and no spread 0.
"""

from __future__ import annotations

import numpy as np

from evenstep import words
from evenstep.diagnose.finding import Evidence, Finding, Option, When, Where
from evenstep.diagnose.lateness.case import SMALLEST_SHARE, Array, Case, found
from evenstep.diagnose.modes import projection
from evenstep.diagnose.modes.mode import Mode

ROUND_STEPS = 8  # of the local-SGD option


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
    if share.value < SMALLEST_SHARE or factor is None:
        return []
    ranks = len(case.grid.ranks)
    steps = case.grid.steps
    work = _unattributed(case)
    spread = float(np.median(np.nanmax(work, axis=1) - np.nanmin(work, axis=1)))
    gain = share.value * (1 - 1 / np.sqrt(ROUND_STEPS))
    named = bool(case.delays.any.any())
    return [
        found(
            "synchronization_amplification",
            "coupling",
            share,
            observation=(
                f"ranks finish their own work {words.duration(spread)} apart in the median step, "
                "a different one last each time"
            ),
            cause=(
                f"{'apart from the ranks named, ' if named else ''}the parts are healthy, but "
                "every step waits for the slowest rank, so that a mean delay of one rank costs "
                f"{1 + factor:.2g} times itself"
            ),
            where=Where(),
            when=When([(int(steps[0]), int(steps[-1]))], "chronic"),
            projected=projection.by_noise(share, ranks),
            options=[
                Option(
                    "give data workers and helpers cores of their own, and keep daemons and the "
                    "collector out of the steps",
                    *share.rounded(),
                    "what they take elsewhere",
                    "replay with every rank's own work even: the most there is",
                ),
                Option(
                    f"synchronize every {ROUND_STEPS} steps (local SGD, DiLoCo)",
                    round(gain, 4),
                    round(max(0.0, gain - (share.value - share.low)), 4),
                    round(min(1.0, gain + (share.high - share.value)), 4),
                    "another algorithm: convergence must be checked",
                    "independent noise per step falls like 1/sqrt(steps per round)",
                ),
            ],
            evidence=[
                Evidence("amplification", round(factor, 3), 0.0, "factor"),
                Evidence("spread_of_own_work", round(spread), 0, "ns"),
                Evidence("wait_share", round(_wait_share(case), 4), 0.0, "share"),
            ],
            change=case.costs.even if case.costs and case.trace.operations is None else None,
        )
    ]


def _wait_share(case: Case) -> float:
    total = float(case.grid.duration_ns.sum())
    return float(case.grid.wait_ns.sum()) / total if total else 0.0


MODE = Mode(
    name="synchronization_amplification",
    layer="coupling",
    symptom="No rank is slow on average, yet steps take much longer than any rank's own work.",
    look_at=(
        "the spread of the ranks' own work within a step, and who is last (another each time)",
        "amplification: growth of the step by waiting over a rank's mean delay",
        "how it grows with the number of ranks: noise grows with the expected maximum",
    ),
    remedy=(
        "remove sources of noise that all ranks have (daemons, collectors, helpers without cores)",
        "synchronize less often (local SGD, DiLoCo), or hide the first collective behind compute",
        "fewer ranks with more work each",
    ),
    confirm="Run the same job on a quarter of the ranks: the waiting share falls, work does not.",
    find=find,
)
