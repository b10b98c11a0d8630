"""Record pauses of Python's garbage collector, on the thread on which they happen.

The interpreter calls back at the start and at the end of each collection. No second one can begin
in between, so one start stamp is enough. The callback may interrupt any Python code, our recorder
included. It therefore takes no lock, keeps nothing that the collector tracks, and raises nothing;
an exception of a signal's handler in it is not ours: the signal is sent again (see
`signal_behind`).
"""

from __future__ import annotations

import _thread
import gc
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

#: start and end (`time.monotonic_ns()`), generation, objects collected, whether `gc.collect()` was
#: called (see `is_called_by_script`)
OnPause = Callable[[int, int, int, int, bool], None]

OLDEST = 2  # generation of a full collection
NEVER = (1 << 31) - 1  # the first threshold that is never reached, while `--act gc` collects
MINIMUM_NS = 100_000  # shorter ones, such as young collections of a small heap, are left out


class PauseWatch:
    """Reports collector pauses of at least `minimum_ns`.

    `on_pause` runs on the collecting thread inside the collection. If it raises, the watch disarms
    itself and keeps the reason in `failure`.
    """

    __slots__ = (
        "_armed", "_callback", "_called", "_clock", "_minimum_ns", "_on_pause", "_previous_hook",
        "_start_ns", "_unraisable", "failure",
    )  # fmt: skip

    def __init__(
        self,
        on_pause: OnPause,
        *,
        minimum_ns: int = MINIMUM_NS,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.failure: str | None = None
        self._on_pause = on_pause
        self._minimum_ns = minimum_ns
        self._clock = clock
        self._start_ns = 0  # 0 while nothing is being collected
        self._called = False  # whether the running collection was
        self._armed = True
        self._callback = self._on_collector  # one object: each access would bind a new one
        self._unraisable = self._on_unraisable
        self._previous_hook: Callable[[Any], None] | None = None  # None while ours is not in place

    @property
    def installed(self) -> bool:
        """Whether the interpreter calls this watch now."""
        return self._callback in gc.callbacks

    def install(self) -> None:
        """Start watching; idempotent, and restores the callback if `gc.callbacks` was cleared."""
        if self._previous_hook is None:
            self._previous_hook = sys.unraisablehook
            sys.unraisablehook = self._unraisable
        if not self.installed:
            self._start_ns = 0
            gc.callbacks.append(self._callback)

    def remove(self) -> None:
        """Stop watching. Counts stay."""
        if self.installed:
            gc.callbacks.remove(self._callback)
        if sys.unraisablehook is self._unraisable and self._previous_hook:
            sys.unraisablehook = self._previous_hook
            self._previous_hook = None  # kept where other code wrapped our hook, which passes on

    def disarm(self) -> None:
        """In a forked child: the inherited callback does nothing from here on."""
        self._armed = False

    def _on_collector(self, phase: str, info: dict[str, Any]) -> None:
        if not self._armed:
            return
        try:
            if phase == "start":
                self._called = is_called_by_script(info["generation"])
                self._start_ns = self._clock()
            elif self._start_ns:  # 0: installed in the middle of a collection
                self._end(info["generation"], info["collected"])
        except BaseException as error:
            self._failed(error)

    def _failed(self, error: BaseException) -> None:
        if not resent(error):
            self._armed = False
            self.failure = f"{type(error).__name__}: {error}"

    def _on_unraisable(self, lost: Any) -> None:
        """Handle what a signal's handler raised on entry to a function of ours that C calls (the
        collector, a compiled hook), before its first line."""
        trace = getattr(lost.exc_value, "__traceback__", None)
        ours = trace and str(trace.tb_frame.f_globals.get("__name__")).startswith("evenstep.")
        if not (ours and resent(lost.exc_value)) and self._previous_hook:
            self._previous_hook(lost)

    def _end(self, generation: int, collected: int) -> None:
        end_ns = self._clock()
        start_ns = self._start_ns
        self._start_ns = 0
        if end_ns - start_ns >= self._minimum_ns:
            self._on_pause(start_ns, end_ns, generation, collected, self._called)


def is_called_by_script(generation: int) -> bool:
    """Whether the collection that begins was asked for by `gc.collect()`.

    The collector itself begins a full one when its last threshold is passed, soon after its first
    was: from Python 3.12 when a call has ended, and has freed some of its objects. Young
    generations, of which there are many, are taken as its own; so is what `--act gc` collects.
    """
    counts, limits = gc.get_count(), gc.get_threshold()
    if generation != OLDEST or limits[0] == NEVER:
        return False
    return not gc.isenabled() or counts[2] <= limits[2] or 2 * counts[0] <= limits[0]


# -- signals ---------------------------------------------------------------------------------------


def signal_behind(error: BaseException) -> int | None:
    """Number of the signal whose handler raised `error`, or None if none of its frames is one.

    A signal that arrives during a garbage collection is handled in the first Python frame entered
    after it: in a collector callback, where an exception is printed and dropped. Ctrl-C would be
    lost, and so would a handler that ends the program. So such a callback sends the signal again.
    Elsewhere in our code the exception must not be taken for a failure of ours.
    """
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        number = _handled_in(trace.tb_frame)
        if number is not None:
            return number
        trace = trace.tb_next
    # The default handler has no Python frame, and no other code of ours raises this.
    return signal.SIGINT if isinstance(error, KeyboardInterrupt) else None


def resent(error: BaseException) -> bool:
    """Send the signal again whose handler raised `error`, to arrive after the main thread has left
    the callback it is in; False if it was no signal's handler.

    Another thread sends it, because a signal sent from here would be handled here. Should it still
    arrive in a callback, it comes back to this function.
    """
    number, main = signal_behind(error), threading.main_thread().ident
    if number is not None and main is not None:
        _thread.start_new_thread(signal.pthread_kill, (main, number))
    return number is not None


def _handled_in(frame: FrameType) -> int | None:
    """The signal that `frame` handles, if its function is the handler registered for it."""
    for number in _arguments(frame):
        if isinstance(number, int) and number in signal.valid_signals():
            handler = signal.getsignal(number)
            function = getattr(handler, "__func__", handler)
            if getattr(function, "__code__", None) is frame.f_code:
                return int(number)
    return None


def _arguments(frame: FrameType) -> list[object]:
    """The arguments that may be the signal: (signum, frame), (self, signum, frame) or (*both)."""
    values = [frame.f_locals.get(name) for name in frame.f_code.co_varnames[:2]]
    return [v[0] if isinstance(v, tuple) and v else v for v in values]
