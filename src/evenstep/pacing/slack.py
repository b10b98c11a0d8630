"""The slack controller: a rank is held for part of its persistent slack.

It pays where an early rank costs others something: a resource shared at the start of a step, a
late rank on the same host, a power budget. It cannot speed up a lone bulk-synchronous job, whose
step is max(u_i + d_i) whatever early ranks do.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from math import log2

from evenstep.pacing.observation import Reason, Slowest, StepObservation

SPEND = 0.8  # g: share of the persistent slack that is spent
PERSISTENT = 0.03  # the quantile of slack that counts as persistent
SHORTEST_WINDOW = 32
LOCAL_WINDOW = 64
LOCAL_GAIN = 0.2
LONGEST_WINDOW = 256
UNKNOWN_STEPS = 3  # steps of unknown wait in a row before a rank is no longer held
REMEMBERED_STEPS = 2048  # own work kept until the shared values of its step arrive


def caution(world: int) -> float:
    """κ: weight of the spread of slack against using it; .5 up to 16 ranks, 1 from 64."""
    return min(1.0, max(0.5, 0.5 + 0.25 * log2(world / 16)))


class SharedSlack:
    """Slack from the shared work of the slowest rank: s_i = M1 - u_i.

    d = g·lo - κ(med - lo), lo the 3 % quantile and med the median of s_i over max(32, 2n) <= 256
    steps. Slack is never estimated by own wait + own delay: that estimate ratchets up to the bound
    and stays there.
    """

    def __init__(self, world: int) -> None:
        self._slack = RollingWindow(min(LONGEST_WINDOW, max(SHORTEST_WINDOW, 2 * world)))
        self._caution = caution(world)
        self._work: dict[int, int] = {}  # invariant: at most REMEMBERED_STEPS, oldest first
        self._matched_step = -1

    def learn(self, seen: StepObservation, *, due: bool) -> None:  # noqa: ARG002 (the interface)
        """Remember own work; it becomes slack when the shared values of its step arrive."""
        self._work[seen.step] = seen.work_ns
        if len(self._work) > REMEMBERED_STEPS:
            del self._work[next(iter(self._work))]
        if seen.slowest is not None:
            self._match(seen.slowest)

    def _match(self, shared: Slowest) -> None:
        first = max(shared.first_step, self._matched_step + 1, shared.last_step - REMEMBERED_STEPS)
        for step in range(first, shared.last_step + 1):
            work_ns = self._work.pop(step, None)
            if work_ns is not None:
                self._slack.push(shared.work_ns - work_ns)
        self._matched_step = max(self._matched_step, shared.last_step)

    def propose(self, *, threshold_ns: int, bound_ns: int) -> tuple[int, Reason]:
        """The delay that persistent slack allows; none if the slack is below `threshold_ns`."""
        if len(self._slack) < self._slack.size:
            return 0, Reason.LEARNING
        low = self._slack.quantile(PERSISTENT)
        if low <= 0:
            return 0, Reason.LAST
        if low < threshold_ns:
            return 0, Reason.BALANCED
        spread = self._slack.quantile(0.5) - low
        delay = min(bound_ns, int(SPEND * low - self._caution * spread))
        return max(0, delay), Reason.SLACK if delay > 0 else Reason.LAST


class LocalSlack:
    """Slack from own waits: the delay grows while wait is left and goes to zero when none is.

    d' = 0 if the last wait is within its margin, else d + .2 (q10 - κ(med - q10) - margin), over
    the waits seen *under* d. The term with κ is the same caution as with shared work: where slack
    varies independently from step to step, no delay is proposed and a lone job loses nothing.

    A job of one rank has no waits: only contention lengthens its collectives.
    """

    def __init__(self, world: int) -> None:
        self._single_rank = world == 1
        self._waits = RollingWindow(LOCAL_WINDOW)
        self._caution = caution(world)
        self._delay_ns = 0  # last proposed
        self._base_ns = 0  # the delay before the last wait
        self._wait_ns = 0
        self._margin_ns = 0
        self._unknown = 0  # steps of unknown wait in a row

    def learn(self, seen: StepObservation, *, due: bool) -> None:
        """Take the wait of a step that was due to be paced."""
        if not due:  # waits of blocks left out say nothing about d
            return
        wait_ns, delay_ns = seen.wait_ns, seen.delay_ns
        if wait_ns is None:
            self._unknown += 1
            return
        self._unknown = 0
        # Oversleeping of the host must not accumulate in the next delays.
        self._base_ns = 0 if delay_ns <= 0 else min(self._delay_ns, delay_ns)
        self._wait_ns = wait_ns
        self._margin_ns = seen.margin_ns
        self._waits.push(wait_ns)

    def propose(self, *, threshold_ns: int, bound_ns: int) -> tuple[int, Reason]:
        """The next delay; it shrinks while wait and delay together are below `threshold_ns`."""
        if self._single_rank:
            return 0, Reason.LAST
        if self._unknown >= UNKNOWN_STEPS:
            return 0, Reason.CANNOT_TELL
        if len(self._waits) < LOCAL_WINDOW:
            return 0, Reason.LEARNING
        if self._wait_ns <= self._margin_ns:
            self._delay_ns = 0
            return 0, Reason.LAST
        delay, low = self._base_ns, self._waits.quantile(0.1)
        if delay + low < threshold_ns:
            delay //= 2
        else:
            spread = self._waits.quantile(0.5) - low
            more = int(LOCAL_GAIN * (low - self._caution * spread - self._margin_ns))
            delay += max(0, more)
        self._delay_ns = delay = min(delay, bound_ns)
        return delay, Reason.SLACK if delay > 0 else Reason.BALANCED


class RollingWindow:
    """The last `size` integers in ascending order.

    A push is one insertion and one removal in a sorted list: under a microsecond at 256 values.
    """

    __slots__ = ("_arrival", "ordered", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self._arrival: deque[int] = deque()
        self.ordered: list[int] = []  # read only; invariant: the values, ascending

    def __len__(self) -> int:
        return len(self.ordered)

    def push(self, value: int) -> None:
        """Add a value; drop the oldest when the window is full."""
        ordered, arrival = self.ordered, self._arrival
        if len(ordered) >= self.size:
            del ordered[bisect_left(ordered, arrival.popleft())]
        arrival.append(value)
        insort(ordered, value)

    def quantile(self, q: float) -> int:
        """The order statistic at index q * (n - 1), rounded down; 0 if empty."""
        return self.ordered[int(q * (len(self.ordered) - 1))] if self.ordered else 0
