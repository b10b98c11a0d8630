"""Anytime-valid evidence from paired differences, whose signs are random if there is no effect.

Given |D|, its sign is then a fair coin, so E[exp(λD) / cosh(λD)] = 1 for any λ, and the product
over differences is a test martingale (de la Peña 1999): it ever exceeds 1/α with probability at
most α (Ville 1939). Several λ are averaged, because the noise of the differences is unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, inf, log, log1p

ALPHA, LOG_2 = 0.05, log(2)
FIRST_LOOK = 5  # differences; fewer can reject no effect
PRECISION = 1e-3  # of an interval, as a share of its width
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


def interval(gains: Sequence[float]) -> tuple[float, float, float]:
    """Mean and confidence interval (low, high) of paired differences in random order.

    The test inverted: under a constant effect of m, the signs of D - m are fair coins. Valid at all
    times, at level 1 - `ALPHA`: so those after fewer gains, at looks in geometric steps, are
    intersected (running intersection of a confidence sequence, Howard et al. 2021). An empty
    intersection means that the effect has changed: then it is the interval of all gains.
    """
    low, high = last = _nearest_rejected(gains, -1.0, -inf), _nearest_rejected(gains, 1.0, inf)
    looks = FIRST_LOOK
    while looks < len(gains):
        low = _nearest_rejected(gains[:looks], -1.0, low)
        high = _nearest_rejected(gains[:looks], 1.0, high)
        looks += 1 + looks // 8
    return sum(gains) / max(1, len(gains)), *((low, high) if low <= high else last)


def _nearest_rejected(gains: Sequence[float], sign: float, known: float) -> float:
    """The nearest rejected effect above (`sign` 1) or below (-1) the mean; `known` if nearer."""
    mean = sum(gains) / max(1, len(gains))
    reach = max((abs(gain - mean) for gain in gains), default=0.0)
    near, far = 0.0, min(1.0 + 16.0 * reach, sign * (known - mean))  # distances from the mean

    def rejects(distance: float) -> bool:
        away = [distance - sign * (gain - mean) for gain in gains]
        logs = [sum([_log_factor(rate * each) for each in away]) for rate in _RATES]
        return _log_mean_exp(logs) >= log(2 / ALPHA)

    if far <= 0 or not rejects(far):
        return known
    while far - near > max(PRECISION * far, 1e-9):
        middle = (near + far) / 2 if near else far / 8
        near, far = (near, middle) if rejects(middle) else (middle, far)
    return mean + sign * far


def _log_factor(value: float) -> float:
    """log(exp(x) / cosh(x)), without overflow."""
    return LOG_2 - log1p(exp(-2 * value)) if value > -300.0 else LOG_2 + 2 * value


def _log_mean_exp(logs: Sequence[float]) -> float:
    most = max(logs)
    return most + log(sum(exp(each - most) for each in logs)) - log(len(logs))
