"""Causes that make ranks late, in closed form: what is lost is known by arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from benchmarks.labelled.ordinary import (
    FIRST_STEP,
    LARGEST,
    VARYING,
    WORKING,
    Made,
    Random,
    labelled,
    long_enough,
    ordinary,
    step_ns,
)
from evenstep.trace.spool.layout import Phase
from tests.diagnose.synthetic import World, with_missing


def _job(random: Random, severity: float) -> tuple[World, int, float]:
    """A job, a rank of it, and the disturbance per step in ns."""
    world = ordinary(random, severity / 2)
    return world, int(random.integers(world.ranks)), severity * step_ns(world)


def chronic(random: Random, severity: float) -> Made:
    """One rank is slower in every step, anywhere in it."""
    world, rank, ns = _job(random, severity)
    phase = WORKING[int(random.integers(3))]
    bucket = int(random.integers(world.buckets)) if phase is Phase.BACKWARD else 0
    slow = world.slow(rank, phase, ns, computing=bool(random.integers(2)), bucket=bucket)
    return labelled(slow, "straggler", frozenset({rank}))


def chronic_node(random: Random, severity: float) -> Made:
    """All ranks of one node of several are slower."""
    world = replace(ordinary(random, severity / 2), ranks=int(random.choice([8, 12, 16])))
    per_node = 2 if world.ranks == 8 else int(random.choice([2, 4]))
    world = replace(world, ranks_per_node=per_node, clocks={}, noise=min(world.noise, 0.02))
    if world.style == "grid":
        world = replace(world, tensor_parallel=2)
    node = int(random.integers(world.ranks // per_node))
    slow = list(range(node * per_node, (node + 1) * per_node))
    made = world.slow(slow, Phase.BACKWARD, severity * step_ns(world), computing=True)
    return labelled(made, "straggler", frozenset(slow))


def chronic_and_missing(random: Random, severity: float) -> Made:
    """One rank is slower, and another has left no trace."""
    world, rank, ns = _job(random, severity)
    if world.ranks < 4:
        world = replace(world, ranks=4, noise=min(world.noise, severity / 2))
    if world.style == "grid":  # who waits for whom through an unseen rank cannot be told
        world = replace(world, style="overlapped", tensor_parallel=1)
    other = (rank + 1 + int(random.integers(world.ranks - 1))) % world.ranks
    slow = world.slow(rank, Phase.FORWARD, ns)
    return labelled(
        slow, "straggler", frozenset({rank}), trace=lambda: with_missing(slow.trace(), other)
    )


def bursty(random: Random, severity: float) -> Made:
    """One rank is slower for a few stretches of steps."""
    world, rank, ns = _job(random, severity)
    world = long_enough(world, 60)
    table, length = world.everywhere(), world.steps // 9
    for start in random.choice(world.steps - FIRST_STEP - length, 3, replace=False):
        table[FIRST_STEP + start : FIRST_STEP + start + length, rank] = 3 * ns
    return labelled(world.delayed(Phase.FORWARD, table), "straggler", frozenset({rank}))


def transient(random: Random, severity: float) -> Made:
    """Single steps of one rank take very long."""
    world, rank, ns = _job(random, severity)
    table, steps = world.everywhere(), np.arange(FIRST_STEP, world.steps)
    hit = random.choice(steps, max(3, len(steps) // 15), replace=False)
    table[hit, rank] = ns * len(steps) / len(hit)
    made = world.delayed(Phase.BACKWARD, table, bucket=int(random.integers(world.buckets)))
    return labelled(made, "straggler", frozenset({rank}))


def rotating(random: Random, severity: float) -> Made:
    """Each step another rank is late."""
    world, _, ns = _job(random, severity)
    table, steps = world.everywhere(), np.arange(world.steps)
    table[steps, random.integers(0, world.ranks, world.steps)] = ns
    world = replace(world, noise=min(world.noise, severity / 8))  # one step must stand out
    return labelled(world.delayed(Phase.BACKWARD, table), "straggler")


def collecting(random: Random, severity: float) -> Made:
    """Ranks collect garbage, each when it likes."""
    world, _, ns = _job(random, severity)
    table, every = world.everywhere(), int(random.integers(4, 9))
    for rank in range(world.ranks):
        table[int(random.integers(every)) :: every, rank] = ns * every / world.ranks
    return labelled(world.delayed(Phase.BACKWARD, table, collector=True), "runtime_jitter")


def without_core(random: Random, severity: float) -> Made:
    """One rank shares its core with somebody else."""
    world, rank, ns = _job(random, severity)
    slow = world.slow(rank, Phase.FORWARD, ns, without_core=True)
    return labelled(slow, "runtime_jitter", frozenset({rank}))


def starved(random: Random, severity: float) -> Made:
    """One rank waits for its input."""
    world, rank, ns = _job(random, severity)
    return labelled(world.slow(rank, Phase.INPUT, ns), "input_pipeline", frozenset({rank}))


def all_starved(random: Random, severity: float) -> Made:
    """Batches are not ready in time on any rank."""
    world, _, ns = _job(random, severity)
    return labelled(world.delayed(Phase.INPUT, ns), "input_pipeline", frozenset())


def saving(random: Random, severity: float) -> Made:
    """One rank writes a checkpoint now and then, or evaluates, while the others wait."""
    world, _, ns = _job(random, severity)
    every = int(random.integers(5, 21))
    world = long_enough(world, 4 * every)
    table, phase = world.everywhere(), (Phase.CHECKPOINT, Phase.EVALUATION)[random.integers(2)]
    table[every // 2 + FIRST_STEP :: every, 0] = ns * every
    return labelled(world.delayed(phase, table), "checkpoint_stall", frozenset({0}))


def saving_together(random: Random, severity: float) -> Made:
    """All ranks write their parts of a checkpoint at the same time, and training waits."""
    world, _, ns = _job(random, severity)
    every = int(random.integers(5, 21))
    world = long_enough(world, 4 * every)
    table = world.everywhere()
    table[every // 2 + FIRST_STEP :: every] = ns * every
    table *= 1 + 0.01 * random.standard_normal(table.shape)
    return labelled(world.delayed(Phase.CHECKPOINT, table), "checkpoint_stall", frozenset())


def warming(random: Random, severity: float) -> Made:
    """One rank's compute grows slowly."""
    world, rank, ns = _job(random, severity)
    world = long_enough(world, 200)
    table = world.everywhere()
    shape = float(random.choice([0.5, 1.0, 2.0]))
    table[:, rank] = (1 + shape) * ns * np.linspace(0, 1, world.steps) ** shape
    made = world.delayed(Phase.BACKWARD, table, computing=True)
    return labelled(made, "thermal_drift", frozenset({rank}))


