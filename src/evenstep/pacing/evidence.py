"""Evidence from differences whose signs are coins where there is no effect.

Given |D| its sign is a coin, so E[exp(λD) / cosh(λD)] = 1 for any λ, and the product over
differences is a test martingale (de la Peña 1999): it ever exceeds 1/α with probability at most α
(Ville 1939). Several λ are mixed, since nobody knows how noisy the differences are.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, inf, log, log1p

ALPHA = 0.05
FIRST_LOOK = 5  # differences; fewer refute nothing
_RATES = (1.0, 4.0, 16.0, 64.0, 256.0, 1024.0)  # λ: from noisy differences to quiet ones


class EvidenceProcess:
    """Grows with differences above 0; no more than chance allows where there is no effect."""

    __slots__ = ("_logs",)

    def __init__(self) -> None:
        self._logs = [0.0] * len(_RATES)

    def add(self, difference: float) -> None:
        """Enter a difference."""
        for index, rate in enumerate(_RATES):
            self._logs[index] += _grown(rate * difference)

    @property
    def log(self) -> float:
        """Log of the martingale."""
        return _mixed(self._logs)


def interval(gains: Sequence[float], alpha: float = ALPHA) -> tuple[float, float, float]:
    """Mean of paired differences in random order, and the effects that they do not refute.

    The test inverted: with a constant effect of m, the signs of D - m are coins. Valid at all
    times, at level 1 - alpha.
    """
    if not gains:
        return 0.0, -inf, inf
    mean = sum(gains) / len(gains)
    reach = max(abs(gain - mean) for gain in gains) + 1e-9
    below = _refuted(gains, alpha, mean, -reach)
    above = _refuted(gains, alpha, mean, reach)
    return mean, mean + below, mean + above


def standing(gains: Sequence[float]) -> tuple[float, float, float]:
    """`interval`, less what was refuted before: it holds at all times, so at all of them at once
    (the running intersection of a confidence sequence, Howard et al. 2021).

    Looked at ever more rarely. Where nothing is left the effect has changed: then it is the last.
    """
    mean, low, high = last = interval(gains)
    looks = FIRST_LOOK
    while looks < len(gains):
        _, below, above = interval(gains[:looks])
        low, high = max(low, below), min(high, above)
        looks += 1 + looks // 8
    return (mean, low, high) if low <= high else last


def _refuted(gains: Sequence[float], alpha: float, mean: float, reach: float) -> float:
    """How far from the mean an effect must be to be refuted; infinite where none is."""
    sign = 1.0 if reach > 0 else -1.0
    far, near = sign + 16 * reach, 0.0
    limit = log(2 / alpha)

    def evidence(effect: float) -> float:
        grown = [sum(_grown(sign * rate * (effect - gain)) for gain in gains) for rate in _RATES]
        return _mixed(grown)

    if evidence(mean + far) < limit:
        return sign * inf
    for _ in range(50):
        middle = (near + far) / 2
        near, far = (near, middle) if evidence(mean + middle) >= limit else (middle, far)
    return far


def _grown(value: float) -> float:
    return value - _log_cosh(value)


def _log_cosh(value: float) -> float:
    """log cosh, without overflow."""
    value = abs(value)
    return value + log1p(exp(-2 * value)) - log(2)


def _mixed(logs: Sequence[float]) -> float:
    """Log of the mean of what these are the logs of."""
    most = max(logs)
    return most + log(sum(exp(each - most) for each in logs)) - log(len(logs))
