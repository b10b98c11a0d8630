"""GAP: after a contended bucket a rank pauses, the longer the earlier in its exchange.

Early in its exchange a job yields, late it does not, so of two that meet the one that is ahead
leaves first and they come apart. Nothing is remembered. Larger pauses than these hurt.
"""

from __future__ import annotations

from typing import NamedTuple

LONGEST = 3  # times the reference
STEEPNESS = 2  # the power of what is left of the exchange


class Gaps(NamedTuple):
    """The pauses allowed inside one step. A bucket's weight is its size over the mean size."""

    reference_ns: int
    threshold_ns: int
    weights: tuple[float, ...]
    bound_ns: int  # of all pauses of the step together
    first_wait_ns: int | None = 0  # of the first bucket, wait for late ranks; None: maybe all of it

    def after(self, bucket: int, duration_ns: int, spent_ns: int = 0) -> int:
        """The pause after a bucket has ended, given what the step has paused already."""
        count = len(self.weights)
        if not 0 <= bucket < count - 1:
            return 0
        weight = self.weights[bucket]
        if bucket == 0:
            if self.first_wait_ns is None:
                return 0
            duration_ns -= self.first_wait_ns
        if not weight:
            return 0
        if duration_ns <= self.threshold_ns * weight:
            return 0
        excess = duration_ns - self.reference_ns * weight
        pause = min(excess * (1 - (bucket + 1) / count) ** STEEPNESS, LONGEST * self.reference_ns)
        return max(0, min(int(pause), self.bound_ns - spent_ns))
