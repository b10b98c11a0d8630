"""Measure the cost of a call from torch's dispatcher to a kernel of ours.

It cannot be measured inside a kernel: for a kernel in Python, torch converts all arguments and the
result to Python objects and back. So it is measured once in a process, as the thread time of an
all-reduce in a fake group by a kernel that passes it on, less the same without the kernel. That is
done on a thread of its own, without pauses and with pauses as between a step's collectives. Nothing
of it is recorded.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from evenstep.agent.recording.recorder import mean_of_most

#: Issues a collective; returns its thread time (ns).
Call = Callable[[], int]

PAIRS = 48  # of calls without and with the kernel, hot and cold
PAUSE_S = 0.005
KEY = "FuncTorchGradWrapper"  # a dispatch key that few calls use


#: Results, with compiled kernels (True) and with Python's own.
_known: dict[bool, tuple[float, float]] = {}


class Measurement:
    """A measurement in the background; `done` gets the cost with hot and with cold caches, ns."""

    def __init__(
        self,
        torch: Any,
        done: Callable[[float, float], None],
        pass_on: Callable[[], None] | None = None,
    ) -> None:
        """`pass_on` makes compiled kernels pass its thread's calls through; None: Python's own."""
        self._torch = torch
        self._done = done
        self._pass_on = pass_on
        self._stopped = threading.Event()
        # Not a daemon: at its end the interpreter would stop the thread inside the dispatcher's C++
        # frames, which aborts the process.
        self._thread = threading.Thread(target=self._run, name="evenstep-mechanism")
        if (known := _known.get(pass_on is not None)) is None:
            self._thread.start()
        else:
            done(*known)

    def stop(self) -> None:
        """Stop the measurement if it still runs, and wait for its thread."""
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            if self._pass_on is not None:
                self._pass_on()
            with _calls(self._torch, compiled=self._pass_on is not None) as (bare, seen):
                costs = [self._cost(bare, seen, pause_s) for pause_s in (0.0, PAUSE_S)]
        except Exception:  # then our stated cost is without the mechanism's
            return
        if not self._stopped.is_set():
            _known[self._pass_on is not None] = costs[0], costs[1]
            self._done(*costs)

    def _cost(self, bare: Call, seen: Call, pause_s: float) -> float:
        """Cost of the kernel: the mean difference over pairs of calls without and with it, in
        turns, as our other costs are means: calls that find cold caches are no outliers."""
        found = []
        for pair in range(PAIRS):
            spent = []
            for call in (bare, seen)[:: 1 if pair % 2 else -1]:
                if self._stopped.wait(pause_s) if pause_s else self._stopped.is_set():
                    return 0.0
                spent.append(call())
            found.append(float(spent[1] - spent[0]) * (1 if pair % 2 else -1))
        return max(mean_of_most(found), 0.0)


@contextmanager
def _calls(torch: Any, *, compiled: bool) -> Iterator[tuple[Call, Call]]:
    """A call without a kernel of ours, and one with; each returns its thread time.

    Python's own kernels would record it: an empty one takes their place, for this thread only.
    """
    c10d, keys = torch._C._distributed_c10d, torch._C.DispatchKey
    fake = c10d.FakeProcessGroup
    group, kind = c10d.ProcessGroup(0, 1), c10d.ProcessGroup.BackendType.CUSTOM
    backend = getattr(fake, "_create_internal", fake)(0, 1)  # since torch 2.10 the former
    group._register_backend(torch.device("cpu"), kind, backend)
    group._set_default_backend(kind)
    tensors, options = [torch.empty(1)], c10d.AllreduceOptions()
    redispatch, key = torch.ops.c10d.allreduce_.default.redispatch, getattr(keys, KEY)

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

    if compiled:
        yield bare, call
        return
    library = torch.library.Library("c10d", "IMPL")
    library.impl("allreduce_", kernel, KEY, with_keyset=True)
    try:
        yield bare, seen
    finally:
        library._destroy()
