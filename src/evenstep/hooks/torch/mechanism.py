"""Measure the cost of a call from torch's dispatcher to a kernel of ours.

It cannot be measured inside a kernel: for a kernel in Python, torch converts all arguments and the
result to Python objects and back. So it is measured once in a process, on a thread of its own: the
thread time of an all-reduce in a fake group without our kernel, with one that passes it on, and
with one that records it, into a spool of its own; without pauses, and with pauses as between a
step's collectives.
"""

from __future__ import annotations

import mmap
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from evenstep.agent.recording.phases import Word
from evenstep.agent.recording.recorder import Recorder, mean_of_most
from evenstep.hooks.torch.dispatcher import DispatcherHooks
from evenstep.hooks.torch.groups import Groups
from evenstep.hooks.torch.native import Functions, NativeGroups, Session
from evenstep.hooks.torch.observer import Observer
from evenstep.hooks.torch.operations import COLLECTIVES
from evenstep.trace.spool.spool import Regions, Spool

#: Issues a collective; returns its thread time (ns).
Call = Callable[[], int]
#: Cost of a call inside our kernel and outside of it (ns).
Costs = tuple[float, float]

ROUNDS = 48  # of the three calls, hot and cold
PAUSE_S = 0.005
KEY = "FuncTorchGradWrapper"  # a dispatch key that few calls use


#: Results, with compiled kernels (True) and with Python's own.
_known: dict[bool, tuple[Costs, Costs]] = {}


class Measurement:
    """A measurement in the background; `done` gets the costs with hot and with cold caches."""

    def __init__(
        self, torch: Any, done: Callable[[Costs, Costs], None], functions: Functions | None = None
    ) -> None:
        """`functions` are those of compiled kernels; None: Python's own."""
        self._torch = torch
        self._done = done
        self._functions = functions
        self._stopped = threading.Event()
        # Not a daemon: at its end the interpreter would stop the thread inside the dispatcher's C++
        # frames, which aborts the process.
        self._thread = threading.Thread(target=self._run, name="evenstep-mechanism")
        if (known := _known.get(functions is not None)) is None:
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
            with _calls(self._torch, self._functions) as calls:
                costs = self._costs(calls, 0.0), self._costs(calls, PAUSE_S)
        except Exception:  # then our stated cost is without the mechanism's
            return
        if not self._stopped.is_set():
            _known[self._functions is not None] = costs
            self._done(*costs)

    def _costs(self, calls: tuple[Call, Call, Call], pause_s: float) -> Costs:
        """Mean differences between the calls of a round, in turns: calls that find cold caches are
        no outliers."""
        inside, outside = [], []
        for turn in range(ROUNDS):
            spent = [0, 0, 0]
            for which in (turn % 3, (turn + 1) % 3, (turn + 2) % 3):
                if self._stopped.wait(pause_s) if pause_s else self._stopped.is_set():
                    return 0.0, 0.0
                spent[which] = calls[which]()
            outside.append(float(spent[1] - spent[0]))
            inside.append(float(spent[2] - spent[1]))
        return max(mean_of_most(inside), 0.0), max(mean_of_most(outside), 0.0)


@contextmanager
def _calls(torch: Any, functions: Functions | None) -> Iterator[tuple[Call, Call, Call]]:
    """A call without a kernel of ours, one that it passes on, and one that it records."""
    c10d, keys = torch._C._distributed_c10d, torch._C.DispatchKey
    fake = c10d.FakeProcessGroup
    group, kind = c10d.ProcessGroup(0, 1), c10d.ProcessGroup.BackendType.CUSTOM
    backend = getattr(fake, "_create_internal", fake)(0, 1)  # since torch 2.10 the former
    group._register_backend(torch.device("cpu"), kind, backend)
    group._set_default_backend(kind)
    tensors, options = [torch.empty(1)], c10d.AllreduceOptions()
    include, exclude = torch._C._IncludeDispatchKeyGuard, torch._C._ExcludeDispatchKeyGuard
    job, nothing = map(torch._C.DispatchKeySet, (keys.BackendSelect, keys.PythonTLSSnapshot))
    key = getattr(keys, KEY)

    def way(*, seen: bool, recorded: bool) -> Call:
        taken = seen and functions is None  # the job's kernels of Python are passed by in any case
        left = nothing if seen and functions else job

        def call() -> int:
            arm(recorded)
            with include(key), exclude(nothing):
                pass  # all find the guards in the caches
            with include(key) if taken else nullcontext(), exclude(left):
                start = time.thread_time_ns()
                group.allreduce(tensors, options)
                return time.thread_time_ns() - start

        return call

    with _apart(torch, functions) if functions else _apart_in_python(torch) as arm:
        yield (
            way(seen=False, recorded=False), way(seen=True, recorded=False),
            way(seen=True, recorded=True),
        )  # fmt: skip


def _private_spool() -> Spool:
    regions = Regions(ring_bytes=0, summary_bytes=0)
    return Spool(Path(), -1, mmap.mmap(-1, regions.total), regions)


@contextmanager
def _apart(torch: Any, functions: Functions) -> Iterator[Callable[[bool], None]]:
    """Compiled kernels record this thread's calls elsewhere, while they are told to."""
    session = Session(functions, _private_spool())
    NativeGroups(session, torch.distributed)
    session.words[Word.TRAINING] = threading.get_ident()
    session.set_apart()

    def arm(on: bool) -> None:
        session.words[Word.ARMED] = on

    try:
        yield arm
    finally:
        session.close()


def _fail(error: Exception) -> None:
    raise error


@contextmanager
def _apart_in_python(torch: Any) -> Iterator[Callable[[bool], None]]:
    """The same with Python's own kernel of all-reduce."""
    spool = _private_spool()
    observer = Observer(torch, Recorder(spool), Groups(spool, torch.distributed), _fail)
    hooks = DispatcherHooks(torch, observer, COLLECTIVES[:1], key=KEY)
    hooks.install()

    def arm(on: bool) -> None:
        observer.armed = on

    try:
        yield arm
    finally:
        hooks.remove()
