"""A parallel map over the machine's cores, in forked processes.

A forked child sees the parent's memory, so that only items and results are sent. Results are in the
order of the items, whichever finished first: the same on any number of cores.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

_task: list[Callable[[Any], Any]] = []  # in a child: the function it was forked for


def map_on_cores(function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """Call `function` on every item; in this process where it must not fork."""
    return list(iterate_on_cores(function, items))


def iterate_on_cores(function: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
    """Yield the result of each item as soon as those before it are there too."""
    processes = min(available(), len(items))
    if processes < 2:
        yield from map(function, items)
        return
    with multiprocessing.get_context("fork").Pool(processes, _task.append, (function,)) as pool:
        yield from pool.imap(_do, items)


def available() -> int:
    """Cores this process may use; 1 where it must not fork."""
    if not sys.platform.startswith("linux") or multiprocessing.current_process().daemon:
        return 1
    return len(os.sched_getaffinity(0))


def _do(item: Any) -> Any:
    return _task[0](item)
