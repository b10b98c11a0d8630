"""Repeated measurements of several things, and which of them are outliers.

A value is the median of its repeats. Its error comes from the medians of consecutive blocks, as
neighbouring repeats are not independent (a busy core, a neighbour's burst). An outlier is slower
than the usual value by more than the noise explains: `ALARM` is the chance of any outlier among
things that are alike, if noise were normal.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, median
from typing import Generic, TypeVar

ALARM = 0.01
BLOCKS = 5
_TO_SIGMA = 1.4826  # standard deviation over MAD of a normal distribution
_OF_MEDIAN = 1.2533  # standard error of a median over that of a mean: √(π/2)

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Series:
    """Times of one thing, in the order of the measurements."""

    values_ns: tuple[float, ...]

    @property
    def median_ns(self) -> float:
        return float(median(self.values_ns))

    @property
    def mad_ns(self) -> float:
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
    """The usual value of several things, and those that are slower than their noise explains."""

    usual_ns: float  # 0 where there is nothing to compare
    limit: float  # share above the usual value from which a thing is an outlier
    factors: Mapping[Key, float]  # value over the usual one of the outliers, slowest first
    ratios: Mapping[Key, float]  # the same of all


def standing(found: Mapping[Key, Series], *, least: float, quantile: float = 0.5) -> Outliers[Key]:
    """Compare things that should be alike; differences below the share `least` do not count. Spread
    is of the faster half alone, so that slow ones do not hide each other."""
    values = sorted(series.median_ns for series in found.values())
    if len(values) < 2:
        return Outliers(0.0, least, {}, dict.fromkeys(found, 1.0))
    usual = values[int(quantile * (len(values) - 1))]
    between = _TO_SIGMA * median(usual - value for value in values if value <= usual) / usual
    repeats = min(len(series.values_ns) for series in found.values())
    z = NormalDist().inv_cdf(1 - ALARM / len(values))
    t = z + (z**3 + z) / (4 * max(repeats - 1, 1))  # Student's (Fisher and Cornish 1960)
    typical = median(series.error for series in found.values())
    limit = max(least, t * math.hypot(between, typical))
    ratios = {key: series.median_ns / usual for key, series in found.items()}
    slow = [
        key
        for key, series in found.items()
        if ratios[key] - 1 > max(limit, t * series.error)
        # three of four repeats are slow
        and sorted(series.values_ns)[len(series.values_ns) // 4] > (1 + least) * usual
    ]
    slow.sort(key=lambda key: -ratios[key])
    return Outliers(usual, limit, {key: ratios[key] for key in slow}, ratios)


def series(values: Sequence[float]) -> Series:
    """A series from a list of times, as another rank sends them."""
    return Series(tuple(float(value) for value in values))
