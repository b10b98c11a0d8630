"""Observe every collective of every process group at torch's dispatcher.

A kernel on the `BackendSelect` key of each c10d operation runs before the backend's own and passes
the call on with `redispatch`. It covers DDP's reducer, FSDP, functional and compiled collectives,
messages, and groups made later. It costs 6-7 microseconds, nearly all of it in the dispatcher.

So once the kernels take more than `BUDGET` of a window of steps, the dispatcher bypasses them in
the next ones: every n-th window is recorded, n a power of two, so that the windows of the rank that
records least are recorded by all. Collectives that were not recorded are counted by the group's own
counter, where that counts as ours does. Nothing is bypassed where every collective is needed
(pacing, an action, messages, which have no such counter).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from time import monotonic_ns, thread_time_ns
from typing import Any

from evenstep.agent.recording.recorder import Recorder
from evenstep.hooks.torch.groups import Counts, Groups
from evenstep.hooks.torch.observer import Observer, Token
from evenstep.hooks.torch.operations import OPERATIONS, DispatcherOperation, positions
from evenstep.trace.spool.layout import FIRST_WINDOWS, NO_PEER, WINDOW_STEPS, Flag

_ASYNC, _COALESCED = int(Flag.ASYNC), int(Flag.COALESCED)
_UPPER_BOUND = int(Flag.EXIT_UPPER_BOUND)
BUDGET = 0.003  # of the training thread's time
CHANGE_NS = 300_000  # cost of bypassing the kernels and of calling them again
MOST_EVERY = 64  # largest n


class DispatcherHooks:
    """Kernels on torch's c10d operations, feeding an `Observer`."""

    def __init__(
        self, torch: Any, observer: Observer,
        operations: Sequence[DispatcherOperation] = OPERATIONS, key: str = "BackendSelect",
    ) -> None:  # fmt: skip
        self._torch = torch
        self._observer = observer
        self._operations = operations
        self._key = key
        self._library: Any = None
        self._over: Any = None
        self.unseen: list[str] = []  # operations this torch does not have

    def install(self) -> None:
        """Register the kernels. Raises what torch raises where it cannot."""
        library = self._torch.library.Library("c10d", "IMPL")
        for operation in self._operations:
            packet = getattr(self._torch.ops.c10d, operation.name, None)
            if packet is None:
                self.unseen.append(operation.name)
                continue
            kernel = self._kernel(operation, packet.default)
            with warnings.catch_warnings():  # torch warns once that a kernel is replaced
                warnings.simplefilter("ignore", UserWarning)
                library.impl(operation.name, kernel, self._key, with_keyset=True)
        self._library = library

    @property
    def resting(self) -> bool:
        """Whether the dispatcher bypasses the kernels."""
        return self._over is not None

    def rest(self) -> None:
        """Make the dispatcher bypass the kernels; they stay registered."""
        library = self._torch.library
        over = self._over = library.Library("c10d", "IMPL")
        for operation in self._operations:
            if operation.name not in self.unseen:
                library._impls.discard(f"c10d/{operation.name}/{self._key}")  # torch < 2.10 asks
                over.impl(operation.name, library.fallthrough_kernel, self._key)

    def resume(self) -> None:
        """Make the dispatcher call the kernels again."""
        if self._over is not None:
            self._over._destroy()
            self._over = None

    def remove(self) -> None:
        """Remove the kernels; calls inside one finish undisturbed."""
        self.resume()
        if self._library is not None:
            self._library._destroy()
            self._library = None

    def _kernel(self, operation: DispatcherOperation, overload: Any) -> Callable[..., Any]:
        """One operation's kernel. A failure of our part must not affect the collective."""
        observer = self._observer
        begin = self._enter(operation, overload._schema)
        end, failed, give_up = observer.end, observer.failed, observer.give_up
        cost = observer.recorder.cost
        redispatch = overload.redispatch
        below = getattr(self._torch._C.DispatchKey, self._key)
        unbox_work = self._torch._C._distributed_c10d.Work.unbox

        def kernel(keyset: Any, *args: Any) -> Any:
            token = failure = None
            began_ns = 0
            if observer.armed:
                try:
                    began_ns = cost.began()
                    gate = observer.gate  # read once: another thread may remove it
                    if gate is not None:
                        gate()
                    token = begin(args)
                except Exception as error:
                    failure = error
                if began_ns:
                    began_ns -= thread_time_ns()
            try:
                result = redispatch(keyset.remove(below), *args)
            except BaseException:
                if token is not None:
                    failed(token)
                raise
            if began_ns:
                began_ns += thread_time_ns()
            if failure is not None:  # not for arguments that the backend refuses as well
                give_up(failure)
            if token is not None:
                try:
                    work = result
                    if type(result) is tuple:  # (tensors, work), or () where it has blocked
                        work = result[-1] if result else None
                    end(token, None if work is None else unbox_work(work))
                    if began_ns:
                        cost.add(thread_time_ns() - began_ns, readings=2)
                except Exception as error:
                    give_up(error)
            return result

        return kernel

    def _enter(self, operation: DispatcherOperation, schema: Any) -> Callable[[Any], Token]:
        """The function that records a collective or message from its arguments."""
        observer, state_of = self._observer, self._observer.groups.state
        begin, begin_message = observer.begin, observer.begin_point_to_point
        unbox_group = self._torch._C._distributed_c10d.ProcessGroup.unbox
        op, sizes = int(operation.op), operation.sizes
        group_at, async_at, peer_at, tag_at = positions(schema)
        always = _UPPER_BOUND | (_COALESCED if operation.coalesced else 0)
        if async_at is None and schema.returns:  # a work; without one the call itself blocks
            always |= _ASYNC

        def enter(args: Any) -> Token:
            enter_ns = monotonic_ns()
            flags = always
            if async_at is not None and (len(args) <= async_at or args[async_at]):
                flags |= _ASYNC
            state = state_of(unbox_group(args[group_at]))
            bytes_in, bytes_out, tensor = sizes(args)
            peer = NO_PEER if peer_at is None else state.global_rank(args[peer_at])
            return begin(enter_ns, state, op, bytes_in, bytes_out, flags, peer, tensor)

        def enter_message(args: Any) -> Token:
            enter_ns = monotonic_ns()
            state = state_of(unbox_group(args[group_at]))
            nbytes, _, tensor = sizes(args)
            peer = NO_PEER if peer_at is None else state.global_rank(args[peer_at])
            tag = 0 if tag_at is None or len(args) <= tag_at else args[tag_at]
            return begin_message(enter_ns, state, op, nbytes, peer, tensor, tag)

        return enter_message if operation.message else enter


