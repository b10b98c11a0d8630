"""Scenarios in one line, for the tests of the simulator."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from evenstep.scenario import scenario as scenarios
from evenstep.scenario.scenario import Scenario

MS = 1e6


def scenario(*sets: str, **lists: Any) -> Scenario:
    """A scenario from `a.b=c` texts, and `noise` and `neighbours` as lists of tables."""
    return scenarios.parse(deepcopy(lists), sets)


def ring(ranks: int, *sets: str, size_bytes: int = 100_000_000) -> Scenario:
    """W1: one ring all-reduce on a switch, 12.5 GB/s and 2 µs a message unless `sets` differ."""
    return scenario(
        f"cluster.nodes={ranks}", "work.kind=collective", f"work.gradient_bytes={size_bytes}",
        "collectives.algorithm=ring", "run.steps=1", *sets,
    )  # fmt: skip


LEAF_SPINE = ("fabric.kind=leaf_spine", "fabric.oversubscription=4", "fabric.routing=destination")

DDP = (
    "cluster.nodes=64", "cluster.nic_gBps=10", "collectives.algorithm=ring", "work.forward_ms=50",
    "work.gradient_bytes=100MB", "work.buckets=10", "run.steps=3",
)  # fmt: skip
SLOW_17 = [{"kind": "slow", "ranks": "17", "factor": 1.2}]
