"""Cases by number: a job, its fault, and what is true of it. The same number is the same case."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from benchmarks.independent import spool
from benchmarks.independent.faults import (
    Checkpoint,
    Congestion,
    Drift,
    Fault,
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
)
from benchmarks.independent.job import Job, Spec, World, shapley
from benchmarks.independent.pipelines import Pipeline
from benchmarks.independent.stacks import STACKS, Stack

TUNING, FINAL = 0, 1_000_000  # where the two ranges of seeds begin
WORTH = 0.05  # a loss that counts, and a finding that does

Rng = np.random.Generator


def run(stack: str, spec: Spec, world: World, *, record: bool = False) -> Job:
    """Run the whole job."""
    job = Job(spec, world, record=record)
    kind: type[Stack] = Pipeline if stack == "pipeline" else STACKS[stack]
    program = kind(job)
    job.machine.host += job.rng("start").uniform(0, 2e-3, spec.world)
    for number in range(spec.steps):
        began = job.begin_step(number)
        program.step()
        job.end_step(began)
    job.machine.synchronize()
    return job


@dataclass
class Case:
    """A job with its faults. `row` is the line of the table it is judged in."""

    number: int
    row: str
    stack: str
    fault: str
    spec: Spec
    faults: tuple[Fault, ...]
    labels: dict = field(default_factory=dict)

    @property
    def name(self) -> str:
        """For `--only` and reports."""
        where = "device" if self.spec.on_device else "host"
        return f"{self.row}/{self.stack}/{where}/{self.fault}#{self.number}"

    def time(self, faults: tuple[Fault, ...], **ideal: bool) -> float:
        """How long the run takes with these of its faults, idealised or not."""
        spec = self.spec
        for fault in self.faults:
            if fault not in faults:
                spec = fault.mended(spec)
        return run(self.stack, spec, World(faults, **ideal)).took_s

    @cached_property
    def recorded(self) -> Job:
        """The run that leaves a trace."""
        return run(self.stack, self.spec, World(self.faults), record=True)

    @cached_property
    def took_s(self) -> float:
        """With its faults."""
        return self.recorded.took_s

    @cached_property
    def parts(self) -> tuple[float, ...]:
        """What each fault costs, as a share of the run: its own loss, or Shapley's value of two."""
        if not self.faults:
            return ()
        none = self.time(())
        if len(self.faults) == 1:
            return ((self.took_s - none) / self.took_s,)
        a, b = (self.time((fault,)) for fault in self.faults)
        return tuple(part / self.took_s for part in shapley((none, a, b, self.took_s)))

    @property
    def loss(self) -> float:
        """What all faults cost together."""
        return sum(self.parts)

    def gain(self, **ideal: bool) -> float:
        """What idealising the job gives back: with its faults or without them, the larger."""
        key = ",".join(sorted(ideal))
        cache = self.labels.setdefault("gains", {})
        if key not in cache:
            gains = [self.took_s - self.time(self.faults, **ideal)]
            if self.faults:
                gains.append(self.time(()) - self.time((), **ideal))
            cache[key] = max(gains) / self.took_s
        return cache[key]

    def write(self, folder: Path) -> None:
        """Leave the trace of the run in a folder."""
        job = self.recorded
        nic = self.spec.net_gbyte * 8 * 1.15 if self.labels.get("nic", True) else None
        spool.write(
            folder, job.machine.tape, job.comms, job.cluster(nic_gbps=nic),
            backend="nccl" if self.spec.on_device else "gloo", run_id=f"case-{self.number}",
        )  # fmt: skip


# -- jobs ----------------------------------------------------------------------------------------


def _ranks(rng: Rng, *, least: int = 2) -> tuple[int, int]:
    """Ranks and ranks per node: mostly 8 to 64, sometimes 2, 4, 128 or 256."""
    world = int(
        rng.choice([2, 4, 8, 16, 32, 64, 128, 256], p=[0.05, 0.1, 0.2, 0.25, 0.2, 0.12, 0.05, 0.03])
    )
    world = max(world, least)
    per_node = int(min(world, rng.choice([1, 2, 4, 8], p=[0.1, 0.15, 0.3, 0.45])))
    return world, world if rng.random() < 0.1 and world <= 16 else per_node


