"""The job of `evenstep.simulate.formulas.reliability` event by event, to judge its closed form by.

Checkpoints between two events are counted in one go, so the cost grows with failures, not with
checkpoints. Counter-based randomness (Philox): the same seed gives the same numbers everywhere.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from evenstep.simulate.formulas import DAY_NS, Goodput, OperatingConditions

Floats = NDArray[np.float64]


class Simulated(NamedTuple):
    """Shares of wall time over the repeats, and how well their means are known."""

    mean: Goodput
    standard_error: Goodput


def simulate(
    job: OperatingConditions, *, horizon_ns: float = 60.0 * DAY_NS, repeats: int = 64, seed: int = 0
) -> Simulated:
    """Run the job `repeats` times for `horizon_ns` each; work in progress at the end counts."""
    world = _World(job, horizon_ns, repeats, np.random.Generator(np.random.Philox(key=seed)))
    while not world.done():
        world.advance()
    shares = world.shares()
    error = shares.std(axis=1) / math.sqrt(max(repeats - 1, 1))
    return Simulated(Goodput(*map(float, shares.mean(axis=1))), Goodput(*map(float, error)))


class _World:
    """All repeats side by side. Times in nanoseconds since the start of each."""

    def __init__(
        self, job: OperatingConditions, horizon_ns: float, repeats: int, random: np.random.Generator
    ) -> None:
        self.job, self.horizon_ns, self.repeats, self.random = job, horizon_ns, repeats, random
        self.now, self.up_at = np.zeros((2, repeats))  # up: working again from there on
        #: Of this cycle: what is worked, 0 to interval_ns; written, 0 to write_ns; and its wall
        #: time so far, restarts left out.
        self.worked, self.written, self.cycle = np.zeros((3, repeats))
        self.slow_until = np.full(repeats, -1.0)  # not after `now` where no node is slow
        self.repaired_at = np.full((repeats, job.spares + 1), -1.0)
        self.fail_at = self._gap(job.mtbf_ns)
        self.slow_at = self._gap(job.slow_every_ns if job.slowdown > 1 else math.inf)
        self.spent = {name: np.zeros(repeats) for name in Goodput._fields}

    def done(self) -> bool:
        """Whether every repeat has reached the horizon."""
        return bool((self.now >= self.horizon_ns).all())

    def advance(self) -> None:
        """To each repeat's next event, and through it."""
        end = np.minimum(np.minimum(self.fail_at, self.slow_at), self.horizon_ns)
        slow = self.slow_until > self.now
        end = np.where(slow, np.minimum(end, self.slow_until), end)
        begin = np.clip(self.up_at, self.now, end)
        self.spent["restarting"] += begin - self.now
        self._work(end - begin, np.where(slow, 1 / self.job.slowdown, 1.0))
        self.now = end
        running = end < self.horizon_ns
        self._replace(running & slow & (end == self.slow_until))
        self._slow_down(running & (end == self.slow_at))
        self._fail(running & (end == self.fail_at))

    def _work(self, time: Floats, speed: Floats) -> None:
        """`time` of work and checkpoints at `speed`; completed cycles are entered as useful."""
        job = self.job
        working = job.interval_ns / speed
        length = working + job.write_ns
        position = self.worked / speed + self.written
        cycles = np.floor((position + time) / length)
        rest = np.maximum(position + time - cycles * length, 0.0)
        kept = np.where(cycles > 0, self.cycle + time - rest, 0.0)
        self.spent["useful"] += cycles * job.interval_ns
        self.spent["writing"] += cycles * job.write_ns
        self.spent["slowed"] += kept - cycles * (job.interval_ns + job.write_ns)
        self.cycle = np.where(cycles > 0, rest, self.cycle + time)
        self.worked = np.minimum(rest, working) * speed
        self.written = np.maximum(rest - working, 0.0)

    def _replace(self, which: NDArray[np.bool_]) -> None:
        """Slow nodes were noticed: a planned restart, no work lost."""
        self.up_at = np.where(which, np.maximum(self.up_at, self.now), self.up_at)
        self.up_at += np.where(which, self.job.restart_ns, 0.0)
        self.slow_until = np.where(which, -1.0, self.slow_until)

    def _slow_down(self, which: NDArray[np.bool_]) -> None:
        until = np.maximum(self.slow_until, self.now + self.job.notice_ns)
        self.slow_until = np.where(which, until, self.slow_until)
        self.slow_at = np.where(which, self.now + self._gap(self.job.slow_every_ns), self.slow_at)

    def _fail(self, which: NDArray[np.bool_]) -> None:
        """Everything since the last checkpoint is lost; perhaps a node is, too."""
        self.spent["interruptions_per_day"] += which
        self.spent["lost"] += np.where(which, self.cycle, 0.0)
        for part in (self.worked, self.written, self.cycle):
            part[which] = 0.0
        broken = which & (self.random.random(self.repeats) < self.job.node_share)
        rows = np.flatnonzero(broken)
        free = self.repaired_at[rows].argmin(axis=1)
        self.repaired_at[rows, free] = self.now[rows] + self.job.repair_ns
        self._wait(broken)
        self.up_at = np.where(
            which, self.now + self.job.detect_ns + self.job.restart_ns, self.up_at
        )
        self.fail_at = np.where(which, self.now + self._gap(self.job.mtbf_ns), self.fail_at)

    def _wait(self, which: NDArray[np.bool_]) -> None:
        """Until a node comes back, where none is left; nothing else happens meanwhile."""
        back = np.minimum(self.repaired_at.min(axis=1), self.horizon_ns)
        wait = np.where(which, np.maximum(back - self.now, 0.0), 0.0)
        self.spent["waiting"] += wait
        self.now = self.now + wait
        self.slow_at = self.slow_at + wait
        self.slow_until = np.where(self.slow_until > 0, self.slow_until + wait, self.slow_until)

    def shares(self) -> Floats:
        """One row for each field of `Goodput`, one column for each repeat."""
        spent = dict(self.spent)
        spent["useful"] = spent["useful"] + self.worked
        spent["writing"] = spent["writing"] + self.written
        spent["slowed"] = spent["slowed"] + self.cycle - self.worked - self.written
        shares = np.stack([spent[name] for name in Goodput._fields]) / self.horizon_ns
        shares[-1] *= DAY_NS
        return shares

    def _gap(self, mean_ns: float) -> Floats:
        """Exponential gaps, one for each repeat."""
        draws = self.random.standard_exponential(self.repeats)
        return draws * mean_ns if math.isfinite(mean_ns) else np.full(self.repeats, math.inf)
