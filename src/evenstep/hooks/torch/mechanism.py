"""What it costs to be called from torch's dispatcher, before a line of ours runs.

No clock of ours can see it from inside a kernel: where that is Python's, torch turns every argument
and the result into Python's and back, in code that nothing else uses. So it is measured once:
an all-reduce of a group that moves nothing, by way of a kernel that passes it on, less the same
without, in thread time. On a thread of its own, which ends; once without a pause, and once after
pauses as between a step's collectives. Nothing of it is recorded.
"""

from __future__ import annotations

import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

#: Issues a collective; ns of the thread's time that it took.
Call = Callable[[], int]

HOT_CALLS, COLD_CALLS = 128, 24
PAUSE_S = 0.005
KEY = "FuncTorchGradWrapper"  # of the dispatcher: of calls that ask for it, and few do


class Measurement:
    """A measurement in the background; `told` gets ns of a call where caches are hot, and not."""

    def __init__(
        self,
        torch: Any,
        told: Callable[[float, float], None],
        pass_on: Callable[[], None] | None = None,
    ) -> None:
        """`pass_on` has compiled kernels pass on what its thread calls; None: they are Python's."""
        self._torch = torch
        self._told = told
        self._pass_on = pass_on
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
            if self._pass_on is not None:
                self._pass_on()
            with _calls(self._torch, compiled=self._pass_on is not None) as (bare, seen):
                prices = [
                    self._more(bare, seen, calls, pause_s)
                    for calls, pause_s in ((HOT_CALLS, 0.0), (COLD_CALLS, PAUSE_S))
                ]
        except Exception:  # without it our cost is told without the mechanism's
            return
        if not self._stopped.is_set():
            self._told(prices[0], prices[1])

    def _more(self, bare: Call, seen: Call, calls: int, pause_s: float) -> float:
        """What a call costs more that is seen: the median over pairs."""
        found = []
        for _ in range(calls):
            spent = []
            for call in (bare, seen):
                if self._stopped.wait(pause_s) if pause_s else self._stopped.is_set():
                    return 0.0
                spent.append(call())
            found.append(spent[1] - spent[0])
        return max(statistics.median(found), 0.0)


@contextmanager
def _calls(torch: Any, *, compiled: bool) -> Iterator[tuple[Call, Call]]:
    """A call without a kernel of ours, and one with; each gives its thread time.

    Python's own record what they see. So an empty one takes their place, for this thread alone.
    """
    c10d, keys = torch._C._distributed_c10d, torch._C.DispatchKey
    fake = c10d.FakeProcessGroup
    group, kind = c10d.ProcessGroup(0, 1), c10d.ProcessGroup.BackendType.CUSTOM
    backend = getattr(fake, "_create_internal", fake)(0, 1)  # since torch 2.10 the former
    group._register_backend(torch.device("cpu"), kind, backend)
    group._set_default_backend(kind)
    tensors, options = [torch.empty(1)], c10d.AllreduceOptions()
    redispatch, key = torch.ops.c10d.allreduce_.default.redispatch, getattr(keys, KEY)
    library = torch.library.Library("c10d", "IMPL")

    def kernel(keyset: Any, *args: Any) -> Any:
        return redispatch(keyset.remove(key), *args)

    def call() -> int:
        start = time.thread_time_ns()
        group.allreduce(tensors, options)
        return time.thread_time_ns() - start

    def bare() -> int:
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(keys.BackendSelect)):
            return call()

    def seen() -> int:
        with torch._C._IncludeDispatchKeyGuard(key):
            return bare()

    if not compiled:
        library.impl("allreduce_", kernel, KEY, with_keyset=True)
    try:
        yield bare, call if compiled else seen
    finally:
        library._destroy()
