"""`workload_imbalance`: ranks are given more to do than others, by the model or by the data.

Two forms. A pipeline stage that is longer than the others (see `stage_imbalance`). And sequences of
different lengths: attention grows with the square of the length, so whoever has the longest is
late, another rank in each step. That is told by forward and backward of the same data being long
together: their correlation is .9 or more (Lin et al., OSDI 2025, section 5.3). Where the optimizer
is long with them, it is not the data: the machine is slower then.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from evenstep.diagnose.finding import Evidence, Finding, Where
from evenstep.diagnose.graph.micro_batches import Batches, micro_batches
from evenstep.diagnose.graph.replay import Change
from evenstep.diagnose.graph.structure import summed
from evenstep.diagnose.lateness.case import Array, Case
from evenstep.diagnose.lateness.delays import Cause
from evenstep.diagnose.lateness.thresholds import above_others
from evenstep.diagnose.levels import MOST, NAMED, NEARLY_ALL, SMALLEST_SHARE
from evenstep.diagnose.measure import recurrence
from evenstep.diagnose.measure.recurrence import FEWEST_STEPS, throughout
from evenstep.diagnose.modes.stage_imbalance import by_lateness
from evenstep.diagnose.sentences import worded
from evenstep.statistics.interval import z
from evenstep.trace.spool.layout import Phase

VARYING = 0.03  # deviation of a rank's compute, as a share of it, below which nothing is imbalanced


def find(case: Case) -> list[Finding]:
    """A longer stage, and sequences of different lengths."""
    return [*by_lateness(case), *_of_phases(case)]


def rotating(spent: Array) -> bool:
    """Whether somebody is slowest in most steps (steps × ranks), nobody in most of those, and as
    many in turn as by chance: data is dealt out to all, whereas a few slow ranks are always the
    same."""
    middle = np.median(spent, axis=1, keepdims=True)
    behind = (spent / np.where(middle > 0, middle, 1.0)).max(axis=1) >= 1 + VARYING / 2
    if behind.mean() < MOST:
        return False
    ranks = spent.shape[1]
    slowest = np.bincount(spent.argmax(axis=1)[behind], minlength=ranks)
    few = slowest.max() > min(0.8, 0.25 + 2 / ranks) * behind.sum()
    enough = NEARLY_ALL * _hit(ranks, int(behind.sum()))
    return not few and bool(np.count_nonzero(slowest) >= enough)


def _hit(ranks: int, times: int) -> float:
    """How many of so many ranks are hit so many times by chance."""
    return float(ranks * (1 - (1 - 1 / ranks) ** times))


# -- of phases -------------------------------------------------------------------------------------


def _of_phases(case: Case) -> list[Finding]:
    """Ranks whose forward and backward, or all stretches of whose work, are long together, another
    rank in each step."""
    few = len(case.grid.steps) < FEWEST_STEPS or case.grid.shape[1] < 2
    if case.contended or few or case.costs is None:
        return []
    batches = micro_batches(case.costs.graph)
    if batches is not None and _varies(batches.together, batches.deviation):
        correlation, deviation = batches.together, batches.deviation
        evened: Callable[[Change], Change] = partial(_without_lengths, case, batches)
    else:
        told = _forward_and_backward(case) or _stretches(case)
        if told is None or not rotating(told.spent):
            return []
        correlation, deviation = told.correlation, told.deviation
        # what is left varies as much as the noise alone
        evened = partial(case.costs.even_amounts, part=1 - float(np.sqrt(told.noise)))
        if not _varies(correlation, deviation):
            return []
    # unlike other lateness, long batches are work that has to be done: by all alike
    late = case.delays.cells(Cause.WORK) & ~case.delays.chronic[None, :]
    late &= ~_whatever_lengths(case, batches)
    by_chance = _hit(late.shape[1], int(np.count_nonzero(late)))
    theirs = bool(np.count_nonzero(late.any(axis=0)) >= MOST * by_chance)
    others = case.all_relieved(case.delays.any, but=late if theirs else None)
    saved, even = case.all_saved([others, evened(others)])
    found_ = _sequences(case, even - saved, correlation, deviation)
    if found_ and theirs:
        case.claims.cells(late)
    return [replace(finding, change=evened) for finding in found_]


def _varies(correlation: float, deviation: float) -> bool:
    return deviation >= VARYING and correlation >= MOST


def _without_lengths(case: Case, batches: Batches, base: Change) -> Change:
    """Every micro-batch as long as the mean one, beside another change."""
    assert case.costs is not None
    own = case.costs.graph.own_ns.copy()
    own[base.rows] = base.own_ns
    own[batches.rows] /= batches.common
    changed = np.flatnonzero(own != case.costs.graph.own_ns)
    return base._replace(rows=changed, own_ns=own[changed])


def _whatever_lengths(case: Case, batches: Batches | None) -> Array:
    """Cells that would be late by most of it with all micro-batches as long as the mean one."""
    left = np.zeros(case.grid.shape)
    if batches is None or case.costs is None:
        return left > 0
    own = case.costs.graph.own_ns.copy()
    own[batches.rows] /= batches.common
    left[case.grid.sampled] = above_others(summed(case.costs.graph, own))
    return np.asarray((left > 0) & (left >= MOST * case.delays.excess_ns))


class Varied(NamedTuple):
    """What cells spend over what is usual (steps × ranks), how far parts of them vary together, and
    how much, as a share of the work; and which share of the variance is noise of the parts."""

    spent: Array
    correlation: float
    deviation: float
    noise: float


def _forward_and_backward(case: Case) -> Varied | None:
    """By the phases of hosts; None where they were not recorded, or the optimizer is long too."""
    phases = [case.grid.phase_ns[phase] for phase in (*COMPUTE_PHASES, Phase.OPTIMIZER)]
    if not (phases[0].all() and phases[1].all()):
        return None
    forward, backward = _relative(phases[0]), _relative(phases[1])
    weight = float(np.median(phases[0] / (phases[0] + phases[1])))
    spent = weight * forward + (1 - weight) * backward
    deviation = float(np.diff(np.quantile(spent, [0.25, 0.75]))[0]) / (2 * z(0.75))
    if phases[2].all() and _rank_correlation(spent, _relative(phases[2])) > MOST:
        return Varied(spent, 0.0, deviation, 0.0)
    common = float(np.cov(forward.reshape(-1), backward.reshape(-1))[0, 1])
    own = weight**2 * (forward.var() - common) + (1 - weight) ** 2 * (backward.var() - common)
    return Varied(spent, _rank_correlation(forward, backward), deviation, _part(own, spent))


def _stretches(case: Case) -> Varied | None:
    """By the stretches of own work between operations, of which there must be several."""
    assert case.costs is not None
    own = max(case.costs.parts, key=lambda part: part.rows.size).of(case.costs.graph.own_ns)
    usual = np.median(own, axis=0)
    long = (usual > NAMED * usual.sum(axis=1, keepdims=True)).all(axis=0)
    if own.shape[1] < 2 or np.count_nonzero(long) < 2:
        return None
    weight = usual[:, long].mean(axis=0)
    weight = weight / weight.sum()
    over = own[:, :, long] / usual[None, :, long]
    over = over / np.median(over, axis=1, keepdims=True)
    spent = over @ weight
    each = float(over.var(axis=(0, 1)) @ weight**2)
    alone = float((weight**2).sum())
    common = max((float(spent.var()) - each) / (1 - alone), 0.0)
    others = (spent[:, :, None] - weight * over) / (1 - weight)
    together = [_linear(over[:, :, at], others[:, :, at]) for at in range(len(weight))]
    noise = _part(each - alone * common, spent)
    return Varied(spent, float(np.median(together)), float(np.sqrt(common)), noise)


def _part(variance: float, spent: Array) -> float:
    """The share that this is of the variance of what is spent."""
    return min(max(variance / max(float(spent.var()), 1e-12), 0.0), 1.0)


def _linear(one: Array, other: Array) -> float:
    """Pearson's correlation; 0 where nothing varies."""
    if not one.std() or not other.std():
        return 0.0
    return float(np.corrcoef(one.reshape(-1), other.reshape(-1))[0, 1])


