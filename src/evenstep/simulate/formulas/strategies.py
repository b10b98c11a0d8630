"""Time per step and staleness of strategies that do not wait for all ranks.

Step times of a rank are independent and normal with mean μ and CV σ/μ unless said otherwise. Any
one unit of time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from evenstep.errors import ConfigError
from evenstep.simulate.formulas.maxima import normal_exact


class Bounds(NamedTuple):
    """Time per step between a lower and an upper bound."""

    low: float
    high: float


def stale_synchronous(n: int, bound: int, *, mean: float, cv: float) -> Bounds:
    """Time per step where a rank may be `bound` steps ahead of the slowest (Ho et al. 2013).

    Below: everybody's mean, which an unbounded lead reaches. Above: a barrier every s+1 steps,
    μ + σ E[max]/√(s+1), which forbids strictly more. A rank that is slow for good sets the pace
    whatever the bound.
    """
    if bound < 0:
        raise ConfigError(f"bound must not be negative, found {bound}")
    return Bounds(mean, mean * (1 + cv * normal_exact(n) / math.sqrt(bound + 1)))


class Asynchronous(NamedTuple):
    """Asynchronous updates of a parameter server."""

    rate: float  # gradients per unit of time
    staleness: float  # mean updates between reading parameters and applying the gradient
    by_time: tuple[float, ...]  # the same of a rank with each of the step times


def asynchronous(times: Sequence[float], counts: Sequence[int] | None = None) -> Asynchronous:
    """Rate Σ1/c_i; a gradient of rank i is c_i Σ_{j≠i} 1/c_j updates old, n−1 on average.

    `counts` says how many ranks have each step time, one unless given. The server's own time is
    neglected (Mitliagkas et al. 2016 for equal ranks). Staleness is no accuracy: it bounds how
    large a step size stays stable, no more.
    """
    counts = [1] * len(times) if counts is None else counts
    if not times or min(times) <= 0 or len(counts) != len(times) or min(counts) < 1:
        raise ConfigError("every step time must be above 0, and that of at least one rank")
    rate = math.fsum(count / time for time, count in zip(times, counts, strict=True))
    return Asynchronous(rate, float(sum(counts) - 1), tuple(time * rate - 1 for time in times))


def stable_step_share(staleness: float) -> float:
    """Largest stable step size on a quadratic, ÷ that of fresh gradients: sin(π/(4τ+2)).

    Delayed gradient descent x' = x − ηλ x(t−τ) is stable iff ηλ < 2 sin(π/(2(2τ+1))) (Levin and May
    1976); fresh gradients allow 2. An indicator of stability, never of accuracy.
    """
    if staleness < 0:
        raise ConfigError(f"staleness must not be negative, found {staleness:g}")
    return math.sin(math.pi / (4 * staleness + 2))
