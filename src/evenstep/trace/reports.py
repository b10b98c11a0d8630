"""How far files are read: readers report it to whoever shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path

#: Called with a file's name, the bytes of it that were read so far, and all.
Report = Callable[[str, int, int], None]
BLOCK_BYTES = 512  # of `st_blocks`, see stat(2)
REPORT: ContextVar[Report | None] = ContextVar("report", default=None)


@contextmanager
def reporting(report: Report) -> Iterator[None]:
    """Report how far files are read within the block."""
    token = REPORT.set(report)
    try:
        yield
    finally:
        REPORT.reset(token)


def report_file(path: Path, part: str = "", size: int | None = None, *, read: bool) -> None:
    """Report a file, or a named part of `size` bytes of one, that is to be read or was, by its size
    on disk: holes take no time."""
    if report := REPORT.get():
        stored = 0
        with suppress(OSError):  # who reads it says so
            stat = path.stat()
            share = min(BLOCK_BYTES * stat.st_blocks / max(stat.st_size, 1), 1.0)
            stored = round(share * (stat.st_size if size is None else size))
        report(str(path / part), stored * read, stored)
