"""A framework's training loop, as its callback reports it to the agent.

The callbacks of `lightning`, `transformers`, `accelerate` and `deepspeed` are thin: each translates
its framework's events into calls of `Loop`. None of them raises; after a failure of ours the agent
stops observing, and training goes on. Calls on threads other than the training thread are ignored.
"""

from __future__ import annotations

import functools
import importlib
import logging
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from time import thread_time_ns
from typing import Any

from evenstep.agent.rank import Agent
from evenstep.agent.recording.steps import StepClock
from evenstep.agent.stacks import Tested
from evenstep.attachment import agent
from evenstep.hooks.wrapping import undo
from evenstep.trace.spool.layout import Phase

log = logging.getLogger("evenstep")


def callback(
    wanted: str, events: type, module_of: Callable[[], str], base: str
) -> Callable[[str], Any]:
    """The `__getattr__` of the events' module: it makes the class `wanted` of the framework's own
    base class when that is first asked for, an attribute of the events' module so that it can be
    pickled. Raises `ImportError` without the framework."""

    def find(name: str) -> Any:
        if name != wanted:
            raise AttributeError(f"module {events.__module__!r} has no attribute {name!r}")
        module = module_of()
        try:
            kind = getattr(importlib.import_module(module), base)
        except ModuleNotFoundError as error:
            package = module.partition(".")[0]
            mend = f"install it with: pip install {package}"
            raise ImportError(f"{name} needs {package}; {mend}") from error
        made = type(name, (events, kind), {"__module__": events.__module__})
        vars(sys.modules[events.__module__])[name] = made
        return made

    return find


_ABSENT = object()


class ObservedMethod:
    """A method of an object with calls before and after it, copied and pickled as the original
    method."""

    def __init__(
        self, original: Any, before: Callable[[], None] | None, after: Callable[[], None] | None
    ) -> None:
        functools.update_wrapper(self, original)
        self._original = original
        self._before = before
        self._after = after
        self.replaced: Any = _ABSENT  # the object's own attribute before

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._before is not None:
            self._before()
        try:
            return self._original(*args, **kwargs)
        finally:
            if self._after is not None:
                self._after()

    def __reduce__(self) -> tuple[Any, ...]:
        return _identity, (self._original,)


def _identity(method: Any) -> Any:
    return method


#: The account of a step at one moment: its number, the time (ns) and the leaf time of each phase.
#: Empty until the account has come so far.
StepMark = list[tuple[int, int, list[int]]]


