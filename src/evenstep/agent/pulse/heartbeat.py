"""A thread that records, several times a second, that the rank is alive.

The sampler's thread may be blocked by a driver or by the job's store, which is when the state of
the rank is needed most. This thread waits for neither: it writes the time into the spool's header,
records an exception that ends the script, and runs the vigil when that is due.

Where a thread of the job computes in Python, each request of another thread for the interpreter's
lock costs the training thread a turn. So where there are compiled kernels, those write the time,
and the lock is requested only when a look is due.
"""

from __future__ import annotations

import functools
import json
import logging
import math
import os
import re
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from evenstep.agent.pulse.frames import ScriptEnd, frames_of_errors, frames_of_thread
from evenstep.agent.recording.recorder import Recorder
from evenstep.agent.settings import config as configuration
from evenstep.errors import EvenstepError
from evenstep.trace.spool.faults import FaultHandler
from evenstep.trace.spool.files import Bell, write_whole
from evenstep.trace.spool.folder import RunFolder, started_ticks
from evenstep.trace.spool.identity import from_environment, hostname
from evenstep.trace.spool.layout import Kind

log = logging.getLogger("evenstep")

PERIOD_NS = 200_000_000  # between beats: readers rely on a quarter of a second
SHORTEST_NS = 20_000_000  # between two checks whether the step is overdue
UNCAUGHT_NS = 1_000_000_000  # between checks for an exception that ends the script
_LONG = re.compile(r"(?=.{201})(.{150,199}(?= )|.{199}).*")  # a message: kept to a word's end
_STOP = int(Kind.STOP)

#: Looks at the training thread, given the time (ns); returns when to look again, and the length of
#: a step after which to do so sooner (0: never).
Look = Callable[[int], tuple[int, int]]


