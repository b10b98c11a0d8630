"""Steps of an MPI program: marked by `evenstep.step()` or an optimizer, else by what repeats.

While the repetition is not known yet, the rank is in step 0 and every call is remembered. Once it
is, the steps so far are cut out of what was recorded, and the next ones end as they happen.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

from evenstep.hooks.mpi.cycle import Cycle

if TYPE_CHECKING:
    from evenstep.agent.stacks import ObservedRank

_WORD_STEP = 9  # of a record: the step in its low half, the group in its high one


class StepCall:
    """A call that may end a step: its record and, once it has ended, all that was used by then."""

    __slots__ = ("end_ns", "leaf_ns", "seq", "standing")

    def __init__(self, seq: int) -> None:
        self.seq = seq
        self.end_ns = 0  # 0: it has not ended yet
        self.leaf_ns: Sequence[int] = ()
        self.standing: Any = None  # the kernel's counters


class MpiSteps:
    """Tells the agent where steps end. Lives on the training thread."""

    def __init__(self, agent: ObservedRank) -> None:
        self._agent = agent
        self._recorder = agent.recorder
        self._cycle = Cycle()
        self._calls: dict[int, StepCall] = {}  # of those remembered, the ones that have not ended
        self._learnt: list[list[StepCall]] = []  # steps to be cut out at the next opportunity
        self._ending = 0  # the record whose end is the step's
        self._step = agent.recorder.stack.step  # as we left it
        self.off = False

    def entered(self, seq: int, width: int, signature: Hashable, enter_ns: int) -> None:
        """A call of the training thread was recorded."""
        recorder = self._recorder
        if self.off or recorder.clock.manual or recorder.stack.step != self._step:
            self._leave_to_others()
            return
        if self._ending:  # nobody has waited for it: it ends with what comes next
            self._end(enter_ns)
        cycle = self._cycle
        if cycle.known:
            if cycle.ends(width, signature):
                self._ending = seq
            return
        call = self._calls[seq] = StepCall(seq)
        self._learnt = cycle.learn(width, signature, call)

    def left(self, seq: int, exit_ns: int) -> None:
        """It has ended, for the thread that waited for it."""
        if self.off:
            return
        if self._calls:
            call = self._calls.pop(seq, None)
            if call is not None:
                self._note(call, exit_ns)
        if self._learnt:
            self._cut_out(self._learnt)
        if seq == self._ending:
            self._end(exit_ns)

    def conclude(self) -> None:
        """The trace ends: cut out what can be told now."""
        recorder = self._recorder
        if not (self.off or recorder.clock.manual or recorder.stack.step != self._step):
            self._cut_out(self._cycle.conclude())
        self._leave_to_others()

    def _leave_to_others(self) -> None:
        """Somebody else marks the steps: from then on, only they do."""
        if not self.off:
            self.off = True
            self._calls.clear()
            self._cycle.forget()

    def _end(self, now_ns: int) -> None:
        self._ending = 0
        self._agent.end_step(now_ns)
        self._step = self._recorder.stack.step

    def _note(self, call: StepCall, exit_ns: int) -> None:
        call.end_ns, call.standing = exit_ns, self._agent.standing()
        call.leaf_ns = tuple(self._recorder.stack.leaf_ns)

    # -- after the fact --------------------------------------------------------------------------

    def _cut_out(self, steps: list[list[StepCall]]) -> None:
        """Close the steps that are over; the last of the list is still open."""
        self._learnt = []
        if not steps:
            return
        self._calls.clear()
        if not steps[-1] and not steps[-2][-1].end_ns:  # ends with the call that is under way
            self._ending = steps[-2][-1].seq
            steps = steps[:-1]
        ended = [step[-1] for step in steps[:-1] if step[-1].end_ns]
        recorder, spool = self._recorder, self._recorder.spool
        first, last = steps[0][0].seq, (steps[-1] or steps[-2])[-1].seq
        base, leaf = recorder.stack.step, recorder.stack.leaf_ns
        before: Sequence[int] = [0] * len(leaf)
        for call in ended:
            recorder.stack.leaf_ns = _less(call.leaf_ns, before)
            self._agent.end_past_step(call.end_ns, call.standing, call.seq)
            before = call.leaf_ns
        recorder.stack.leaf_ns = _less(leaf, before)
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
            f"nothing marks them (evenstep.step() would): {calls} MPI {word} again and again, and "
            "each time was taken as a step",
        )


def _less(values: Sequence[int], others: Sequence[int]) -> list[int]:
    return [value - other for value, other in zip(values, others, strict=True)]
