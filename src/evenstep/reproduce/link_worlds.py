"""Several training jobs on one shared link, with or without pacing.

Each job computes, then exchanges its gradients in equal buckets, one after the other; a step ends
with its last bucket. The link is one of the simulator's: with weight 1 a bucket moves at
1 / (k + b) * η^(k-1), where k is the number of jobs on the link, b that of background flows that do
not yield, and η the goodput left for each further contender. Times are in units of the link: a
bucket of size .1 takes .1 alone.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from itertools import count
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
    engine = make_world(np.ones(1), _sizes(world), world.goodput)
    times: list[list[float]] = [[] for _ in drivers]
    turns = [_job(engine, world, *job, on_step) for job in zip(count(), drivers, times)]
    if world.flows > 0:
        turns.append(_background(engine, world))
    for number, ranks in enumerate(_sizes(world)):
        engine.job(number, np.zeros(ranks))
        engine.feed(number, *next(turns[number]))
    while min(map(len, times)) < steps:
        number = engine.run(1 << 40)
        over = engine.take(number)
        assert over is not None
        engine.feed(number, *turns[number].send(over[1] / UNIT_NS))
    return Outcome(tuple(np.array(each[:steps]) for each in times))


#: A graph of the engine, durations of its operations and scales of its exchanges; answered by when
#: the operations were over.
Turns = Generator[tuple[int, Array, Array], Array, None]


def _job(
    engine: World, world: LinkWorld, number: int, driver: Free, times: list[float],
    on_step: Callable[[LinkStep], None],
) -> Turns:  # fmt: skip
    """The work of a job, as its driver says; the durations of its steps are appended to `times`."""
    job, begin = world.jobs[number], 0.0
    graphs = _graphs(engine, world, number, driver)
    while True:
        first, several = len(times), max(driver.ahead, 1)
        at = first % DRAWN_STEPS
        if at == 0:
            compute, sizes = _drawn(world, number, first // DRAWN_STEPS)
        delays = np.array([driver.before(step) for step in range(first, first + several)])
        value = np.zeros((several, BUCKETS + 3, job.ranks))
        value[:, 0] = (delays + compute[at : at + several]) * UNIT_NS
        scale = np.ones((several, BUCKETS + 2))
        scale[:, 1:-1] = sizes[at : at + several] * UNIT_NS
        rows = yield from _carried_out(graphs, driver, value, scale)
        for delay, (entered, ready, *ends) in zip(delays, rows, strict=True):
            end = float(ends[-1][0])
            driver.after(len(times), begin, end, (float(ends[0][0]) - entered).tolist())
            sends = float(ready[0])
            on_step(LinkStep(number, len(times), begin, begin + delay, entered, sends, end))
            times.append(end - begin)
            begin = end


def _graphs(engine: World, world: LinkWorld, number: int, driver: Free) -> list[int]:
    """Graphs of a job: compute until all ranks meet, a wait, the exchange; steps known ahead."""
    first, total = sum(_sizes(world)[:number]), sum(_sizes(world))
    weights = [1.0] * BUCKETS
    if world.weights == PROGRESS:
        weights = [PROGRESS_SLOPE * (k + 0.5) / BUCKETS + PROGRESS_BASE for k in range(BUCKETS)]
    ranks = world.jobs[number].ranks
    inside = np.arange(first, first + ranks)
    group = np.full(total, -1)
    group[inside] = 0
    barrier = engine.flow(Carriage(inside, group, (), closed=True))
    sent = [*(engine.flow(_bucket(first, total, weight=weight)) for weight in weights), barrier]
    meets, sends = [COMPUTE, COLLECTIVE], [COLLECTIVE] * (BUCKETS + 1)
    made: tuple[tuple[list[int], list[int]], ...] = (
        (meets, [barrier]), ([COMPUTE], []), (sends, sent),
        ((meets + sends) * driver.ahead, [barrier, *sent] * driver.ahead),
    )  # fmt: skip
    return [engine.graph(one_by_one(ranks, kinds, flows)) for kinds, flows in made]


def _carried_out(
    graphs: list[int], driver: Free, value: Array, scale: Array
) -> Generator[tuple[int, Array, Array], Array, Array]:
    """Ends of steps carried out at once, or of one whose exchange begins when the driver lets it.

    (steps, operations, ranks); that of the meeting is when the exchange begins.
    """
    meets, waits, sends, ahead = graphs
    if driver.ahead:
        over = yield ahead, value.reshape(-1, value.shape[2]), scale.ravel()
        return over.reshape(value.shape)
    entered, ready = yield meets, value[0, :2], scale[0, :1]
    while (wait := driver.wait(float(ready[0]))) > 0:
        (ready,) = yield waits, np.full((1, len(ready)), wait * UNIT_NS), np.zeros(0)
    ends = yield sends, value[0, 2:], scale[0, 1:]
    return np.array([[entered, ready, *ends]])


def _drawn(world: LinkWorld, number: int, chunk: int) -> tuple[Array, Array]:
    """Compute of each rank, and sizes of buckets, of the next `DRAWN_STEPS` steps."""
    job, key = world.jobs[number], (world.seed, number)
    random = np.random.Generator(np.random.Philox(key=key, counter=(0, 0, 0, chunk)))
    work = 1 + job.jitter * random.standard_normal((DRAWN_STEPS, job.ranks))
    sizes = 1 + job.noise * random.standard_normal((DRAWN_STEPS, BUCKETS))
    bucket = job.exchange / BUCKETS
    return job.compute * np.maximum(work, 0.05), bucket * np.maximum(sizes, 0.05)


def _background(engine: World, world: LinkWorld) -> Turns:
    """Background flows that do not yield, off and on."""
    random = np.random.Generator(np.random.Philox(key=(world.seed, 1 << 32)))
    total = sum(_sizes(world))
    flow = engine.flow(_bucket(total - 1, total, weight=world.flows, lasting=True))
    graph = engine.graph(one_by_one(1, [COMPUTE, COLLECTIVE], [flow]))
    while True:
        off, on = (float(random.exponential(mean)) * UNIT_NS for mean in (world.off, world.on))
        yield graph, np.array([[off], [0.0]]), np.array([on])


def _sizes(world: LinkWorld) -> tuple[int, ...]:
    """Ranks of each job, and one of the background."""
    return (*(job.ranks for job in world.jobs), *[1] * (world.flows > 0))


def _bucket(rank: int, ranks: int, *, weight: float, lasting: bool = False) -> Carriage:
    """A message of one rank over the link; its scale gives the bytes."""
    group = np.full(ranks, -1)
    group[rank] = 0
    zero, one = np.zeros(1, np.int64), np.ones(1)
    message = MessageVolley(zero, zero - 1, one, one * 0, one, np.array([0, 1]), zero)
    return Carriage(np.array([rank]), group, (message,), weight=weight, lasting=lasting)
