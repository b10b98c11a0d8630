"""Examples in closed form: jobs that never ran, with a loss that is known by arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from benchmarks.labelled.example import Example, Label
from evenstep.trace.layout import Phase
from evenstep.trace.trace import Trace
from tests.diagnose.synthetic import MS, World

Random = np.random.Generator
Made = tuple[World, str, frozenset[int] | None]

STEP_NS = 64 * MS  # of a world without disturbance, about
WORKING = (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)
SEVERITIES = (0.08, 0.15, 0.35)  # the disturbance, as a share of an undisturbed step
FIRST_STEP = 3  # the diagnosis leaves the warm-up out


def diagnose_trace(trace: Trace) -> dict[str, Any]:
    """What `diagnose --json` prints of it."""
    from evenstep.diagnose.engine import diagnose

    return diagnose(trace).to_json()


def ordinary(random: Random) -> World:
    """A job as they come: any size, style, noise, number of hosts and quality of exits."""
    ranks = int(random.choice([2, 4, 8, 16]))
    style = str(random.choice(["overlapped", "blocking", "gathered", "grid"]))
    per_node = int(random.choice([2, 4, 64]))
    hosts = range(1, -(-ranks // per_node))
    return World(
        ranks=ranks,
        steps=int(random.integers(60, 160)),
        buckets=int(random.choice([2, 4, 8])),
        style=style,
        tensor_parallel=2 if style == "grid" else 1,
        ranks_per_node=per_node,
        noise=float(random.uniform(0.003, 0.02)),
        seed=int(random.integers(1 << 30)),
        transfer_ns=float(random.uniform(0.1, 1.0)) * MS,
        exit_lag_ns=float(random.choice([0.0, 0.05, 0.2])) * MS,
        clocks={host: (random.uniform(-1e9, 1e9), random.uniform(-5e-5, 5e-5)) for host in hosts},
    )


# -- causes ----------------------------------------------------------------------------------------


def chronic(random: Random, severity: float) -> Made:
    """One rank is slower in every step."""
    world = ordinary(random)
    rank, phase = int(random.integers(world.ranks)), WORKING[int(random.integers(3))]
    slow = world.slow(rank, phase, severity * STEP_NS, computing=bool(random.integers(2)))
    return slow, "straggler", frozenset({rank})


def bursty(random: Random, severity: float) -> Made:
    """One rank is slower for a few stretches of steps."""
    world = ordinary(random)
    rank, table = int(random.integers(world.ranks)), world.everywhere()
    for start in random.choice(np.arange(FIRST_STEP, world.steps - 12), 3, replace=False):
        table[start : start + 10, rank] = 3 * severity * STEP_NS
    return world.delayed(Phase.FORWARD, table), "straggler", frozenset({rank})


def transient(random: Random, severity: float) -> Made:
    """Single steps of one rank take very long."""
    world = ordinary(random)
    rank, table = int(random.integers(world.ranks)), world.everywhere()
    steps = np.arange(FIRST_STEP, world.steps)
    hit = random.choice(steps, max(3, len(steps) // 15), replace=False)
    table[hit, rank] = severity * STEP_NS * len(steps) / len(hit)
    return world.delayed(Phase.BACKWARD, table), "straggler", frozenset({rank})


def rotating(random: Random, severity: float) -> Made:
    """Each step another rank is late."""
    world = ordinary(random)
    table = world.everywhere()
    steps = np.arange(world.steps)
    table[steps, steps % world.ranks] = severity * STEP_NS
    return world.delayed(Phase.BACKWARD, table), "straggler", None


def collecting(random: Random, severity: float) -> Made:
    """Ranks collect garbage, each when it likes."""
    world = ordinary(random)
    table = world.everywhere()
    every = int(random.integers(4, 9))
    for rank in range(world.ranks):
        table[int(random.integers(every)) :: every, rank] = severity * STEP_NS * every / world.ranks
    return world.delayed(Phase.BACKWARD, table, collector=True), "runtime_jitter", None


def without_core(random: Random, severity: float) -> Made:
    """One rank shares its core with somebody else."""
    world = ordinary(random)
    rank = int(random.integers(world.ranks))
    slow = world.slow(rank, Phase.FORWARD, severity * STEP_NS, without_core=True)
    return slow, "runtime_jitter", frozenset({rank})


def starved(random: Random, severity: float) -> Made:
    """One rank waits for its input."""
    world = ordinary(random)
    rank = int(random.integers(world.ranks))
    return (
        world.slow(rank, Phase.INPUT, severity * STEP_NS), "input_pipeline", frozenset({rank})
    )  # fmt: skip


def saving(random: Random, severity: float) -> Made:
    """One rank writes a checkpoint now and then while the others wait."""
    world = ordinary(random)
    table, every = world.everywhere(), 20
    table[every // 2 :: every, 0] = severity * STEP_NS * every
    return world.delayed(Phase.CHECKPOINT, table), "checkpoint_stall", frozenset({0})


def warming(random: Random, severity: float) -> Made:
    """One rank's compute grows slowly."""
    world = replace(ordinary(random), steps=300)
    rank, table = int(random.integers(world.ranks)), world.everywhere()
    table[:, rank] = 2 * severity * STEP_NS * np.linspace(0, 1, world.steps)
    return (
        world.delayed(Phase.BACKWARD, table, computing=True), "thermal_drift", frozenset({rank})
    )  # fmt: skip


def oscillating(random: Random, severity: float) -> Made:
    """All ranks alternate between fast and slow steps."""
    world = ordinary(random)
    table, period = world.everywhere(), int(random.integers(2, 6))
    table[::period] = severity * STEP_NS * period
    made = world.delayed(Phase.FORWARD, table, computing=True)
    return made, "synchronization_oscillation", None


def noisy(random: Random, severity: float) -> Made:
    """Nobody is slow, but all vary, and the slowest of many counts."""
    world = replace(ordinary(random), ranks=16, steps=200, ranks_per_node=64)
    return replace(world, noise=severity / 1.2), "synchronization_amplification", None


CAUSES: dict[str, Callable[[Random, float], Made]] = {
    "chronic": chronic,
    "bursty": bursty,
    "transient": transient,
    "rotating": rotating,
    "collecting garbage": collecting,
    "without a core": without_core,
    "starved of input": starved,
    "saving": saving,
    "warming up": warming,
    "oscillating": oscillating,
    "noisy": noisy,
}


def disturbed(seeds: range) -> Iterator[Example]:
    """Every cause × severity × seed."""
    for name, cause in CAUSES.items():
        for severity in SEVERITIES:
            for seed in seeds:
                random = np.random.default_rng([seed, round(1000 * severity)])
                world, mode, culprits = cause(random, severity)
                lost = world.injected_share() if world.delays else None
                yield Example(
                    name=f"{name}, {severity:g}, seed {seed}",
                    label=Label(mode=mode, culprits=culprits, lost=lost),
                    diagnosis=partial(_diagnosed, world),
                )


def healthy(seeds: range) -> Iterator[Example]:
    """Ordinary jobs in which nothing is wrong."""
    for seed in seeds:
        yield Example(
            name=f"healthy, seed {seed}",
            label=Label(mode=None),
            diagnosis=partial(_diagnosed, ordinary(np.random.default_rng([seed, 0]))),
        )


def _diagnosed(world: World) -> dict[str, Any]:
    return diagnose_trace(world.trace())
