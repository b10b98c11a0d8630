"""Observe every collective of every process group at torch's dispatcher.

A kernel on the `BackendSelect` key of each c10d operation runs before the backend's own and passes
the call on with `redispatch`. It covers DDP's reducer, FSDP, functional and compiled collectives,
messages, and groups made later. It costs 6-7 microseconds, nearly all of it in the dispatcher.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from time import monotonic_ns, thread_time_ns
from typing import Any

from evenstep.hooks.torch.observer import Observer, Token
from evenstep.hooks.torch.operations import OPERATIONS, DispatcherOperation, positions
from evenstep.trace.spool.layout import NO_PEER, Flag

_ASYNC, _COALESCED = int(Flag.ASYNC), int(Flag.COALESCED)
_UPPER_BOUND = int(Flag.EXIT_UPPER_BOUND)


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
