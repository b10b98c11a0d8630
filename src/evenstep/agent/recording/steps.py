"""Steps and phases derived from the events that hooks report, without edits to the user's code.

Rules:

- A step ends when the marking optimizer, the first instance that ever stepped, finishes. Others
  belong to the step open then. `evenstep.step()`, once called, marks steps instead; the first call
  right after an optimizer's mark ends no second step.
- The forward phase lasts from the outermost forward to the start of backward, so that the loss
  belongs to it. Where no forward is reported it begins where the previous phase ended.
- The time under `model.eval()` is evaluation only if no backward and no optimizer step happens
  before the model returns to training: freezing a part of a model is not an evaluation.
- Backward ends with the wait for the last gradients: from the entry of the last collective issued
  inside it, or from when nothing is left to compute, the thread is blocked (`Phase.SYNC`). DDP's
  backward returns when all of its collectives have ended, so those without an exit end there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from evenstep.agent.recording.phases import PhaseStack
from evenstep.host.resources import ResourceUse
from evenstep.trace.spool.layout import Flag, Phase

if TYPE_CHECKING:
    from evenstep.pacing.waits import Pause

#: A collective of the step, for the wait estimate: (record, group, op, bytes, flags).
StepCollective = tuple[int, int, int, int, int]

_INPUT, _FORWARD, _BACKWARD = int(Phase.INPUT), int(Phase.FORWARD), int(Phase.BACKWARD)
_SYNC, _OPTIMIZER, _EVALUATION = int(Phase.SYNC), int(Phase.OPTIMIZER), int(Phase.EVALUATION)
_CHECKPOINT = int(Phase.CHECKPOINT)

#: Phases that a step can end inside. Others still open were left by an exception.
_ACROSS = frozenset({_INPUT, _BACKWARD, _CHECKPOINT})

_NOTHING_USED = ResourceUse()

SHORTEST_EVALUATION_NS = 1_000_000  # a shorter one: eval() and train() of two modules in turn


@dataclass(slots=True, eq=False)
class ClosedStep:
    """A finished step: its number, its times in ns and the leaf time of every phase.

    The training thread sets the first fields, as cheaply as it can; `Recorder.settle` the others.
    """

    number: int
    start_ns: int
    end_ns: int
    phase_ns: list[int]
    samples: int = 0
    held_ns: int = 0  # pacing delay spent inside
    events: int = 0  # of our hooks on the training thread
    own_ns: int = 0  # thread time, in it, of what ended the one before
    spent: Sequence[int] = (0, 0, 0, 0)  # the sums of our costs at its end
    seq: int = 0  # its own record
    after: int = 0  # its records are those after this one, …
    upto: int = 0  # … up to this one
    phases: Sequence[tuple[int, int, int]] = ()  # enter, exit, record: parents to be set
    counters: Sequence[int] = ()  # the kernel's at its end
    used: ResourceUse = _NOTHING_USED  # inside
    #: Whether actions learn nothing from it; the first step includes the start of the process.
    unsteady: bool = field(init=False)
    # Set by `settle`:
    collectives: Sequence[StepCollective] = ()
    pauses: Sequence[Pause] = ()  # of the collector
    counted: dict[str, int] = field(default_factory=dict)  # by the names of `summary.COUNTERS`

    def __post_init__(self) -> None:
        phase_ns = self.phase_ns
        self.unsteady = bool(not self.number or phase_ns[_CHECKPOINT] or phase_ns[_EVALUATION])


class Turns:
    """Delays the beginning of some phases until it is this rank's turn."""

    def begins(self, phase: int, now_ns: int) -> int:  # noqa: ARG002
        """Called before a phase begins; returns the time at which it does."""
        return now_ns

    def ends(self, phase: int, now_ns: int) -> None:
        """A phase has ended; a backward pass, where its collectives have ended with it."""


