"""What it costs to be called from torch's dispatcher in Python, before a line of ours runs.

No clock of ours can see it from inside a kernel, so it is measured once: an operation of our own
with an empty kernel on the way, less the same operation without, in thread time. On a thread of its
own, which ends; once without a pause, and once after pauses as between a step's collectives.
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


def measure(torch: Any, told: Callable[[float, float], None]) -> threading.Thread:
    """Measure in the background; `told` gets ns of a call where caches are hot, and where not."""

    def run() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            bare, seen = _operations(torch)
            tensor = torch.empty(1)
            prices = [
                _more(bare, seen, tensor, calls, pause_s)
                for calls, pause_s in ((HOT_CALLS, 0.0), (COLD_CALLS, PAUSE_S))
            ]
        except Exception:  # without it our cost is told without the mechanism's
            return
        told(prices[0], prices[1])

    # The interpreter waits for it at its end: a daemon's thread would be ended there inside the
    # dispatcher's C++ frames, which takes the process down.
    thread = threading.Thread(target=run, name="evenstep-price")
    thread.start()
    return thread


def _more(bare: Any, seen: Any, tensor: Any, calls: int, pause_s: float) -> float:
    spent = {bare: 0, seen: 0}
    for _ in range(calls):
        for operation in (bare, seen):
            if pause_s:
                time.sleep(pause_s)
            start = time.thread_time_ns()
            operation(tensor, True, -1)
            spent[operation] += time.thread_time_ns() - start
    return max((spent[seen] - spent[bare]) / calls, 0.0)


def _operations(torch: Any) -> tuple[Any, Any]:
    global _library
    space = "evenstep_python_cost"
    if _library is None:
        made = torch.library.Library(space, "DEF")
        below = torch._C.DispatchKey.BackendSelect
        for name in ("bare", "seen"):
            made.define(f"{name}(Tensor tensor, bool async_op, int timeout) -> Tensor")
            made.impl(name, lambda tensor, *_: tensor, "CPU")
        seen = getattr(torch.ops, space).seen.default

        def kernel(keyset: Any, *args: Any) -> Any:
            return seen.redispatch(keyset.remove(below), *args)

        made.impl("seen", kernel, "BackendSelect", with_keyset=True)
        _library = made
    operations = getattr(torch.ops, space)
    return operations.bare.default, operations.seen.default
