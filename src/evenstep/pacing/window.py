"""The last few values of a signal and their order statistics, kept sorted as they come."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque


class RollingWindow:
    """The last `size` integers, ready to give quantiles and deviation at any time.

    A push is one insertion and one removal in a sorted list: under a microsecond at 256 values.
    Sums are exact integers, so nothing drifts however long the run.
    """

    __slots__ = ("_arrival", "_sorted", "_squares", "_sum", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self._arrival: deque[int] = deque()
        self._sorted: list[int] = []  # invariant: the values of _arrival, ascending
        self._sum = 0
        self._squares = 0

    def __len__(self) -> int:
        return len(self._sorted)

    @property
    def full(self) -> bool:
        """Whether a whole window has been seen since the last `clear`."""
        return len(self._sorted) >= self.size

    def push(self, value: int) -> None:
        """Add a value; the oldest leaves when the window is full."""
        if len(self._sorted) >= self.size:
            old = self._arrival.popleft()
            del self._sorted[bisect_left(self._sorted, old)]
            self._sum -= old
            self._squares -= old * old
        self._arrival.append(value)
        insort(self._sorted, value)
        self._sum += value
        self._squares += value * value

    def quantile(self, q: float) -> int:
        """The value that a share `q` of the window does not exceed, rounded down; 0 if empty."""
        if not self._sorted:
            return 0
        return self._sorted[int(q * (len(self._sorted) - 1))]

    @property
    def deviation(self) -> float:
        """Population standard deviation of the window; 0 if empty."""
        n = len(self._sorted)
        if n == 0:
            return 0.0
        return float(max(0, n * self._squares - self._sum * self._sum) ** 0.5 / n)

    def resize(self, size: int) -> None:
        """Keep the newest `size` values from now on."""
        kept = list(self._arrival)[-size:]
        self.size = size
        self.clear()
        for value in kept:
            self.push(value)

    def clear(self) -> None:
        """Forget everything."""
        self._arrival.clear()
        self._sorted.clear()
        self._sum = self._squares = 0
