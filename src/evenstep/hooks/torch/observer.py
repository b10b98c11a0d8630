"""Record a collective, whichever mechanism observes it.

`begin` runs on the issuing thread before the backend gets the call, `end` after the call has
returned; the exit is recorded later, by the thread that waits, by a completion callback, or by the
device's events.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic_ns, thread_time_ns
from typing import Any

from evenstep.agent.recording.entries import GroupState, MessageOrders
from evenstep.agent.recording.phases import Word
from evenstep.agent.recording.recorder import Recorder
from evenstep.hooks.torch.groups import Groups
from evenstep.hooks.torch.operations import dtype_codes
from evenstep.hooks.torch.works import Batches, KeptWorks
from evenstep.hooks.wrapping import replace_attribute
from evenstep.trace.spool.layout import HOST_DEVICE, Flag

_ASYNC, _ON_DEVICE = int(Flag.ASYNC), int(Flag.ON_DEVICE)
_MESSAGE = _ASYNC | int(Flag.EXIT_UPPER_BOUND)

BATCH_LIMIT = 8192  # operations of a batch; a script that fails within one never ends it

#: A begun call: record and flags.
Token = tuple[int, int]

_LAST_ENTRY, _EVENTS = Word.LAST_ENTRY, Word.EVENTS

_get_ident = threading.get_ident


class Observer:
    """Turns begin, end and wait of collectives into records.

    Unless `armed`, every mechanism passes calls through. `on_failure` gets an error of our own
    code, and detaches the agent.
    """

    def __init__(
        self, torch: Any, recorder: Recorder, groups: Groups,
        on_failure: Callable[[Exception], None], gate: Callable[[], None] | None = None,
    ) -> None:  # fmt: skip
        #: Called before each collective is issued; may sleep, and may change at any time.
        self.gate = gate
        self.armed = True
        self.recorder = recorder
        self.groups = groups
        #: Returns the timer of a device.
        self.device_timer: Callable[[int], Any] | None = None
        self._on_failure = on_failure
        self.dtypes = dtype_codes(torch)
        self._backward = torch._C._current_graph_task_id
        self._at_its_end = torch.autograd.Variable._execution_engine.queue_callback
        self._asked = -1  # the backward for whose end of compute a callback is queued
        self._close = recorder.spool.close
        self._orders = MessageOrders()
        self._waited_for: KeptWorks[int] = KeptWorks(lambda seq: self._close(seq, monotonic_ns()))
        self._marks: dict[int, Any] = {}  # record -> the device's mark, until `end` or `failed`
        self._batches: dict[int, list[Any]] = {}  # thread -> marks of the batch it has begun

    @property
    def messages(self) -> bool:
        """Whether any messages were recorded."""
        return self._orders.counted

    # -- around the call -------------------------------------------------------------------------

    def begin(
        self, enter_ns: int, state: GroupState, op: int, bytes_in: int, bytes_out: int, flags: int,
        peer: int, tensor: Any,
    ) -> Token:  # fmt: skip
        """Record the entry of a collective on `tensor`, among others; return a token for `end` or
        `failed`.
        """
        flags, device, mark = self._arrives(tensor, flags)
        dtype = self.dtypes.get(tensor.dtype, 0)
        seq = self.recorder.collective(
            enter_ns, state, op, bytes_in, bytes_out, flags, peer, dtype, device
        )
        return self._begun(seq, flags, mark)

    def begin_point_to_point(
        self, enter_ns: int, state: GroupState, op: int, nbytes: int, peer: int, tensor: Any,
        tag: int,
    ) -> Token:  # fmt: skip
        """The same for a send or receive, which has a peer and a number of its own."""
        flags, device, mark = self._arrives(tensor, _MESSAGE)
        dtype = self.dtypes.get(tensor.dtype, 0)
        order = self._orders.next((state.index, peer, op, tag))
        seq = self.recorder.point_to_point(
            enter_ns, state, op, nbytes, flags, peer, dtype, order, tag, device
        )
        return self._begun(seq, flags, mark)

    def _arrives(self, tensor: Any, flags: int) -> tuple[int, int, Any]:
        """The flags of a call on a tensor, its device, and the device's mark."""
        if not tensor.is_cuda:
            return flags, HOST_DEVICE, None
        device = tensor.get_device()
        mark = None if self.device_timer is None else self.device_timer(device).begin()
        return flags | _ON_DEVICE | _ASYNC, device, mark

    def _begun(self, seq: int, flags: int, mark: Any) -> Token:
        if mark is not None:
            self._marks[seq] = mark
        return seq, flags

    def end(self, token: Token, work: Any) -> None:
        """Arrange for the end of a call to be recorded, once the backend has it.

        A thread that makes a blocking call waits next, in Python: a completion callback would add
        no information, and handing over the interpreter's lock costs such a call 20-30
        microseconds.
        """
        seq, flags = token
        if flags & _ON_DEVICE:
            self._end_on_device(seq, work)
            return
        if work is None:
            self._returned(seq, flags)
            return
        if not flags & _ASYNC:
            return
        backward = self._backward()
        if backward >= 0 and backward != self._asked:
            self._asked = backward
            self._at_its_end(self._computed)
        try:
            future = work.get_future()
        except RuntimeError:  # gloo's messages have none: they end when they are waited for
            self._waited_for.keep(work, seq)
            return
        close = self._close

        def completed(_: Any) -> None:
            try:  # noqa: SIM105 - a context manager costs more than all the rest
                close(seq, monotonic_ns())
            except ValueError:  # the spool was shut in the meantime
                pass

        future.add_done_callback(completed)

    def _computed(self) -> None:
        """A backward has computed everything: from now on it waits.

        The wait for gradients is queued after the first of them is issued, so it runs after this.
        """
        words = self.recorder.words
        if words[_LAST_ENTRY]:
            words[_LAST_ENTRY] = monotonic_ns()

    def _returned(self, seq: int, flags: int) -> None:
        """End a call without a Work: the call itself was the wait."""
        now = monotonic_ns()
        self._close(seq, now)
        if not flags & _ASYNC:
            self.recorder.host_waited(now, now, ident=_get_ident())

    def _end_on_device(self, seq: int, work: Any) -> None:
        mark = self._marks.pop(seq, None)
        batch = self._batches.get(_get_ident()) if self._batches else None
        if mark is None:  # without device times the host knows only that it was issued
            self._close(seq, monotonic_ns())
        elif batch is not None and len(batch) < BATCH_LIMIT:
            mark.seq = seq
            batch.append(mark)
        else:
            mark.timer.end(seq, mark, work)

    def begin_batch(self) -> None:
        """The operations of this thread are launched together from now on."""
        self._batches[_get_ident()] = []

    def end_batch(self) -> list[Any]:
        """Marks of the batch that is launched."""
        return self._batches.pop(_get_ident(), [])

    def batch_reached(self, batch: list[Any]) -> None:
        """The current stream is about to wait for a batch."""
        now = {mark.timer: mark.timer.now() for mark in batch}
        for mark in batch:
            mark.reached = now[mark.timer]

    def batch_ended(self, batch: list[Any], waited: bool) -> None:
        """The current stream waits for a batch; or nobody will, and its ends are unknown."""
        for mark in batch:
            if waited:
                mark.timer.passed(mark)
            else:
                self._close(mark.seq, monotonic_ns())

    def let_go(self) -> None:
        """Drop works that only we hold: they hold their tensors."""
        self._waited_for.let_go()

    def failed(self, token: Token) -> None:
        """End a call that the backend refused or failed."""
        seq = token[0]
        try:
            self.recorder.spool.add_flags(seq, Flag.FAILED)
            self._close(seq, monotonic_ns())
            self._marks.pop(seq, None)
            blocking, ident = self.recorder.blocking, _get_ident()
            if blocking.get(ident) == seq:  # it will not be waited for
                del blocking[ident]
        except Exception as error:
            self.give_up(error)

    def give_up(self, error: Exception) -> None:
        """Pass every call through, after a failure of our own code."""
        self._on_failure(error)  # raises an error of the script's signal handler
        self.armed = False

    # -- waiting ---------------------------------------------------------------------------------

    def waited(self, work: Any, enter_ns: int, *, failed: bool) -> None:
        """A thread has returned from `Work.wait`, or it raised."""
        now, ident = monotonic_ns(), _get_ident()
        recorder = self.recorder
        kept = self._waited_for.waited(work) if self._waited_for else None
        if failed:
            seq = kept if kept is not None else recorder.blocking.get(ident)
            if seq is not None:
                recorder.spool.add_flags(seq, Flag.FAILED)
        if kept is not None:
            self._close(kept, now)
        recorder.host_waited(enter_ns, now, ident=ident)

    def patch_wait(
        self,
        work_type: Any,
        batches: Batches,
        then: Callable[[], None] | None = None,
    ) -> Callable[[], None]:
        """Replace `Work.wait`, to record blocked threads; return how to restore it.

        `then` is called after each wait.
        """
        original, recorder = work_type.wait, self.recorder

        def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
            if not self.armed:
                return original(work, *args, **kwargs)
            began_ns = recorder.event_cost.began() if recorder.sampled else 0
            enter_ns = monotonic_ns()
            failed = True
            if batches.kept:
                try:
                    batches.reached(work)
                except Exception as error:
                    self.give_up(error)
            try:
                if began_ns:  # the wait itself is not our cost
                    began_ns -= thread_time_ns()
                result = original(work, *args, **kwargs)
                failed = False
                return result
            finally:
                try:
                    if began_ns:
                        began_ns += thread_time_ns()
                    if batches.kept:
                        batches.waited(work)
                    self.waited(work, enter_ns, failed=failed)
                    if then is not None:
                        then()
                    recorder.words[_EVENTS] += 1
                    if began_ns and recorder.sampled:  # else a step has ended, which is apart
                        recorder.event_cost.add(thread_time_ns() - began_ns, readings=2)
                except Exception as error:
                    self.give_up(error)

        return replace_attribute(work_type, "wait", wait)
