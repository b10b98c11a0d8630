"""Several training jobs on one shared link, with or without pacing.

Each job computes, then exchanges its gradients in equal buckets, one after the other; a step ends
with its last bucket. The link is one of the simulator's: with weight 1 a bucket moves at
1 / (k + b) * η^(k-1), where k is the number of jobs on the link, b that of background flows that do
not yield, and η the goodput left for each further contender. Times are in units of the link: a
bucket of size .1 takes .1 alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from evenstep.simulate.wires.carriage import one_by_one
from evenstep.simulate.wires.interface import COLLECTIVE, COMPUTE, Carriage, MessageVolley
from evenstep.simulate.wires.world import World, make_world
from evenstep.trace.columns import Array

UNIT_NS = 100_000_000  # of the engine for a unit of a world's time
BUCKETS = 8
DRAWN_STEPS = 4096  # for which random numbers are drawn at once
FAIR, PROGRESS = "fair", "progress"
#: MLTCP's weights (Rajasekaran et al. 2024): a flow claims more the further its exchange is.
PROGRESS_SLOPE, PROGRESS_BASE = 1.75, 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkJob:
    """A job on the link: `compute` and `exchange` are its times alone; each rank has its jitter."""

    compute: float
    exchange: float
    jitter: float = 0.0  # σ of a rank's compute
    noise: float = 0.0  # σ of a bucket's size
    ranks: int = 1
    paced: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkWorld:
    """Jobs and background on one link; a seed gives the same work under every driver."""

    jobs: tuple[LinkJob, ...]
    goodput: float = 1.0  # η
    flows: float = 0.0  # background flows while it is on
    on: float = 1.0  # mean time on, and off, each exponential
    off: float = 9.0
    weights: str = FAIR
    seed: int = 0


class Free:
    """A driver of one job, without any delay. All times as in the world."""

    #: Steps whose delays are known at the beginning of the first; 0: the job asks in each of them.
    ahead = 16

    def __init__(self, ranks: int) -> None:
        self._none = [0.0] * ranks

    def before(self, step: int) -> Sequence[float]:  # noqa: ARG002 (the interface)
        """The delay of each rank before the step."""
        return self._none

    def wait(self, now: float) -> float:  # noqa: ARG002 (the interface)
        """The time until the job, ready for its exchange, asks again; 0 to begin."""
        return 0.0

    def after(self, step: int, begin: float, end: float, first: Sequence[float]) -> None:
        """The step is over; `first`: the time of its first bucket on each rank."""


class LinkStep(NamedTuple):
    """A step of a job, in the world's time."""

    job: int
    step: int
    begin: float
    computes: Array  # begin of each rank's compute
    entered: Array  # end of each rank's compute
    exchanges: float  # begin of the exchange
    end: float


class Outcome(NamedTuple):
    """Step times of every job, each for as many steps."""

    times: tuple[Array, ...]

    def mean(self, job: int) -> float:
        """Mean step time."""
        return float(self.times[job].mean())

    def cv(self, job: int) -> float:
        """Population deviation of the step time over its mean."""
        return float(self.times[job].std() / self.times[job].mean())


def unpaced(world: LinkWorld, steps: int) -> Outcome:
    """Run the world without pacing."""
    return run(world, [Free(job.ranks) for job in world.jobs], steps)


def run(
    world: LinkWorld,
    drivers: Sequence[Free],
    steps: int,
    on_step: Callable[[LinkStep], None] = lambda _: None,
) -> Outcome:
    """Run all jobs until each has finished `steps` steps; `on_step` is called with each step."""
    sizes = [job.ranks for job in world.jobs] + [1] * (world.flows > 0)
    engine = make_world(np.ones(1), tuple(sizes), world.goodput)
    jobs = [_Running(engine, world, number, driver) for number, driver in enumerate(drivers)]
    background = _Background(engine, world) if world.flows > 0 else None
    unfinished = len(jobs)
    while unfinished:
        number = engine.run(1 << 40)
        if number == len(jobs):
            assert background is not None
            background.feed()
        for done in jobs[number].go_on() if number < len(jobs) else ():
            on_step(done)
            unfinished -= done.step + 1 == steps
    return Outcome(tuple(np.array(job.times[:steps]) for job in jobs))


