"""Observe phases and steps in torch itself, without edits to a script.

Each hook reports to the `StepClock` of the training thread and does nothing on other threads. The
replaced functions are the innermost that all callers use; `remove` restores them, or leaves a
wrapper that passes every call through where other code has wrapped it in the meantime.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from time import monotonic_ns, thread_time_ns
from types import CodeType, FrameType
from typing import Any

from evenstep.agent.arming import arm, disarm
from evenstep.agent.recording.phases import Event, Word
from evenstep.agent.recording.recorder import Recorder
from evenstep.hooks.torch.native import AROUND, OPTIMIZER_IN, OPTIMIZER_OUT, Session
from evenstep.hooks.wrapping import replace_attribute, undo
from evenstep.trace.spool.layout import Phase

_LAST_ENTRY = Word.LAST_ENTRY
_EVENTS, _MARKING = Word.EVENTS, Word.MARKING

_get_ident = threading.get_ident

Before = Callable[[tuple[Any, ...]], None]
After = Callable[[Any], None]


#: A call of an optimizer's `step`: its frame, code and optimizer, by identities: one that raised
#: must keep nothing alive. An identity may come back once its object is freed. So a frame counts
#: only among the callers of another, with the same code: those are calls that still run.
StepCall = tuple[int, CodeType, int]

#: Outermost modules: where each class lives, its methods that run before and after a forward, which
#: of the first one's arguments is the module, and whether backward awaits all of its collectives.
_FORWARDS = (
    (
        "torch.nn.parallel.distributed", "DistributedDataParallel",
        "_pre_forward", "_post_forward", 0, True,
    ),
    (
        "torch.distributed.fsdp._fully_shard._fsdp_state", "FSDPState",
        "_pre_forward", "_post_forward", 1, False,
    ),
    (
        "torch.distributed.fsdp.fully_sharded_data_parallel", "FullyShardedDataParallel",
        "forward", "forward", 0, False,
    ),
)  # fmt: skip


class PhaseHooks:
    """Reports input, forward, backward, optimizer, checkpoint and evaluation to a `StepClock`.

    With a `session` what happens in every step is noted by compiled hooks. `on_step` is called when
    the marking optimizer has finished, on the training thread, with the time; it may sleep
    (pacing). `on_optimizer` is called when one is made, `on_failure` with an error of our own code.
    """

    def __init__(
        self,
        torch: Any,
        recorder: Recorder,
        on_step: Callable[[int], None],
        on_failure: Callable[[Exception], None],
        on_optimizer: Callable[[], None] = lambda: None,
        session: Session | None = None,
    ) -> None:
        self.armed = True
        self._clock = recorder.clock
        self._recorder = recorder
        self._words = recorder.words
        self._torch = torch
        self._session = session
        self._ident = recorder.ident
        self._on_step = on_step
        self._on_failure = on_failure
        self._on_optimizer = on_optimizer
        self._undo: list[Callable[[], None]] = []
        self._marking: Callable[[], Any] | None = None  # weak reference to the marking optimizer
        self._stepping: list[StepCall] = []  # the outermost first
        self._above = 1 if session is None else 2  # frames from an optimizer's hook to its `step`
        self._ended = False  # whether the optimizer's call that just returned ended a step
        self._mode_depth = 0
        self._saving = 0
        self._entry_before_ns = 0  # of the newest collective, before a broadcast of buckets

    def install(self) -> None:
        """Install all hooks; those of modules that are not imported yet follow later."""
        torch = self._torch
        clock = self._clock
        self._around(
            torch.autograd, "_engine_run_backward",
            self._backward(clock.backward_begins), self._backward(clock.backward_ends),
            compiled=(Event.BACKWARD_BEGINS, Event.BACKWARD_ENDS),
        )  # fmt: skip
        self._around(torch.nn.Module, "train", self._train_in, self._train_out)
        self._around(torch, "save", self._save_in, self._save_out)
        self._around(torch.serialization, "save", self._save_in, self._save_out)
        self._around(torch.distributed, "_broadcast_coalesced", self._buckets_in, self._buckets_out)
        self._optimizers()
        self._when_imported("torch.utils.data.dataloader", self._loaders)
        for row in _FORWARDS:
            self._when_imported(row[0], functools.partial(self._forwards, *row))
        self._when_imported("torch.distributed.pipelining.stage", self._stages)
        self._when_imported("torch.distributed.checkpoint", self._checkpoints)

    def remove(self) -> None:
        self.armed, self._marking = False, None
        undo(self._undo)

    # -- hooked functions ------------------------------------------------------------------------

    def _optimizers(self) -> None:
        from torch.optim.optimizer import (
            Optimizer,
            register_optimizer_step_post_hook,
            register_optimizer_step_pre_hook,
        )

        self._words[_MARKING] = 0
        begins: Any = self._optimizer_in
        ends: Any = self._optimizer_out
        if self._session is not None:
            hook, recorder = self._session.hook, self._recorder
            begins = _skip_by_dynamo(hook(OPTIMIZER_IN, recorder, begins, self._stepping))
            ends = _skip_by_dynamo(hook(OPTIMIZER_OUT, recorder, ends, self._stepping))
        before = register_optimizer_step_pre_hook(begins)
        after = register_optimizer_step_post_hook(ends)
        self._undo += [before.remove, after.remove]
        self._around(Optimizer, "__init__", lambda _: self._on_optimizer())

    def _loaders(self) -> None:
        from torch.utils.data import dataloader

        begins = self._notes(self._clock.input_begins)
        self._around(dataloader._BaseDataLoaderIter, "__next__", begins, self._input_out)
        self._around(dataloader.DataLoader, "__iter__", begins, self._loader_out)

    def _forwards(
        self, module: str, name: str, before: str, after: str, at: int, awaits_all: bool
    ) -> None:
        """Follow the forwards of a class; the arguments are a row of `_FORWARDS`."""
        owner = getattr(sys.modules[module], name)
        self._around(
            owner, before, lambda args: self._forward(args[at], awaits_all),
            compiled=(Event.FORWARD_BEGINS, Event.NONE, at, awaits_all),
        )  # fmt: skip
        self._around(
            owner,
            after,
            after=self._notes(self._clock.forward_ends),
            compiled=(Event.NONE, Event.FORWARD_ENDS),
        )

    def _stages(self) -> None:
        from torch.distributed.pipelining.stage import _PipelineStageBase

        self._around(
            _PipelineStageBase, "forward_one_chunk",
            lambda args: self._forward(args[0].submod),
            self._notes(self._clock.forward_ends),
        )  # fmt: skip

    def _checkpoints(self) -> None:
        from torch.distributed import checkpoint

        for name in ("save", "async_save"):
            self._around(checkpoint, name, self._save_in, self._save_out)

    # -- reports ---------------------------------------------------------------------------------

    def _notes(self, event: Callable[[int], None]) -> Callable[[Any], None]:
        """A report that is only a time."""
        return lambda _: self._recorder.note((event, monotonic_ns()))

    def _backward(self, event: Callable[[int, int], None]) -> Callable[[Any], None]:
        """A report of the time and of the newest collective."""
        return lambda _: self._recorder.note((event, monotonic_ns(), self._words[_LAST_ENTRY]))

    def _input_out(self, batch: Any) -> None:
        now_ns = monotonic_ns()
        self._recorder.note((self._clock.input_ends, now_ns, batch_length(batch)))

    def _loader_out(self, batches: Any) -> None:
        """A loader begins anew; note whether workers load ahead of the script, for all loaders."""
        self._input_out(None)
        workers, recorder = int(getattr(batches, "_num_workers", 0)), self._recorder
        if recorder.loader_workers is None or workers < recorder.loader_workers:
            recorder.loader_workers = workers
            recorder.spool.add_fact("loader_workers", workers)

    def _forward(self, module: Any, awaits_all: bool = False) -> None:
        """A forward begins; backward may follow in eval mode as well, as in fine-tuning."""
        training = bool(module.training or self._torch.is_grad_enabled())
        begins = self._clock.forward_begins
        self._recorder.note((begins, monotonic_ns(), training, awaits_all))

    def _buckets_in(self, _: tuple[Any, ...]) -> None:
        self._entry_before_ns = self._words[_LAST_ENTRY]

    def _buckets_out(self, _: Any) -> None:
        """DDP has broadcast its module's buffers: without `Work.wait`, it has waited for the last
        bucket since it was issued."""
        entry_ns = self._words[_LAST_ENTRY]
        if entry_ns > self._entry_before_ns:
            self._recorder.host_waited(entry_ns, monotonic_ns(), ident=self._ident)

    def _train_in(self, args: tuple[Any, ...]) -> None:
        self._mode_depth += 1
        if self._mode_depth == 1:
            training = bool(args[1]) if len(args) > 1 else True
            self._recorder.note((self._clock.mode_changes, monotonic_ns(), training))

    def _train_out(self, _: Any) -> None:
        self._mode_depth -= 1

    def _save_in(self, _: tuple[Any, ...]) -> None:
        self._saving += 1
        if self._saving == 1:
            self._recorder.note((self._clock.begins, Phase.CHECKPOINT, monotonic_ns()))

    def _save_out(self, _: Any) -> None:
        self._saving -= 1
        if self._saving == 0:
            self._recorder.note((self._clock.ends, monotonic_ns()))

    def _optimizer_in(self, optimizer: Any, *_: Any) -> None:
        if self.armed and _get_ident() == self._ident:
            self._tell(self._optimizer_begins, (sys._getframe(self._above), optimizer))

    def _optimizer_begins(self, call: tuple[FrameType, Any]) -> None:
        frame, optimizer = call
        stepping = self._stepping
        while stepping and not _calls(stepping[-1], frame):
            stepping.pop()  # its `step` raised, and has no end
        nested = bool(stepping) and self._steps(optimizer)
        stepping.append((id(frame), frame.f_code, id(optimizer)))
        if nested:  # a subclass's step calls the one it replaces
            return
        if self._marking is None or self._marking() is None:
            import weakref

            def gone(_: object, words: memoryview = self._words) -> None:
                words[_MARKING] = 0

            self._marking = weakref.ref(optimizer, gone)
            self._words[_MARKING] = id(optimizer)
        self._recorder.note((self._clock.optimizer_begins, monotonic_ns()))

    def _optimizer_out(self, optimizer: Any, *_: Any) -> None:
        if not self.armed or _get_ident() != self._ident:
            return
        self._ended = False
        self._tell(self._optimizer_ends, (sys._getframe(self._above), optimizer))
        if self._ended and self.armed:
            try:
                self._on_step(monotonic_ns())
            except Exception as error:
                self._fail(error)

    def _optimizer_ends(self, call: tuple[FrameType, Any]) -> None:
        frame, optimizer = call
        stepping = self._stepping
        while stepping and stepping.pop()[0] != id(frame):
            pass
        if stepping and self._steps(optimizer):
            return
        self._recorder.note((self._clock.ends, monotonic_ns()))
        marks = self._marking is not None and self._marking() is optimizer
        if marks and not self._recorder.manual and not skipped_by_scaler(optimizer):
            self._ended = True

    def _steps(self, optimizer: Any) -> bool:
        return any(outer[2] == id(optimizer) for outer in self._stepping)

    def _fail(self, error: Exception) -> None:
        self._on_failure(error)
        self.armed = False

    # -- installation ----------------------------------------------------------------------------

    def _around(
        self, owner: Any, name: str, before: Before | None = None, after: After | None = None,
        compiled: Sequence[int] = (),
    ) -> None:  # fmt: skip
        """Replace `owner.name` by one that reports; errors of the original pass through.

        `compiled`: the bytes of what a compiled hook does, as recorder.cpp names them.
        """
        original = getattr(owner, name)
        if compiled and self._session is not None:
            hook = self._session.hook(
                AROUND, self._recorder, original, int.from_bytes(compiled, "little"),
                method=isinstance(owner, type),
            )  # fmt: skip
            self._undo.append(replace_attribute(owner, name, hook))
            return

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if not self.armed or _get_ident() != self._ident:
                return original(*args, **kwargs)
            if before is not None:
                self._tell(before, args + tuple(kwargs.values()) if kwargs else args)
            result = None
            try:
                result = original(*args, **kwargs)
                return result
            finally:
                if after is not None and self.armed:
                    self._tell(after, result)

        wrapper._torchdynamo_disable = True  # type: ignore[attr-defined]
        self._undo.append(replace_attribute(owner, name, wrapper))

    def _tell(self, report: Callable[[Any], None], value: Any) -> None:
        recorder = self._recorder
        try:
            began_ns = recorder.event_cost.began() if recorder.sampled else 0
            report(value)
            self._words[_EVENTS] += 1
            if began_ns:
                recorder.event_cost.add(thread_time_ns() - began_ns, readings=1)
        except Exception as error:
            self._fail(error)

    def _when_imported(self, module: str, install: Callable[[], None]) -> None:
        def action() -> None:
            if self.armed:
                install()

        arm(action, target=module)
        self._undo.append(lambda: disarm(module))


def _skip_by_dynamo(hook: Callable[[Any, Any, Any], None]) -> Callable[[Any, Any, Any], None]:
    """A compiled hook of optimizers as a function, which Dynamo can skip: it warns of others."""

    def called(optimizer: Any, args: Any, kwargs: Any) -> None:
        hook(optimizer, args, kwargs)

    called._torchdynamo_disable = True  # type: ignore[attr-defined]
    return called


def _calls(outer: StepCall, frame: FrameType) -> bool:
    """Whether `frame` was called from a call of `step`, however deep."""
    caller = frame.f_back
    while caller is not None and (id(caller), caller.f_code) != outer[:2]:
        caller = caller.f_back
    return caller is not None


def skipped_by_scaler(optimizer: Any) -> bool:
    """Whether a gradient scaler made a fused optimizer skip its update.

    Other optimizers are not called then. On a device the test would need a synchronisation, so
    there such a step counts.
    """
    found = getattr(optimizer, "found_inf", None)
    return found is not None and not found.is_cuda and bool(found)


def batch_length(batch: Any) -> int:
    """Samples in a batch of a loader: the length of its first tensor, 0 without one."""
    try:
        return _length(batch, 0)
    except Exception:  # a class of the script's own with other meanings of these names
        return 0


def _length(batch: Any, depth: int) -> int:
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else 0
    if depth > 4:
        return 0
    items = tuple(batch.values()) if isinstance(batch, Mapping) else batch
    nested = items if isinstance(items, (list, tuple)) else ()
    return next(filter(None, (_length(item, depth + 1) for item in nested)), 0)
