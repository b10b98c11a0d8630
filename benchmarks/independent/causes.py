"""Faults of every kind, drawn at random for a job: who, how, and what they may be called."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from benchmarks.independent.faults import (
    Checkpoint,
    Congestion,
    Drift,
    Fault,
    LateEntry,
    Lengths,
    ManySmall,
    NarrowFabric,
    NoCore,
    Pauses,
    Periodic,
    SlowInput,
    SlowIssue,
    SlowLink,
    SlowRanks,
    SlowWire,
)
from benchmarks.independent.job import Spec

Rng = np.random.Generator


def _one(rng: Rng, spec: Spec) -> tuple[int, ...]:
    return (int(rng.integers(spec.world)),)


def _few(rng: Rng, spec: Spec) -> tuple[int, ...]:
    most = max(1, min(3, spec.world // 4))
    picked = rng.choice(spec.world, int(rng.integers(1, most + 1)), replace=False)
    return tuple(sorted(int(rank) for rank in picked))


def _all(spec: Spec) -> tuple[int, ...]:
    return tuple(range(spec.world))


def _node(rng: Rng, spec: Spec) -> tuple[int, tuple[int, ...]]:
    node = int(rng.integers(spec.world // spec.per_node))
    return node, tuple(range(node * spec.per_node, (node + 1) * spec.per_node))


def _slow_rank(rng: Rng, spec: Spec) -> Fault:
    ranks = _few(rng, spec)
    # In a pipeline of one replica a rank is a stage: nobody could tell which of the two is slow.
    alone = "stages" in spec.shape and spec.shape["stages"] == spec.world
    ranks = ranks[:1] if "stages" in spec.shape else ranks
    modes = ("straggler", "workload_imbalance") if alone else ("straggler",)
    if spec.per_node == 1:  # every rank is a whole node
        modes = (*modes, "locality")
    return SlowRanks(modes, ranks, ranks=ranks)


def _slow_node(rng: Rng, spec: Spec) -> Fault:
    node, ranks = _node(rng, spec)
    modes = ("straggler", "locality")
    if "stages" in spec.shape and spec.per_node % (spec.world // spec.shape["stages"]) == 0:
        modes = (*modes, "workload_imbalance")  # the node is whole stages, and nothing else
    return SlowRanks(modes, ranks, nodes=(node,), ranks=ranks)


def _transient(rng: Rng, spec: Spec) -> Fault:
    ranks = _one(rng, spec)
    share = float(rng.uniform(0.15, 0.4))
    return SlowRanks(("straggler",), ranks, ranks=ranks, pattern="transient", share=share)


def _bursty(rng: Rng, spec: Spec) -> Fault:
    ranks = _one(rng, spec)
    length = int(rng.integers(3, 7))
    return SlowRanks(("straggler",), ranks, ranks=ranks, pattern="bursty", share=0.4, length=length)


def _rotating(rng: Rng, spec: Spec) -> Fault:
    size = min(spec.world, int(rng.integers(2, 5)))
    ranks = tuple(sorted(int(r) for r in rng.choice(spec.world, size, replace=False)))
    # In strict turns the ranks swing in opposite phase, which is an oscillation as well.
    modes = ("straggler", "synchronization_oscillation")
    if size == spec.world:
        modes = (*modes, "synchronization_amplification")
    length = int(rng.integers(1, 4))
    return SlowRanks(modes, None, ranks=ranks, pattern="rotating", length=length)


def _slow_stage(rng: Rng, spec: Spec) -> Fault:
    stage = int(rng.integers(spec.shape["stages"]))
    return _stage(spec, stage)


def _long_last_stage(rng: Rng, spec: Spec) -> Fault:
    return _stage(spec, spec.shape["stages"] - 1)


def _stage(spec: Spec, stage: int) -> Fault:
    replicas = spec.world // spec.shape["stages"]
    ranks = tuple(range(stage * replicas, (stage + 1) * replicas))
    modes = ("workload_imbalance", "straggler") if replicas == 1 else ("workload_imbalance",)
    return SlowRanks(modes, ranks, ranks=ranks)


def _drift(rng: Rng, spec: Spec) -> Fault:
    node, ranks = _node(rng, spec)
    sensors = spec.on_device and rng.random() < 0.5
    if rng.random() < 0.5 or len(ranks) == spec.world:
        ranks = _one(rng, spec)
        return Drift(("thermal_drift",), ranks, ranks=ranks, sensors=sensors)
    return Drift(("thermal_drift",), ranks, nodes=(node,), ranks=ranks, sensors=sensors)


def _pauses(rng: Rng, spec: Spec) -> Fault:
    every = int(rng.integers(4, 13))
    if rng.random() < 0.5:
        return Pauses(("runtime_jitter",), None, ranks=_all(spec), every=every)
    ranks = _one(rng, spec)
    return Pauses(("runtime_jitter",), ranks, ranks=ranks, every=max(every // 2, 2))


def _slow_loader(rng: Rng, spec: Spec) -> Fault:
    ranks = _one(rng, spec)
    return SlowInput(("input_pipeline",), ranks, ranks=ranks)


def _slow_loaders(_: Rng, spec: Spec) -> Fault:
    return SlowInput(("input_pipeline",), None, ranks=_all(spec))


def _checkpoint(rng: Rng, spec: Spec) -> Fault:
    every = int(rng.integers(5, 16))
    if rng.random() < 0.5:
        return Checkpoint(("checkpoint_stall",), None, ranks=_all(spec), every=every)
    return Checkpoint(("checkpoint_stall",), (0,), ranks=(0,), every=every)


def _periodic(rng: Rng, spec: Spec) -> Fault:
    every = int(rng.integers(3, 8))
    return Periodic(("synchronization_oscillation",), None, ranks=_all(spec), every=every)


def _congestion(rng: Rng, _: Spec) -> Fault:
    return Congestion(("fabric_contention",), None, length=int(rng.integers(2, 8)))


def _slow_link(rng: Rng, spec: Spec) -> Fault:
    node, _ = _node(rng, spec)
    modes = ("fabric_contention", "bandwidth_bound", "locality", "collective_topology_mismatch")
    return SlowLink(modes, None, nodes=(node,))


def _late_entry(rng: Rng, spec: Spec) -> Fault:
    ranks = _one(rng, spec)
    return LateEntry(("straggler", "runtime_jitter"), ranks, ranks=ranks)


def _narrow(_: Rng, __: Spec) -> Fault:
    return NarrowFabric(("bandwidth_bound", "collective_topology_mismatch"), None)


def _slow_wire(rng: Rng, spec: Spec) -> Fault:
    modes = ("fabric_contention", "bandwidth_bound", "locality", "collective_topology_mismatch")
    return SlowWire(modes, None, stage=int(rng.integers(spec.shape["stages"] - 1)))


def _many_small(_: Rng, __: Spec) -> Fault:
    return ManySmall(("latency_bound",), None)


def _lengths(_: Rng, spec: Spec) -> Fault:
    # On a device DDP's forward and backward cannot be told apart, nor lengths from noise.
    blind = spec.on_device and "buckets" in spec.shape
    modes = ("workload_imbalance", "synchronization_amplification")
    return Lengths(modes if blind else modes[:1], None)


def _launch_all(_: Rng, spec: Spec) -> Fault:
    return SlowIssue(("runtime_jitter",), None, ranks=_all(spec))


def _launch_one(rng: Rng, spec: Spec) -> Fault:
    ranks = _one(rng, spec)
    return SlowIssue(("runtime_jitter", "straggler"), ranks, ranks=ranks)


def _no_core(rng: Rng, spec: Spec) -> Fault:
    ranks = _few(rng, spec)
    return NoCore(("runtime_jitter",), ranks, ranks=ranks)


FAULTS: dict[str, Callable[[Rng, Spec], Fault]] = {
    "slow_rank": _slow_rank, "slow_node": _slow_node, "transient": _transient, "bursty": _bursty,
    "rotating": _rotating, "slow_stage": _slow_stage, "long_last_stage": _long_last_stage,
    "drift": _drift, "pauses": _pauses, "slow_loader": _slow_loader,
    "slow_loaders": _slow_loaders, "checkpoint": _checkpoint, "periodic": _periodic,
    "congestion": _congestion, "slow_link": _slow_link, "narrow": _narrow,
    "slow_wire": _slow_wire, "many_beside": _many_small,
    "many_small": _many_small, "lengths": _lengths, "launch_all": _launch_all,
    "launch_one": _launch_one, "no_core": _no_core, "late_entry": _late_entry,
}  # fmt: skip