def _spec(
    rng: Rng, number: int, world: int, per_node: int, *, on_device: bool, shape: dict
) -> Spec:
    most = 120 if world <= 64 else 50
    return Spec(
        seed=number, world=world, per_node=per_node, on_device=on_device, shape=shape,
        steps=int(rng.integers(30, most + 1)),
        step_s=float(10 ** rng.uniform(-1.5, -0.3)),
        noise_cv=float(rng.choice([0.01, 0.02, 0.03, 0.05, 0.07, 0.1])),
        coupled=bool(rng.random() < 0.4),
        family=str(rng.choice(["gamma", "lognormal"])),
        spread=float(rng.choice([0.0, 0.005, 0.01])),
        transfer_cv=float(rng.uniform(0.01, 0.06)),
        alpha_s=float(rng.uniform(8e-6, 20e-6) if on_device else rng.uniform(20e-6, 80e-6)),
        net_gbyte=float(rng.choice([12.5, 25.0, 50.0] if on_device else [1.2, 3.0, 12.0])),
        node_gbyte=float(200.0 if on_device else 8.0),
        blocking=bool(rng.random() < 0.35),
        sync_every=int(rng.choice([1, 1, 10, 1000])),
        ahead=int(rng.choice([1, 2, 3])),
        transfer_share=float(rng.uniform(0.05, 0.35)),
    )  # fmt: skip


def _data_parallel(rng: Rng, number: int, *, on_device: bool) -> Spec:
    world, per_node = _ranks(rng)
    shape = {"buckets": int(rng.choice([1, 2, 3, 5, 10], p=[0.15, 0.15, 0.25, 0.3, 0.15]))}
    return _spec(rng, number, world, per_node, on_device=on_device, shape=shape)


def _sharded(rng: Rng, number: int, *, on_device: bool) -> Spec:
    world, per_node = _ranks(rng)
    hybrid = per_node > 1 and world > per_node and rng.random() < 0.3
    shape = {
        "layers": int(rng.integers(4, 9)),
        "prefetch": bool(rng.random() < 0.7),
        "hybrid": hybrid,
    }
    return _spec(rng, number, world, per_node, on_device=on_device, shape=shape)


def _tensor(rng: Rng, number: int, *, on_device: bool) -> Spec:
    world, per_node = _ranks(rng, least=4)
    tp = int(rng.choice([size for size in (2, 4, 8) if size <= max(per_node, 2)]))
    shape = {"tp": tp, "layers": int(rng.integers(3, 7))}
    return _spec(rng, number, world, max(per_node, tp), on_device=on_device, shape=shape)


