"""Where a fatal signal strikes: as a process dies, `faulthandler` writes the frames of its threads
behind its spool's last region. It passes the signal on to what handled it before, so that the
process ends as it would have; whatever handles it later comes first.
"""

from __future__ import annotations

import faulthandler
import os
import re
import signal
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from evenstep.trace.spool.files import Held

FATAL = ("SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "SIGABRT")
_MASK = sum(1 << getattr(signal, name) - 1 for name in FATAL)
_HANDLED = re.compile(r"^Sig(?:Ign|Cgt):\s*(\w+)$", re.MULTILINE)  # proc(5), `status`


class _SpoolEnd(Held):
    """The end of a spool, as a file that only `faulthandler` keeps open."""

    def fileno(self) -> int:
        return self.fd

    __del__ = Held.close


class FaultHandler:
    """The handler of one rank, from `install` to `remove`."""

    def __init__(self) -> None:
        self._file: Callable[[], _SpoolEnd | None] = lambda: None

    def install(self, path: Path) -> None:
        """Write behind the regions of this spool; nothing where anybody handles or ignores one of
        these signals already, or where that is not known."""
        with suppress(OSError):
            handled = _HANDLED.findall(Path("/proc/self/status").read_text(errors="replace"))
            if not any(int(signals, 16) & _MASK for signals in handled):
                file = _SpoolEnd(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC))
                faulthandler.enable(file)
                self._file = weakref.ref(file)

    def remove(self, *, lost: bool = False) -> None:
        """Handle these signals no more, unless the script has set up `faulthandler` since; `lost`:
        only if it has closed our file."""
        file = self._file()
        if file is not None and not (lost and file.fd >= 0):
            faulthandler.disable()
