"""The slowest of n: what a synchronous step waits for.

Times may be in any unit. n ranks draw independently from one distribution.
"""

from __future__ import annotations

import math
from typing import NamedTuple

#: Half-width and step of the quadrature, in standard deviations: the trapezoidal rule converges
#: exponentially for such integrands, and beyond 12 there is nothing even for 10^9 ranks.
_REACH, _STEP = 12.0, 1 / 64


def normal_exact(n: int) -> float:
    """E[X_(n)], the largest of n standard normal draws: ∫ x n Φ^(n−1) φ dx by quadrature."""
    total = 0.0
    for index in range(int(2 * _REACH / _STEP) + 1):
        x = index * _STEP - _REACH
        log_density = math.log(n) - x * x / 2 - math.log(math.sqrt(2 * math.pi))
        total += x * math.exp(log_density + (n - 1) * _log_below(x)) * _STEP
    return total


def _log_below(x: float) -> float:
    """log Φ(x), accurate in both tails."""
    if x > 0:
        return math.log1p(-math.erfc(x / math.sqrt(2)) / 2)
    return math.log(math.erfc(-x / math.sqrt(2)) / 2)


class RareHit(NamedTuple):
    """A step of n ranks, each of which is delayed by D with probability p."""

    chance: float  # q: at least one rank is hit
    mean: float  # c + D q
    cv: float  # population standard deviation ÷ mean


def rare_hit(n: int, *, compute: float, delay: float, probability: float) -> RareHit:
    """The step time: c + D(1−(1−p)^n), CV = D√(q(1−q))/(c+Dq) with q = 1−(1−p)^n (Bernoulli)."""
    q = 1.0 if probability == 1 else -math.expm1(n * math.log1p(-probability))
    mean = compute + delay * q
    return RareHit(q, mean, delay * math.sqrt(q * (1 - q)) / mean)
