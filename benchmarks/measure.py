"""Numbers of a benchmark: a row of the table, medians with their spread, a ratio with interval."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from evenstep.statistics.interval import half_width


class Row(NamedTuple):
    """One line of the results: what was measured, its bar, and the outcome."""

    what: str
    bar: str
    measured: str
    met: bool | None  # None: there is no bar, or it could not be decided
    command: str


class Spread(NamedTuple):
    """A median and the quartiles around it."""

    median: float
    low: float
    high: float

    def text(self, unit: str, digits: int = 1) -> str:
        """As it stands in the table: median and quartiles."""
        return f"{self.median:.{digits}f} {unit} ({self.low:.{digits}f} to {self.high:.{digits}f})"


class Ratio(NamedTuple):
    """A ratio and its 95 % interval."""

    value: float
    low: float
    high: float
    pairs: int

    @property
    def half_width(self) -> float:
        """Half the interval."""
        return (self.high - self.low) / 2


def spread(values: Sequence[float]) -> Spread:
    """Median and quartiles. Raises `statistics.StatisticsError` on an empty sequence."""
    if len(values) == 1:
        return Spread(values[0], values[0], values[0])
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(middle, low, high)


def differences(left: Sequence[float], right: Sequence[float]) -> list[float]:
    """left − right, round by round: what both share (the machine's mood) drops out."""
    return [a - b for a, b in zip(left, right, strict=True)]


def trimmed(values: Sequence[float]) -> float:
    """The mean without the tenth at each end. Raises `statistics.StatisticsError` on an empty
    sequence."""
    cut = len(values) // 10
    return statistics.fmean(sorted(values)[cut : len(values) - cut])


def ratio_of_means(upper: Sequence[float], lower: Sequence[float]) -> Ratio:
    """Mean of `upper` ÷ mean of `lower`, measured together block by block, with its 95 % interval
    from Student's t on the residuals (Cochran, Sampling Techniques, 1977, eq. 6.13): what scatters
    in both alike widens it not. Needs at least two blocks; `lower` has a mean above zero."""
    below = statistics.fmean(lower)
    value = statistics.fmean(upper) / below
    half = half_width([a - value * b for a, b in zip(upper, lower, strict=True)]) / below
    return Ratio(value, value - half, value + half, len(upper))


def within(low: float, high: float, least: float, most: float) -> bool | None:
    """Whether a figure lies from `least` to `most`, by its interval; None where that does not
    tell."""
    if least <= low and high <= most:
        return True
    return None if low <= most and least <= high else False


def paired_ratio(on: Sequence[float], off: Sequence[float]) -> Ratio:
    """Geometric mean of on ÷ off over pairs, with its 95 % interval from Student's t.

    Pairs lie next to each other in time and their order within the pair was random, so that a slow
    drift of the machine cancels. Needs at least two pairs.
    """
    logs = [math.log(a / b) for a, b in zip(on, off, strict=True)]
    mean = statistics.fmean(logs)
    half = half_width(logs)
    return Ratio(math.exp(mean), math.exp(mean - half), math.exp(mean + half), len(logs))
