"""A cost budget for Python's own kernels: record collectives in some windows of steps only.

The cost is that of the call itself. So once it takes more than `BUDGET` of a window of steps, the
dispatcher bypasses the kernels in the next ones: every n-th window is recorded, n a power of two,
so that the windows of the rank that records least are recorded by all. Collectives that were not
recorded are counted by the group's own counter, where that counts as ours does. Nothing is bypassed
where every collective is needed (pacing, an action, messages, which have no such counter).
"""

from __future__ import annotations

from collections.abc import Callable

from evenstep.agent.recording.recorder import Recorder
from evenstep.hooks.torch.dispatcher import DispatcherHooks
from evenstep.hooks.torch.groups import Counts, Groups
from evenstep.trace.spool.layout import FIRST_WINDOWS, WINDOW_STEPS

BUDGET = 0.003  # of the training thread's time
CHANGE_NS = 300_000  # cost of bypassing the kernels and of calling them again
MOST_EVERY = 64  # largest n


class Thrift:
    """Bypasses the kernels, and calls them again. On the training thread, between two steps.

    `on_change` is called when n (`every`) is larger than ever before (`most`).
    """

    def __init__(
        self,
        kernels: DispatcherHooks,
        recorder: Recorder,
        groups: Groups,
        on_change: Callable[[], object],
    ) -> None:
        self.every = self.most = 1
        self._kernels = kernels
        self._recorder = recorder
        self._groups = groups
        self._on_change = on_change
        self._before: Counts = {}  # at the beginning of the running window
        self._began_ns = recorder.clock.start_ns

    def begins(self, step: int, *, spared: bool) -> None:
        """A step begins; `spared`: not every collective is needed."""
        kernels, groups = self._kernels, self._groups
        if step % WINDOW_STEPS and (spared or not kernels.resting):
            return
        now_ns, window = self._recorder.clock.start_ns, step // WINDOW_STEPS
        if not kernels.resting:
            counts = groups.counts()
            self._choose(counts, now_ns - self._began_ns)
            self._before = counts
        rests = spared and window >= FIRST_WINDOWS and window % self.every > 0
        if rests and not kernels.resting:
            kernels.rest()
        elif kernels.resting and not rests:
            groups.skip(self._before)
            kernels.resume()
            self._before = groups.counts()
        self._began_ns = now_ns

    def _choose(self, counts: Counts, lasted_ns: int) -> None:
        """Choose n by the cost of the last window."""
        issued = 0
        for name, (ours, theirs) in counts.items():
            was_ours, was_theirs = self._before.get(name, (ours, theirs))
            if ours - was_ours != theirs - was_theirs:
                return  # a backend that counts otherwise: none can be left out
            issued += ours - was_ours
        cost_ns, every = self._recorder.cost.of(issued), 1
        if cost_ns > BUDGET * lasted_ns:
            while every < MOST_EVERY and cost_ns + CHANGE_NS > BUDGET * lasted_ns * every:
                every *= 2
        self.every = every
        if every > self.most:
            self.most = every
            self._on_change()
