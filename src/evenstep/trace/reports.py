"""How far files are read: readers report it to whoever shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path

#: Called with a file's name, the bytes of it that were read so far, and all.
Report = Callable[[str, int, int], None]
REPORT: ContextVar[Report | None] = ContextVar("report", default=None)


@contextmanager
def reporting(report: Report) -> Iterator[None]:
    """Report how far files are read within the block."""
    token = REPORT.set(report)
    try:
        yield
    finally:
        REPORT.reset(token)


def report_file(path: Path, size: int | None = None, *, read: bool) -> None:
    """Report a file that is to be read, or that was; `size` in bytes of a part of one."""
    if report := REPORT.get():
        with suppress(OSError):  # who reads it says so
            size = path.stat().st_size if size is None else size
        report(str(path), (size or 0) * read, size or 0)
