"""Every collective of every process group, seen at torch's dispatcher.

A kernel on the `BackendSelect` key of each c10d operation runs before the backend's own and hands
the call on with `redispatch`. It sees DDP's reducer, FSDP, functional and compiled collectives,
point to point and groups made later. It costs 6-7 microseconds, nearly all of it in the dispatcher.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic_ns
from typing import Any

from evenstep.hooks.observer import Observer
from evenstep.hooks.operations import COLLECTIVES, POINT_TO_POINT, Operation


class DispatcherHooks:
    """Kernels on torch's c10d operations, feeding an `Observer`."""

    def __init__(self, torch: Any, observer: Observer) -> None:
        self._torch = torch
        self._observer = observer
        self._library: Any = None
        self.unseen: list[str] = []  # operations this torch does not have

    def install(self) -> None:
        """Register the kernels. Raises what torch raises where it cannot."""
        library = self._torch.library.Library("c10d", "IMPL")
        for operation in COLLECTIVES + POINT_TO_POINT:
            packet = getattr(self._torch.ops.c10d, operation.name, None)
            if packet is None:
                self.unseen.append(operation.name)
                continue
            kernel = self._kernel(operation, packet.default)
            library.impl(operation.name, kernel, "BackendSelect", with_keyset=True)
        self._library = library

    def remove(self) -> None:
        """Take the kernels back; calls already inside one finish undisturbed."""
        if self._library is not None:
            self._library._destroy()
            self._library = None

    def _kernel(self, operation: Operation, overload: Any) -> Callable[..., Any]:
        """One operation's kernel. Our part may fail; the collective must not notice."""
        observer = self._observer
        begin = (
            observer.begin_point_to_point
            if operation in POINT_TO_POINT
            else observer.begin_collective
        )
        end, failed, give_up = observer.end, observer.failed, observer.give_up
        redispatch = overload.redispatch
        below = self._torch._C.DispatchKey.BackendSelect
        unbox_work = self._torch._C._distributed_c10d.Work.unbox
        unbox_group = self._torch._C._distributed_c10d.ProcessGroup.unbox
        group_at = operation.group_at

        def kernel(keyset: Any, *args: Any) -> Any:
            token = None
            if observer.armed:
                try:
                    enter_ns = monotonic_ns()
                    token = begin(enter_ns, operation, unbox_group(args[group_at]), args)
                except Exception as error:
                    give_up(error)
            try:
                result = redispatch(keyset.remove(below), *args)
            except BaseException:
                if token is not None:
                    failed(token)
                raise
            if token is not None:
                try:
                    work = result
                    if type(result) is tuple:  # (tensors, work), or () where it has blocked
                        work = result[-1] if result else None
                    end(token, None if work is None else unbox_work(work))
                except Exception as error:
                    give_up(error)
            return result

        return kernel
