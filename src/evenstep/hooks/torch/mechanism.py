"""What it costs to be called from torch's dispatcher in Python, before a line of ours runs.

No clock of ours can see it from inside a kernel, so it is measured once: an operation of
torch's with an empty kernel of ours on the way, less the same operation without, in thread time. On
a thread of its own, which ends; once without a pause, and once after pauses as between a step's
collectives. Both end in C++, as a collective does.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from typing import Any

HOT_CALLS, COLD_CALLS = 128, 12
PAUSE_S = 0.005

_library: Any = None  # torch takes an operation's name once in a process


class Measurement:
    """A measurement in the background; `told` gets ns of a call where caches are hot, and not."""

    def __init__(self, torch: Any, told: Callable[[float, float], None]) -> None:
        self._torch = torch
        self._told = told
        self._stopped = threading.Event()
        # The interpreter waits for it at its end: a daemon's thread would be ended there inside
        # the dispatcher's C++ frames, which takes the process down.
        self._thread = threading.Thread(target=self._run, name="evenstep-price")
        self._thread.start()

    def stop(self) -> None:
        """Give the measurement up where it still runs, and wait for its thread to end."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            bare, seen = _operations(self._torch)
            prices = [
                self._more(bare, seen, calls, pause_s)
                for calls, pause_s in ((HOT_CALLS, 0.0), (COLD_CALLS, PAUSE_S))
            ]
        except Exception:  # without it our cost is told without the mechanism's
            return
        if not self._stopped.is_set():
            self._told(prices[0], prices[1])

    def _more(self, bare: Any, seen: Any, calls: int, pause_s: float) -> float:
        spent = {bare: 0, seen: 0}
        for _ in range(calls):
            for operation in (bare, seen):
                if self._stopped.wait(pause_s) if pause_s else self._stopped.is_set():
                    return 0.0
                start = time.thread_time_ns()
                operation()
                spent[operation] += time.thread_time_ns() - start
        return max((spent[seen] - spent[bare]) / calls, 0.0)


def _operations(torch: Any) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """A call on a list of tensors, which does next to nothing, and the same by way of a kernel."""
    global _library
    bare, space = torch.ops.aten.atleast_1d.Sequence, "evenstep_python_cost"
    if _library is None:
        made = torch.library.Library(space, "DEF")
        made.define("seen(Tensor[] tensors) -> Tensor[]")
        below = torch._C.DispatchKey.BackendSelect

        def kernel(keyset: Any, *args: Any) -> Any:
            return bare.redispatch(keyset.remove(below), *args)

        made.impl("seen", kernel, "BackendSelect", with_keyset=True)
        _library = made
    seen, tensors = getattr(torch.ops, space).seen.default, [torch.empty(1)]
    return lambda: bare(tensors), lambda: seen(tensors)
