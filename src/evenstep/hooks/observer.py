"""What happens around one collective, whichever mechanism noticed it.

`begin_…` runs on the issuing thread before the backend gets the call, `end` right after it has
returned; the exit comes later, from the thread that waits, from a completion callback, or from the
device's events.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic_ns
from typing import Any

from evenstep.agent.recorder import COST_SAMPLE, Recorder
from evenstep.hooks.groups import Groups
from evenstep.hooks.operations import Operation, dtype_codes
from evenstep.trace.layout import NO_PEER, Flag, Op

_ASYNC, _COALESCED = int(Flag.ASYNC), int(Flag.COALESCED)
_UPPER_BOUND, _ON_DEVICE = int(Flag.EXIT_UPPER_BOUND), int(Flag.ON_DEVICE)
_SEND = int(Op.SEND)
WAITED_FOR_LIMIT = 256  # point-to-point works kept until somebody waits for them

_get_ident = threading.get_ident


class Observer:
    """Turns begin, end and wait of collectives into records.

    `armed` False makes every mechanism pass calls through untouched. `on_failure` is told once,
    with the error, when our own code has failed; it detaches the agent.
    """

    def __init__(
        self,
        torch: Any,
        recorder: Recorder,
        groups: Groups,
        on_failure: Callable[[Exception], None],
    ) -> None:
        self.armed = True
        self.recorder = recorder
        self.groups = groups
        self.device_timer: Callable[[], Any] | None = None  # makes or returns the device's timer
        self._on_failure = on_failure
        self._dtypes = dtype_codes(torch)
        self._orders: dict[tuple[int, int, int, int], int] = {}
        self._waited_for: dict[int, tuple[Any, int]] = {}
        self._calls = 0
        self._begins: dict[int, Any] = {}  # record -> event of the device's arrival

    # -- around the call -------------------------------------------------------------------------

    def begin_collective(
        self, enter_ns: int, operation: Operation, group: Any, args: Any
    ) -> tuple[int, int, int]:
        """Record the entry; returns (record, flags, entry time) for `end`."""
        async_at = operation.async_at
        flags = _UPPER_BOUND
        if async_at is not None and (len(args) <= async_at or args[async_at]):
            flags |= _ASYNC
        if operation.coalesced:
            flags |= _COALESCED
        state = self.groups.state(group)
        bytes_in, bytes_out, tensor = operation.sizes(args)
        peer = NO_PEER
        if operation.peer_at is not None:
            peer = state.global_rank(args[operation.peer_at])
        begin = None
        if tensor.is_cuda:
            flags |= _ON_DEVICE | _ASYNC
            begin = self._device_begin()
        seq = self.recorder.collective(
            enter_ns, state, operation.op, bytes_in, bytes_out, flags, peer,
            self._dtypes.get(tensor.dtype, 0),
        )  # fmt: skip
        if begin is not None:
            self._begins[seq] = begin
        return self._token(seq, flags, enter_ns)

    def begin_point_to_point(
        self, enter_ns: int, operation: Operation, group: Any, args: Any
    ) -> tuple[int, int, int]:
        """The same for a send or receive, which has a peer and an order of its own."""
        state = self.groups.state(group)
        nbytes, _, tensor = operation.sizes(args)
        at = operation.peer_at
        peer = NO_PEER if at is None else state.global_rank(args[at])
        tag = args[operation.tag_at] if operation.tag_at is not None else 0
        key = (state.index, peer, operation.op, tag)
        order = self._orders.get(key, 0)
        self._orders[key] = order + 1
        flags = _ASYNC | _UPPER_BOUND
        begin = None
        if tensor.is_cuda:
            flags |= _ON_DEVICE
            begin = self._device_begin()
        seq = self.recorder.point_to_point(
            enter_ns, state, operation.op, nbytes, flags, peer,
            self._dtypes.get(tensor.dtype, 0), order,
        )  # fmt: skip
        if begin is not None:
            self._begins[seq] = begin
        return self._token(seq, flags, enter_ns)

    def _token(self, seq: int, flags: int, enter_ns: int) -> tuple[int, int, int]:
        """Every so often the token carries the time, so that our own cost can be measured."""
        self._calls += 1
        if self._calls % COST_SAMPLE:
            return seq, flags, 0
        self.recorder.cost_ns += monotonic_ns() - enter_ns
        return seq, flags, enter_ns

    def end(self, token: tuple[int, int, int], work: Any) -> None:
        """The backend has the call: see to it that its end is noticed."""
        seq, flags, sampled = token
        start = monotonic_ns() if sampled else 0
        if work is None:
            self.recorder.spool.close(seq, monotonic_ns())
        elif flags & _ON_DEVICE:
            begin = self._begins.pop(seq, None)
            timer = self.device_timer() if begin is not None and self.device_timer else None
            if timer is not None:
                timer.end(seq, begin, work)
        else:
            self._follow(seq, work)
        if start:
            self.recorder.cost_ns += monotonic_ns() - start
            self.recorder.cost_samples += 1

    def _follow(self, seq: int, work: Any) -> None:
        close = self.recorder.spool.close

        def completed(_: Any) -> None:
            try:
                close(seq, monotonic_ns())
            except ValueError:  # the spool was shut in the meantime
                return

        try:
            future = work.get_future()
        except RuntimeError:  # gloo's point to point has none: its end is when somebody waits
            self._keep(work, seq)
            return
        future.add_done_callback(completed)

    def _keep(self, work: Any, seq: int) -> None:
        if len(self._waited_for) >= WAITED_FOR_LIMIT:
            self._waited_for.pop(next(iter(self._waited_for)))
        self._waited_for[id(work)] = (work, seq)

    def failed(self, token: tuple[int, int, int]) -> None:
        """The backend refused or broke: that, too, is an end."""
        try:
            spool = self.recorder.spool
            spool.add_flags(token[0], Flag.FAILED)
            spool.close(token[0], monotonic_ns())
            self._begins.pop(token[0], None)
        except Exception as error:
            self.give_up(error)

    def give_up(self, error: Exception) -> None:
        """Our own code has failed: pass everything through from here on."""
        self.armed = False
        self._on_failure(error)

    def _device_begin(self) -> Any:
        timer = self.device_timer() if self.device_timer is not None else None
        return timer.begin() if timer is not None else None

    # -- waiting ---------------------------------------------------------------------------------

    def waited(self, work: Any, enter_ns: int) -> None:
        """A thread has returned from `Work.wait`."""
        now = monotonic_ns()
        kept = self._waited_for.pop(id(work), None) if self._waited_for else None
        if kept is not None and kept[0] is work:
            self.recorder.spool.close(kept[1], now)
        self.recorder.host_waited(enter_ns, now, ident=_get_ident())

    def patch_wait(self, work_type: Any) -> Callable[[], None]:
        """Replace `Work.wait`, so that a blocked thread is seen; returns how to restore it."""
        original = work_type.wait

        def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
            if not self.armed:
                return original(work, *args, **kwargs)
            enter_ns = monotonic_ns()
            try:
                return original(work, *args, **kwargs)
            finally:
                try:
                    self.waited(work, enter_ns)
                except Exception as error:
                    self.give_up(error)

        work_type.wait = wait

        def restore() -> None:
            work_type.wait = original

        return restore