class Loop:
    """The loop of one framework, as its callback reports it."""

    def __init__(self, tested: Tested) -> None:
        self._tested = tested
        self._warned = False  # of an untested version
        self._samples = (-1, 0)  # step, and samples of this rank in it so far
        self._undo: list[Callable[[], None]] = []
        self._marks_steps = False

    def attach(self, settings: Mapping[str, object], *, marks_steps: bool = False) -> bool:
        """Observe this rank from here on, with settings of `evenstep.attach`; True if it is.
        `marks_steps`: the callback ends the steps, not an optimizer."""
        attached = agent.attach(**settings)
        module = sys.modules.get(self._tested.package)
        warning = self._tested.outside(str(getattr(module, "__version__", "unknown")))
        if warning and not self._warned:
            self._warned = True
            log.warning("evenstep: %s", warning)
            self._report(lambda observed: observed.spool.add_fact("callback", warning))
        self._marks_steps = marks_steps
        self._report(lambda _: None)
        return attached

    def batch(self, samples: int) -> None:
        """A batch of the running step is about to be computed."""
        self._report(lambda observed: self._count(observed, samples))

    def _count(self, observed: Agent, samples: int) -> None:
        step, so_far = self._samples
        now = observed.recorder.step
        total = so_far + samples if step == now else samples
        self._samples = now, total
        observed.recorder.report(lambda clock, _: clock.set_samples(total))

    def step_ends(self, samples: int) -> None:
        """End a step with `samples` of this rank; 0: unknown."""
        began_ns = thread_time_ns()
        if samples:
            self._tell(lambda clock, _: clock.set_samples(samples))
        self._report(lambda _: agent.step(began_ns))

    def evaluation_begins(self) -> None:
        """Evaluation begins; all time to `evaluation_ends` belongs to it, its input as well."""
        self._tell(lambda clock, now_ns: clock.mode_changes(now_ns, training=False))

    def evaluation_ends(self) -> None:
        """Evaluation ends; it began at `evaluation_begins` or when the model left training mode."""
        self._tell(lambda clock, now_ns: clock.mode_changes(now_ns, training=True))

    def mark(self) -> StepMark:
        """The account now, for `reclassify`."""
        found: StepMark = []

        def take(clock: StepClock, now_ns: int) -> None:
            found.append((clock.stack.step, now_ns, list(clock.stack.leaf_ns)))

        self._tell(take)
        return found

    def reclassify(self, phase: Phase, since: StepMark) -> None:
        """Count all time since a mark of this step as one phase."""

        def tell(clock: StepClock, now_ns: int) -> None:
            for step, since_ns, leaf_ns in since:
                if clock.stack.step == step and not len(clock.stack):
                    inside_ns = clock.stack.leaf_ns[phase] - leaf_ns[phase]  # recorded before
                    clock.stack.recount(phase, list(leaf_ns), since_ns, now_ns, inside_ns=inside_ns)

        self._tell(tell)

    def around(self, owner: Any, name: str, phase: Phase) -> None:
        """Make calls of `owner.name` a phase, until `release`."""

        def begins(observed: Agent) -> None:
            report = observed.recorder.report
            if phase is Phase.FORWARD:
                training = bool(owner.training)
                report(lambda clock, now_ns: clock.forward_begins(now_ns, training))
            else:
                report(lambda clock, now_ns: clock.begins(phase, now_ns))

        def ends(observed: Agent) -> None:
            over = StepClock.forward_ends if phase is Phase.FORWARD else StepClock.ends
            observed.recorder.report(over)

        self.replace(owner, name, lambda: self._report(begins), lambda: self._report(ends))

    def replace(
        self,
        owner: Any,
        name: str,
        before: Callable[[], None] | None = None,
        after: Callable[[], None] | None = None,
    ) -> None:
        """Call `before` and `after` around an object's method, if it has one of that name."""
        original = getattr(owner, name, None)
        if original is None:
            return
        made = ObservedMethod(original, before, after)
        made.replaced = getattr(owner, "__dict__", {}).get(name, _ABSENT)
        try:  # weak references: a detach to come must not keep a script's model alive
            observed, ours = weakref.ref(owner), weakref.ref(made)
            setattr(owner, name, made)
        except (AttributeError, TypeError):  # an object that takes no attributes
            return

        def restore() -> None:
            owner, method = observed(), ours()
            if owner is None or method is None or vars(owner).get(name) is not method:
                return  # replaced by other code since
            if method.replaced is _ABSENT:
                vars(owner).pop(name)
            else:
                setattr(owner, name, method.replaced)

        self._undo.append(restore)
        agent.at_detach(self.release)

    def watches(self, owner: Any) -> bool:
        """Whether methods of an object are replaced, by this loop or another."""
        own = getattr(owner, "__dict__", {}).values()
        return any(isinstance(each, ObservedMethod) for each in own)

    def release(self) -> None:
        """Restore the methods of the framework's objects."""
        undo(self._undo)

    def _tell(self, event: Callable[[StepClock, int], None]) -> None:
        """Report an event, which gets the account and the time."""
        self._report(lambda observed: observed.recorder.report(event))

    def _report(self, tell: Callable[[Agent], object]) -> None:
        observed = agent.current()
        if observed is None or observed.failure:
            return
        if threading.get_ident() != observed.recorder.ident:
            return
        try:
            if self._marks_steps:  # also for an agent that was attached later
                observed.recorder.manual = True
            tell(observed)
        except Exception as error:
            observed.give_up(error)
