"""A paired comparison that may be looked at after every pair without lying."""

from __future__ import annotations

from math import log, sqrt

PRIOR = 8  # ρ: where the interval is tightest
ALPHA = 0.05
FEWEST_PAIRS = 5


class PairedComparison:
    """The mean of paired differences with an interval valid at all times (normal mixture, Robbins
    1970).

    w = s sqrt((n + ρ) / n² · log((n + ρ) / (ρ α²))), s = deviation · (1 + 1.5 / n).
    """

    __slots__ = ("_squares", "count", "mean")

    def __init__(self) -> None:
        self.count = 0
        self.mean = 0.0
        self._squares = 0.0  # sum of squared distances from the mean (Welford 1962)

    def add(self, difference: float) -> None:
        """Enter one pair."""
        self.count += 1
        step = difference - self.mean
        self.mean += step / self.count
        self._squares += step * (difference - self.mean)

    @property
    def half_width(self) -> float:
        """w; infinite before there are `FEWEST_PAIRS`."""
        n = self.count
        if n < FEWEST_PAIRS:
            return float("inf")
        s = sqrt(self._squares / (n - 1)) * (1.0 + 1.5 / n)
        return s * sqrt((n + PRIOR) / n**2 * log((n + PRIOR) / (PRIOR * ALPHA**2)))

    @property
    def certainty(self) -> float:
        """The mean in standard errors; the deviation widened as in `half_width`."""
        n = self.count
        if n < 2:
            return 0.0
        s = sqrt(self._squares / (n - 1)) * (1.0 + 1.5 / n)
        return self.mean * sqrt(n) / (s + 1e-9)

    @property
    def error(self) -> float:
        """The standard error of the mean; infinite before there are two."""
        n = self.count
        return sqrt(self._squares / (n - 1) / n) if n > 1 else float("inf")

    def fade(self) -> None:
        """Let what was entered so far count half."""
        self.count //= 2
        self._squares /= 2

    @property
    def low(self) -> float:
        """Lower end of the interval."""
        return self.mean - self.half_width

    @property
    def high(self) -> float:
        """Upper end of the interval."""
        return self.mean + self.half_width


class Cusum:
    """An alarm for a mean that has crept up: C = max(0, C + z - 1/2), z in deviations (Page 1954).

    At 8 deviations a false alarm comes once in about 19,000 blocks (Siegmund 1985).
    """

    __slots__ = ("_deviation", "_level", "_mean")

    LIMIT = 8.0

    def __init__(self, reference: list[float]) -> None:
        n = len(reference)
        self._mean = sum(reference) / n
        variance = sum((x - self._mean) ** 2 for x in reference) / max(1, n - 1)
        self._deviation = max(1e-4, sqrt(variance) * (1.0 + 1.5 / n))
        self._level = 0.0

    def rings(self, value: float) -> bool:
        """Enter a value; whether the alarm goes off."""
        z = (value - self._mean) / self._deviation
        self._level = max(0.0, self._level + z - 0.5)
        return self._level > self.LIMIT
