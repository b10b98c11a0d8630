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
    """A call like that of `c10d::allreduce_`, and the same with an empty kernel on the way."""
    global _library
    space, of = "evenstep_python_cost", "__torch__.torch.classes.c10d.Work"
    work = torch._C._distributed_c10d.FakeWork().boxed()
    if _library is None:
        made = torch.library.Library(space, "DEF")
        below = torch._C.DispatchKey.BackendSelect
        for name in ("bare", "seen"):
            made.define(
                f"{name}(Tensor[] tensors, {of} group, {of} reduction, Tensor? indices, "
                f"bool async_op=True, int timeout=-1) -> (Tensor[], {of})"
            )
            made.impl(name, lambda tensors, *_: (tensors, work), "CPU")
        seen = getattr(torch.ops, space).seen.default

        def kernel(keyset: Any, *args: Any) -> Any:
            return seen.redispatch(keyset.remove(below), *args)

        made.impl("seen", kernel, "BackendSelect", with_keyset=True)
        _library = made
    operations, tensor = getattr(torch.ops, space), torch.empty(1)

    def calling(operation: Any) -> Callable[[], Any]:
        return lambda: operation([tensor], work, work, None, True, -1)

    return calling(operations.bare.default), calling(operations.seen.default)
