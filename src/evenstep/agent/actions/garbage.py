"""`gc`: Python's collector runs at one step in so many on all ranks, not when each feels like it.

What exists when it begins is frozen, so a collection looks at what has come since (measured: 85 ms
for 266,000 objects, 1 ms after freezing). Where ranks wait for each other, the pauses of all then
cost one pause. What is garbage already would stay: all of it is collected the first time, and what
is young when acting begins again, which is no pause then. What was frozen is given back at each
`end`, and while it lasts resident memory is watched.

A collection costs something in any case (all that lives is looked at) and something for each step
since the last. Only the first is saved by collecting less often, and it is what a second collection
in a row takes. So the steps between two are doubled while that is more than `SHARE` of the time,
up to those between two full collections of Python's own: for so much garbage there is room already.
Memory counts as taken by this action where it grows faster than the job's own does. How fast that
is, the stretches without acting show, the middle one of them.

Entering costs one full collection, and some more until N is found. One like it has been paid before
anything is begun (the longest pause is no longer than all), so entering at most doubles what the
job has lost so far, however few steps are left (ski rental, Karlin et al. 1988). It is paid once,
and is no loss of the trial.

Collecting by hand puts off Python's own: steps after acting are as good as those within, until the
next one is due. So half of a block of the trial has to be longer than that.
"""

from __future__ import annotations

import gc
import os
import time
from bisect import insort
from math import inf
from pathlib import Path

from evenstep.agent.actions.action import FACTS_STEPS, Action, Facts
from evenstep.pacing.random_trial import BLOCK_STEPS, RARE

WORTH = 0.003  # of the step, paused
LONG = 0.05  # ... or one pause of this share of a step
SHARE = 0.002  # of time: what collections may take that rarer ones would not
LOOK_STEPS = 16
GROWTH = 0.05  # of resident memory that is not to be exceeded; at half of it N is halved
SCALES = (4, 6, 8)  # doublings of a block; few, by which ranks that differ a little agree
YOUNG, OLDEST = 1, 2  # generations of Python's collector

_PAGES = Path("/proc/self/statm")


class Garbage(Action):
    """Collects at fixed steps while it acts."""

    name = "gc"
    leaves = bounded = True
    outlier = RARE

    def __init__(self) -> None:
        self.every = 1  # steps between two; a power of two, so that ranks that differ still meet
        self.scale = SCALES[0]  # half a block of which holds a full collection of Python's own
        self._full = full_collections()
        self._seen_steps = 0
        self._own_steps = inf  # between two full collections of Python's own
        self.note = ""
        self._step_ns = 0
        self._since = 0  # steps since the last collection
        self._was = (True, False)  # the collector was on; something was frozen by others
        self._first = (0, 0)  # step and memory when it first began
        self._ended: tuple[int, int] | None = None  # ... and last ended
        self._rates: list[float] = []  # ascending: growth per step of stretches without acting
        self._taken = 0.0  # memory, at the last look
        self._halved = False

    def applies(self, facts: Facts) -> str:
        """Where the collector takes time, or has long pauses, of a job of several ranks."""
        self._step_ns = facts.step_ns
        self._seen_steps += FACTS_STEPS
        full = full_collections() - self._full
        self._own_steps = self._seen_steps / full if full else inf
        held = [each for each in SCALES if (BLOCK_STEPS << each >> 1) >= self._own_steps]
        self.scale = min(held, default=SCALES[-1])
        if facts.world < 2 or not gc.isenabled():
            return ""
        paused = facts.paused_ns / max(1, facts.step_ns)
        if paused < WORTH and facts.longest_pause_ns < LONG * facts.step_ns:
            return ""
        longest = facts.longest_pause_ns / 1e6
        return f"the collector pauses {paused:.1%} of the time, {longest:.0f} ms at most"

    def begin(self, step: int) -> None:
        """Freeze what there is, and collect by hand from here on."""
        self._was = gc.isenabled(), gc.get_freeze_count() > 0
        if not self._was[1]:
            gc.collect(YOUNG if self._ended else OLDEST)
            gc.freeze()
        gc.disable()
        self._since, resident = 0, resident_bytes()
        if self._ended:
            ended, before = self._ended
            insort(self._rates, (resident - before) / max(1, step - ended))
        else:
            self._first = step, resident

    def during(self, step: int, *, last: bool) -> int:
        """Collect where all ranks do; what has come is paid for before acting ends."""
        self._since += 1
        begin_ns = time.monotonic_ns()
        if step % LOOK_STEPS == 0:
            self._watch(step)
        if last or step % self.every == 0:
            self._collect()
        return time.monotonic_ns() - begin_ns

    def end(self, step: int) -> None:
        """Give everything back."""
        was_on, others_froze = self._was
        if not others_froze:
            gc.unfreeze()
        if was_on:
            gc.enable()
        self._ended = step, resident_bytes()

    def _collect(self) -> None:
        """Collect; less often from now on where that would save enough."""
        took_ns, steps, self._since = _collected(), self._since, 0
        if self._halved or steps != self.every or 2 * self.every > self._own_steps:
            return  # or the first of a stretch, or its last
        worth_ns = SHARE * self._step_ns * steps
        if took_ns > worth_ns and _collected() > worth_ns:
            self.every *= 2

    def _watch(self, step: int) -> None:
        """Collect twice as often where memory grows, and give up before it has grown too much."""
        began, resident = self._first
        own = max(0.0, self._rates[len(self._rates) // 2]) if self._rates else 0.0
        before, now = self._taken, resident_bytes() - resident - own * (step - began)
        self._taken = now
        allowed = GROWTH * resident
        if self._halved and now + max(0.0, now - before) > allowed:
            self.note = f"memory grew by {now / resident:.1%}"
        elif not self._halved and now > allowed / 2:
            self._halved = True
            self.every = max(1, self.every // 2)
            gc.collect()
            self._since = 0


def _collected() -> int:
    """Collect everything that is not frozen; what that took, in ns."""
    begin = time.monotonic_ns()
    gc.collect()
    return time.monotonic_ns() - begin


def resident_bytes() -> int:
    """Memory that this process has; 0 where the kernel does not say."""
    try:
        return int(_PAGES.read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0


def full_collections() -> int:
    """How often Python has collected everything so far."""
    return int(gc.get_stats()[-1]["collections"])