COMPUTE_PHASES = (Phase.FORWARD, Phase.BACKWARD)


def _relative(phase: Array) -> Array:
    """Every cell over its rank's median, and over what all ranks have in its step."""
    over = phase / np.median(phase, axis=0)
    return np.asarray(over / np.median(over, axis=1, keepdims=True))


def _rank_correlation(some: Array, others: Array) -> float:
    """Spearman's: lengths differ in every batch, and not in the few of one late rank a step."""
    place, other = (np.argsort(np.argsort(values, axis=None)) for values in (some, others))
    return float(np.corrcoef(place, other)[0, 1])


# -- the finding -----------------------------------------------------------------------------------


def _sequences(case: Case, lost_ns: Array, correlation: float, deviation: float) -> list[Finding]:
    share = case.share(lost_ns)
    if share.value < SMALLEST_SHARE:
        return []
    return [
        worded(
            "workload_imbalance.lengths",
            share,
            numbers={"deviation": deviation, "correlation": correlation},
            where=Where(),
            when=throughout(case.grid.steps, "rotating"),
            projected=recurrence.by_noise(share, len(case.grid.ranks)),
            options={"squares": share, "bucket": None},
            evidence=[
                Evidence("forward_backward_correlation", round(correlation, 4), 0.0, "factor"),
                Evidence("variation_of_compute", round(deviation, 4), 0.0, "share"),
                Evidence("chronically_late_ranks", int(case.delays.chronic.sum()), 0, "ranks"),
            ],
        )
    ]
