"""Repeated measurements of one thing, and which of several things stand out.

A value is the median of its repeats. How sure it is comes from the medians of consecutive blocks,
which repeats that disturb each other (a busy core, a neighbour's burst) do not make look surer
than they are. Something stands out if it is slower than the usual by more than the noise allows:
`ALARM` is the chance that any of them would, all being alike, if noise were normal.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, median
from typing import Generic, TypeVar

ALARM = 0.01
BLOCKS = 5
_TO_SIGMA = 1.4826  # of a normal distribution: standard deviation over MAD
_OF_MEDIAN = 1.2533  # standard error of a median over that of a mean: the root of π/2

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Series:
    """Times of one thing, in the order they were taken."""

    values_ns: tuple[float, ...]

    @property
    def median_ns(self) -> float:
        """The value."""
        return float(median(self.values_ns))

    @property
    def lower_quartile_ns(self) -> float:
        """What three of four repeats take at least."""
        return sorted(self.values_ns)[len(self.values_ns) // 4]

    @property
    def mad_ns(self) -> float:
        """Median of the distances from the median."""
        middle = self.median_ns
        return float(median(abs(value - middle) for value in self.values_ns))

    @property
    def error(self) -> float:
        """Standard error of the median, as a share of it."""
        middle, n = self.median_ns, len(self.values_ns)
        if not middle:
            return 0.0
        plain = _OF_MEDIAN * _TO_SIGMA * self.mad_ns / math.sqrt(n)
        if n < 2 * BLOCKS:
            return plain / middle
        size = n // BLOCKS
        parts = [median(self.values_ns[i * size : (i + 1) * size]) for i in range(BLOCKS)]
        mean = sum(parts) / BLOCKS
        variance = sum((part - mean) ** 2 for part in parts) / (BLOCKS - 1)
        return max(plain, math.sqrt(variance / BLOCKS)) / middle


@dataclass(frozen=True, slots=True)
class Outliers(Generic[Key]):
    """How things compare: the usual value, what would stand out, and what does."""

    usual_ns: float  # 0 where there is nothing to compare
    limit: float  # slower than the usual by more than this share stands out
    factors: Mapping[Key, float]  # of those that do: how many times the usual, slowest first
    ratios: Mapping[Key, float]  # of all


def standing(found: Mapping[Key, Series], *, least: float, quantile: float = 0.5) -> Outliers[Key]:
    """Compare things that should be alike. Differences below `least` are nobody's concern.

    The usual is the value at `quantile` of them, the fastest of two. The spread between them is
    taken from the faster side alone: slow ones must not hide each other.
    """
    values = sorted(series.median_ns for series in found.values())
    if len(values) < 2:
        return Outliers(0.0, least, {}, dict.fromkeys(found, 1.0))
    usual = values[int(quantile * (len(values) - 1))]
    between = _TO_SIGMA * median(usual - value for value in values if value <= usual) / usual
    repeats = min(len(series.values_ns) for series in found.values())
    t = _t_quantile(1 - ALARM / len(values), repeats - 1)
    typical = median(series.error for series in found.values())
    limit = max(least, t * math.hypot(between, typical))
    ratios = {key: series.median_ns / usual for key, series in found.items()}
    slow = [
        key
        for key, series in found.items()
        if ratios[key] - 1 > max(limit, t * series.error)
        and series.lower_quartile_ns > (1 + least) * usual  # it is slow most of the time
    ]
    slow.sort(key=lambda key: -ratios[key])
    return Outliers(usual, limit, {key: ratios[key] for key in slow}, ratios)


def _t_quantile(probability: float, freedom: int) -> float:
    """Student's t, from the normal quantile z: z + (z³ + z) / 4ν (Fisher and Cornish 1960)."""
    z = NormalDist().inv_cdf(probability)
    return z + (z**3 + z) / (4 * max(freedom, 1))


def series(values: Sequence[float]) -> Series:
    """From a list, as it came from another rank."""
    return Series(tuple(float(value) for value in values))
