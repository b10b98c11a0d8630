"""`cores`: each rank on a node gets its own share of the cores.

The number of threads is not changed: the split of an operation among threads can change the last
bits of its sum.
"""

from __future__ import annotations

import os

from evenstep.agent.actions.action import Action, Facts

WORTH = 0.02  # smallest share of a step ready without a core that is worth a trial


class Cores(Action):
    """Binds every thread of this process to the rank's share of the cores."""

    name = "cores"
    scale = 1  # caches have to follow

    def __init__(self) -> None:
        self._share: frozenset[int] = frozenset()
        self._before: dict[int, set[int]] = {}

    def applies(self, facts: Facts) -> str:
        """Where one of several ranks on a node waits for a core."""
        if facts.local_world < 2 or facts.starved_ns < WORTH * facts.step_ns:
            return ""
        if not hasattr(os, "sched_setaffinity"):
            return ""
        cores = sorted(os.sched_getaffinity(0))
        if len(cores) < 2:
            return ""  # bound already, or there is nothing to divide
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
        """Restore every thread's cores; threads started meanwhile get their parent's."""
        del step
        usual = self._before.get(os.getpid(), set().union(*self._before.values()))
        for thread in _threads():
            try:
                os.sched_setaffinity(thread, self._before.get(thread, usual))
            except OSError:
                continue
        self._before.clear()


def share(cores: list[int], local_rank: int, local_world: int) -> list[int]:
    """One rank's cores: adjacent ones, divided as evenly as possible; at least one."""
    if local_world > len(cores):
        return [cores[local_rank % len(cores)]]
    first = local_rank * len(cores) // local_world
    return cores[first : (local_rank + 1) * len(cores) // local_world]


def _threads() -> list[int]:
    return [int(name) for name in os.listdir("/proc/self/task")]  # noqa: PTH208
