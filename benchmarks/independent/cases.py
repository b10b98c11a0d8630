"""Cases by number: a job, its faults, and how strong they are. The same number is the same case."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from benchmarks.independent import terminal
from benchmarks.independent.case import Case, run
from benchmarks.independent.causes import FAULTS
from benchmarks.independent.faults import (
    Checkpoint,
    Fault,
    LateEntry,
    ManySmall,
    NoCore,
    Pauses,
    SlowInput,
)
from benchmarks.independent.job import Spec, World
from benchmarks.independent.jobs import JOBS

TUNING, FINAL = 0, 1_000_000  # where the two ranges of numbers begin

Rng = np.random.Generator

_COMMON = (
    *("slow_rank", "slow_node", "transient", "bursty", "rotating", "drift", "pauses", "lengths"),
    *("slow_loader", "checkpoint", "periodic", "congestion"),
)
_PAIRS = (
    "slow_rank+congestion",
    "slow_rank+slow_loader",
    "slow_rank+checkpoint",
    "drift+congestion",
)
_HOST = (*_COMMON, "slow_loaders", "no_core")
_DEVICE = (*_COMMON, "launch_all", "launch_one")
_PIPELINE = (
    *("slow_rank", "slow_stage", "long_last_stage", "slow_node", "transient", "drift", "pauses"),
    *(
        "slow_loader",
        "checkpoint",
        "lengths",
        "slow_wire",
        "slow_stage+checkpoint",
        "slow_rank+slow_loader",
    ),
)
_BLIND = ("slow_rank", "slow_node", "transient", "bursty", "congestion")
_BLIND_PIPELINE = ("slow_rank", "slow_stage", "slow_node", "transient")

#: What is run: row, stack, on a device, faults ("a+b" is two at once). As often again half of them
#: are healthy.
PLAN: tuple[tuple[str, str, bool, tuple[str, ...]], ...] = (
    (
        "hosts",
        "ddp",
        False,
        (*_HOST, *_PAIRS, "many_small", "many_beside", "narrow", "slow_link", "late_entry"),
    ),
    ("hosts", "unmarked", False, _BLIND),
    ("hosts", "unmarked_tensor", False, _BLIND),
    ("hosts", "fsdp", False, (*_HOST, "narrow", "late_entry", "slow_node+pauses")),
    ("hosts", "tensor", False, (*_HOST, "slow_link", "transient+slow_loaders")),
    ("hosts", "hierarchical", False, (*_HOST, "slow_link", "slow_node+checkpoint")),
    ("hosts", "moe", False, (*_HOST, "slow_rank+pauses")),
    ("device", "ddp", True, (*_DEVICE, *_PAIRS, "narrow")),
    ("device", "fsdp", True, (*_DEVICE, "slow_node+checkpoint")),
    ("device", "tensor", True, (*_DEVICE, "drift+congestion")),
    ("device", "hierarchical", True, _DEVICE),
    ("device", "moe", True, (*_DEVICE, "slow_rank+congestion")),
    ("pipelines", "pipeline", False, _PIPELINE),
    ("pipelines", "pipeline", True, _PIPELINE),
    ("pipelines", "unmarked_pipeline", False, _BLIND_PIPELINE),
    ("terminal", "ddp", False, terminal.KINDS),
)


def entries() -> list[tuple[str, str, bool, str]]:
    """Every combination once, healthy ones so often that they are a third; in a fixed mix."""
    found = []
    for row, stack, on_device, faults in PLAN:
        healthy = 0 if row == "terminal" else -(-len(faults) // 2)
        found += [(row, stack, on_device, name) for name in (*faults, *[""] * healthy)]
    order = np.random.default_rng(12).permutation(len(found))
    return [found[index] for index in order]


ENTRIES = entries()


def build(number: int, only: str = "", *, kernels: bool = False) -> Case | None:
    """The case of this number; None where its name has no such part. `kernels`: devices are stamped
    as kernels begin, not as compute comes to them."""
    row, stack, on_device, name = ENTRIES[number % len(ENTRIES)]
    where = "device" if on_device else "host"
    if only not in f"{row}/{stack}/{where}/{name or 'healthy'}#{number}":
        return None
    rng = np.random.default_rng([2026, number])
    if row == "terminal":
        return terminal.build(number, name, rng)
    spec = replace(JOBS[stack](rng, number, on_device=on_device), kernels=kernels)
    names = name.split("+") if name else []
    for each in names:
        spec = _suited(spec, each, rng)
    case = Case(number, row, stack, name or "healthy", spec, ())
    faults: tuple[Fault, ...] = ()
    for each in names:
        fault = _apart(each, faults, spec, rng)
        target = float(rng.uniform(0.07, 0.3 if len(names) == 1 else 0.18))
        faults = (*faults, _scaled(case, fault, target))
    return replace(case, faults=faults)


def _apart(name: str, others: tuple[Fault, ...], spec: Spec, rng: Rng) -> Fault:
    """A fault whose culprits are none of the others'."""
    taken = {rank for other in others for rank in other.culprits or ()}
    for _ in range(50):
        fault = FAULTS[name](rng, spec)
        if not taken & set(fault.culprits or ()):
            return fault
    return fault


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
    if fault == "many_beside":
        spec = replace(spec, blocking=True, world=max(4, min(spec.world, 32)), per_node=2,
                       alpha_s=float(rng.uniform(60e-6, 120e-6)), steps=min(spec.steps, 40),
                       step_s=float(rng.uniform(0.05, 0.2)),
                       shape={**spec.shape, "small": int(rng.choice([60, 120, 200]))})  # fmt: skip
    if fault == "late_entry":
        spec = replace(spec, steps=int(rng.integers(5, 13)))
    if fault in ("launch_all", "launch_one"):
        spec = replace(spec, sync_every=1)
    return spec


#: Strength to begin with, in seconds for each second of a step's compute; of others .3 of itself.
_STARTS = {SlowInput: 0.2, Pauses: 1.0, Checkpoint: 1.0, NoCore: 0.2, LateEntry: 1.0}


def _scaled(case: Case, fault: Fault, target: float) -> Fault:
    """The fault as strong as it must be to cost about `target`: a few secant steps, then taken."""
    if isinstance(fault, ManySmall):
        return fault
    start = _STARTS.get(type(fault))
    strength = start * case.spec.step_s if start else 0.3
    none = run(case.stack, case.spec, World()).took_s
    for _ in range(4):
        fault = replace(fault, strength=strength)
        with_it = run(case.stack, case.spec, World((fault,))).took_s
        loss = (with_it - none) / with_it
        if abs(loss - target) < 0.02:
            break
        share = (target / (1 - target)) / max(loss / (1 - loss), 1e-3)
        strength *= float(np.clip(share, 0.2, 5.0))
    return fault
