"""A thread of its own that says, several times a second, that the rank is alive.

The sampler's thread may be held up by a driver or by the job's store, and it is then that somebody
must be able to say what the rank does. This one waits for nobody: it writes the time into the
spool's header, notes an exception that ends the script, and looks at whatever else it is given.
"""

from __future__ import annotations

import logging
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from evenstep.agent.pulse.frames import frames_of_error
from evenstep.trace.spool.spool import Spool

log = logging.getLogger("evenstep")

PERIOD_S = 0.2  # a quarter of a second is what readers may count on
LONGEST_MESSAGE = 200  # characters of an exception's own words

#: What to look at with each beat, given the time; seconds until it wants to be asked again.
Look = Callable[[int], float]


class Heartbeat:
    """One rank's pulse, from `start` to `stop`. A look that fails is dropped, and said once."""

    def __init__(self, spool: Spool, looks: Sequence[Look] = ()) -> None:
        self.cost_ns = 0  # CPU time of the thread so far
        self._spool = spool
        self._looks = list(looks)
        self._told: BaseException | None = None  # the exception that stands in the spool
        self._armed = True
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="evenstep-heartbeat", daemon=True)

    def start(self) -> None:
        """Begin to beat."""
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """End the thread; the last exception of this process goes into the spool first."""
        if not self._armed:
            return
        self._stopping.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)
        self._note(sys.exc_info()[1])
        self.note_uncaught()

    def disarm(self) -> None:
        """For a forked child, where the thread does not exist."""
        self._armed = False

    def _run(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # see `Sampler._run`
        rest_s = 0.0
        try:
            while not self._stopping.wait(rest_s):
                rest_s = self.beat()
                self.cost_ns = time.thread_time_ns()
        except Exception as error:  # the spool is shut, or its disk gone: the job goes on
            log.debug("evenstep: the heartbeat ended: %s", error)

    def beat(self) -> float:
        """Write the time and look round; seconds until the next beat."""
        now_ns = time.monotonic_ns()
        self._spool.beat(now_ns)
        self.note_uncaught()
        rest_s = PERIOD_S
        for look in tuple(self._looks):
            try:
                rest_s = min(rest_s, look(now_ns))
            except Exception as error:
                self._looks.remove(look)
                log.warning("evenstep: %s: %s", getattr(look, "__qualname__", "a look"), error)
        return rest_s

    def note_uncaught(self) -> None:
        """The interpreter keeps the exception that ended the script where anybody finds it."""
        self._note(getattr(sys, "last_value", None))

    def _note(self, error: BaseException | None) -> None:
        """Write the exception that ends this process into the spool, once."""
        if isinstance(error, SystemExit):
            # raised while another was handled, as launchers' wrappers do: that one is the reason
            if error.code in (None, 0):
                return
            error = error.__context__ or error
        if error is None or error is self._told:
            return
        self._told = error
        self._spool.add_fact("raised", _described(error))


def _described(error: BaseException) -> dict[str, Any]:
    """An exception as a fact: no values of variables, and its own words only at their beginning."""
    kind = type(error)
    name = kind.__qualname__
    if kind.__module__ != "builtins":
        name = f"{kind.__module__}.{name}"
    try:
        message = str(error)
    except Exception:  # a script's own class
        message = ""
    return {
        "type": name,
        "message": message.partition("\n")[0][:LONGEST_MESSAGE],
        "frames": frames_of_error(error),
        "monotonic_ns": time.monotonic_ns(),
    }
