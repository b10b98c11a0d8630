"""`cores`: ranks that compete for the cores of a node get some each.

Threads keep their number: how an operation is split among threads can change the last bits of its
sum, so fewer of them is recommended, never done.
"""

from __future__ import annotations

import os

from evenstep.agent.actions.action import Action, Facts

WORTH = 0.02  # of a step: ready, but without a core


class Cores(Action):
    """Binds every thread of this process to the rank's share of the cores."""

    name = "cores"
    scale = 1  # caches have to follow

    def __init__(self) -> None:
        self._share: frozenset[int] = frozenset()
        self._before: dict[int, set[int]] = {}

    def applies(self, facts: Facts) -> str:
        """Where a rank of several on a node is kept waiting for a core."""
        if facts.local_world < 2 or facts.starved_ns < WORTH * facts.step_ns:
            return ""
        if not hasattr(os, "sched_setaffinity"):
            return ""
        cores = sorted(os.sched_getaffinity(0))
        if len(cores) < 2:
            return ""  # bound already, or nothing to divide
        self._share = frozenset(share(cores, facts.local_rank, facts.local_world))
        starved = facts.starved_ns / max(1, facts.step_ns)
        return (
            f"without a core for {starved:.1%} of the time: {len(self._share)} of {len(cores)} "
            "cores are its own"
        )

    def begin(self, step: int) -> None:
        """Bind all threads."""
        del step
        for thread in _threads():
            try:
                self._before[thread] = os.sched_getaffinity(thread)
                os.sched_setaffinity(thread, self._share)
            except OSError:  # it has ended meanwhile
                self._before.pop(thread, None)

    def end(self, step: int) -> None:
        """Give every thread what it had; threads that came meanwhile get what their parent had."""
        del step
        usual = self._before.get(os.getpid(), set().union(*self._before.values()))
        for thread in _threads():
            try:
                os.sched_setaffinity(thread, self._before.get(thread, usual))
            except OSError:
                continue
        self._before.clear()


def share(cores: list[int], local_rank: int, local_world: int) -> list[int]:
    """The cores of one of several ranks: neighbours, as evenly as it goes; at least one."""
    if local_world > len(cores):
        return [cores[local_rank % len(cores)]]
    first = local_rank * len(cores) // local_world
    return cores[first : (local_rank + 1) * len(cores) // local_world]


def _threads() -> list[int]:
    return [int(name) for name in os.listdir("/proc/self/task")]  # noqa: PTH208
