"""The paper's rule ("When Scaling Fails", sections 4.3 and 5.3), to compare with its claims.

Two triggers: the spread between early and late arrivals exceeds a threshold (4.3), or the waits of
a rolling window vary beyond it (5.3). Then a rank that arrives early is held for a bounded time
before its next iteration. Threshold and window adapt, so that the rule stays passive while waits
are stable; as the waits shrink, so does the delay.

The paper gives no constants. Those here are chosen to be mild: the delay is half of the last wait.
"""

from __future__ import annotations

from collections import deque

from evenstep.pacing.observation import Reason, StepObservation

GAIN = 0.5  # delay over the last wait; below 1 the delay settles at g/(1+g) of the slack
EARLY = 0.5  # a rank is early when it waited for at least this share of the spread
SHORTEST_WINDOW = 32
LONGEST_WINDOW = 256
MILDEST_FACTOR = 8.0
NO_HELP = 0.95  # ratio of mean waits to those a window before, from which pacing did not help


class PaperRule:
    """Holds early ranks while arrivals are spread or waits vary; works without sharing."""

    def __init__(self) -> None:
        self._size = SHORTEST_WINDOW  # of the window
        self._waits: deque[int] = deque(maxlen=SHORTEST_WINDOW)
        self._wait_ns: int | None = None
        self._spread_ns = 0
        self._factor = 1.0  # invariant: 1 <= factor <= MILDEST_FACTOR; multiplies the threshold
        self._age = 0  # steps since the last adaptation
        self._active = 0  # of them, steps in which the rule held this rank
        self._mean_before_ns = 0.0
        self._sum_ns = 0

    def learn(self, seen: StepObservation, *, due: bool) -> None:
        """Take the wait of a step; without sharing, it stands for the spread (5.2)."""
        self._wait_ns = seen.wait_ns
        if seen.wait_ns is None:
            return
        self._waits.append(seen.wait_ns)
        self._spread_ns = seen.wait_ns if seen.spread_ns is None else seen.spread_ns
        self._sum_ns += seen.wait_ns
        self._age += 1
        self._active += due and seen.delay_ns > 0
        if self._age >= self._size:
            self._adapt()

    def _adapt(self) -> None:
        """Raise the threshold where pacing did not help; lower it where the rule was passive."""
        size = self._size
        mean, active = self._sum_ns / size, 2 * self._active > size
        if active and mean >= NO_HELP * self._mean_before_ns > 0:
            self._factor = min(MILDEST_FACTOR, 1.5 * self._factor)
        elif not active:
            self._factor = max(1.0, 0.9 * self._factor)
        self._size = max(SHORTEST_WINDOW, size // 2) if active else min(LONGEST_WINDOW, 2 * size)
        self._waits = deque(self._waits, maxlen=self._size)
        self._mean_before_ns = mean
        self._age = self._active = self._sum_ns = 0

    @property
    def _deviation(self) -> float:
        """Population standard deviation of the waits, by exact sums."""
        n, total = len(self._waits), sum(self._waits)
        squares = sum(value * value for value in self._waits)
        return float((n * squares - total * total) ** 0.5 / n)

    def propose(self, *, threshold_ns: int, bound_ns: int) -> tuple[int, Reason]:
        """Half of the last wait, if a trigger fired and this rank was early."""
        if self._wait_ns is None:
            return 0, Reason.CANNOT_TELL
        if len(self._waits) < SHORTEST_WINDOW:
            return 0, Reason.LEARNING
        threshold = threshold_ns * self._factor
        if self._spread_ns > threshold:
            reason = Reason.SPREAD
        elif self._deviation > threshold:
            reason = Reason.VARIABILITY
        else:
            return 0, Reason.BALANCED
        delay = min(bound_ns, int(GAIN * self._wait_ns))
        if delay <= 0 or self._wait_ns < EARLY * self._spread_ns:
            return 0, Reason.LAST
        return delay, reason
