"""A budget for Python's own kernels: collectives are recorded in some windows of steps only.

What they cost is being called at all. So once a window of steps has shown that this takes more than
`BUDGET` of them, the dispatcher passes the kernels by in the next ones: every n-th window is
recorded, n a power of two, so that the windows of the rank that records least are windows of all.
Collectives that nobody saw are counted by the group's own counter, where that counts as we do. What
needs every collective (pacing, an action, messages, which have no such counter) is not spared.
"""

from __future__ import annotations

from collections.abc import Callable

from evenstep.agent.recording.recorder import Recorder
from evenstep.hooks.torch.dispatcher import DispatcherHooks
from evenstep.hooks.torch.groups import Groups, Standing
from evenstep.trace.spool.layout import FIRST_WINDOWS, WINDOW_STEPS

BUDGET = 0.003  # of the training thread's time
CHANGE_NS = 300_000  # what it costs to have the kernels passed by, and called again
MOST_EVERY = 64  # windows, of which one is recorded at least


class Thrift:
    """Lets the kernels rest, and calls them again. On the training thread, between two steps.

    `told` is called when it is less often than ever before: `most`.
    """

    def __init__(
        self,
        kernels: DispatcherHooks,
        recorder: Recorder,
        groups: Groups,
        told: Callable[[], None],
    ) -> None:
        self.every = self.most = 1
        self._kernels = kernels
        self._recorder = recorder
        self._groups = groups
        self._told = told
        self._before: Standing = {}  # of the groups, when the running window began
        self._began_ns = recorder.clock.start_ns

    def begins(self, step: int, *, spared: bool) -> None:
        """A step begins; `spared`: nothing needs every collective."""
        kernels, groups = self._kernels, self._groups
        if step % WINDOW_STEPS and (spared or not kernels.resting):
            return
        now_ns, window = self._recorder.clock.start_ns, step // WINDOW_STEPS
        if not kernels.resting:
            standing = groups.standing()
            self._reckon(standing, now_ns - self._began_ns)
            self._before = standing
        rests = spared and window >= FIRST_WINDOWS and window % self.every > 0
        if rests and not kernels.resting:
            kernels.rest()
        elif kernels.resting and not rests:
            groups.skip(self._before)
            kernels.resume()
            self._before = groups.standing()
        self._began_ns = now_ns

    def _reckon(self, standing: Standing, lasted_ns: int) -> None:
        """How often a window like the last one can be paid for."""
        issued = 0
        for name, (ours, theirs) in standing.items():
            was_ours, was_theirs = self._before.get(name, (ours, theirs))
            if ours - was_ours != theirs - was_theirs:
                return  # a backend that counts otherwise: its collectives cannot be left out
            issued += ours - was_ours
        cost_ns, every = self._recorder.cost.of(issued, lasted_ns), 1
        if cost_ns > BUDGET * lasted_ns:
            while every < MOST_EVERY and cost_ns + CHANGE_NS > BUDGET * lasted_ns * every:
                every *= 2
        self.every = every
        if every > self.most:
            self.most = every
            self._told()
