"""Several training jobs on one shared link, as a fluid: where pacing can gain, and where it cannot.

Each job computes, then exchanges its gradients in equal buckets, one after the other; a step ends
with its last bucket. The link serves whoever is on it by processor sharing: with w = 1 a bucket
moves at 1 / (k + b) * η^(k-1), k the jobs on the link, b the background flows that do not yield, η
the goodput that is kept for each further contender. Times are in units of the link: a bucket of
size .1 takes .1 alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

BUCKETS = 8
DRAWN_STEPS = 4096  # random numbers are drawn for so many steps at a time
FAIR, PROGRESS = "fair", "progress"
#: MLTCP's weights (Rajasekaran et al. 2024): a flow claims more the further its exchange is.
PROGRESS_SLOPE, PROGRESS_BASE = 1.75, 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkJob:
    """A job on the link: `compute` and `exchange` are its times alone, `ranks` compute apart."""

    compute: float
    exchange: float
    jitter: float = 0.0  # σ of a rank's compute
    noise: float = 0.0  # σ of a bucket's size
    ranks: int = 1
    paced: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkWorld:
    """Jobs and background on one link; the same seed gives the same work whatever is paced."""

    jobs: tuple[LinkJob, ...]
    goodput: float = 1.0  # η
    flows: float = 0.0  # background flows while it is on
    on: float = 1.0  # mean time on, and off, each exponential
    off: float = 9.0
    weights: str = FAIR
    seed: int = 0


class Driver(Protocol):
    """Who holds the ranks of one job. All times as in the world."""

    def before(self, step: int) -> Sequence[float]:
        """The delay of each rank before the step."""

    def wait(self, now: float) -> float:
        """Its last rank is ready for the exchange: how long until it asks again; 0 is to begin."""

    def after(self, step: int, begin: float, end: float, first: Sequence[float]) -> None:
        """The step is over; `first`: how long its first bucket took each rank."""


class Free:
    """Nobody is held."""

    def __init__(self, ranks: int) -> None:
        self._none = [0.0] * ranks

    def before(self, step: int) -> Sequence[float]:  # noqa: ARG002 (the interface)
        """No delay."""
        return self._none

    def wait(self, now: float) -> float:  # noqa: ARG002 (the interface)
        """The exchange begins at once."""
        return 0.0

    def after(self, step: int, begin: float, end: float, first: Sequence[float]) -> None:
        """Nothing to learn."""


class Outcome(NamedTuple):
    """Step times of every job, each for as many steps as were asked for."""

    times: tuple[Array, ...]

    def mean(self, job: int) -> float:
        """Mean step time."""
        return float(self.times[job].mean())

    def cv(self, job: int) -> float:
        """Population deviation of the step time over its mean."""
        return float(self.times[job].std() / self.times[job].mean())


class _Running:
    """One job under way."""

    __slots__ = (
        "_begin", "_compute", "_driver", "_enter", "_first", "_job", "_seed", "_sizes", "_work",
        "bucket", "left", "step", "times", "until",
    )  # fmt: skip

    def __init__(self, job: LinkJob, driver: Driver, seed: tuple[int, int]) -> None:
        self._job, self._driver, self._seed = job, driver, seed
        self.step, self.bucket = 0, 0
        self.left = 0.0  # of the bucket on the link
        self.until = 0.0  # off the link till then
        self.times: list[float] = []
        self._begin = 0.0
        self._enter: list[float] = []
        self._first: list[float] = []
        self._compute: list[list[float]] = []
        self._sizes: list[list[float]] = []
        self._begin_step(0.0)

    def _draw(self, chunk: int) -> None:
        job = self._job
        random = np.random.Generator(np.random.Philox(key=self._seed, counter=(0, 0, 0, chunk)))
        work = 1 + job.jitter * random.standard_normal((DRAWN_STEPS, job.ranks))
        sizes = 1 + job.noise * random.standard_normal((DRAWN_STEPS, BUCKETS))
        self._compute = (job.compute * np.maximum(work, 0.05)).tolist()
        self._sizes = (job.exchange / BUCKETS * np.maximum(sizes, 0.05)).tolist()

    def _begin_step(self, now: float) -> None:
        row = self.step % DRAWN_STEPS
        if row == 0:
            self._draw(self.step // DRAWN_STEPS)
        delays = self._driver.before(self.step)
        self._begin = now
        self._enter = [now + d + c for d, c in zip(delays, self._compute[row], strict=True)]
        self._work = self._sizes[row]
        self.bucket = 0
        self.until = max(self._enter)

    def enter(self, now: float) -> bool:
        """Put the next bucket on the link, unless the job waits before its first one."""
        if self.bucket == 0 and (wait := self._driver.wait(now)) > 0:
            self.until = now + wait
            return False
        self.left = self._work[self.bucket]
        return True

    def leave(self, now: float) -> None:
        """A bucket is over: the next one, or the next step."""
        self.left = 0.0
        if self.bucket == 0:
            self._first = [now - entered for entered in self._enter]
        self.bucket += 1
        self.until = now
        if self.bucket < BUCKETS:
            return
        self._driver.after(self.step, self._begin, now, self._first)
        self.times.append(now - self._begin)
        self.step += 1
        self._begin_step(now)

    @property
    def progress(self) -> float:
        """Share of the step's exchange that is over."""
        size = self._work[self.bucket]
        return (self.bucket + 1 - self.left / size) / BUCKETS