def observe_functional_waits(torch: Any, observer: Observer) -> Callable[[], None]:
    """Register a kernel on `wait_tensor`, where this torch has it; return how to remove it."""
    packet = getattr(torch.ops._c10d_functional, "wait_tensor", None)
    if packet is None:
        return lambda: None
    redispatch, below = packet.default.redispatch, torch._C.DispatchKey.BackendSelect

    def kernel(keyset: Any, tensor: Any) -> Any:
        if not observer.armed:
            return redispatch(keyset.remove(below), tensor)
        enter_ns = monotonic_ns()
        result = redispatch(keyset.remove(below), tensor)
        try:
            observer.waited(None, enter_ns, failed=False)
        except Exception as error:
            observer.give_up(error)
        return result

    library = torch.library.Library("_c10d_functional", "IMPL")
    library.impl("wait_tensor", kernel, "BackendSelect", with_keyset=True)
    destroy: Callable[[], None] = library._destroy
    return destroy


class Thrift:
    """Bypasses the kernels, and calls them again. On the training thread, between two steps.

    `on_change` is called when n (`every`) is larger than ever before (`most`).
    """

    def __init__(
        self,
        kernels: DispatcherHooks,
        recorder: Recorder,
        groups: Groups,
        on_change: Callable[[], object],
    ) -> None:
        self.every = self.most = 1
        self._kernels = kernels
        self._recorder = recorder
        self._groups = groups
        self._on_change = on_change
        self._before: Counts = {}  # at the beginning of the running window
        self._began_ns = recorder.clock.start_ns

    def begins(self, step: int, *, spared: bool) -> None:
        """A step begins; `spared`: not every collective is needed."""
        kernels, groups = self._kernels, self._groups
        if step % WINDOW_STEPS and (spared or not kernels.resting):
            return
        now_ns, window = self._recorder.clock.start_ns, step // WINDOW_STEPS
        if not kernels.resting:
            counts = groups.counts()
            self._choose(counts, now_ns - self._began_ns)
            self._before = counts
        rests = spared and window >= FIRST_WINDOWS and window % self.every > 0
        if rests and not kernels.resting:
            kernels.rest()
        elif kernels.resting and not rests:
            groups.skip(self._before)
            kernels.resume()
            self._before = groups.counts()
        self._began_ns = now_ns

    def _choose(self, counts: Counts, lasted_ns: int) -> None:
        """Choose n by the cost of the last window."""
        issued = 0
        for name, (ours, theirs) in counts.items():
            was_ours, was_theirs = self._before.get(name, (ours, theirs))
            if ours - was_ours != theirs - was_theirs:
                return  # a backend that counts otherwise: none can be left out
            issued += ours - was_ours
        cost_ns, every = self._recorder.cost.of(issued), 1
        if cost_ns > BUDGET * lasted_ns:
            while every < MOST_EVERY and cost_ns + CHANGE_NS > BUDGET * lasted_ns * every:
                every *= 2
        self.every = every
        if every > self.most:
            self.most = every
            self._on_change()
