"""All-reduces measured with nccl-tests on NVLink and across nodes, and simulated without a fit."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from evenstep.reproduce.published.rows import PublishedRow, System
from evenstep.scenario import scenario as scenarios
from evenstep.simulate.result import CollectiveUse
from evenstep.simulate.simulation import simulate

MIB, GIB = 2**20, 2**30

#: µs per all-reduce of 8 H100 with NVLS, by bytes (NVIDIA, nccl-tests output).
NVLS_US = {
    MIB: 27.37, 4 * MIB: 54.2, 16 * MIB: 123.8, 64 * MIB: 324.7, 128 * MIB: 586.4,
    512 * MIB: 2151.0, GIB: 4029.4, 8 * GIB: 31307.0,
}  # fmt: skip


class Pair(NamedTuple):
    """A measured bus bandwidth in GB/s, and the machines: a preset with some settings changed."""

    what: str
    measured: float
    preset: str
    nodes: int
    size_bytes: int
    sets: tuple[str, ...] = ()
    note: str = ""


_TREE = ("cluster.gpus_per_node=4", "cluster.nics_per_node=4", "collectives.nccl_algo=tree")
_RING = "collectives.nccl_algo=ring"
SEVERAL = (
    Pair("16 H100, 2 nodes, 8×400G, 16 GiB", 465.0, "dgx-h100", 2, 16 * GIB),
    Pair("16 H100, 2 nodes, 8×400G, 1 GiB", 446.0, "dgx-h100", 2, GIB),
    Pair("32 H100, 4 nodes, RoCE, 8 GiB", 320.0, "dgx-h100", 4, 8 * GIB),
    Pair("1,984 H200, 248 nodes, 512 MiB", 350.0, "dgx-h100", 248, 512 * MIB,
         note="measured between 300 and 350"),
    Pair("16 A100, 2 nodes, 8×200G, 8 GiB", 238.0, "dgx-a100", 2, 8 * GIB),
    Pair("16 A100, 2 nodes, 8×200G, ring", 192.0, "dgx-a100", 2, 8 * GIB, (_RING,)),
    Pair("24 A100, 3 nodes, 4×200G, peak", 96.0, "dgx-a100", 3, 8 * GIB,
         ("cluster.nics_per_node=4",)),
    Pair("16 A100, 2 nodes, 8×100G RoCE", 75.0, "dgx-a100", 2, 8 * GIB,
         ("cluster.nic_gBps=12.5", _RING),
         "ring; NCCL's maintainers call the measurement low (NVIDIA/nccl issue 495)"),
    Pair("8 H100 as 2×4, tree, 16 MiB", 120.0, "dgx-h100", 2, 16 * MIB, _TREE),
    Pair("8 H100 as 2×4, tree, 256 MiB", 159.0, "dgx-h100", 2, 256 * MIB, _TREE),
)  # fmt: skip
#: Of 32, 128, 1,024 and 8,192 MiB on nodes of 8 H100 with EFA (nccl-tests on p5.48xlarge with the
#: AWS OFI tuner; crazyguitar/aws-gpu-communication-benchmark, CC BY 4.0).
P5 = tuple(
    Pair(f"{8 * nodes} H100, {nodes} p5 nodes, {size:,} MiB", measured, "p5", nodes, size * MIB)
    for nodes, row in (
        (2, (147.32, 305.13, 435.14, 477.71)), (8, (86.74, 156.33, 274.47, 355.36)),
        (32, (66.34, 115.78, 220.08, 321.10)),
    )
    for size, measured in zip((32, 128, 1024, 8192), row, strict=True)
)  # fmt: skip


@cache
def one_node() -> System:
    """8 H100 on NVSwitch."""
    rows = [
        PublishedRow(
            f"all-reduce of {size // MIB:,} MiB", measured,
            simulated_collective("dgx-h100", 1, size).alone_ns / 1e3, "µs",
        )
        for size, measured in NVLS_US.items()
    ]  # fmt: skip
    return System.of("nvls", rows)


@cache
def across_nodes(key: str) -> System:
    """Bandwidths between nodes: "several" of A100 and H100, or two to 32 "p5" of 8 H100."""
    rows = []
    for pair in {"several": SEVERAL, "p5": P5}[key]:
        found = simulated_collective(pair.preset, pair.nodes, pair.size_bytes, pair.sets)
        reached = found.busbw_gBps or 0.0
        rows.append(PublishedRow(pair.what, pair.measured, reached, "GB/s", note=pair.note))
    return System.of(key, rows)


def simulated_collective(
    preset: str, nodes: int, size_bytes: int, more: Sequence[str] = ()
) -> CollectiveUse:
    """An all-reduce over all GPUs of so many machines of a preset, or what `more` says."""
    sets = [f"preset={preset}", f"cluster.nodes={nodes}", "work.kind=collective",
            f"work.gradient_bytes={size_bytes}", "run.steps=1", *more]  # fmt: skip
    return simulate(scenarios.parse({}, sets)).collectives[0]
