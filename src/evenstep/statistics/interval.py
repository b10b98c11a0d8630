"""A number with its 95 % interval.

Neighbouring steps are not independent: their intervals come from blocks of steps drawn with
replacement (moving blocks, Künsch 1989); those of independent values from Student's t.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import sqrt
from statistics import NormalDist, stdev
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

z = NormalDist().inv_cdf  # quantile of the standard normal distribution
MAD_SIGMA = 1 / z(0.75)  # standard deviation over median absolute deviation
RESAMPLES = 200
MOST_CERTAIN = 0.99  # a confidence is never above it
BLOCK_STEPS = 8
SEED = 20_400  # any: the same trace must give the same interval


class Estimate(NamedTuple):
    """A value with its 95 % interval."""

    value: float
    low: float
    high: float

    def rounded(self) -> tuple[float, float, float]:
        """Value, low and high as they are reported."""
        return round(self.value, 4), round(self.low, 4), round(self.high, 4)

    @property
    def confidence(self) -> float:
        """How far the value stands above the chance of being nothing, 0 to .99."""
        half = max(self.high - self.value, self.value - self.low, 1e-12 * self.value, 1e-12)
        return float(min(MOST_CERTAIN, max(0.0, 1.0 - np.exp(-1.5 * max(self.value, 0.0) / half))))


Share = Estimate  # of the total step time


class Blocks(NamedTuple):
    """Draws of a series of steps, each of blocks of neighbouring steps."""

    starts: Array  # (draws, blocks)
    length: int
    steps: int  # of the series

    def sums(self, values: Array) -> Array:
        """Sum of a series, one value a step, over the blocks of each draw. (draws,)."""
        summed = np.concatenate([[0.0], np.cumsum(values, dtype=float)])
        return np.asarray((summed[self.starts + self.length] - summed[self.starts]).sum(axis=1))

    def indices(self) -> Iterator[Array]:
        """Indices of the steps of each draw, as many as the series has."""
        for starts in self.starts:
            yield (starts[:, None] + np.arange(self.length)).reshape(-1)[: self.steps]


def blocks(
    steps: int, random: np.random.Generator, *, length: int = BLOCK_STEPS, draws: int = RESAMPLES
) -> Blocks:
    """Draw blocks from a series of `steps` steps (at least one)."""
    length = min(length, steps)
    starts = random.integers(0, steps - length + 1, (draws, -(-steps // length)))
    return Blocks(starts, length, steps)


def of_draws(value: float, draws: Array) -> Estimate:
    """A value with the middle 95 % of its draws, widened to hold the value."""
    low, high = np.quantile(draws, [0.025, 0.975])
    return Estimate(value, min(float(low), value), max(float(high), value))


def share_of(lost_ns: Array, step_ns: Array) -> Estimate:
    """The share that `lost_ns` is of `step_ns`, both per step, with its interval; at most 1."""
    total = float(step_ns.sum())
    if not len(step_ns) or total <= 0:
        return Estimate(0.0, 0.0, 0.0)
    value = min(1.0, float(lost_ns.sum()) / total)
    if len(step_ns) < 2 * BLOCK_STEPS:
        half = _of_few(lost_ns, step_ns, value)
        return Estimate(value, max(0.0, value - half), min(1.0, value + half))
    drawn = blocks(len(step_ns), np.random.default_rng(SEED))
    share = of_draws(value, drawn.sums(lost_ns) / np.maximum(drawn.sums(step_ns), 1))
    return share._replace(high=min(1.0, share.high))


def _of_few(lost_ns: Array, step_ns: Array, value: float) -> float:
    """Half the interval of a share of few steps, by Student's t: at least that of one step being an
    exception, and all of it where there is only one step."""
    if len(step_ns) == 1:
        return 1.0
    scatter = float(np.sqrt(((lost_ns - value * step_ns) ** 2).sum())) / float(step_ns.sum())
    return max(scatter * student(len(step_ns) - 1), value / len(step_ns))


def student(freedom: float, level: float = 0.975) -> float:
    """Quantile of Student's t; by default half of a two-sided 95 % interval in standard errors."""
    from scipy.special import stdtrit  # when first asked: .1 s

    return float(stdtrit(freedom, level))


def half_width(values: Sequence[float]) -> float:
    """Half of the 95 % interval of the mean of independent values. Raises
    `statistics.StatisticsError` for fewer than two."""
    return stdev(values) / sqrt(len(values)) * student(len(values) - 1)
