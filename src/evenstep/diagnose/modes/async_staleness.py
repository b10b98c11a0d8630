"""`async_staleness`: updates made on weights that are older than the number of ranks explains.

n equally fast ranks have a staleness of n − 1, give or take √(n − 1) (others finish at random). An
update staler than two such deviations allow counts like allowed/s of one at the bound: the step
size that keeps asynchronous SGD stable falls like 1/s (Zhang et al. 2016). What is so lost, as a
share of every rank's time, is what a bounded staleness would use.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.diagnose.finding import Evidence, Finding, When
from evenstep.diagnose.lateness.case import SMALLEST_SHARE, Case
from evenstep.diagnose.measure.samples import marked
from evenstep.diagnose.modes.asynchrony import Staleness, rounds, staleness
from evenstep.diagnose.sentences import found, say
from evenstep.statistics.association import Association, association
from evenstep.statistics.interval import Share, share_of
from evenstep.statistics.trend import Trend, thinned, trend

Array = npt.NDArray[Any]

STALER = 1.5  # times the median rank's: whose updates are named
OUTCOMES = ("loss", "grad_norm", "gradient_norm", "grad_norm_total", "train_loss")
SURE = 0.01  # p-value of a trend
GROWN = 1.25  # ratio of the last quarter to the first


def find(case: Case) -> list[Finding]:
    """Updates staler than they need to be."""
    updates = staleness(case.trace, case.grid)
    if updates is None or len(updates.value) < 2:
        return []
    wasted = lost(updates.value, allowed(case))
    time = _time_share(updates)
    share = share_of(_by_step(updates, wasted * time), _by_step(updates, time))
    if share.value < SMALLEST_SHARE:
        return []
    return [_finding(case, updates, share)]


def allowed(case: Case) -> float:
    """Staleness that equally fast ranks have: every other one finishes a step, at random times."""
    together = rounds(case.grid) if len(case.grid.steps) else None
    others = max(case.trace.world - 1.0, together.steps - 1 if together else 1.0, 1.0)
    return others + 2 * float(np.sqrt(others))


def lost(value: Array, bound: float) -> Array:
    """Share of each update that its staleness beyond the bound costs."""
    return np.asarray(1 - bound / np.maximum(value, bound))


def _time_share(updates: Staleness) -> Array:
    """What part of its rank's time each update is: a slow rank makes few, long ones."""
    _, place, count = np.unique(updates.rank, return_inverse=True, return_counts=True)
    return np.asarray(1.0 / count[place])


def _by_step(updates: Staleness, values: Array) -> Array:
    """Sums over neighbouring updates, as many parts as the longest rank has steps."""
    number = max(int(np.bincount(updates.rank.astype(int)).max()), 1)
    return np.array([part.sum() for part in np.array_split(values, number)])


