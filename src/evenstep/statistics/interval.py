"""A number with its interval, and where the interval comes from: blocks of steps drawn again.

Neighbouring steps are not independent, so blocks of them are drawn with replacement (moving blocks,
Künsch 1989). Of independent values Student's t does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import sqrt
from statistics import NormalDist, stdev
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

z = NormalDist().inv_cdf  # standard deviations below which a share of a normal distribution lies
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
        """The three numbers as they are reported."""
        return round(self.value, 4), round(self.low, 4), round(self.high, 4)

    @property
    def confidence(self) -> float:
        """How far the value stands above the chance of being nothing, 0 to .99."""
        half = max(self.high - self.value, self.value - self.low, 1e-12 * self.value, 1e-12)
        return float(min(MOST_CERTAIN, max(0.0, 1.0 - np.exp(-1.5 * self.value / half))))


Share = Estimate  # of the total step time


class Blocks(NamedTuple):
    """Neighbouring steps drawn together, some of them again."""

    starts: Array  # (draws, blocks)
    length: int
    steps: int  # of the series

    def sums(self, values: Array) -> Array:
        """Sum of a series, one value a step, over the blocks of each draw. (draws,)."""
        summed = np.concatenate([[0.0], np.cumsum(values, dtype=float)])
        return np.asarray((summed[self.starts + self.length] - summed[self.starts]).sum(axis=1))

    def indices(self) -> Iterator[Array]:
        """The steps of each draw, as many as there are in the series."""
        for starts in self.starts:
            yield (starts[:, None] + np.arange(self.length)).reshape(-1)[: self.steps]


def blocks(
    steps: int, random: np.random.Generator, *, length: int = BLOCK_STEPS, draws: int = RESAMPLES
) -> Blocks:
    """Draw blocks of a series of so many steps (at least one)."""
    length = min(length, steps)
    starts = random.integers(0, steps - length + 1, (draws, -(-steps // length)))
    return Blocks(starts, length, steps)


def middle(values: Array) -> tuple[float, float]:
    """The middle 95 % of some draws."""
    low, high = np.quantile(values, [0.025, 0.975])
    return float(low), float(high)


def share_of(lost_ns: Array, step_ns: Array) -> Estimate:
    """Sum of `lost_ns` over the sum of `step_ns`, both per step, with its interval; at most 1."""
    total = float(step_ns.sum())
    if not len(step_ns) or total <= 0:
        return Estimate(0.0, 0.0, 0.0)
    value = min(1.0, float(lost_ns.sum()) / total)
    if len(step_ns) < 2 * BLOCK_STEPS:
        half = _of_few(lost_ns, step_ns, value)
        return Estimate(value, max(0.0, value - half), min(1.0, value + half))
    drawn = blocks(len(step_ns), np.random.default_rng(SEED))
    low, high = middle(drawn.sums(lost_ns) / np.maximum(drawn.sums(step_ns), 1))
    return Estimate(value, min(low, value), min(1.0, max(high, value)))


def _of_few(lost_ns: Array, step_ns: Array, value: float) -> float:
    """Half the interval of a share of few steps, by Student's t; one of them may be an exception,
    however well they agree, and of one alone nothing follows for others."""
    if len(step_ns) == 1:
        return 1.0
    scatter = float(np.sqrt(((lost_ns - value * step_ns) ** 2).sum())) / float(step_ns.sum())
    return max(scatter * student(len(step_ns) - 1), value / len(step_ns))


def student(freedom: float, level: float = 0.975) -> float:
    """Quantile of Student's t: half of a two-sided 95 % interval in standard errors."""
    from scipy.special import stdtrit  # when first asked: .1 s

    return float(stdtrit(freedom, level))


def half_width(values: Sequence[float]) -> float:
    """Half of the 95 % interval of the mean of independent values, of which there are two or more.

    Raises `statistics.StatisticsError` of fewer.
    """
    return stdev(values) / sqrt(len(values)) * student(len(values) - 1)
