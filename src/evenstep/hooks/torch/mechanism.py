"""Measure the cost of a call from torch's dispatcher to a kernel of ours.

It cannot be measured inside a kernel: for a kernel in Python, torch converts all arguments and the
result to Python objects and back. So it is measured once in a process, on the background thread:
the thread time of an all-reduce in a fake group without our kernel, with one that passes it on, and
with one that records it, into a spool of its own. With caches as cold as between a step's
collectives both parts of the cost are ten times as large. Their ratio changes much less: for
kernels in Python, processes find 1.08 to 1.18, and .73 to 1.22 beside a thread that computes.
"""

from __future__ import annotations

import mmap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from evenstep.agent.recording.phases import Word
from evenstep.agent.recording.recorder import Recorder, give_way
from evenstep.hooks.torch.dispatcher import DispatcherHooks
from evenstep.hooks.torch.groups import Groups
from evenstep.hooks.torch.native import Functions, NativeGroups, Session
from evenstep.hooks.torch.observer import Observer
from evenstep.hooks.torch.operations import OPERATIONS
from evenstep.trace.spool.spool import Regions, Spool

#: Issues a collective; returns its thread time (ns).
Call = Callable[[], int]

ROUNDS = 200  # of the three calls
KEY = "FuncTorchGradWrapper"  # a dispatch key that few calls use

_known: dict[bool, float] = {}  # with compiled kernels (True) and with Python's own


def outside_share(torch: Any, functions: Functions | None = None) -> float:
    """Cost of a call outside our kernel, as a share of that inside; not on the training thread.

    `functions` are those of compiled kernels; None: Python's own. Raises what torch raises.
    """
    compiled = functions is not None
    if compiled not in _known:
        turn_ns, rounds = time.monotonic_ns(), []
        with _calls(torch, functions) as calls:
            for _ in range(ROUNDS):
                rounds.append([call() for call in calls])
                turn_ns = give_way(turn_ns)
        plain, passed, recorded = (sorted(took)[ROUNDS // 2] for took in zip(*rounds, strict=True))
        _known[compiled] = max(passed - plain, 0) / max(recorded - passed, 1)
    return _known[compiled]


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
        functions.set_apart(None, None)
        session.close()


def _fail(error: Exception) -> None:
    raise error


@contextmanager
def _apart_in_python(torch: Any) -> Iterator[Callable[[bool], None]]:
    """The same with Python's own kernel of all-reduce."""
    spool = _private_spool()
    observer = Observer(torch, Recorder(spool), Groups(spool, torch.distributed), _fail)
    hooks = DispatcherHooks(torch, observer, OPERATIONS[:1], key=KEY)
    hooks.install()

    def arm(on: bool) -> None:
        observer.armed = on

    try:
        yield arm
    finally:
        hooks.remove()
