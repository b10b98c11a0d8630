"""Thresholds of lateness: chronically late ranks, and single late steps beyond the job's noise."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evenstep.diagnose.levels import FEWEST, MOST, NAMED, SIGMAS
from evenstep.statistics.interval import BLOCK_STEPS, MAD_SIGMA, student, z
from evenstep.trace.columns import Array

FEWEST_STEPS = 5  # with fewer, nothing has a pattern
CHRONIC_SHARE = 0.02  # of a step: smaller persistent excess counts as chance
CHRONIC_STEPS = 0.6  # of the steps, at least, show a chronic rank's excess
BY_CHANCE = 0.05  # of jobs with equal ranks have one that stands out (level of the test)
SKEWED = 1.5  # spread above the median over that below: noise with a longer tail has a long tail
NEAR_STEPS = 2 * BLOCK_STEPS  # steps of which a rank's usual work is the median


def noise_of(work: Array) -> float:
    """Standard deviation of undisturbed work, from its lower quarter, which delays do not reach."""
    low, quarter = np.quantile(work, [0.05, 0.25], axis=0)
    return float(np.median((quarter - low) / (z(0.25) - z(0.05))))


def late_threshold(excess: Array, step_ns: float, noise_ns: float) -> float:
    """Excess above which a single cell is late: worth naming, and no noise.

    Where cells above the threshold are not set apart from the others, it is raised above the spread
    of the upper half; and where that has a long tail, until they are set apart.
    """
    event = max(NAMED * step_ns, SIGMAS * noise_ns)
    if not excess.size or set_apart(excess, event):
        return event
    half, upper = np.quantile(excess, [0.5, 0.75], axis=0)
    middle = np.min if excess.shape[1] == 2 else np.median  # of two, one mirrors the other's delays
    spread = float(middle(upper - half)) / z(0.75)
    event = max(event, SIGMAS * spread)
    if spread > SKEWED * noise_of(excess):
        while not set_apart(excess, event):
            event *= 2 ** (1 / 8)
    return event


def set_apart(excess: Array, event: float) -> bool:
    """Whether far fewer cells lie in the octave below `event` than above it; in the tail of a
    distribution with a mean more do."""
    above, both = (np.count_nonzero(excess > least) for least in (event, event / 2))
    return bool(both - above <= MOST * above)


def chronic_ranks(
    excess: Array, step_ns: float, programs: Sequence[Array], *, contended: bool
) -> Array:
    """Ranks whose excess is in most steps worth naming, beside `step_ns`, and where ranks compete
    for cores (`contended`), beyond its own scatter, and whose median stands out of the noise (one-
    sided, Bonferroni); or the mean median of all ranks (columns) of a program, as of a stage."""
    if len(excess) < FEWEST_STEPS:
        return np.zeros(excess.shape[1], bool)
    usual = np.quantile(excess, 1 - CHRONIC_STEPS, axis=0)
    least = _spread(excess) if contended else 0.0
    floor = np.maximum(CHRONIC_SHARE * step_ns, least)
    reach = student(len(excess) - 1, 1 - BY_CHANCE / excess.shape[1])
    found = (usual > floor) & (np.median(excess, axis=0) > reach * error_of_median(excess))
    for ranks in programs:
        whole = excess[:, ranks].mean(axis=1, keepdims=True)
        together = bool(np.median(whole) > reach * error_of_median(whole)[0])
        found[ranks] |= together and (usual > floor)[ranks].all()
    return np.asarray(found)


def standing_out(levels: Array) -> Array:
    """Ranks beyond the spread of the others. Fewer than `FEWEST` far below all others, as a server
    is among workers, have no part in it. Up to `FEWEST` ranks all count."""
    low = _beyond(-levels)
    usual = ~low if np.count_nonzero(low) < FEWEST else np.ones(len(levels), bool)
    found = np.zeros(len(levels), bool)
    found[usual] = np.count_nonzero(usual) <= FEWEST or _beyond(levels[usual])
    return found


def _beyond(levels: Array) -> Array:
    """From the lower half upwards, all from the first one above the prediction interval of those
    below (one-sided, normal sample, Bonferroni)."""
    count, order = len(levels), np.argsort(levels)
    for below in range(max(count // 2, FEWEST), count):
        others = levels[order[:below]]
        reach = student(below - 1, 1 - BY_CHANCE / count) * np.sqrt(1 + 1 / below)
        if levels[order[below]] - others.mean() > reach * others.std(ddof=1):
            return np.isin(np.arange(count), order[below:])
    return np.zeros(count, bool)


def unsteady(excess: Array) -> Array:
    """Ranks whose excess (steps, ranks) varies more than noise does, which is alike on all ranks: a
    one-sided F test with the freedom of the noise's kurtosis (Box 1953), Bonferroni. (ranks,)."""
    from scipy.special import fdtri  # when first asked: .1 s

    steps, ranks = excess.shape
    apart, variance = excess - excess.mean(axis=0), excess.var(axis=0)
    kurtosis = float((apart**4).mean() / max(variance.mean() ** 2, 1e-12))
    freedom = 2 * max(steps - 1, 1) / max(kurtosis - 1, 2.0)
    reach = fdtri(freedom, freedom * ranks * 2 / np.pi, 1 - BY_CHANCE / ranks)
    return np.asarray(variance > reach * np.quantile(variance, 0.5, method="lower"))


