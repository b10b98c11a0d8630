"""`gc`: Python's collector runs at the same steps on all ranks, not at a time of each rank's own.

Existing objects are frozen, so a collection visits newer ones only (measured: 85 ms for 266,000
objects, 1 ms after freezing). Where ranks wait for each other, the pauses of all ranks then cost
one pause. Garbage would be frozen as well: so acting waits for the next full collection of the
job's own, which it would pay for anyway, and collects only the young generations. Later beginnings
need not wait, if there was one since acting ended. Meanwhile resident memory is watched.

What the script does to its collector meanwhile stays: Python's own collections are kept off by a
threshold that no script sets, and an object made after freezing is frozen only by the script.

A collection has a fixed cost (it visits all live objects) and a cost per step since the last. Fewer
collections save only the fixed cost, which is what a second collection in a row takes. So the
interval is doubled while that cost is more than `SHARE` of the time, up to the interval of Python's
own full collections: memory for so much garbage is there already. So memory counts as taken by this
action beyond the most that was resident when acting began, before anything was collected, and where
it grows faster than in the median interval without acting.

Collections by hand postpone Python's own: steps after acting benefit as well, until the next one is
due. So half of a block of the trial has to be longer than that.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from bisect import insort
from math import inf
from pathlib import Path

from evenstep.agent.actions.conductor import FACTS_STEPS, Action, Facts
from evenstep.agent.recording.collector import NEVER
from evenstep.pacing.random_trial import BLOCK_STEPS, RARE

WORTH = 0.003  # smallest share of a step spent in pauses that is worth a trial, …
LONG = 0.05  # … or the length of one pause in steps
SHARE = 0.002  # share of time for the fixed cost of collections
LOOK_STEPS = 16  # between two looks at memory
GROWTH = 0.05  # largest growth of resident memory; at half of it the interval is halved
SCALES = (4, 6, 8)  # doublings of a block; few, so that ranks that differ a little agree
YOUNG = 1  # generation of a collection that is not a full one
INCREMENTAL = sys.version_info >= (3, 14)  # Python itself collects in parts, never all objects

_PAGES = Path("/proc/self/statm")


class Garbage(Action):
    """Collects at fixed steps while it acts."""

    name = "gc"
    aftereffect = bounded = True
    outlier = RARE

    def __init__(self) -> None:
        self.every = 1  # steps between two; a power of two, so that intervals of ranks nest
        self.scale = SCALES[0]  # half of such a block holds a full collection of Python's own
        self._seen_steps = 0
        self._counted = full_collections()  # when steps were first counted …
        self._full = 0  # … and when acting first began, or last ended
        self._own_steps = inf  # between two full collections of Python's own
        self.note = ""
        self._step_ns = 0
        self._since = 0  # steps since the last collection
        self._thresholds: tuple[int, ...] = ()  # Python's own
        self._others_froze = False  # whether objects were frozen before
        self._mark: list[None] | None = None  # made after freezing; None while it waits or is off
        self._first = (0, 0)  # step and memory at the first `begin` …
        self._ended: tuple[int, int] | None = None  # … and at the last `end`
        self._usual = 0.0  # most memory without acting, less what the job takes by itself
        self._rates: list[float] = []  # ascending: growth per step of intervals without acting
        self._taken = 0.0  # memory, at the last look
        self._halved = False

    def applies(self, facts: Facts) -> str:
        """Where the collector of a job of several ranks takes time or has long pauses."""
        self._step_ns = facts.step_ns
        self._seen_steps += FACTS_STEPS
        full = full_collections() - self._counted
        self._own_steps = self._seen_steps / full if full else inf
        held = [each for each in SCALES if (BLOCK_STEPS << each >> 1) >= self._own_steps]
        self.scale = min(held, default=SCALES[-1])
        if facts.world < 2 or not gc.isenabled() or gc.get_threshold()[0] == 0:
            return ""
        paused = facts.paused_ns / max(1, facts.step_ns)
        if paused < WORTH and facts.longest_pause_ns < LONG * facts.step_ns:
            return ""
        longest = facts.longest_pause_ns / 1e6
        return f"the collector pauses {100 * paused:.1f} % of the time, {longest:.0f} ms at most"

    def begin(self, step: int) -> None:
        """Take the collector over as soon as it has collected all objects, or collects in parts."""
        resident = resident_bytes()
        if not self._ended:
            self._first, self._full = (step, resident), full_collections()
        most = (1 + GROWTH) * self._first[1]  # what acting has left, block by block, ends here, too
        self._usual = min(max(self._usual, self._without_own(resident, step)), most)
        self._take_over()
        if self._ended:
            ended, before = self._ended
            insort(self._rates, (resident_bytes() - before) / max(1, step - ended))

    def _take_over(self) -> None:
        """Freeze all objects and collect by hand, if Python has collected them by itself."""
        if full_collections() == self._full and not INCREMENTAL:
            return
        self._others_froze = gc.get_freeze_count() > 0
        if not self._others_froze:
            gc.collect(YOUNG)
            gc.freeze()
        self._mark, self._thresholds = [], gc.get_threshold()
        gc.set_threshold(NEVER, *self._thresholds[1:])
        self._since = 0

    def during(self, step: int, *, last: bool) -> int:
        """Collect at the steps of all ranks, and before acting ends."""
        begin_ns = time.monotonic_ns()
        if self._mark is None:
            self._take_over()
        else:
            self._since += 1
            if step % LOOK_STEPS == 0:
                self._watch(step)
            if (last or step % self.every == 0) and gc.isenabled():
                self._collect()
        return time.monotonic_ns() - begin_ns

    def end(self, step: int) -> None:
        """Unfreeze, and set Python's thresholds, unless the script has done either meanwhile."""
        if self._mark is not None:
            if gc.get_threshold()[0] == NEVER:
                gc.set_threshold(*self._thresholds)
            if not self._others_froze and any(each is self._mark for each in gc.get_objects()):
                gc.unfreeze()
            self._mark = None
        self._ended, self._full = (step, resident_bytes()), full_collections()

    def _collect(self) -> None:
        """Collect; double the interval where that would save enough."""
        took_ns, steps, self._since = _collect_unfrozen(), self._since, 0
        if self._halved or steps != self.every or 2 * self.every > self._own_steps:
            return  # also the first and the last collection of a block
        worth_ns = SHARE * self._step_ns * steps
        if took_ns > worth_ns and _collect_unfrozen() > worth_ns:
            self.every *= 2

    def _watch(self, step: int) -> None:
        """Halve the interval where memory grows, and stop before it has grown too much."""
        before, now = self._taken, self._without_own(resident_bytes(), step) - self._usual
        self._taken = now
        allowed = GROWTH * self._usual
        if self._halved and now + max(0.0, now - before) > allowed:
            self.note = f"memory grew by {100 * now / self._usual:.1f} %"
        elif not self._halved and now > allowed / 2:
            self._halved = True
            self.every = max(1, self.every // 2)
            gc.collect()
            self._since = 0

    def _without_own(self, resident: int, step: int) -> float:
        """Resident memory, less what the job has taken by itself since the first step."""
        own = max(0.0, self._rates[len(self._rates) // 2]) if self._rates else 0.0
        return resident - own * (step - self._first[0])


def _collect_unfrozen() -> int:
    """Collect all objects that are not frozen; return the time that took, ns."""
    begin = time.monotonic_ns()
    gc.collect()
    return time.monotonic_ns() - begin


def resident_bytes() -> int:
    """Resident memory of this process; 0 where it is unknown."""
    try:
        return int(_PAGES.read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0


def full_collections() -> int:
    """Number of Python's full collections so far."""
    return int(gc.get_stats()[-1]["collections"])
