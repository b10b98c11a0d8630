"""`async_staleness`: updates made on weights that are older than the number of ranks explains.

Local SGD synchronizes once a round of K steps. A parameter server never does: each step that
another rank finishes meanwhile makes a rank's update staler by one. With n equally fast ranks the
staleness is n − 1, with a deviation of √(n − 1) as ranks finish at random. An update of a staleness
s above two deviations counts as bound/s of one: the step size that keeps asynchronous SGD stable
falls like 1/s (Zhang et al. 2016). The severity is what is lost this way, as a share of the ranks'
time. Staleness that a script logs takes precedence over what is counted here.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from evenstep.diagnose.finding import Evidence, Finding, When
from evenstep.diagnose.lateness.case import Case
from evenstep.diagnose.lateness.delays import Cause
from evenstep.diagnose.lateness.thresholds import above_others
from evenstep.diagnose.levels import CHANGED, NAMED, SMALLEST_SHARE, SURE
from evenstep.diagnose.measure.grid import StepGrid
from evenstep.diagnose.measure.hosts import metric_samples
from evenstep.diagnose.modes.intervention import Gain, finding_of
from evenstep.diagnose.sentences import say
from evenstep.statistics.interval import Share, share_of
from evenstep.statistics.trend import Trend, association, thin, trend
from evenstep.trace.columns import Array, Columns, smallest_of
from evenstep.trace.spool.layout import Kind
from evenstep.trace.trace import Trace

STALENESS = "staleness"


class Staleness(NamedTuple):
    """One row per update, in order of time."""

    rank: Array
    step: Array
    value: Array
    logged: bool  # by the script, or counted from the steps


def rounds(grid: StepGrid) -> Array:
    """How many steps each round has in which ranks synchronize but once, at most in every other
    step; empty for any other run."""
    synced = np.asarray((grid.collectives > 0).all(axis=1))
    rare = len(synced) > 0 and synced.mean() <= 0.5 and np.count_nonzero(synced) > 2
    return np.diff(np.flatnonzero(synced & rare))


def staleness(trace: Trace, grid: StepGrid) -> Staleness | None:
    """Staleness of every update: logged, or counted where ranks practically never synchronize."""
    logged = metric_samples(trace, STALENESS, Kind.MARKER)
    good = np.isfinite(logged.value) & (logged.value >= 0)
    if good.any():
        order = np.flatnonzero(good)[np.argsort(logged.step[good], kind="stable")]
        return Staleness(logged.rank[order], logged.step[order], logged.value[order], logged=True)
    updating = len(trace.of_kind(Kind.POINT_TO_POINT)) > 0  # else they may be jobs of their own
    return _count_staleness(trace, grid) if updating and is_uncoupled(trace, grid) else None


def is_uncoupled(trace: Trace, grid: StepGrid) -> bool:
    """Whether no rank waits for another: collectives are in few steps only, as for checkpoints, and
    ranks do not go in step, as in a pipeline."""
    if len(grid.steps):
        rare = float((grid.collectives > 0).any(axis=1).mean()) <= NAMED
    else:
        rare = not len(trace.of_kind(Kind.COLLECTIVE))
    steps = _finished_steps(trace)
    return rare and len(np.unique(steps["rank"])) > 1 and not _in_step(steps)


def _finished_steps(trace: Trace) -> Columns:
    steps = trace.of_kind(Kind.STEP)
    return steps.select(steps.exit_ns > 0)


def _since(steps: Columns) -> tuple[Array, Array]:
    """Begin and end of each step, since the rank's first one."""
    first = smallest_of(steps.enter_ns, steps["rank"])[steps["rank"]]
    return steps.enter_ns - first, steps.exit_ns - first


def _count_staleness(trace: Trace, grid: StepGrid) -> Staleness:
    """Steps that other ranks finished during each step, while all ranks make steps; without common
    clocks, as if all had begun at once."""
    steps = _finished_steps(trace)
    if grid.clocks.unplaced:
        start, end = _since(steps)
    else:
        start, end = (grid.clocks.common(steps["rank"], t) for t in (steps.enter_ns, steps.exit_ns))
    order = np.argsort(end, kind="stable")
    ends = end[order]  # strictly within a step: not its own
    within = np.searchsorted(ends, ends, "left") - np.searchsorted(ends, start[order], "right")
    rank, step = steps["rank"][order], steps.step.astype(np.int64)[order]
    together = ends <= min(ends[rank == one].max() for one in np.unique(rank))
    within = np.maximum(within, 0.0)
    return Staleness(rank[together], step[together], within[together], logged=False)


def _in_step(steps: Columns) -> bool:
    """Whether ranks finish the steps that all of them made at the same time, but for what each
    always runs ahead of the others, as along a ring or a pipeline."""
    ranks, lane = np.unique(steps["rank"], return_inverse=True)
    numbers, row = np.unique(steps.step, return_inverse=True)
    end = np.full((len(numbers), len(ranks)), np.nan)
    end[row, lane] = _since(steps)[1]
    end = end[np.isfinite(end).all(axis=1)]
    if not len(end):
        return False
    ahead = end - end.mean(axis=1, keepdims=True)
    apart = np.ptp(ahead - np.median(ahead, axis=0), axis=1)
    return bool(np.median(apart) <= np.median(steps.exit_ns - steps.enter_ns))


OUTCOMES = ("loss", "grad_norm", "gradient_norm", "grad_norm_total", "train_loss")


