"""Jobs as they come: what a cause is put into, and what is healthy without one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from benchmarks.labelled.example import Label
from evenstep.trace.spool.layout import Phase
from evenstep.trace.trace import Trace
from tests.diagnose.synthetic import LENGTH_NS, MS, World

Random = np.random.Generator

SIZES = (2, 3, 4, 5, 6, 8, 12, 16)
PACES = (0.08, 80.0)  # steps of 5 ms to 5 s
FIRST_STEP = 3  # the diagnosis leaves the warm-up out
WORKING = (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)
#: Mean of the largest of n standard normal values (Harter 1961), which the slowest rank has.
LARGEST = dict(zip(SIZES, (0.564, 0.846, 1.029, 1.163, 1.267, 1.424, 1.629, 1.766), strict=True))
VARYING = 0.7  # deviation of a step over that of its phases: √(20² + 40² + 4²) of 64 ms


class Made(NamedTuple):
    """A trace to be, or one of each size of a job, and what is known of it."""

    label: Label
    trace: Callable[[], Trace | list[Trace]]


def labelled(
    world: World,
    mode: str | None,
    culprits: frozenset[int] | None = None,
    *,
    lost: float | None = None,
    trace: Callable[[], Trace] | None = None,
) -> Made:
    """A world, and what its delays cost unless told otherwise."""
    if lost is None and world.delays:
        lost = world.injected_share()
    return Made(Label(mode=mode, culprits=culprits, lost=lost), trace or world.trace)


def step_ns(world: World) -> float:
    """Length of a step in which nothing is exchanged."""
    return world.pace * sum(LENGTH_NS.values())


def ordinary(random: Random, coupling: float) -> World:
    """A job of any size, style, pace, length, number of hosts and quality of exits.

    Its noise costs at most about `coupling` of a step, by the mean of the largest of n.
    """
    ranks = int(random.choice(SIZES))
    pace = float(np.exp(random.uniform(*np.log(PACES))))
    style = str(random.choice(["overlapped", "blocking", "gathered", "grid"]))
    widths = [width for width in (2, 4) if ranks % width == 0 and ranks > width]
    if style == "grid" and not widths:
        style = "overlapped"
    per_node = int(random.choice([2, 4, 64]))
    hosts = range(1, -(-ranks // per_node))
    most = min(0.05, coupling / (VARYING * LARGEST[ranks]))
    return World(
        ranks=ranks,
        steps=_steps(random),
        pace=pace,
        buckets=int(random.choice([1, 2, 4, 8])),
        style=style,
        tensor_parallel=int(random.choice(widths)) if style == "grid" else 1,
        ranks_per_node=per_node,
        noise=float(np.exp(random.uniform(np.log(0.002), np.log(most)))),
        seed=int(random.integers(1 << 30)),
        transfer_ns=float(random.uniform(0.1, 1.0)) * MS * pace,
        exit_lag_ns=float(random.choice([0.0, 0.05, 0.2])) * MS * min(pace, 1.0),
        clocks={host: (random.uniform(-1e9, 1e9), random.uniform(-1e-4, 1e-4)) for host in hosts},
    )


def _steps(random: Random) -> int:
    """Few or many, and rarely very many."""
    low, high = ((20, 60), (60, 160), (160, 400), (2000, 2001))[
        int(random.choice(4, p=[0.25, 0.5, 0.24, 0.01]))
    ]
    return int(random.integers(low, high))


def long_enough(world: World, fewest: int) -> World:
    """At least so many steps: what comes and goes needs some to be seen in."""
    return replace(world, steps=max(world.steps, fewest))
