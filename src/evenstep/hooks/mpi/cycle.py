"""Steps of a program that marks none: what it communicates repeats, and a repetition is a step.

Pure: signatures of calls in, ends of steps out. A signature is equal on every member of a group
(group, operation, size, root), so ranks that take part in the same collectives agree on their steps
without a word. Only calls of the widest group count, messages only where nothing else is met.

Two things it cannot know. A loop of equal calls inside the real step (the same all-reduce for each
of forty layers) looks like forty steps. And a step may seem to begin a call or two early where what
was done once before the loop ends like the loop's own body.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

FEWEST_CALLS = 32  # before a repetition is looked for: an inner loop is found out by then
FEWEST_MESSAGES = 256
REPEATS = 4  # times that something has to come to be a step
LEAST_REPEATS = 3  # the same at the end of the trace, where no more will come
LONGEST = 8192  # calls remembered while nothing repeats; then they are let go
MESSAGE = 0  # width of a message: below that of any group


class Cycle:
    """Learns the repetition, then tells at which calls steps end.

    While it learns, every call is kept with what its owner gave for it. Once it knows, a step ends
    at the `_times`-th coming of `_last` since `_first`, so calls that come in between now and then
    (an evaluation, a checkpoint) lengthen a step and change nothing else.
    """

    def __init__(self) -> None:
        self.known = False
        self.period = 0  # calls of a step
        self._width = -1
        self._seen: list[Hashable] = []
        self._given: list[Any] = []
        self._due = FEWEST_CALLS
        self._first: Hashable = None  # begins the repetition, where it comes but once in it
        self._last: Hashable = None
        self._times = 1
        self._count = 0
        self._idle = 0  # calls since the last end

    def ends(self, width: int, signature: Hashable) -> bool:
        """Whether a step ends with this call; for when the repetition is known."""
        if width < self._width:
            return False
        if signature == self._first:
            self._count = 0
        self._count += signature == self._last
        self._idle += 1
        if self._count >= self._times:
            self._count = self._idle = 0
            return True
        if self._idle > REPEATS * self.period + FEWEST_CALLS:  # the program does something else now
            self.forget()
        return False

    def learn(self, width: int, signature: Hashable, given: Any) -> list[list[Any]]:
        """Take one more call, for when the repetition is not known.

        Returns the steps so far once it is: what was given for the calls of each, the calls before
        the first repetition as a step of their own, and last (perhaps empty) the one still open.
        """
        if width < self._width:
            return []
        if width > self._width:
            self.forget()
            self._width = width
            self._due = FEWEST_MESSAGES if width == MESSAGE else FEWEST_CALLS
        self._seen.append(signature)
        self._given.append(given)
        return self._look(REPEATS) if len(self._seen) >= self._due else []

    def conclude(self) -> list[list[Any]]:
        """The same at the end of the trace, with as few repetitions as there are."""
        return [] if self.known else self._look(LEAST_REPEATS)

    def forget(self) -> None:
        """Begin to learn anew."""
        self.known = False
        self._width = -1
        self._seen, self._given = [], []
        self._due = FEWEST_CALLS

    def _look(self, repeats: int) -> list[list[Any]]:
        seen = self._seen
        start, period = repetition(seen, repeats)
        if not period:
            self._due = len(seen) + max(8, len(seen) // 4)
            if len(seen) > LONGEST:
                self.forget()
            return []
        unit = seen[start : start + period]
        self.known, self.period = True, period
        self._last, self._times = unit[-1], unit.count(unit[-1])
        alone = unit.count(unit[0]) == 1 and unit[0] != unit[-1]
        self._first = unit[0] if alone else None
        edges = [*range(start, len(seen) + 1, period)]
        if start:
            edges.insert(0, 0)
        steps = [self._given[i:j] for i, j in zip(edges, [*edges[1:], len(seen)], strict=True)]
        self._idle = len(seen) - edges[-1]
        self._count = seen[edges[-1] :].count(self._last)
        self._seen, self._given = [], []
        return steps


def repetition(seen: list[Hashable], repeats: int) -> tuple[int, int]:
    """(start, period) of the shortest repetition that the sequence ends with; period 0 for none.

    It has to come `repeats` times and to make up half of all that was seen.
    """
    length = len(seen)
    for period in range(1, length // repeats + 1):
        start = length - period
        while start and seen[start - 1] == seen[start - 1 + period]:
            start -= 1
        if length - start >= max(repeats * period, length / 2):
            return start, period
    return 0, 0
