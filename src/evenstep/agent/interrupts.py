"""Signals whose handler raised where the interpreter throws exceptions away.

A signal that arrives during a garbage collection is handled in the first Python frame entered after
it: in a collector callback, where an exception is printed and forgotten. Ctrl-C would be lost, and
so would a handler that ends the program. So whoever installs such a callback sends it again.
"""

from __future__ import annotations

import _thread
import signal
import threading
from types import FrameType, TracebackType


def signal_behind(error: BaseException) -> int | None:
    """Number of the signal whose handler raised `error`, or None if none of its frames is one."""
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        number = _handled_in(trace.tb_frame)
        if number is not None:
            return number
        trace = trace.tb_next
    # The default handler is no Python frame, and nothing else here raises this.
    return signal.SIGINT if isinstance(error, KeyboardInterrupt) else None


def resend(number: int) -> None:
    """Let the signal arrive once more, after the main thread has left the place it is in.

    A thread of its own sends it, because sent from here it would be handled here. Should it still
    arrive in the same callback, it comes back to this function.
    """
    main = threading.main_thread().ident
    if main is not None:
        _thread.start_new_thread(signal.pthread_kill, (main, number))


def _handled_in(frame: FrameType) -> int | None:
    """The signal `frame` handles: its function is the handler registered for its argument."""
    for number in _arguments(frame):
        if isinstance(number, int) and number in signal.valid_signals():
            handler = signal.getsignal(number)
            function = getattr(handler, "__func__", handler)
            if getattr(function, "__code__", None) is frame.f_code:
                return int(number)
    return None


def _arguments(frame: FrameType) -> list[object]:
    """Where a handler may have its signal: (signum, frame), (self, signum, frame) or (*both)."""
    values = [frame.f_locals.get(name) for name in frame.f_code.co_varnames[:2]]
    return [v[0] if isinstance(v, tuple) and v else v for v in values]
