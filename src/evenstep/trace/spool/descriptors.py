"""Files that we hold open in a process that may close them behind our back.

A job that closes all files from 3 on, as daemons do, gets our numbers for files of its own: a
number is used only while it is still the file that was opened.
"""

from __future__ import annotations

import os
import select
import stat
from contextlib import suppress


class Held:
    """A descriptor of ours. `fd`: its number, -1 (from the start, too) where it is not ours."""

    __slots__ = ("_fd", "_file")

    def __init__(self, fd: int) -> None:
        self._fd, self._file = fd, _file(fd)

    @property
    def fd(self) -> int:
        if self._fd >= 0 and ((now := _file(self._fd)) is None or now != self._file):
            self._fd = -1
        return self._fd

    def close(self) -> None:
        fd, self._fd = self.fd, -1  # first: another thread may close it too
        if fd >= 0:
            os.close(fd)


class Bell:
    """Wakes the thread that waits or polls `ear`; a pipe: event counters cannot be told apart."""

    def __init__(self) -> None:
        ear, bell = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.ear, self._bell = Held(ear), Held(bell)

    def ring(self) -> None:
        """Wake the thread; nothing after `close`."""
        if self.ear.fd >= 0 and (fd := self._bell.fd) >= 0:
            with suppress(BlockingIOError):  # it has been rung often enough
                os.write(fd, b"1")

    def wait(self, limit_ms: int, *files: Held) -> bool:
        """Wait until it rings or a file can be read; False where neither was within the limit."""
        heard = select.poll()
        for fd in (file.fd for file in (self.ear, *files)):
            if fd >= 0:
                heard.register(fd, select.POLLIN)
        found = heard.poll(limit_ms)
        if any(fd == self.ear.fd for fd, _ in found):
            os.read(self.ear.fd, 4096)
        return bool(found)

    def close(self) -> None:
        self._bell.close()
        self.ear.close()


def _file(fd: int) -> tuple[int, int, str] | None:
    """Device, number and, for what shares these (event counters, watches), kind of an open file."""
    try:
        found = os.fstat(fd)
        whole = stat.S_IFMT(found.st_mode)
        kind = "" if whole else os.readlink(f"/proc/self/fd/{fd}")  # noqa: PTH115 (a tenth)
    except OSError:
        return None
    return found.st_dev, found.st_ino, kind
