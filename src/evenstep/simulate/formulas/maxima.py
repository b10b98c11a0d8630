"""The slowest of n: what a synchronous step waits for.

Times may be in any unit. n ranks draw independently from one distribution.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

from evenstep.errors import ConfigError

#: Half-width and step of the quadrature, in standard deviations: the trapezoidal rule converges
#: exponentially for such integrands, and beyond 12 there is nothing even for 10^9 ranks.
_REACH, _STEP = 12.0, 1 / 64


@lru_cache(maxsize=4096)
def normal_exact(n: int) -> float:
    """E[X_(n)], the largest of n standard normal draws: ∫ x n Φ^(n−1) φ dx by quadrature."""
    _ranks(n)
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
    _ranks(n)
    if not 0 <= probability <= 1:
        raise ConfigError(f"probability must be between 0 and 1, found {probability:g}")
    if compute <= 0 or delay < 0:
        raise ConfigError(f"compute must be positive and delay not negative, found {compute:g} "
                          f"and {delay:g}")  # fmt: skip
    q = 1.0 if probability == 1 else -math.expm1(n * math.log1p(-probability))
    mean = compute + delay * q
    return RareHit(q, mean, delay * math.sqrt(q * (1 - q)) / mean)


def _ranks(n: int) -> None:
    if n < 1:
        raise ConfigError(f"ranks must be at least 1, found {n}")
