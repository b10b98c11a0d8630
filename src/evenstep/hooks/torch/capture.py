"""CUDA graphs being captured: nobody else may ask the driver meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class CaptureGate:
    """Keeps the background thread away from the driver while a CUDA graph is captured.

    A capture fails when another thread asks for an event meanwhile (`cudaStreamCaptureModeGlobal`,
    torch's default). `lock` is held for single queries only, so a capture begins without delay.
    """

    def __init__(self, graph_type: Any, told: Callable[[int], None] | None = None) -> None:
        self._told = told  # how many there are, after each change
        self.lock = threading.Lock()
        self.captures = 0
        self._type = graph_type
        self._undo = [
            self._around("capture_begin", before=1, on_error=-1),
            self._around("capture_end", after=-1, on_error=-1),
        ]

    def remove(self) -> None:
        """Put torch's own methods back."""
        while self._undo:
            self._undo.pop()()

    def _count(self, by: int) -> None:
        with self.lock:
            self.captures = max(self.captures + by, 0)
            if self._told is not None:
                self._told(self.captures)

    def _around(
        self, name: str, *, before: int = 0, after: int = 0, on_error: int = 0
    ) -> Callable[[], None]:
        original, count = getattr(self._type, name), self._count

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            count(before)
            try:
                result = original(*args, **kwargs)
            except BaseException:
                count(on_error)
                raise
            count(after)
            return result

        wrapper.__doc__, wrapper.__name__ = original.__doc__, name
        setattr(self._type, name, wrapper)

        def restore() -> None:
            if getattr(self._type, name) is wrapper:
                setattr(self._type, name, original)

        return restore