class _Background:
    """Flows that do not yield, on and off."""

    def __init__(self, world: LinkWorld) -> None:
        self._means = (world.off, world.on)
        self._flows = world.flows
        self._random = np.random.Generator(np.random.Philox(key=(world.seed, 1 << 32)))
        self._on = True
        self.until = float("inf")
        if world.flows > 0:
            self.until = 0.0
            self.toggle()

    @property
    def flows(self) -> float:
        return self._flows if self._on and self._flows else 0.0

    def toggle(self) -> None:
        self._on = not self._on
        self.until += float(self._random.exponential(self._means[self._on]))


def run(world: LinkWorld, drivers: Sequence[Driver], steps: int) -> Outcome:
    """Let all jobs go until each has done so many steps."""
    jobs = [
        _Running(job, driver, (world.seed, index))
        for index, (job, driver) in enumerate(zip(world.jobs, drivers, strict=True))
    ]
    _Link(world, jobs).run(steps)
    return Outcome(tuple(np.array(job.times[:steps]) for job in jobs))


def unpaced(world: LinkWorld, steps: int) -> Outcome:
    """The same with nobody held."""
    return run(world, [Free(job.ranks) for job in world.jobs], steps)


class _Link:
    """The link: between two events all rates are constant."""

    def __init__(self, world: LinkWorld, jobs: list[_Running]) -> None:
        self._jobs = jobs
        self._background = _Background(world)
        self._goodput = [world.goodput ** max(k - 1, 0) for k in range(len(jobs) + 1)]
        self._weighted = world.weights == PROGRESS

    def run(self, steps: int) -> None:
        """Until every job has done so many steps."""
        now = 0.0
        unfinished = len(self._jobs)
        off, on = list(self._jobs), []  # type: list[_Running], list[_Running]
        background = self._background
        while unfinished:
            due = min(off, key=_until) if off else None
            ahead = background.until if due is None else min(due.until, background.until)
            rate, rates = self._rates(on, background.flows)
            first, ends = None, ahead
            for index, job in enumerate(on):
                end = now + job.left / (rates[index] if rates else rate)
                if end < ends:
                    first, ends = job, end
            for index, job in enumerate(on):
                job.left -= (ends - now) * (rates[index] if rates else rate)
            now = ends
            if first is not None:
                before = first.step
                first.leave(now)
                unfinished -= before != first.step == steps
                on.remove(first)
                off.append(first)
            elif due is not None and due.until <= background.until:
                if due.enter(now):
                    off.remove(due)
                    on.append(due)
            else:
                background.toggle()

    def _rates(self, on: list[_Running], flows: float) -> tuple[float, list[float]]:
        """The rate common to all, or with weights each one's."""
        count = len(on)
        if not count:
            return 0.0, []
        if not self._weighted:
            return self._goodput[count] / (count + flows), []
        weights = [PROGRESS_SLOPE * job.progress + PROGRESS_BASE for job in on]
        share = self._goodput[count] / (sum(weights) + flows)
        return 0.0, [share * weight for weight in weights]


def _until(job: _Running) -> float:
    return job.until
