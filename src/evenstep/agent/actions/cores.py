"""`cores`: each rank on a node gets its own share of the cores.

The number of threads is not changed: the split of an operation among threads can change the last
bits of its sum.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from evenstep.agent.actions.conductor import Action, Facts

WORTH = 0.02  # smallest share of a step ready without a core that is worth a trial


class Cores(Action):
    """Binds every thread of this process to the rank's share of the cores."""

    name = "cores"
    scale = 1  # caches have to follow

    def __init__(self) -> None:
        self._share: frozenset[int] = frozenset()
        self._before: dict[int, set[int]] = {}  # of each thread
        self._children: set[int] = set()  # processes that were there before

    def applies(self, facts: Facts) -> str:
        """Where one of several ranks on a node waits for a core."""
        starves = facts.local_world > 1 and facts.starved_ns >= WORTH * facts.step_ns
        if not starves or not hasattr(os, "sched_setaffinity"):
            return ""
        allowed = os.sched_getaffinity(0)
        with suppress(OSError):
            if len(allowed) < 2 or allowed < os.sched_getaffinity(os.getppid()):
                return ""  # there is nothing to divide, or this rank was given cores of its own
        cores = sorted(allowed)
        self._share = frozenset(share(cores, facts.local_rank, facts.local_world))
        starved = facts.starved_ns / max(1, facts.step_ns)
        return (
            f"without a core for {starved:.1%} of the time: {len(self._share)} of {len(cores)} "
            "cores are its own"
        )

    def begin(self, step: int) -> None:
        """Bind all threads."""
        del step
        self._children = set(_processes_started(set()))
        for thread in _threads():
            with suppress(OSError):  # it has ended meanwhile
                self._before[thread] = os.sched_getaffinity(thread)
                os.sched_setaffinity(thread, self._share)

    def end(self, step: int) -> None:
        """Give back the cores of every thread that still has ours, also of those begun since."""
        del step
        usual = self._before.get(os.getpid(), set().union(*self._before.values()))
        started = [each for child in _processes_started(self._children) for each in _threads(child)]
        for thread in [*_threads(), *started]:
            with suppress(OSError):
                if os.sched_getaffinity(thread) == self._share:
                    os.sched_setaffinity(thread, self._before.get(thread, usual))
        self._before.clear()


def share(cores: list[int], local_rank: int, local_world: int) -> list[int]:
    """One rank's cores: adjacent ones, divided as evenly as possible; at least one."""
    if local_world > len(cores):
        return [cores[local_rank % len(cores)]]
    first = local_rank * len(cores) // local_world
    return cores[first : (local_rank + 1) * len(cores) // local_world]


def _threads(process: int | str = "self") -> list[int]:
    try:
        return [int(name) for name in os.listdir(f"/proc/{process}/task")]  # noqa: PTH208
    except OSError:  # it has ended
        return []


def _processes_started(before: set[int], process: int | str = "self") -> Iterator[int]:
    """The processes below `process`, without those of `before` and their own."""
    for thread in _threads(process):
        with suppress(OSError):
            children = Path(f"/proc/{process}/task/{thread}/children").read_text().split()
            for child in set(map(int, children)) - before:
                yield child
                yield from _processes_started(before, child)
