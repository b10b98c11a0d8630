"""One training step from its parts: overlap, exposed communication, scaling efficiency.

Also the slowest of n, what a synchronous step waits for: n ranks draw independently from one
distribution. Any one unit of time.
"""

from __future__ import annotations

import math
from typing import NamedTuple

#: Half-width and step of the quadrature, in standard deviations: the trapezoidal rule converges
#: exponentially for such integrands, and beyond 12 there is nothing even for 10^9 ranks.
_REACH, _STEP = 12.0, 1 / 64


class Step(NamedTuple):
    """A step and what of its communication nothing hides."""

    time: float
    exposed: float

    @property
    def efficiency(self) -> float:
        """Share of the step that is compute."""
        return 1 - self.exposed / self.time


def overlapped_step(*, forward: float, backward: float, transfer: float, buckets: int) -> Step:
    """A data-parallel step whose gradients leave in equal buckets as backward produces them.

    Bucket i of b is ready at i·B/b and the transfers queue, so the last ends at
    max(B + m/b, B/b + m) after backward began (Li et al. 2020, section 3.2.3, with equal buckets).
    """
    end = max(backward + transfer / buckets, backward / buckets + transfer)
    return Step(forward + end, forward + end - (forward + backward))


def serial(*, compute: float, transfer: float, hidden: float = 0.0) -> Step:
    """A step whose communication follows compute; `hidden` of it, a share, is overlapped."""
    exposed = transfer * (1 - hidden)
    return Step(compute + exposed, exposed)


def transformer_flops(parameters: float, tokens: float, *, recomputed: bool = False) -> float:
    """6PD, 8PD where activations are recomputed (Kaplan et al. 2020; Narayanan et al. 2021)."""
    return (8 if recomputed else 6) * parameters * tokens


def megatron_flops(
    tokens: float, *, layers: int, hidden: int, sequence: int, vocabulary: int,
    recomputed: bool = False,
) -> float:  # fmt: skip
    """24 p t l h² (1 + s/(6h) + V/(4plh)) of p passes, a backward pass being two: 3, or 4 where
    layers recompute their activations, as the source counts (Narayanan et al. 2021)."""
    passes = 4 if recomputed else 3
    ratio = 1 + sequence / (6 * hidden) + vocabulary / (4 * passes * layers * hidden)
    return 24 * passes * tokens * layers * hidden**2 * ratio


def pipeline(
    micro_batches: int, *, stages: int, interleaved: int = 1, per_micro_batch: float
) -> float:
    """Time of a 1F1B pipeline: (m + (p−1)/v) t (Narayanan et al. 2021, section 2.2)."""
    return (micro_batches + (stages - 1) / interleaved) * per_micro_batch


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
