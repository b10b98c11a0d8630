"""Jobs in which nothing is wrong, odd as they may be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from benchmarks.labelled.example import Label
from benchmarks.labelled.ordinary import FIRST_STEP, Made, Random, ordinary, step_ns
from evenstep.trace.spool.layout import Kind, Phase
from evenstep.trace.trace import Trace
from tests.diagnose.synthetic import World, with_missing

COUPLING = 0.035  # of the step, at most: more than the noise alone must not cost in health


def _nothing(world: World, trace: Callable[[], Trace] | None = None) -> Made:
    return Made(Label(mode=None), trace or world.trace)


def plain(random: Random) -> Made:
    """Nothing but noise."""
    return _nothing(ordinary(random, COUPLING))


def small_pauses(random: Random) -> Made:
    """One cell in a hundred pauses for up to a hundredth of a step."""
    world = ordinary(random, 0.02)
    size = (world.steps, world.ranks)
    table = np.where(random.random(size) < 0.01, random.random(size), 0.0)
    return _nothing(world.delayed(Phase.FORWARD, 0.01 * step_ns(world) * table, computing=True))


def slow_start(random: Random) -> Made:
    """The first step compiles, on one rank for longer."""
    world = ordinary(random, 0.02)
    table = world.everywhere()
    table[0] = 20 * step_ns(world)
    table[0, 0] *= 1.5
    return _nothing(world.delayed(Phase.FORWARD, table, computing=True))


def saved_together(random: Random) -> Made:
    """All ranks write their parts of a checkpoint at the same time, quickly."""
    world = ordinary(random, 0.02)
    table = world.everywhere()
    table[FIRST_STEP + 5 :: 15] = 0.4 * step_ns(world)
    table *= 1 + 0.01 * random.standard_normal(table.shape)
    return _nothing(world.delayed(Phase.CHECKPOINT, table))


def bimodal(random: Random) -> Made:
    """Some steps are longer, for all ranks alike and without a period."""
    world = ordinary(random, 0.02)
    longer = random.random(world.steps) < random.uniform(0.2, 0.5)
    table = world.everywhere() + 0.4 * step_ns(world) * longer[:, None]
    return _nothing(world.delayed(Phase.FORWARD, table, computing=True))


def accumulating(random: Random) -> Made:
    """Gradients are exchanged in every fourth step."""
    world = replace(ordinary(random, 0.02), style="blocking", tensor_parallel=1)

    def trace() -> Trace:
        whole = world.trace()
        kept = (whole.events.kind != int(Kind.COLLECTIVE)) | (whole.events.step % 4 == 3)
        return replace(whole, events=whole.events.select(kept))

    return _nothing(world, trace)


def few_steps(random: Random) -> Made:
    """Hardly any steps."""
    return _nothing(replace(ordinary(random, COUPLING), steps=int(random.integers(2, 16))))


def two_varying(random: Random) -> Made:
    """Two ranks that vary much, neither more than the other."""
    world = replace(ordinary(random, 0.02), ranks=2, tensor_parallel=1, style="overlapped")
    return _nothing(replace(world, noise=float(random.uniform(0.03, 0.08)), clocks={}))


def one_missing(random: Random) -> Made:
    """One rank has left no trace; every second time it is the slow one."""
    world = ordinary(random, 0.02)
    gone = int(random.integers(world.ranks))
    if random.integers(2):
        world = world.slow(gone, Phase.BACKWARD, 0.2 * step_ns(world))
    return _nothing(world, lambda: with_missing(world.trace(), gone))


def one_faster(random: Random) -> Made:
    """One rank has less to do, and waits for the others."""
    world = ordinary(random, 0.02)
    if world.ranks == 2:  # of two, the other is the slower one
        world = replace(world, ranks=4)
    table = world.everywhere() + 0.2 * step_ns(world)
    table[:, int(random.integers(world.ranks))] = 0
    return _nothing(world.delayed(Phase.BACKWARD, table, computing=True))


def exchanging(random: Random) -> Made:
    """A tenth of the step is exposed transfer with a tail, by sizes that differ."""
    world = replace(ordinary(random, 0.02), style="blocking", tensor_parallel=1)
    sizes = tuple(int(size) for size in random.integers(1, 100, 3) * 1_000_000)
    world = replace(world, bucket_bytes=sizes)
    ns = 0.1 * step_ns(world) / world.buckets / float(np.mean(sizes))
    draws = random.exponential(0.05, 4096)
    return _nothing(
        replace(
            world,
            fabric=lambda move: (
                ns * move.size_bytes * (1 + draws[(move.step * 8 + move.size_bytes) % 4096])
            ),
        )
    )


def unseen(random: Random) -> Made:
    """Phases, or collectives, were not recorded."""
    world = ordinary(random, 0.02)
    some = "phases" if random.integers(2) else "collectives"
    return _nothing(replace(world, **{some: False}))  # type: ignore[arg-type]


KINDS: dict[str, Callable[[Random], Made]] = {
    "plain": plain,
    "small pauses": small_pauses,
    "slow start": slow_start,
    "saved together": saved_together,
    "bimodal": bimodal,
    "accumulating": accumulating,
    "few steps": few_steps,
    "two varying": two_varying,
    "one missing": one_missing,
    "one faster": one_faster,
    "exchanging": exchanging,
    "unseen": unseen,
}
