"""Work spread over the machine's cores, in processes that inherit what they need.

A forked child sees the parent's memory, so that nothing but results is sent. Results come in the
order of the items whatever finished first: the answer is the same on any number of cores.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

_task: list[Callable[[Any], Any]] = []  # of a child: what it was forked for


def each(function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """`function` of every item. Where processes cannot be forked, one after the other."""
    processes = min(available(), len(items))
    if processes < 2:
        return [function(item) for item in items]
    with multiprocessing.get_context("fork").Pool(processes, _begin, (function,)) as pool:
        return pool.map(_do, items, chunksize=1)


def available() -> int:
    """Cores this process may use; 1 where it must not fork."""
    if not sys.platform.startswith("linux") or multiprocessing.current_process().daemon:
        return 1
    return len(os.sched_getaffinity(0))


def _begin(function: Callable[[Any], Any]) -> None:
    _task[:] = [function]


def _do(item: Any) -> Any:
    return _task[0](item)