class Heartbeat:
    """One rank's heartbeat, from `start` to `stop`. A look that fails is logged and dropped."""

    def __init__(self, recorder: Recorder, look: Look | None = None) -> None:
        self.cost_ns = 0  # CPU time of the thread so far
        self._recorder = recorder
        self._spool = recorder.spool
        self._look = look
        self._rest = recorder.rest or self._rest_here
        self._noted: dict[str, Any] = {}  # the exception that stands in the spool, described
        self._left = (-1, {"by": "", "frames": [""]})  # the step of the last `sys.exit`, and where
        self._script_end, self._faults = ScriptEnd(), FaultHandler()
        self._leaves: dict[tuple[Any, str], Callable[..., Any]] = {
            (sys, "exit"): sys.exit, (os, "_exit"): os._exit,
        }  # fmt: skip
        self._armed = True
        self._stopping = False
        self._bell = Bell()
        self._thread = threading.Thread(target=self._run, name="evenstep-heartbeat", daemon=True)

    def start(self) -> None:
        """Begin to beat."""
        self._thread.start()
        if self._look is not None and not self._spool.buffered:
            self._faults.install(self._spool.path)
        for module, name in self._leaves:
            self._note_place(module, name)

    def stop(self, timeout_s: float) -> None:
        """End the thread, and record the exception that ends this process."""
        if not self._armed:
            return
        self._stopping = True
        self._faults.remove()
        for (module, name), leaves in self._leaves.items():
            if getattr(getattr(module, name), "noted_by", None) is self:
                setattr(module, name, leaves)
        self._bell.ring()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)
        if self._thread.is_alive():
            self._spool.keep_mapped()  # it may yet beat
        else:
            self._bell.close()
            self._armed = False
        self._note(sys.exc_info()[1])
        self.note_uncaught()
        step, left = self._left
        if step != self._recorder.step:  # of an earlier one it was caught
            left = {"by": "", "frames": self._script_end.frames()}
        if left["frames"] and not self._noted:
            self._spool.add_fact("left", left)

    def disarm(self) -> None:
        """For a forked child, where the thread does not exist."""
        self._armed = False
        self._faults.remove()

    def _run(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # see `Sampler._run`
        try:
            while not self._stopping:
                if stood_ns := self._rest(*self.look(), self._bell.ear.fd):
                    now_ns = time.monotonic_ns()
                    self._spool.put(now_ns - stood_ns, now_ns, _STOP, 0, self._recorder.step)
                self.cost_ns = time.thread_time_ns()
        except Exception as error:  # the spool is shut, or its disk gone: the job goes on
            log.debug("evenstep: the heartbeat ended: %s", error)

    def look(self) -> tuple[int, int]:
        """Check for an exception and run the look; return what a look returns."""
        self.note_uncaught()
        self._faults.remove(lost=True)
        now_ns = time.monotonic_ns()
        until_ns, overdue_ns = now_ns + UNCAUGHT_NS, 0
        if self._look is not None:
            try:
                due_ns, overdue_ns = self._look(now_ns)
                until_ns = min(until_ns, due_ns)
            except Exception as error:
                self._look = None
                log.warning("evenstep: looking at the training thread: %s", error)
        return until_ns, overdue_ns

    def _rest_here(self, until_ns: int, overdue_ns: int, _: int) -> int:
        """Beat until it is time, the step is overdue, or `stop` wakes the thread: 0; or until no
        thread of the process ran for a period beyond a rest: ns since the beat before."""
        while True:
            now_ns = time.monotonic_ns()
            self._spool.beat(now_ns)
            left_ns = until_ns - now_ns
            if overdue_ns:
                over_ns = self._recorder.began_ns + overdue_ns - now_ns
                left_ns = min(left_ns, over_ns if over_ns <= 0 else max(over_ns, SHORTEST_NS))
            rest_ns, busy_ns = min(left_ns, PERIOD_NS), _busy_ns()
            if left_ns <= 0 or self._bell.wait(math.ceil(rest_ns / 1e6)):
                return 0
            lasted_ns = time.monotonic_ns() - now_ns
            if lasted_ns > rest_ns + PERIOD_NS + _busy_ns() - busy_ns:
                return lasted_ns

    def _note_place(self, module: Any, name: str) -> None:
        """Note where `sys.exit` ends the script, of which the interpreter keeps nothing, and write
        where `os._exit` ends the process at once."""
        leaves = self._leaves[module, name]

        @functools.wraps(leaves)
        def leave(*args: Any, **known: Any) -> Any:
            thread = threading.get_ident()
            with suppress(Exception):
                left = {"by": f"{module.__name__}.{name}", "frames": frames_of_thread(thread)}
                if self._armed and module is os:
                    self._spool.add_fact("left", left)
                elif thread == threading.main_thread().ident:
                    self._left = self._recorder.step, left
            return leaves(*args, **known)

        leave.noted_by = self  # type: ignore[attr-defined]
        setattr(module, name, leave)

    def note_uncaught(self) -> None:
        """Record the exception that ended the script, which the interpreter keeps."""
        self._note(getattr(sys, "last_value", None))

    def _note(self, error: BaseException | None) -> None:
        """Write the exception that ends this process into the spool, once."""
        if isinstance(error, SystemExit):
            # Raised while another was handled, as launchers' wrappers do: that is the cause.
            if error.code in (None, 0):
                if self._left[0] != self._recorder.step:  # and not by `sys.exit`
                    left = {"by": "SystemExit", "frames": frames_of_errors([error], "")}
                    self._left = self._recorder.step, left
                return
            error = error.__context__ or error
        # Compared by description: to hold the exception would keep its frames' tensors alive.
        if error is not None and (found := described(error)) != self._noted:
            self._noted = found
            self._spool.add_fact("raised", found | {"monotonic_ns": time.monotonic_ns()})


def described(error: BaseException) -> dict[str, Any]:
    """An exception as a fact, or the one it was raised from, as by a pipeline's schedule: no values
    of variables, and only a line of its message."""
    raised = [error]  # each from the next
    while (cause := raised[-1].__cause__) is not None and not any(cause is one for one in raised):
        raised.append(cause)
    kind = type(raised[-1])
    name = kind.__qualname__
    if kind.__module__ != "builtins":
        name = f"{kind.__module__}.{name}"
    try:
        message = str(raised[-1])
    except Exception:  # a script's own class
        message = ""
    lines = message.strip().split("\n")
    # a worker's exception, raised again, has the worker's traceback in its message
    told = lines[-1 if "Traceback (most recent call last)" in message else 0]
    return {
        "type": name,
        "message": _LONG.sub(r"\1…", told.removeprefix(f"{name}: ")),
        "frames": frames_of_errors(reversed(raised), message),
    }


def _busy_ns() -> int:
    """For how long threads of the process have run, or this one has waited for the interpreter's
    lock, whose waiters wake each switch interval (`take_gil` of CPython)."""
    woken = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
    return time.process_time_ns() + int(woken * sys.getswitchinterval() * 1e9)


# -- before the rank records -----------------------------------------------------------------------


@contextmanager
def joining(call: str, rank: object, world: object, address: str) -> Iterator[None]:
    """Leave a mark in the launcher's folder while this rank is inside a call that makes it meet the
    others at an address ("" unknown). The mark of a call that fails stays, and says why.

    The script may give rank and world. What cannot be marked is not: attaching will tell."""
    path: Path | None = None
    with suppress(EvenstepError, OSError):
        path, mark = _mark(call, rank, world, address)
    try:
        yield
    except BaseException as error:
        if path:
            raised = described(error) | {"monotonic_ns": time.monotonic_ns()}
            with suppress(OSError):
                write_whole(path, json.dumps(mark | {"raised": raised}))
        raise
    if path:
        with suppress(OSError):
            path.unlink(missing_ok=True)


def _mark(
    call: str, rank: object, world: object, address: str
) -> tuple[Path | None, dict[str, Any]]:
    """Write the mark; return its file, None where there is none, and contents."""
    config, identity = configuration.load(), from_environment(os.environ)
    if isinstance(rank, int) and isinstance(world, int) and 0 <= rank < world:
        identity = identity.at(rank=rank, world=world)
    if not (config.enabled and config.out and identity.world > 1):
        return None, {}
    if address.startswith(("localhost:", "127.")) and identity.nodes > 1:
        address += f" of {hostname()}"  # each node's own
    path = RunFolder(config.out).joining_path(identity.rank)
    mark = identity.header() | {"started_ticks": started_ticks(os.getpid())}
    mark |= {"call": call, "place": address}
    write_whole(path, json.dumps(mark))
    return path, mark
