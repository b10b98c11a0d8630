"""Infer the steps of a program that marks none: each repetition of its communication is a step.

`Cycle` is pure: signatures of calls in, ends of steps out. A signature (group, operation, size,
root) is equal on every member of a group, so ranks that take part in the same collectives agree on
their steps without communicating. Only calls of the widest group count, messages only where there
are no collectives. `InferredSteps` feeds the agent: until the repetition is known, the rank is in
step 0 and all calls are remembered; then the recorded calls are divided into steps, and later steps
end as they happen.

Two limits. A loop of equal calls inside the real step (the same all-reduce for each of forty
layers) looks like forty steps. And a step may seem to begin a call or two early where the calls
before the loop end like the loop's body.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from evenstep.agent.stacks import ObservedRank

FEWEST_CALLS = 32  # before a repetition is searched for: enough to leave an inner loop
FEWEST_MESSAGES = 256
REPEATS = 4  # repetitions of a sequence that make it a step
LEAST_REPEATS = 3  # the same at the end of the trace
LONGEST = 8192  # calls remembered while nothing repeats; then they are dropped
MESSAGE = 0  # width of a message: below that of any group
_WORD_STEP = 9  # of a record: the step in its low half, the group in its high one


class Cycle:
    """Learns the repetition, then tells at which calls steps end.

    While it learns, each call is kept with its owner's item. Later a step ends with the `_times`-th
    call of signature `_last` since one of `_first`, so occasional other calls (an evaluation, a
    checkpoint) lengthen a step and change nothing else.
    """

    def __init__(self) -> None:
        self.known = False
        self.period = 0  # calls of a step
        self._width = -1
        self._seen: list[Hashable] = []
        self._items: list[Any] = []
        self._due = FEWEST_CALLS
        self._idle = 0  # calls since the last end

    def ends(self, width: int, signature: Hashable) -> bool:
        """Whether a step ends with this call, once the repetition is known."""
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

    def learn(self, width: int, signature: Hashable, item: Any) -> list[list[Any]]:
        """Take a call while the repetition is unknown.

        Once it is known, return the items of each step so far: the calls before the first
        repetition as a step of their own, and last (perhaps empty) the one still open.
        """
        if width < self._width:
            return []
        if width > self._width:
            self.forget()
            self._width = width
            self._due = FEWEST_MESSAGES if width == MESSAGE else FEWEST_CALLS
        self._seen.append(signature)
        self._items.append(item)
        return self._look(REPEATS) if len(self._seen) >= self._due else []

    def conclude(self) -> list[list[Any]]:
        """The same at the end of the trace, with `LEAST_REPEATS`."""
        return [] if self.known else self._look(LEAST_REPEATS)

    def forget(self) -> None:
        """Begin to learn anew."""
        self.known = False
        self._width = -1
        self._seen, self._items = [], []
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
        self._first = unit[0] if alone else None  # begins the repetition, if it is unique in it
        edges = [*range(start, len(seen) + 1, period)]
        if start:
            edges.insert(0, 0)
        steps = [self._items[i:j] for i, j in zip(edges, [*edges[1:], len(seen)], strict=True)]
        self._idle = len(seen) - edges[-1]
        self._count = seen[edges[-1] :].count(self._last)
        self._seen, self._items = [], []
        return steps


def repetition(seen: list[Hashable], repeats: int) -> tuple[int, int]:
    """(start, period) of the shortest repetition at the end of the sequence; period 0 for none.

    It has to occur `repeats` times and to cover half of the sequence.
    """
    length = len(seen)
    for period in range(1, length // repeats + 1):
        start = length - period
        while start and seen[start - 1] == seen[start - 1 + period]:
            start -= 1
        if length - start >= max(repeats * period, length / 2):
            return start, period
    return 0, 0


@dataclass(slots=True, eq=False)
class StepCall:
    """A call that may end a step: its record and, once it has ended, the account at its end."""

    seq: int
    end_ns: int = 0  # 0: it has not ended yet
    leaf_ns: Sequence[int] = ()
    counters: Any = None  # the kernel's counters


class InferredSteps:
    """Ends the agent's steps by repetition. Lives on the training thread.

    `calls` names the repeating calls in the trace; `flags` mark the records of such steps.
    """

    def __init__(self, agent: ObservedRank, calls: str, flags: int = 0) -> None:
        self._agent = agent
        self._named, self._flags = calls, flags
        self._recorder = agent.recorder
        self._cycle = Cycle()
        self._calls: dict[int, StepCall] = {}  # remembered calls that have not ended
        self._learnt: list[list[StepCall]] = []  # past steps to be divided when the call ends
        self.ending = 0  # the running call whose end is the step's; 0: none
        self._step = agent.recorder.step  # after the last step that ended here
        self.off = False

    def entered(self, seq: int, width: int, signature: Hashable, enter_ns: int) -> None:
        """A call of the training thread was recorded."""
        recorder = self._recorder
        if self.off or recorder.manual or recorder.step != self._step:
            self.leave()
            return
        if self.ending:  # it was not waited for: it ends with the next call
            self._end(enter_ns)
        cycle = self._cycle
        if cycle.known:
            if cycle.ends(width, signature):
                self.ending = seq
            return
        call = self._calls[seq] = StepCall(seq)
        self._learnt = cycle.learn(width, signature, call)

    def left(self, seq: int, exit_ns: int) -> None:
        """A call has ended for the thread that waited for it."""
        if self.off:
            return
        if self._calls:
            call = self._calls.pop(seq, None)
            if call is not None:
                self._note(call, exit_ns)
        if self._learnt:
            self._divide(self._learnt)
        if seq == self.ending:
            self._end(exit_ns)

    def conclude(self) -> None:
        """Divide the remembered calls into steps at the end of the trace."""
        recorder = self._recorder
        if not (self.off or recorder.manual or recorder.step != self._step):
            self._divide(self._cycle.conclude())
        self.leave()

    @property
    def known(self) -> bool:
        """Whether steps end by what repeats."""
        return self._cycle.known

    def leave(self) -> None:
        """End no more steps, because other code marks them."""
        if not self.off:
            self.off = True
            self._recorder.step_flags = 0
            self._calls.clear()
            self._cycle.forget()

    def _end(self, now_ns: int) -> None:
        self.ending = 0
        self._agent.end_step(now_ns)
        self._step = self._recorder.step

    def _note(self, call: StepCall, exit_ns: int) -> None:
        call.end_ns, call.counters = exit_ns, self._agent.counters()
        call.leaf_ns = tuple(self._recorder.stack.leaf_ns)

    # -- after the fact --------------------------------------------------------------------------

    def _divide(self, steps: list[list[StepCall]]) -> None:
        """Close past steps; the last of the list is still open."""
        self._learnt = []
        if not steps:
            return
        self._recorder.step_flags = self._flags
        self._calls.clear()
        if not steps[-1] and not steps[-2][-1].end_ns:  # ends with the running call
            self.ending = steps[-2][-1].seq
            steps = steps[:-1]
        ended = [step[-1] for step in steps[:-1] if step[-1].end_ns]
        recorder, spool = self._recorder, self._recorder.spool
        first, last = steps[0][0].seq, (steps[-1] or steps[-2])[-1].seq
        base, leaf = recorder.stack.step, recorder.stack.leaf_ns
        before: Sequence[int] = [0] * len(leaf)
        for call in ended:
            recorder.stack.leaf_ns = _differences(call.leaf_ns, before)
            self._agent.end_past_step(call.end_ns, call.counters, call.seq)
            before = call.leaf_ns
        recorder.stack.leaf_ns = _differences(leaf, before)
        ends = [call.end_ns for call in ended]
        for seq in range(first, last + 1):
            times = spool.times(seq)
            if times is not None:
                word = spool.words[spool.word_of(seq) + _WORD_STEP] >> 32 << 32
                spool.patch(seq, _WORD_STEP, word | (base + bisect_left(ends, times[0])))
        self._step = recorder.stack.step
        self._say()

    def _say(self) -> None:
        calls = self._cycle.period
        word = "call comes" if calls == 1 else "calls come"
        self._recorder.spool.add_fact(
            "steps",
            f"nothing marks them (evenstep.step() would): {calls} {self._named} {word} again and "
            "again, and each time was taken as a step",
        )


def _differences(values: Sequence[int], others: Sequence[int]) -> list[int]:
    return [value - other for value, other in zip(values, others, strict=True)]
