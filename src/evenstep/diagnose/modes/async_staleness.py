"""`async_staleness`: updates made on weights that are older than the number of ranks explains.

Local SGD synchronizes every K steps: a round. A parameter server never does: a rank's update is
staler by one for every step that another rank finishes meanwhile. Of n equally fast ranks that is
n − 1, give or take √(n − 1) (others finish at random). An update staler than two such deviations
allow counts like allowed/s of one at the bound: the step size that keeps asynchronous SGD stable
falls like 1/s (Zhang et al. 2016). What is so lost, as a share of every rank's time, is what a
bounded staleness would use. What a script logs as `staleness` goes before what is counted here.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evenstep.diagnose.finding import Evidence, Finding, When
from evenstep.diagnose.lateness.case import Case
from evenstep.diagnose.lateness.thresholds import above_others
from evenstep.diagnose.levels import CHANGED, NAMED, SMALLEST_SHARE, SURE
from evenstep.diagnose.measure.grid import StepGrid
from evenstep.diagnose.measure.samples import marked
from evenstep.diagnose.modes.intervention import found
from evenstep.diagnose.sentences import say
from evenstep.statistics.interval import Share, share_of
from evenstep.statistics.trend import Association, Trend, association, thinned, trend
from evenstep.trace.columns import Columns
from evenstep.trace.spool.layout import Kind
from evenstep.trace.trace import Trace

Array = npt.NDArray[Any]

STALENESS = "staleness"


class Staleness(NamedTuple):
    """One row per update, in order of time."""

    rank: Array
    step: Array
    value: Array
    logged: bool  # by the script; else counted from the steps


class Rounds(NamedTuple):
    """Steps between two synchronizations of all ranks."""

    steps: float  # per round, median
    regular: bool  # every round has as many


def rounds(grid: StepGrid) -> Rounds | None:
    """The rounds of a run that synchronizes more rarely than every step; None for any other."""
    synced = np.asarray((grid.collectives > 0).all(axis=1))
    if not len(synced) or synced.mean() > 0.5 or np.count_nonzero(synced) < 3:
        return None
    lengths = np.diff(np.flatnonzero(synced))
    return Rounds(float(np.median(lengths)), bool((lengths == lengths[0]).all()))


def staleness(trace: Trace, grid: StepGrid) -> Staleness | None:
    """Staleness of every update: logged, or counted where ranks never wait for all others."""
    logged = _logged(trace)
    if logged is not None:
        return logged
    if len(trace.ranks) < 2 or not _uncoupled(trace, grid):
        return None
    return _counted(trace, grid)


def _logged(trace: Trace) -> Staleness | None:
    found = marked(trace, STALENESS)
    good = np.isfinite(found.value) & (found.value >= 0)
    if not good.any():
        return None
    order = np.flatnonzero(good)[np.argsort(found.step[good], kind="stable")]
    return Staleness(found.rank[order], found.step[order], found.value[order], logged=True)


def _uncoupled(trace: Trace, grid: StepGrid) -> bool:
    """Whether ranks pass messages but practically never meet in a collective: when they set up,
    or save."""
    if len(grid.steps):
        rare = float((grid.collectives > 0).any(axis=1).mean()) <= NAMED
    else:
        rare = not len(trace.of_kind(Kind.COLLECTIVE))
    return rare and bool(len(trace.of_kind(Kind.POINT_TO_POINT)))


def _counted(trace: Trace, grid: StepGrid) -> Staleness | None:
    """Steps that others finished during each step; None where clocks or steps forbid it."""
    if grid.clocks.unplaced:
        return None
    steps = trace.of_kind(Kind.STEP)
    steps = steps.select(steps.exit_ns > 0)
    start, end = _common(steps, grid)
    if len(steps) < 2 or _in_step(steps, end):
        return None
    ends = np.sort(end)
    within = np.searchsorted(ends, end, "left") - np.searchsorted(ends, start, "right")
    own = np.maximum(within, 0).astype(float)  # ends strictly within: one's own is not
    order = np.argsort(end, kind="stable")
    return Staleness(
        steps["rank"][order], steps.step.astype(np.int64)[order], own[order], logged=False
    )


def _common(steps: Columns, grid: StepGrid) -> tuple[Array, Array]:
    start, end = steps.enter_ns.astype(np.int64).copy(), steps.exit_ns.astype(np.int64).copy()
    for rank, offset in grid.clocks.by_rank.items():
        if offset is not None and offset.offset_ns.any():
            mine = steps["rank"] == rank
            start[mine], end[mine] = offset.shift(start[mine]), offset.shift(end[mine])
    return start, end


def _in_step(steps: Columns, end: Array) -> bool:
    """Whether ranks finish the steps that all have done at the same time, as in a pipeline."""
    order = np.argsort(steps.step, kind="stable")
    first = np.flatnonzero(np.diff(steps.step[order].astype(np.int64), prepend=-1))
    members = np.diff(np.append(first, len(order)))
    latest = np.maximum.reduceat(end[order], first)
    spread = (latest - np.minimum.reduceat(end[order], first))[members == members.max()]
    length = float(np.median(steps.exit_ns - steps.enter_ns))
    return bool(np.median(spread) <= length)


OUTCOMES = ("loss", "grad_norm", "gradient_norm", "grad_norm_total", "train_loss")


def find(case: Case) -> list[Finding]:
    """Updates staler than they need to be."""
    updates = staleness(case.trace, case.grid)
    if updates is None or len(updates.value) < 2:
        return []
    wasted = lost(updates.value, allowed(case, updates)[0])
    time = _time_share(updates)
    share = share_of(_by_step(updates, wasted * time), _by_step(updates, time))
    return _stale(case, updates, share) if share.value >= SMALLEST_SHARE else []


def allowed(case: Case, updates: Staleness) -> tuple[Array, list[int]]:
    """Staleness of each update that equally fast ranks may have, two deviations of chance; and the
    ranks that are staler than the others all the time, the stalest first: of what they usually have
    chance explains only two deviations of a mean."""
    together = rounds(case.grid) if len(case.grid.steps) else None
    equal = max(case.trace.world - 1.0, together.steps - 1 if together else 1.0, 1.0)
    ranks, place, count = np.unique(updates.rank, return_inverse=True, return_counts=True)
    usual = np.array([np.median(updates.value[updates.rank == rank]) for rank in ranks])
    others = usual - above_others(usual[None])[0]
    by_chance = equal + 2 * np.sqrt(equal / count)
    stale = (usual > by_chance) & (usual > CHANGED * others) & (len(ranks) > 1)
    bound = np.where(stale, by_chance, equal + 2 * np.sqrt(equal))[place.reshape(-1)]
    return bound, [int(rank) for rank in ranks[stale][np.argsort(-usual[stale], kind="stable")]]


def lost(value: Array, bound: Array) -> Array:
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
    grows = last > CHANGED * max(first, 1e-9)
    return change if change.p < SURE and change.slope > 0 and grows else None


def _stale(case: Case, updates: Staleness, share: Share) -> list[Finding]:
    value, growing = updates.value, drifting(updates)
    bounds, ranks = allowed(case, updates)
    stale, bound = value > bounds, float(bounds.max())
    steps = updates.step[stale]
    why = say("async_staleness.some" if ranks else "async_staleness.all", those=ranks)
    return found(
        case,
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
        at=When([(int(steps.min()), int(steps.max()))], "chronic" if ranks else None),
        options={**({"ranks": share} if ranks else {}), "bound": share, "scale": None},
        evidence=[*_distribution(updates, bound, growing), *relations(case, updates)],
    )


def _distribution(updates: Staleness, bound: float, growing: Trend | None) -> list[Evidence]:
    value = updates.value
    return [
        Evidence("staleness_median", np.median(value), bound, "updates"),
        Evidence("staleness_p95", np.quantile(value, 0.95), bound, "updates"),
        Evidence("staleness_max", value.max(), bound, "updates"),
        Evidence(
            "staleness_growth_per_1000_updates",
            growing.slope if growing else 0.0,
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
        Evidence(name, together.rho, 0.0, "ρ"),
        Evidence(f"{name}_by_chance", together.p, None, "p"),
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