class StepClock:
    """Derives steps and phases from the events of a training thread. All times are monotonic ns."""

    def __init__(self, stack: PhaseStack, now_ns: int) -> None:
        self.stack = stack
        self.start_ns = now_ns
        self.samples = 0
        self.unreported: list[int] = []  # asynchronous collectives issued in this backward
        stack.boundary_ns = now_ns
        self.turns: list[Turns] = []
        self._forward_depth = 0
        self._forward_end_ns = 0  # return of the outermost forward; the loss may still follow
        self._forward_nested_ns = 0  # its time counted as other phases by then
        self.backwards = 0  # runs of the autograd engine, one inside the other
        self._forwards_seen = False
        self._awaits_all = False  # whether backward returns after all of its collectives (DDP)
        self._entry_before_ns = 0  # entry of the last collective before backward
        # Its beginning, with the account and the samples at that time.
        self._evaluation: tuple[int, list[int], int] | None = None

    # -- input -----------------------------------------------------------------------------------

    def input_begins(self, now_ns: int) -> None:
        """The loop asks its loader for a batch."""
        self.begins(_INPUT, now_ns)

    def input_ends(self, now_ns: int, samples: int) -> None:
        """The batch is there."""
        self.ends(now_ns)
        self.samples += samples

    def set_samples(self, samples: int) -> None:
        """The running step has so many samples, whatever was loaded."""
        self.samples = samples

    # -- forward ---------------------------------------------------------------------------------

    def forward_begins(self, now_ns: int, training: bool, awaits_all: bool = False) -> None:
        """The outermost module is called; `awaits_all`: its backward ends with its collectives."""
        self._forward_depth += 1
        if self._forward_depth > 1 or self.backwards:  # recomputed inside backward
            return
        self._settle_forward()
        self._forwards_seen = True
        self._awaits_all = awaits_all
        self.stack.enter(_FORWARD if training else _EVALUATION, now_ns)

    def forward_ends(self, now_ns: int) -> None:
        """The outermost module has returned; the loss may still follow in training."""
        self._forward_depth = max(self._forward_depth - 1, 0)
        if self._forward_depth or self.backwards:
            return
        if self.stack.current == _FORWARD:
            self._forward_end_ns = now_ns
            self._forward_nested_ns = self.stack.nested_ns
        elif self.stack.current == _EVALUATION:
            self.stack.leave(now_ns)

    def _settle_forward(self) -> None:
        """End a forward without a backward at the return of the module."""
        if self._forward_end_ns and self.stack.current == _FORWARD:
            self.stack.leave(self._forward_end_ns, nested_ns=self._forward_nested_ns)
        self._forward_end_ns = 0

    # -- backward --------------------------------------------------------------------------------

    def backward_begins(self, now_ns: int, last_entry_ns: int = 0) -> None:
        """The autograd engine starts; a nested start (checkpointing) belongs to the outer one.

        `last_entry_ns`: entry of the last collective that did not block its caller; 0 once it was
        waited for.
        """
        self._evaluation = None
        self.backwards += 1
        if self.backwards > 1:
            return
        stack = self.stack
        if self._forward_end_ns and stack.current == _FORWARD:
            stack.leave(now_ns)
        elif not self._forwards_seen and not len(stack):
            stack.add(_FORWARD, stack.boundary_ns, now_ns, int(Flag.INFERRED))
        self._forward_end_ns = 0
        self._entry_before_ns = last_entry_ns
        self.unreported.clear()
        stack.enter(_BACKWARD, now_ns)

    def backward_ends(self, now_ns: int, last_entry_ns: int = 0) -> None:
        """The engine has returned; it had waited for the last gradients."""
        self.backwards = max(self.backwards - 1, 0)
        if self.backwards:
            return
        issued = last_entry_ns not in (0, self._entry_before_ns)
        if issued and self.stack.current == _BACKWARD:
            self.stack.add(_SYNC, last_entry_ns, now_ns)
        if self._awaits_all:
            self.stack.close_all(self.unreported, now_ns)
            for turns in self.turns:
                turns.ends(_BACKWARD, now_ns)
        self.stack.leave(now_ns)

    # -- other phases ----------------------------------------------------------------------------

    def optimizer_begins(self, now_ns: int) -> None:
        """An optimizer updates parameters."""
        self._settle_forward()
        self._evaluation = None
        self.stack.enter(_OPTIMIZER, now_ns)

    def begins(self, phase: int, now_ns: int) -> None:
        """A phase without rules of its own begins (input, checkpoint)."""
        self._settle_forward()
        for turns in self.turns:
            now_ns = turns.begins(phase, now_ns)
        self.stack.enter(phase, now_ns)

    def ends(self, now_ns: int) -> None:
        """The innermost phase is over."""
        for turns in self.turns:
            turns.ends(self.stack.current, now_ns)
        self.stack.leave(now_ns)

    def mode_changes(self, now_ns: int, training: bool) -> None:
        """The outermost `module.train(mode)` call of a module."""
        if not training:
            self._settle_forward()
            if self._evaluation is None:
                self._evaluation = (now_ns, list(self.stack.leaf_ns), self.samples)
            return
        if self._evaluation is None:
            return
        since, account, samples = self._evaluation
        self._evaluation = None
        self._settle_forward()
        if not len(self.stack) and now_ns - since >= SHORTEST_EVALUATION_NS:
            self.samples = samples
            self.stack.recount(_EVALUATION, account, since, now_ns)

    # -- the end ---------------------------------------------------------------------------------

    def end_step(self, now_ns: int) -> ClosedStep:
        """Close the running step and open the next at the same instant."""
        self._settle_forward()
        self._evaluation = None
        self._forward_depth = self.backwards = 0  # an exception may have skipped an end
        number = self.stack.step
        leaf = self.stack.restart(number + 1, now_ns, across=_ACROSS)
        leaf[0] = 0
        leaf[0] = max(now_ns - self.start_ns - sum(leaf), 0)
        closed = ClosedStep(number, self.start_ns, now_ns, leaf)
        closed.samples, self.samples = self.samples, 0
        closed.phases = tuple(self.stack.ended)
        self.stack.ended.clear()
        self.start_ns = now_ns
        return closed
