"""The slowest of n: what a synchronous step waits for.

Times may be in any unit. n ranks draw independently from one distribution; `k` asks for the k-th
fastest instead of the slowest (backup workers wait for k of n only).
"""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist
from typing import NamedTuple

from evenstep.errors import ConfigError

_STANDARD = NormalDist()
#: Half-width and step of the quadrature, in standard deviations: the trapezoidal rule converges
#: exponentially for such integrands, and beyond 12 there is nothing even for 10^9 ranks.
_REACH, _STEP = 12.0, 1 / 64


def normal_blom(n: int, k: int | None = None) -> float:
    """E[X_(k:n)] of standard normal draws, approximately: Φ⁻¹((k−.375)/(n+.25)) (Blom 1958)."""
    k = _rank(n, k)
    return _STANDARD.inv_cdf((k - 0.375) / (n + 0.25))


@lru_cache(maxsize=4096)
def normal_exact(n: int, k: int | None = None) -> float:
    """E[X_(k:n)] of standard normal draws: ∫ x k C(n,k) Φ^(k−1) (1−Φ)^(n−k) φ dx by quadrature."""
    k = _rank(n, k)
    scale = math.log(k) + math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
    total = 0.0
    for index in range(int(2 * _REACH / _STEP) + 1):
        x = index * _STEP - _REACH
        log_density = scale - x * x / 2 - math.log(math.sqrt(2 * math.pi))
        log_density += (k - 1) * _log_below(x) + (n - k) * _log_below(-x)
        total += x * math.exp(log_density) * _STEP
    return total


def _log_below(x: float) -> float:
    """log Φ(x), accurate in both tails."""
    if x > 0:
        return math.log1p(-math.erfc(x / math.sqrt(2)) / 2)
    return math.log(math.erfc(-x / math.sqrt(2)) / 2)


def harmonic(n: int) -> float:
    """H_n = 1 + 1/2 + … + 1/n; beyond 1,000 by Euler's expansion, exact to 10^-16."""
    if n <= 1000:
        return math.fsum(1 / i for i in range(1, n + 1))
    return math.log(n) + 0.57721566490153286 + 1 / (2 * n) - 1 / (12 * n * n)


def exponential(n: int, k: int | None = None, *, mean: float = 1.0) -> float:
    """E[X_(k:n)] of exponential draws: (H_n − H_(n−k))/λ; the slowest H_n/λ (Rényi 1953)."""
    k = _rank(n, k)
    return mean * (harmonic(n) - harmonic(n - k))


def pareto(n: int, k: int | None = None, *, alpha: float, smallest: float = 1.0) -> float:
    """E[X_(k:n)] of Pareto draws above x_m: x_m Γ(n+1) Γ(n−k+1−1/α) / (Γ(n−k+1) Γ(n+1−1/α)).

    For k = n this tends to x_m Γ(1−1/α) n^(1/α) (Huang 1975; David and Nagaraja 2003, 3.2).
    """
    k = _rank(n, k)
    if not alpha * (n - k + 1) > 1:
        raise ConfigError(f"alpha must be above 1 for the mean to exist, found {alpha:g}")
    log = math.lgamma(n + 1) - math.lgamma(n + 1 - 1 / alpha)
    log += math.lgamma(n - k + 1 - 1 / alpha) - math.lgamma(n - k + 1)
    return smallest * math.exp(log)


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


def _rank(n: int, k: int | None) -> int:
    _ranks(n)
    k = n if k is None else k
    if not 1 <= k <= n:
        raise ConfigError(f"k must be between 1 and the {n} ranks, found {k}")
    return k