class _Running:
    """One job under way, between the engine and its driver."""

    def __init__(self, engine: World, world: LinkWorld, number: int, driver: Free) -> None:
        self._engine, self._number, self._driver = engine, number, driver
        self._job, self._seed = world.jobs[number], (world.seed, number)
        self._feed = partial(engine.feed, number)
        self.times: list[float] = []
        self._begin = 0.0
        self._compute = self._sizes = self._delays = self._entered = np.zeros(0)
        self._exchanges: float | None = None
        first, total = _place(world, number)
        weights = [1.0] * BUCKETS
        if world.weights == PROGRESS:
            weights = [PROGRESS_SLOPE * (k + 0.5) / BUCKETS + PROGRESS_BASE for k in range(BUCKETS)]
        ranks = self._job.ranks
        inside = np.arange(first, first + ranks)
        group = np.full(total, -1)
        group[inside] = 0
        barrier = engine.flow(Carriage(inside, group, (), closed=True))
        buckets = [engine.flow(_bucket(first, total, weight=weight)) for weight in weights]
        meets, sends = [COMPUTE, COLLECTIVE], [COLLECTIVE] * (BUCKETS + 1)
        self._meets = engine.graph(one_by_one(ranks, meets, [barrier]))
        self._waits = engine.graph(one_by_one(ranks, [COMPUTE], []))
        self._sends = engine.graph(one_by_one(ranks, sends, [*buckets, barrier]))
        flows = [barrier, *buckets, barrier] * driver.ahead
        self._steps = engine.graph(one_by_one(ranks, (meets + sends) * driver.ahead, flows))
        engine.job(number, np.zeros(ranks))

    def go_on(self) -> list[LinkStep]:
        """Give the engine the job's next work, as the driver says; return steps that are over."""
        found = self._engine.take(self._number)
        if found is None:
            self._begin_steps(0.0)
            return []
        end = found[1] / UNIT_NS
        now = float(end[-1, 0])
        if self._driver.ahead:
            rows = end.reshape(-1, BUCKETS + 3, self._job.ranks)
            done = [self._end_step(row[0], float(row[1, 0]), row[2:]) for row in rows]
        elif self._exchanges is not None:
            done = [self._end_step(self._entered, self._exchanges, end)]
        else:
            self._send(now, end)
            return []
        self._begin_steps(now)
        return done

    def _send(self, now: float, end: Array) -> None:
        """Begin the exchange, unless the driver says to wait."""
        if len(end) == 2:
            self._entered = end[0]
        if (wait := self._driver.wait(now)) > 0:
            self._feed(self._waits, np.full((1, self._job.ranks), wait * UNIT_NS), np.zeros(0))
            return
        self._exchanges = now
        sizes = self._sizes[len(self.times) % DRAWN_STEPS]
        nothing = np.zeros((BUCKETS + 1, self._job.ranks))
        self._feed(self._sends, nothing, np.append(sizes * UNIT_NS, 1.0))

    def _begin_steps(self, now: float) -> None:
        step, count = len(self.times), max(self._driver.ahead, 1)
        at = step % DRAWN_STEPS
        if at == 0:
            self._draw(step // DRAWN_STEPS)
        self._delays = np.array([self._driver.before(n) for n in range(step, step + count)])
        self._begin, self._exchanges = now, None
        value = np.zeros((count, BUCKETS + 3, self._job.ranks))
        value[:, 0] = (self._delays + self._compute[at : at + count]) * UNIT_NS
        scale = np.ones((count, BUCKETS + 2))
        scale[:, 1:-1] = self._sizes[at : at + count] * UNIT_NS
        if self._driver.ahead:
            self._feed(self._steps, value.reshape(-1, self._job.ranks), scale.ravel())
        else:
            self._feed(self._meets, value[0, :2], scale[0, :1])

    def _end_step(self, entered: Array, exchanges: float, ends: Array) -> LinkStep:
        step, begin, end = len(self.times), self._begin, float(ends[-1, 0])
        self._driver.after(step, begin, end, (float(ends[0, 0]) - entered).tolist())
        self.times.append(end - begin)
        self._begin = end
        computes = begin + self._delays[step % len(self._delays)]
        return LinkStep(self._number, step, begin, computes, entered, exchanges, end)

    def _draw(self, chunk: int) -> None:
        job = self._job
        random = np.random.Generator(np.random.Philox(key=self._seed, counter=(0, 0, 0, chunk)))
        work = 1 + job.jitter * random.standard_normal((DRAWN_STEPS, job.ranks))
        sizes = 1 + job.noise * random.standard_normal((DRAWN_STEPS, BUCKETS))
        self._compute = job.compute * np.maximum(work, 0.05)
        self._sizes = job.exchange / BUCKETS * np.maximum(sizes, 0.05)


class _Background:
    """Background flows that do not yield, off and on."""

    def __init__(self, engine: World, world: LinkWorld) -> None:
        self._engine, self._number = engine, len(world.jobs)
        self._means = (world.off, world.on)
        self._random = np.random.Generator(np.random.Philox(key=(world.seed, 1 << 32)))
        first, total = _place(world, self._number)
        flow = engine.flow(_bucket(first, total, weight=world.flows, lasting=True))
        self._graph = engine.graph(one_by_one(1, [COMPUTE, COLLECTIVE], [flow]))
        engine.job(self._number, np.zeros(1))

    def feed(self) -> None:
        """Give the engine the next time off, and on."""
        self._engine.take(self._number)
        off, on = (float(self._random.exponential(mean)) * UNIT_NS for mean in self._means)
        self._engine.feed(self._number, self._graph, np.array([[off], [0.0]]), np.array([on]))


def _place(world: LinkWorld, number: int) -> tuple[int, int]:
    """The first rank of a job, and the number of all ranks."""
    sizes = [job.ranks for job in world.jobs] + [1] * (world.flows > 0)
    return sum(sizes[:number]), sum(sizes)


def _bucket(rank: int, ranks: int, *, weight: float, lasting: bool = False) -> Carriage:
    """A message of one rank over the link; its scale gives the bytes."""
    group = np.full(ranks, -1)
    group[rank] = 0
    zero, one = np.zeros(1, np.int64), np.ones(1)
    message = MessageVolley(zero, zero - 1, one, one * 0, one, np.array([0, 1]), zero)
    return Carriage(np.array([rank]), group, (message,), weight=weight, lasting=lasting)
