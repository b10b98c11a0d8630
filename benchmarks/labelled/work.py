"""Causes in what ranks are given to do: sequences, pipeline stages, operation tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.jobs.pipeline import NAMES, Pipeline
from benchmarks.labelled.example import Label
from benchmarks.labelled.ordinary import (
    LARGEST,
    Made,
    Random,
    labelled,
    long_enough,
    ordinary,
    step_ns,
)
from evenstep.importers.draft import Draft
from evenstep.importers.operations.operation_records import trace_of
from evenstep.trace.spool.layout import Phase
from evenstep.trace.trace import Group, Trace
from tests.diagnose.synthetic import World

SECONDS = dict.fromkeys(NAMES, 0.001) | {"forward-compute": 0.1, "backward-compute": 0.2}


def sequences(random: Random, severity: float) -> Made:
    """Every rank's batch has another length in every step: forward and backward grow alike."""
    world = long_enough(ordinary(random, 0.003), 40)
    world = replace(world, steps=min(world.steps, 400))
    mean = severity * step_ns(world) / LARGEST[world.ranks]
    extra = random.exponential(mean, (world.steps, world.ranks))
    even = np.broadcast_to(extra.mean(axis=1, keepdims=True), extra.shape)
    varied, equal = (_longer(world, table) for table in (extra, even))
    return labelled(varied, "workload_imbalance", lost=varied.lost_against(equal))


def _longer(world: World, forward_ns: np.ndarray) -> World:
    """Backward takes twice what forward does."""
    longer = world.delayed(Phase.FORWARD, forward_ns / 3, computing=True)
    parts = world.buckets
    for bucket in range(parts):
        longer = longer.delayed(
            Phase.BACKWARD, 2 * forward_ns / 3 / parts, computing=True, bucket=bucket
        )
    return longer


def long_stage(random: Random, severity: float) -> Made:
    """All ranks of one pipeline stage have more to do; their groups say who is which stage."""
    world = replace(ordinary(random, severity / 2), style="grid", ranks=8, clocks={})
    width = int(random.choice([2, 4]))
    world = replace(world, tensor_parallel=width, noise=min(world.noise, severity / 5))
    stage = int(random.integers(width))
    slow = list(range(stage, world.ranks, width))
    made = world.slow(slow, Phase.BACKWARD, severity * step_ns(world), computing=True)

    def trace() -> Trace:
        found = made.trace()
        named = [Group(g.uid, g.name.replace("tp", "pp"), g.ranks, g.backend) for g in found.groups]
        return replace(found, groups=tuple(named))

    return labelled(made, "workload_imbalance", frozenset(slow), trace=trace)


def _pipeline(random: Random) -> Pipeline:
    return Pipeline(
        dp=int(random.choice([2, 4])),
        pp=int(random.choice([2, 4])),
        micro=int(random.choice([4, 8])),
        steps=6,
        seconds=SECONDS,
    )


def table_stage(random: Random, severity: float) -> Made:
    """An operation table with one stage longer; mended, it is as short as its peers."""
    even = _pipeline(random)
    stage = int(random.integers(even.pp))
    uneven = replace(even, stage_factor={stage: 1 + 2 * severity})
    lost = 1 - float(np.mean(even.lengths(even.durations()))) / float(
        np.mean(uneven.lengths(uneven.durations()))
    )
    ranks = frozenset(dp * even.pp + stage for dp in range(even.dp))
    label = Label(mode="workload_imbalance", culprits=ranks, lost=lost)
    return Made(label, lambda: _of_table(uneven, uneven.durations()))


def table_worker(random: Random, severity: float) -> Made:
    """An operation table with one slow worker."""
    even = _pipeline(random)
    dp, stage = int(random.integers(even.dp)), int(random.integers(even.pp))
    usual = even.durations()
    slow = {
        key: value * (1 + 2 * severity if _computes_at(key[1], dp, stage) else 1.0)
        for key, value in usual.items()
    }
    lost = 1 - float(np.mean(even.lengths(usual))) / float(np.mean(even.lengths(slow)))
    label = Label(mode="straggler", culprits=frozenset({dp * even.pp + stage}), lost=lost)
    return Made(label, lambda: _of_table(even, slow))


def _computes_at(op: tuple[Any, ...], dp: int, stage: int) -> bool:
    return "compute" in op[0] and op[1:3] == (dp, stage)


def _of_table(pipeline: Pipeline, durations: dict[Any, float]) -> Trace:
    draft = Draft()
    numbers = np.array([draft.name(name) for name in NAMES])
    table = pipeline.table(durations)
    return trace_of(table.with_column("optype", numbers[table.optype]), draft, {})


CAUSES: dict[str, Callable[[Random, float], Made]] = {
    "sequences": sequences,
    "long stage": long_stage,
    "long stage, table": table_stage,
    "slow worker, table": table_worker,
}