def oscillating(random: Random, severity: float) -> Made:
    """All ranks alternate between fast and slow steps."""
    world, _, ns = _job(random, severity)
    world = long_enough(world, 60)
    table, period = world.everywhere(), int(random.integers(2, 6))
    table[::period] = ns * period
    made = world.delayed(Phase.FORWARD, table, computing=True)
    return labelled(made, "synchronization_oscillation")


def noisy(random: Random, severity: float) -> Made:
    """Nobody is slow, but all vary, and the slowest of many counts."""
    world = replace(long_enough(ordinary(random, 0.02), 60), ranks=int(random.choice([8, 12, 16])))
    width = 2 if world.style == "grid" else 1
    world = replace(world, tensor_parallel=width, ranks_per_node=64, clocks={})
    noise = severity / (1 - severity) / (VARYING * LARGEST[world.ranks])
    return labelled(replace(world, noise=noise), "synchronization_amplification")


def two_ranks(random: Random, severity: float) -> Made:
    """One rank is slower, and another's input is late, a third as much: they hide one another."""
    world, rank, ns = _job(random, severity)
    other = (rank + 1 + int(random.integers(world.ranks - 1))) % world.ranks
    both = world.slow(rank, Phase.BACKWARD, ns).slow(other, Phase.INPUT, ns / 3)
    lost = both.lost_against(world.slow(other, Phase.INPUT, ns / 3))
    made = labelled(both, "straggler", frozenset({rank}), lost=lost)
    return made._replace(label=replace(made.label, alone=False))


def slow_and_saving(random: Random, severity: float) -> Made:
    """One rank saves checkpoints, and another is chronically slower, half as much."""
    world, _, ns = _job(random, severity)
    world = long_enough(world, 60)
    table, other = world.everywhere(), 1 + int(random.integers(world.ranks - 1))
    table[10 + FIRST_STEP :: 15, 0] = ns * 15
    both = world.delayed(Phase.CHECKPOINT, table).slow(other, Phase.FORWARD, ns / 2.5)
    lost = both.lost_against(world.slow(other, Phase.FORWARD, ns / 2.5))
    return labelled(both, "checkpoint_stall", frozenset({0}), lost=lost)


CAUSES: dict[str, Callable[[Random, float], Made]] = {
    "chronic": chronic,
    "a node": chronic_node,
    "chronic, one missing": chronic_and_missing,
    "bursty": bursty,
    "transient": transient,
    "rotating": rotating,
    "collecting garbage": collecting,
    "without a core": without_core,
    "starved of input": starved,
    "all starved": all_starved,
    "saving": saving,
    "saving together": saving_together,
    "warming up": warming,
    "oscillating": oscillating,
    "noisy": noisy,
    "slow, and late input": two_ranks,
    "saving, and slow": slow_and_saving,
}
