"""What stands out of a job's noise: ranks in most of their steps, and single steps of a rank."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.diagnose.levels import ERRORS, FEWEST, MOST, NAMED, SIGMAS
from evenstep.diagnose.measure.grid import StepGrid
from evenstep.diagnose.measure.recurrence import FEWEST_STEPS
from evenstep.statistics.interval import BLOCK_STEPS, MAD_SIGMA, student, z

Array = npt.NDArray[Any]

CHRONIC_SHARE = 0.02  # of a step: less persistent excess is left to chance
CHRONIC_STEPS = 0.6  # of the steps at least show a chronic rank's excess
BY_CHANCE = 0.05  # of jobs whose ranks are alike have one that stands out
SKEWED = 1.5  # times as wide above the median as below: noise with a long tail
NEAR_STEPS = 2 * BLOCK_STEPS  # what is usual for a rank is that of so many steps


def noise_of(work: Array) -> float:
    """Spread of undisturbed work: from the lower quarter, where delays do not reach."""
    low, quarter = np.quantile(work, [0.05, 0.25], axis=0)
    return float(np.median((quarter - low) / (z(0.25) - z(0.05))))


def event_of(excess: Array, step_ns: float, noise_ns: float) -> float:
    """Excess above which a single cell is late: worth naming, and no noise.

    Late cells that stand apart are no tail of anything. Where they do not, they have to stand out
    of the upper half of the noise; and where that has the longer tail, to stand apart from it.
    """
    event = max(NAMED * step_ns, SIGMAS * noise_ns)
    if not excess.size or apart(excess, event):
        return event
    half, upper = np.quantile(excess, [0.5, 0.75], axis=0)
    spread = float(np.median(upper - half)) / z(0.75)
    event = max(event, SIGMAS * spread)
    if spread > SKEWED * noise_of(excess):
        while not apart(excess, event):
            event *= 2 ** (1 / 8)
    return event


def apart(excess: Array, event: float) -> bool:
    """Whether far fewer cells lie in the octave below than above. In a tail with a mean more do."""
    above, both = (np.count_nonzero(excess > least) for least in (event, event / 2))
    return bool(both - above <= MOST * above)


def chronic_ranks(excess: Array, grid: StepGrid, *, contended: bool) -> Array:
    """Ranks whose excess is worth naming in most steps, and whose median stands out of noise."""
    if len(excess) < FEWEST_STEPS:
        return np.zeros(grid.shape[1], bool)
    usual = np.quantile(excess, 1 - CHRONIC_STEPS, axis=0)
    error = error_of_median(excess)
    step = float(np.median(grid.step_ns))
    floor = np.full(len(error), CHRONIC_SHARE * step)
    if contended:
        noise = error / np.sqrt(np.pi / 2 / len(excess))
        floor = np.maximum(floor, np.maximum(noise, 0.1 * step))
    return np.asarray((usual > floor) & (np.median(excess, axis=0) > ERRORS * error))


def standing_out(levels: Array) -> Array:
    """Ranks that are no part of the others' spread: from the lower half of them on upwards, all
    from the first one that is beyond what one more of those below would be among so many (one-sided
    prediction interval of a normal sample, Bonferroni). Of few ranks everybody may be."""
    count, order = len(levels), np.argsort(levels)
    if count <= FEWEST:
        return np.ones(count, bool)
    for below in range(max(count // 2, FEWEST), count):
        others = levels[order[:below]]
        reach = student(below - 1, 1 - BY_CHANCE / count) * np.sqrt(1 + 1 / below)
        if levels[order[below]] - others.mean() > reach * others.std(ddof=1):
            return np.isin(np.arange(count), order[below:])
    return np.zeros(count, bool)


def error_of_median(values: Array) -> Array:
    """Standard error of each column's median, were its scatter normal. (ranks,).

    Of few steps a rank's own scatter may be small by chance: at least the median rank's counts.
    """
    noise = MAD_SIGMA * np.median(np.abs(values - np.median(values, axis=0)), axis=0)
    return np.asarray(np.maximum(noise, np.median(noise)) * np.sqrt(np.pi / 2 / len(values)))


def usual(work: Array, chronic: Array) -> Array:
    """What each rank's own work usually is above that of the ranks that are not chronically late,
    around each step. (steps, ranks).

    Medians over time come first: of few others, the middle one of a single step is noise too.
    """
    level = around(work - np.median(work, axis=1, keepdims=True))
    if not chronic.any() or chronic.all():
        return above_others(level)
    return np.asarray(level - np.median(level[:, ~chronic], axis=1, keepdims=True))


def around(values: Array) -> Array:
    """Each rank's median around each step. (steps, ranks)."""
    near = np.array_split(values, max(len(values) // NEAR_STEPS, 1))
    return np.concatenate([np.broadcast_to(np.median(part, axis=0), part.shape) for part in near])


# -- beside the others -----------------------------------------------------------------------------


def above_others(values: Array) -> Array:
    """Each rank's value minus the median of the other ranks', step by step.

    Of an even number of others the upper middle: most of all ranks are not late, the rest early.
    """
    ranks = values.shape[1]
    if ranks < 2:
        return np.zeros(values.shape)
    middle = (ranks - 1) // 2  # of the others, by index among them
    ordered = np.partition(values, [middle, middle + 1], axis=1)
    low, high = ordered[:, middle, None], ordered[:, middle + 1, None]
    # who is at or below the middle is not among the others
    result: Array = values - np.where(values <= low, high, low).astype(float)
    return result


def middle_of_others(values: Array) -> Array:
    """What the last rank is compared with in `above_others`, step by step: its excess lies above.

    Of a single rank its own value.
    """
    middle = max(values.shape[1] - 1, 0) // 2
    return np.asarray(np.partition(values, middle, axis=1)[:, middle])
