"""Jobs of every stack, drawn at random: sizes, noise, fabric, and what the stack wants to know."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from benchmarks.independent.job import Spec

Rng = np.random.Generator


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


def _unmarked(rng: Rng, number: int, *, on_device: bool) -> Spec:
    """Programs that only communicate: nothing says where their steps and phases begin."""
    spec = _data_parallel(rng, number, on_device=on_device)
    shape = {**spec.shape, "bare": True, "norm": True}
    return replace(spec, blocking=True, shape=shape)


def _unmarked_tensor(rng: Rng, number: int, *, on_device: bool) -> Spec:
    spec = _tensor(rng, number, on_device=on_device)
    return replace(spec, shape={**spec.shape, "bare": True})


def _unmarked_pipeline(rng: Rng, number: int, *, on_device: bool) -> Spec:
    spec = _pipeline(rng, number, on_device=on_device)
    return replace(spec, shape={**spec.shape, "bare": True, "clip": True})


JOBS: dict[str, Callable[..., Spec]] = {
    "ddp": _data_parallel, "fsdp": _sharded, "tensor": _tensor,
    "hierarchical": _hierarchical, "moe": _experts, "pipeline": _pipeline,
    "unmarked": _unmarked, "unmarked_tensor": _unmarked_tensor,
    "unmarked_pipeline": _unmarked_pipeline,
}  # fmt: skip