def find(case: Case) -> list[Finding]:
    """Updates staler than they need to be. Where no rank waits for another, none is late."""
    updates = staleness(case.trace, case.grid)
    if is_uncoupled(case.trace, case.grid):
        case.claims.claim(case.delays.cells(Cause.WORK))
        case.claims.rest_ns = np.zeros(len(case.grid.steps))
    if updates is None or len(updates.value) < 2:
        return []
    bounds, ranks = staleness_bounds(case, updates)
    _, place, count = np.unique(updates.rank, return_inverse=True, return_counts=True)
    time = 1.0 / count[place]  # of an update, as a share of its rank's: slow ranks make fewer
    lost = time * (1 - bounds / np.maximum(updates.value, bounds))
    lost, time = (
        np.array([part.sum() for part in np.array_split(each, int(count.max()))])
        for each in (lost, time)
    )
    share = share_of(lost, time)
    return _stale(case, updates, share, bounds, ranks) if share.value >= SMALLEST_SHARE else []


def staleness_bounds(case: Case, updates: Staleness) -> tuple[Array, list[int]]:
    """Bound of each update's staleness, two deviations above that of equally fast ranks; and the
    ranks that are always staler, the stalest first: their bound is two deviations of a mean."""
    lengths = rounds(case.grid)
    equal = max(case.trace.world - 1.0, float(np.median(lengths)) - 1 if len(lengths) else 1.0, 1.0)
    ranks, place, count = np.unique(updates.rank, return_inverse=True, return_counts=True)
    usual = np.array([np.median(updates.value[updates.rank == rank]) for rank in ranks])
    others = usual - above_others(usual[None])[0]
    by_chance = equal + 2 * np.sqrt(equal / count)
    stale = (usual > by_chance) & (usual > CHANGED * others) & (len(ranks) > 1)
    bound = np.where(stale, by_chance, equal + 2 * np.sqrt(equal))[place.reshape(-1)]
    return bound, [int(rank) for rank in ranks[stale][np.argsort(-usual[stale], kind="stable")]]


def drifting(updates: Staleness) -> Trend | None:
    """The trend of staleness per 1,000 updates; None where it is unsure or small."""
    axis = np.arange(len(updates.value)) / 1000
    places, values = thin(axis, updates.value)
    quarter = max(len(values) // 4, 1)
    first, last = float(values[:quarter].mean()), float(values[-quarter:].mean())
    change = trend(places, values)
    grows = last > CHANGED * max(first, 1e-9)
    return change if change.p < SURE and change.slope > 0 and grows else None


def _stale(
    case: Case, updates: Staleness, share: Share, bounds: Array, ranks: list[int]
) -> list[Finding]:
    value, growing = updates.value, drifting(updates)
    stale, bound = value > bounds, float(bounds.max())
    steps = updates.step[stale]
    return finding_of(
        case,
        "async_staleness",
        Gain(share),
        numbers={
            "stale": float(stale.mean()), "bound": bound, "median": np.median(value),
            "p95": np.quantile(value, 0.95), "longest": value.max(),
            "growth": growing.slope if growing else 0.0, "logged": float(updates.logged),
            "growing": ", and it grows" if growing else "",
            "why": say(f"async_staleness.{'some' if ranks else 'all'}", those=ranks),
            "unbounded": "; staleness rises over the run and has no bound" if growing else "",
            "those": ranks,
        },
        where=case.where([rank for rank in ranks if rank in case.trace.ranks]),
        at=When([(int(steps.min()), int(steps.max()))], "chronic" if ranks else None),
        options={**({"ranks": share} if ranks else {}), "bound": share, "scale": None},
        evidence=relations(case, updates),
    )  # fmt: skip


# -- correlation with the loss ---------------------------------------------------------------------


def relations(case: Case, updates: Staleness | None) -> list[Evidence]:
    """Rank correlation of logged outcomes with staleness and with step time; no proof of cause."""
    evidence = []
    causes = {"step_time": (case.grid.steps, case.grid.step_ns)}
    if updates is not None:
        causes["staleness"] = _mean_by_step(updates.step, updates.value)
    for name in OUTCOMES:
        logged = metric_samples(case.trace, name, Kind.MARKER)
        steps, value = _mean_by_step(logged.step, logged.value)
        for cause, (places, numbers) in causes.items():
            _, mine, theirs = np.intersect1d(steps, places, return_indices=True)
            related = association(value[mine], numbers[theirs])
            if related is not None:
                key = f"correlation_of_{name}_with_{cause}"
                evidence.append(Evidence(key, related.rho, 0.0, "ρ"))
                evidence.append(Evidence(f"{key}_by_chance", related.p, None, "p"))
    return evidence


def _mean_by_step(step: Array, value: Array) -> tuple[Array, Array]:
    good = np.isfinite(value)
    steps, place, count = np.unique(step[good], return_inverse=True, return_counts=True)
    return steps, np.bincount(place, value[good], minlength=len(steps)) / count


def summary(case: Case) -> dict[str, Any] | None:
    """How loosely the run is coupled; None where it synchronizes in every step and logs nothing."""
    lengths, updates = rounds(case.grid), staleness(case.trace, case.grid)
    related = relations(case, updates) if len(case.grid.steps) else []
    if not len(lengths) and updates is None and not related:
        return None
    quantiles = {"p50": 0.5, "p95": 0.95, "max": 1.0}
    return {
        "steps_per_round": float(np.median(lengths)) if len(lengths) else None,
        "regular_rounds": bool((lengths == lengths[0]).all()) if len(lengths) else None,
        "staleness": updates
        and {"mean": float(updates.value.mean())}
        | {name: float(np.quantile(updates.value, at)) for name, at in quantiles.items()},
        "relations": {one.metric: one.rounded().measured for one in related},
    }
