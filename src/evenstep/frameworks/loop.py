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
from time import monotonic_ns
from typing import Any, NamedTuple, TypeVar

from evenstep.agent.rank import Agent
from evenstep.attachment import agent
from evenstep.hooks.tested import Tested
from evenstep.hooks.wrapping import undo
from evenstep.trace.spool.layout import Kind, Phase

log = logging.getLogger("evenstep")

Told = TypeVar("Told")


def callback(events: type, module: str, base: str) -> type:
    """Make `EvenstepCallback` of the framework's own base class, an attribute of the events' module
    so that it can be pickled. Raises `ImportError` without the framework."""
    try:
        kind = getattr(importlib.import_module(module), base)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        mend = f"install it with: pip install {package}"
        raise ImportError(f"EvenstepCallback needs {package}; {mend}") from error
    made = type("EvenstepCallback", (events, kind), {"__module__": events.__module__})
    vars(sys.modules[events.__module__])["EvenstepCallback"] = made
    return made


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


class StepMark(NamedTuple):
    """The account of a step at one moment."""

    step: int
    now_ns: int
    leaf_ns: list[int]


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
        self._samples = (now, so_far + samples if step == now else samples)
        observed.recorder.clock.samples = self._samples[1]

    def step_ends(self, samples: int) -> None:
        """End a step with `samples` of this rank; 0: unknown."""

        def end(observed: Agent) -> None:
            if samples:
                observed.recorder.clock.samples = samples
            observed.end_step(monotonic_ns())

        self._report(end)

    def evaluation_begins(self) -> None:
        """Evaluation begins; all time to `evaluation_ends` belongs to it, its input as well."""
        self._report(lambda seen: seen.recorder.clock.mode_changes(monotonic_ns(), training=False))

    def evaluation_ends(self) -> None:
        """Evaluation ends; it began at `evaluation_begins` or when the model left training mode."""
        self._report(lambda seen: seen.recorder.clock.mode_changes(monotonic_ns(), training=True))

    def mark(self) -> StepMark | None:
        """The account now, for `reclassify`."""

        def take(observed: Agent) -> StepMark:
            stack = observed.recorder.stack
            return StepMark(stack.step, monotonic_ns(), list(stack.leaf_ns))

        return self._report(take)

    def reclassify(self, phase: Phase, since: StepMark | None) -> None:
        """Count all time since a mark of this step as one phase."""
        if since is None:
            return

        def tell(observed: Agent) -> None:
            stack = observed.recorder.stack
            if stack.step != since.step or len(stack):
                return
            now = monotonic_ns()
            inside_ns = stack.leaf_ns[phase] - since.leaf_ns[phase]  # recorded before
            stack.rewind(list(since.leaf_ns), since.now_ns)
            leaf_ns = stack.count(phase, since.now_ns, now) - inside_ns
            kind = int(Kind.PHASE)
            observed.spool.put(since.now_ns, now, kind, phase, stack.step, stack.parent, 0, leaf_ns)

        self._report(tell)

    def around(self, owner: Any, name: str, phase: Phase) -> None:
        """Make calls of `owner.name` a phase, until `release`."""

        def begins(observed: Agent) -> None:
            clock = observed.recorder.clock
            if phase is Phase.FORWARD:
                clock.forward_begins(monotonic_ns(), training=owner.training)
            else:
                clock.begins(phase, monotonic_ns())

        def ends(observed: Agent) -> None:
            clock = observed.recorder.clock
            (clock.forward_ends if phase is Phase.FORWARD else clock.ends)(monotonic_ns())

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

    def _report(self, tell: Callable[[Agent], Told]) -> Told | None:
        observed = agent.current()
        if observed is None or observed.failure:
            return None
        if threading.get_ident() != observed.recorder.ident:
            return None
        try:
            if self._marks_steps:  # also for an agent that was attached later
                observed.recorder.manual = True
            return tell(observed)
        except Exception as error:
            observed.give_up(error)
            return None
