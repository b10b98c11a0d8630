"""Anytime-valid evidence from paired differences, whose signs are random if there is no effect.

Given |D|, its sign is then a fair coin, so E[exp(λD) / cosh(λD)] = 1 for any λ, and the product
over differences is a test martingale (de la Peña 1999): it ever exceeds 1/α with probability at
most α (Ville 1939). Several λ are averaged, because the noise of the differences is unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, inf, log, log1p

ALPHA = 0.05
FIRST_LOOK = 5  # differences; fewer can reject no effect
_RATES = (1.0, 4.0, 16.0, 64.0, 256.0, 1024.0)  # λ: from noisy differences to quiet ones


class EvidenceProcess:
    """Test martingale against "no effect"; grows with differences above 0."""

    __slots__ = ("_logs",)

    def __init__(self) -> None:
        self._logs = [0.0] * len(_RATES)

    def add(self, difference: float) -> None:
        """Enter a difference."""
        for index, rate in enumerate(_RATES):
            self._logs[index] += _log_factor(rate * difference)

    @property
    def log(self) -> float:
        """Log of the martingale."""
        return _log_mean_exp(self._logs)


def interval(gains: Sequence[float], alpha: float = ALPHA) -> tuple[float, float, float]:
    """Mean and confidence interval (low, high) of paired differences in random order.

    The test inverted: under a constant effect of m, the signs of D - m are fair coins. Valid at all
    times, at level 1 - alpha.
    """
    if not gains:
        return 0.0, -inf, inf
    mean = sum(gains) / len(gains)
    reach = max(abs(gain - mean) for gain in gains) + 1e-9
    below = _nearest_rejected(gains, alpha, mean, -reach)
    above = _nearest_rejected(gains, alpha, mean, reach)
    return mean, mean + below, mean + above


def running_interval(gains: Sequence[float]) -> tuple[float, float, float]:
    """Intersect the intervals after fewer gains with that after all of them (running intersection
    of a confidence sequence, Howard et al. 2021).

    The looks are geometrically spaced. An empty intersection means that the effect has changed:
    then the interval of all gains is returned.
    """
    mean, low, high = last = interval(gains)
    looks = FIRST_LOOK
    while looks < len(gains):
        _, below, above = interval(gains[:looks])
        low, high = max(low, below), min(high, above)
        looks += 1 + looks // 8
    return (mean, low, high) if low <= high else last


def _nearest_rejected(gains: Sequence[float], alpha: float, mean: float, reach: float) -> float:
    """Distance from the mean to the nearest rejected effect on one side; infinite if none is."""
    sign = 1.0 if reach > 0 else -1.0
    far, near = sign + 16 * reach, 0.0
    limit = log(2 / alpha)

    def evidence(effect: float) -> float:
        return _log_mean_exp(
            [sum(_log_factor(sign * rate * (effect - gain)) for gain in gains) for rate in _RATES]
        )

    if evidence(mean + far) < limit:
        return sign * inf
    for _ in range(50):
        middle = (near + far) / 2
        near, far = (near, middle) if evidence(mean + middle) >= limit else (middle, far)
    return far


def _log_factor(value: float) -> float:
    """log(exp(x) / cosh(x)), without overflow."""
    size = abs(value)
    return value - (size + log1p(exp(-2 * size)) - log(2))


def _log_mean_exp(logs: Sequence[float]) -> float:
    most = max(logs)
    return most + log(sum(exp(each - most) for each in logs)) - log(len(logs))
