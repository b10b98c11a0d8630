"""Waits for functional collectives: tensor parallelism, compiled graphs, DTensor.

They are issued without blocking and waited for by `wait_tensor`, whose wait is torch's own code and
passes Python's `Work.wait` by. A kernel on the `BackendSelect` key of that operation sees it.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic_ns
from typing import Any

from evenstep.hooks.torch.observer import Observer

NAMESPACE, OPERATION = "_c10d_functional", "wait_tensor"


class FunctionalWaits:
    """A kernel on `wait_tensor`, feeding an `Observer`."""

    def __init__(self, torch: Any, observer: Observer) -> None:
        self._torch = torch
        self._observer = observer
        self._library: Any = None

    def install(self) -> None:
        """Register the kernel, where this torch has the operation."""
        packet = getattr(getattr(self._torch.ops, NAMESPACE), OPERATION, None)
        if packet is None:
            return
        library = self._torch.library.Library(NAMESPACE, "IMPL")
        library.impl(OPERATION, self._kernel(packet.default), "BackendSelect", with_keyset=True)
        self._library = library

    def remove(self) -> None:
        """Take the kernel back."""
        if self._library is not None:
            self._library._destroy()
            self._library = None

    def _kernel(self, overload: Any) -> Callable[..., Any]:
        observer, redispatch = self._observer, overload.redispatch
        below = self._torch._C.DispatchKey.BackendSelect

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

        return kernel