def drifting(updates: Staleness) -> Trend | None:
    """The trend of staleness per 1,000 updates, where it is sure and not small; None else."""
    axis = np.arange(len(updates.value)) / 1000
    places, values = thinned(axis, updates.value)
    quarter = max(len(values) // 4, 1)
    first, last = float(values[:quarter].mean()), float(values[-quarter:].mean())
    change = trend(places, values)
    grows = last > GROWN * max(first, 1e-9)
    return change if change.p < SURE and change.slope > 0 and grows else None


def _culprits(case: Case, updates: Staleness) -> list[int]:
    """Ranks whose updates are much staler than the median rank's, the stalest first."""
    ranks = np.unique(updates.rank)
    usual = np.array([np.median(updates.value[updates.rank == rank]) for rank in ranks])
    stale = usual > max(STALER * float(np.median(usual)), allowed(case))
    return [int(rank) for rank in ranks[stale][np.argsort(-usual[stale], kind="stable")]]


def _finding(case: Case, updates: Staleness, share: Share) -> Finding:
    value, bound = updates.value, allowed(case)
    ranks, growing = _culprits(case, updates), drifting(updates)
    stale = value > bound
    steps = updates.step[stale]
    why = say("async_staleness.some" if ranks else "async_staleness.all", those=ranks)
    return found(
        "async_staleness",
        share,
        numbers={
            "stale": float(stale.mean()),
            "bound": bound,
            "median": np.median(value),
            "p95": np.quantile(value, 0.95),
            "growing": ", and it grows" if growing else "",
            "why": why,
            "unbounded": "; staleness rises over the run and has no bound" if growing else "",
            "those": ranks,
        },
        where=case.where([rank for rank in ranks if rank in case.trace.ranks]),
        when=When([(int(steps.min()), int(steps.max()))], "chronic" if ranks else None),
        options={**({"ranks": share} if ranks else {}), "bound": share, "scale": None},
        evidence=[*_distribution(updates, bound, growing), *relations(case, updates)],
    )


def _distribution(updates: Staleness, bound: float, growing: Trend | None) -> list[Evidence]:
    value = updates.value
    return [
        Evidence("staleness_median", _short(np.median(value)), bound, "updates"),
        Evidence("staleness_p95", _short(np.quantile(value, 0.95)), bound, "updates"),
        Evidence("staleness_max", _short(value.max()), bound, "updates"),
        Evidence(
            "staleness_growth_per_1000_updates",
            _short(growing.slope) if growing else 0.0,
            0.0,
            "updates",
        ),
        Evidence("staleness_logged_by_the_script", float(updates.logged), None, "1"),
    ]


# -- what goes together with the loss --------------------------------------------------------------


def relations(case: Case, updates: Staleness | None) -> list[Evidence]:
    """Rank correlation of what the script logs with staleness and with the step time.

    Evidence that they go together, or not; never that one causes the other.
    """
    found_ = []
    for name in OUTCOMES:
        logged = marked(case.trace, name)
        if not logged:
            continue
        steps, value = _mean_by_step(logged.step, logged.value)
        pairs = [("step_time", (case.grid.steps, case.grid.step_ns))]
        if updates is not None:
            pairs.append(("staleness", _mean_by_step(updates.step, updates.value)))
        for other, (others, numbers) in pairs:
            _, mine, theirs = np.intersect1d(steps, others, return_indices=True)
            together = association(value[mine], numbers[theirs])
            found_ += _as_evidence(f"correlation_of_{name}_with_{other}", together)
    return found_


def _as_evidence(name: str, together: Association | None) -> list[Evidence]:
    if together is None:
        return []
    return [
        Evidence(name, round(together.rho, 3), 0.0, "ρ"),
        Evidence(f"{name}_by_chance", round(together.p, 4), None, "p"),
    ]


def _mean_by_step(step: Array, value: Array) -> tuple[Array, Array]:
    good = np.isfinite(value)
    steps, place = np.unique(step[good], return_inverse=True)
    count = np.bincount(place, minlength=len(steps))
    return steps, np.bincount(place, value[good], minlength=len(steps)) / np.maximum(count, 1)


def summary(case: Case) -> dict[str, Any] | None:
    """How loosely the run is coupled; None where it synchronizes in every step and logs nothing."""
    together = rounds(case.grid) if len(case.grid.steps) else None
    updates = staleness(case.trace, case.grid)
    related = relations(case, updates) if len(case.grid.steps) else []
    if together is None and updates is None and not related:
        return None
    return {
        "steps_per_round": together.steps if together else None,
        "regular_rounds": together.regular if together else None,
        "staleness": _quantiles(updates.value) if updates is not None else None,
        "relations": {item.metric: item.measured for item in related},
    }


def _quantiles(value: Array) -> dict[str, float]:
    if not len(value):
        return {}
    places = {"p50": 0.5, "p95": 0.95, "max": 1.0}
    found_ = {name: float(np.quantile(value, place)) for name, place in places.items()}
    return {"mean": float(value.mean()), **found_}


def _short(value: float) -> float:
    return float(f"{value:.4g}")