def usual_lateness(excess: Array, steady: Array) -> Array:
    """How late each rank is where it is late, (ranks,): the two levels of a mixture with the mean
    and the variance that its excess has beyond that of steady ranks (method of moments)."""
    levels = excess.mean(axis=0), excess.var(axis=0)
    mean, variance = (level - np.median(level[steady]) for level in levels)
    return np.asarray(mean + np.maximum(variance, 0.0) / np.maximum(mean, 1.0))


def error_of_median(values: Array) -> Array:
    """Standard error of each column's median, were its scatter about the usual value near each step
    normal and correlated over steps, but for trends, as it mostly is in all columns. (ranks,)."""
    if (steps := len(values)) < 3:  # a trend leaves them no scatter that could be correlated
        return np.asarray(_spread(values) * np.sqrt(np.pi / 2 / steps))
    apart, turns = values - values.mean(axis=0), np.arange(steps) - (steps - 1) / 2
    apart -= np.outer(turns, turns @ apart / (turns @ turns))
    length = max(min(BLOCK_STEPS, steps // FEWEST), 1)
    whole = steps // length
    blocks = apart[: whole * length].reshape(whole, length, -1).mean(axis=1)
    variances = blocks.var(axis=0, ddof=2) * length, apart.var(axis=0, ddof=2)
    correlated = max(float(np.median(variances[0] / np.maximum(variances[1], 1e-12))), 1.0)
    return np.asarray(_spread(values) * np.sqrt(np.pi / 2 * correlated / steps))


def _spread(values: Array) -> Array:
    """Standard deviation of each column about the usual value near each step; at least that of the
    median rank: over few steps a rank's own scatter may be small by chance. (ranks,)."""
    noise = MAD_SIGMA * np.median(np.abs(values - local_median(values)), axis=0)
    return np.asarray(np.maximum(noise, np.median(noise)))


def usual_excess(work: Array, chronic: Array) -> Array:
    """Each rank's usual own work above that of the ranks that are not chronically late, around each
    step, in proportion to its work: the median part by which it differs from theirs. (steps, ranks)
    """
    apart = beyond_others(work)
    if chronic.any() and not chronic.all():
        apart = work - np.median(work[:, ~chronic], axis=1, keepdims=True)
    return local_median(apart / np.maximum(work, 1.0)) * work


def local_median(values: Array) -> Array:
    """Each rank's median over the `NEAR_STEPS` around each step. (steps, ranks)."""
    near = np.array_split(values, max(len(values) // NEAR_STEPS, 1))
    return np.concatenate([np.broadcast_to(np.median(part, axis=0), part.shape) for part in near])


def usual_of(values: Array, cells: Array) -> Array:
    """Of each of these cells (steps × ranks) the rank's median of them near it; 0 of others. Values
    and result are (steps, ranks, …)."""
    found = np.zeros(values.shape)
    for rank in np.flatnonzero(cells.any(axis=0)):
        mine = cells[:, rank]
        found[mine, rank] = local_median(values[mine, rank])
    return found


# -- relative to the other ranks -------------------------------------------------------------------


def beyond_others(work: Array) -> Array:
    """Each rank's work above that of the others, step by step: their middle is that of what each
    has beyond its usual work, beside the middle of their usual work. Where half of them are late,
    the middle of the work itself would be the one with most noise on one of the two sides."""
    apart = work - np.median(work, axis=1, keepdims=True)
    usual = np.median(apart, axis=0, keepdims=True)
    return above_others(apart - usual) + above_others(usual)


def above_others(values: Array) -> Array:
    """Each rank's value minus the median of the other ranks', step by step.

    Of an even number of others it is the upper median, so that most of all ranks are not late.
    """
    ranks = values.shape[1]
    if ranks < 2:
        return np.zeros(values.shape)
    middle = (ranks - 1) // 2  # of the others, by index among them
    ordered = np.partition(values, [middle, middle + 1], axis=1)
    low, high = ordered[:, middle, None], ordered[:, middle + 1, None]
    # a rank at or below the lower middle moves the others' median up by one
    result: Array = values - np.where(values <= low, high, low).astype(float)
    return result


def above_peers(values: Array, programs: Sequence[Array]) -> Array:
    """The same beside the other ranks of a program (columns), where it has any."""
    found = above_others(values)
    for ranks in programs:
        if len(ranks) > 1:
            found[:, ranks] = above_others(values[:, ranks])
    return found


def middle_of_others(values: Array) -> Array:
    """What `above_others` compares the largest rank with, by step; a single rank's own value."""
    middle = max(values.shape[1] - 1, 0) // 2
    return np.asarray(np.partition(values, middle, axis=1)[:, middle])
