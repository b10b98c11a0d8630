"""Units of a sweep carried out by several processes of this machine."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Generator, Sequence
from typing import Any

from evenstep.simulate.sweep import Unit, outcome

Row = dict[str, Any]


def carried(
    units: Sequence[Unit], workers: int, work: Callable[[Unit], Row | None] = outcome
) -> Generator[Row, None, None]:
    """The rows of units, in the order in which they are finished.

    Processes end with the iterator: what they were at when it is closed is lost. Raises
    `KeyboardInterrupt` where this process was interrupted.
    """
    if workers <= 1 or len(units) <= 1:
        for unit in units:
            yield _finished(work(unit))
        return
    context = multiprocessing.get_context("spawn")  # a fork would copy threads of numpy's
    with context.Pool(min(workers, len(units)), _deaf) as pool:
        for row in pool.imap_unordered(work, units):
            yield _finished(row)


def _finished(row: Row | None) -> Row:
    if row is None:
        raise KeyboardInterrupt
    return row


def _deaf() -> None:
    """Ctrl-C reaches every process of the terminal; the first one decides what happens."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))