def _hierarchical(rng: Rng, number: int, *, on_device: bool) -> Spec:
    world, per_node = _ranks(rng, least=4)
    per_node = max(2, min(per_node, world // 2))
    shape = {"buckets": int(rng.integers(1, 5))}
    return _spec(rng, number, world, per_node, on_device=on_device, shape=shape)


def _experts(rng: Rng, number: int, *, on_device: bool) -> Spec:
    world, per_node = _ranks(rng, least=4)
    size = int(rng.choice([size for size in (2, 4, 8) if size <= world]))
    shape = {"layers": int(rng.integers(2, 5)), "experts": size}
    return _spec(rng, number, world, per_node, on_device=on_device, shape=shape)


def _pipeline(rng: Rng, number: int, *, on_device: bool) -> Spec:
    stages = int(rng.choice([2, 4, 8]))
    replicas = int(rng.choice([1, 2, 4, 8], p=[0.25, 0.3, 0.3, 0.15]))
    micro = int(stages * rng.choice([1, 2, 3]))
    shape = {
        "stages": stages, "micro": micro, "schedule": str(rng.choice(["1f1b", "gpipe"])),
        "embedding": bool(rng.random() < 0.4), "clip": bool(rng.random() < 0.6),
    }  # fmt: skip
    spec = _spec(
        rng, number, stages * replicas, min(8, stages * replicas), on_device=on_device, shape=shape
    )
    return replace(spec, steps=int(rng.integers(30, 61)))


JOBS: dict[str, Callable[..., Spec]] = {
    "ddp": _data_parallel, "fsdp": _sharded, "tensor": _tensor, "hierarchical": _hierarchical,
    "moe": _experts, "pipeline": _pipeline,
}  # fmt: skip


# -- faults --------------------------------------------------------------------------------------


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
    modes = ("straggler", "workload_imbalance") if alone else ("straggler",)
    ranks = ranks[:1] if "stages" in spec.shape else ranks
    return SlowRanks(modes, ranks, ranks=ranks)


def _slow_node(rng: Rng, spec: Spec) -> Fault:
    node, ranks = _node(rng, spec)
    return SlowRanks(("straggler", "locality"), ranks, nodes=(node,), ranks=ranks)


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
    modes = ("straggler", "synchronization_amplification") if size == spec.world else ("straggler",)
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
    # A collective of everybody is slow for everybody: which link it is, no trace tells.
    modes = ("fabric_contention", "bandwidth_bound", "locality", "collective_topology_mismatch")
    return SlowLink(modes, None, nodes=(node,))


def _narrow(_: Rng, __: Spec) -> Fault:
    return NarrowFabric(("bandwidth_bound", "collective_topology_mismatch"), None)


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
    "many_small": _many_small, "lengths": _lengths, "launch_all": _launch_all,
    "launch_one": _launch_one, "no_core": _no_core,
}  # fmt: skip


# -- the corpus ----------------------------------------------------------------------------------

_COMMON = (
    *("slow_rank", "slow_node", "transient", "bursty", "rotating", "drift", "pauses", "lengths"),
    *("slow_loader", "checkpoint", "periodic", "congestion"),
)
_HOST = (*_COMMON, "slow_loaders", "no_core")
_DEVICE = (*_COMMON, "launch_all", "launch_one")
_PIPELINE = (
    *("slow_rank", "slow_stage", "long_last_stage", "slow_node", "transient", "drift", "pauses"),
    *("slow_loader", "checkpoint", "lengths"),
)

#: What is run: row, stack, on a device, faults. A third of each are healthy ("").
PLAN: tuple[tuple[str, str, bool, tuple[str, ...]], ...] = (
    ("hosts", "ddp", False, (*_HOST, "many_small", "narrow", "slow_link")),
    ("hosts", "fsdp", False, (*_HOST, "narrow")),
    ("hosts", "tensor", False, (*_HOST, "slow_link")),
    ("hosts", "hierarchical", False, (*_HOST, "slow_link")),
    ("hosts", "moe", False, _HOST),
    ("device", "ddp", True, (*_DEVICE, "narrow")),
    ("device", "fsdp", True, _DEVICE),
    ("device", "tensor", True, _DEVICE),
    ("device", "hierarchical", True, _DEVICE),
    ("device", "moe", True, _DEVICE),
    ("pipelines", "pipeline", False, _PIPELINE),
    ("pipelines", "pipeline", True, _PIPELINE),
)


def entries() -> list[tuple[str, str, bool, str]]:
    """Every combination once, healthy ones so often that they are a third."""
    found = []
    for row, stack, on_device, faults in PLAN:
        healthy = -(-len(faults) // 2)
        found += [(row, stack, on_device, name) for name in (*faults, *[""] * healthy)]
    order = np.random.default_rng(12).permutation(len(found))
    return [found[index] for index in order]


ENTRIES = entries()


def build(number: int, only: str = "") -> Case | None:
    """The case of this number; None where its name has no such part."""
    row, stack, on_device, name = ENTRIES[number % len(ENTRIES)]
    where = "device" if on_device else "host"
    if only not in f"{row}/{stack}/{where}/{name or 'healthy'}#{number}":
        return None
    rng = np.random.default_rng([2026, number])
    spec = JOBS[stack](rng, number, on_device=on_device)
    spec = _suited(spec, name, rng)
    faults = () if not name else (FAULTS[name](rng, spec),)
    case = Case(number, row, stack, name or "healthy", spec, faults)
    return _scaled(case, float(rng.uniform(0.07, 0.3))) if faults else case


def _suited(spec: Spec, fault: str, rng: Rng) -> Spec:
    """The job so that the fault can be there at all: links, several nodes, an exposed fabric."""
    if fault in ("congestion", "slow_link", "narrow", "slow_node", "many_small"):
        smallest = max(4, int(spec.shape.get("tp", 1)) * 2, 2 * int(spec.shape.get("experts", 1)))
        world = max(spec.world, smallest)
        spec = replace(spec, world=world, per_node=min(spec.per_node, world // 2))
    if fault in ("congestion", "slow_link", "narrow"):
        spec = replace(
            spec, per_node=min(spec.per_node, 2), transfer_share=float(rng.uniform(0.15, 0.35))
        )
    if fault in ("congestion", "narrow") and "experts" in spec.shape:
        spec = replace(spec, per_node=1)
    if fault == "narrow":
        spec = replace(spec, blocking=True)
    if fault == "many_small":
        count = int(rng.choice([100, 200, 400]))
        share = 0.01
        spec = replace(spec, blocking=True, transfer_share=share, steps=min(spec.steps, 40),
                       world=min(spec.world, 16), alpha_s=float(rng.uniform(60e-6, 120e-6)),
                       step_s=float(rng.uniform(0.05, 0.2)), per_node=1,
                       shape={**spec.shape, "buckets": count})  # fmt: skip
    if fault in ("launch_all", "launch_one"):
        spec = replace(spec, sync_every=1)
    return spec


_STARTS = {SlowInput: 0.2, Pauses: 1.0, Checkpoint: 1.0, NoCore: 0.2}  # in steps' compute


def _scaled(case: Case, target: float) -> Case:
    """The fault as strong as it must be to cost about `target`: three secant steps, then taken."""
    (fault,) = case.faults
    start = _STARTS.get(type(fault))
    strength = start * case.spec.step_s if start else 0.3
    if isinstance(fault, ManySmall):
        return case
    none = case.time(())
    for _ in range(4):
        fault = replace(fault, strength=strength)
        with_it = run(case.stack, case.spec, World((fault,))).took_s
        loss = (with_it - none) / with_it
        if abs(loss - target) < 0.02:
            break
        share = (target / (1 - target)) / max(loss / (1 - loss), 1e-3)
        strength *= float(np.clip(share, 0.2, 5.0))
    return replace(case, faults=(fault,))
