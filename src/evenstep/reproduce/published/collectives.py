"""All-reduce on NVLink and across nodes, measured with nccl-tests."""

from __future__ import annotations

import math

from evenstep.allreduce import Link, bus_factor, bus_gBps, in_switch, pipelined_ns, ring
from evenstep.reproduce.published.rows import Fitted, PublishedRow, System
from evenstep.scenario import scenario as scenarios
from evenstep.simulate.result import CollectiveUse
from evenstep.simulate.simulation import simulate

MIB, GIB = 2**20, 2**30

#: µs per all-reduce of 8 H100 with NVLS, by bytes (NVIDIA, nccl-tests output).
NVLS_US = {
    MIB: 27.37, 4 * MIB: 54.2, 16 * MIB: 123.8, 64 * MIB: 324.7, 128 * MIB: 586.4,
    512 * MIB: 2151.0, GIB: 4029.4, 8 * GIB: 31307.0,
}  # fmt: skip
#: NCCL's own figure for one NVLink in one direction, GB/s (nccl src/graph/topo.h), and links a GPU.
NVLINK_GBPS = {"A100": 20.0, "H100": 20.6}
NVLINKS = {"A100": 12, "H100": 18}
#: GB/s of bus bandwidth on two nodes of eight, by the preset they are (NVIDIA/nccl issues).
NODE_PAIRS = {
    ("dgx-h100", 16 * GIB): 465.0, ("dgx-h100", GIB): 446.0, ("dgx-a100", 8 * GIB): 238.0,
}  # fmt: skip
#: What a NIC carries of its nominal speed: 24 of 25 GB/s (NVIDIA/nccl issue 1048).
NIC_SHARE = 0.96


def nvls_fit() -> tuple[float, float]:
    """Latency in ns and GB/s of (√α + √(wire bytes/B))², through the smallest and largest row."""
    small, large = MIB, 8 * GIB
    slope = math.sqrt(NVLS_US[large] * 1e3) - math.sqrt(NVLS_US[small] * 1e3)
    slope /= math.sqrt(_nvls_wire(large, 8)) - math.sqrt(_nvls_wire(small, 8))
    latency = (math.sqrt(NVLS_US[small] * 1e3) - slope * math.sqrt(_nvls_wire(small, 8))) ** 2
    return latency, 1 / slope**2


def nvls_ns(size_bytes: float, *, latency_ns: float, gBps: float, ranks: int = 8) -> float:  # noqa: N803
    """In-switch all-reduce within a node, in pieces of the best size."""
    return pipelined_ns(_nvls_wire(size_bytes, ranks) / gBps, latency_ns)


def _nvls_wire(size_bytes: float, ranks: int) -> float:
    """Bytes that leave a GPU: its data once, and what it owns of the result."""
    return in_switch(size_bytes, ranks, Link(1.0)).transfer_ns


def nvls() -> System:
    """8 H100 on NVSwitch with in-switch reduction."""
    latency, speed = nvls_fit()
    rows = [
        PublishedRow(f"all-reduce of {size // MIB:,} MiB", measured, nvls_ns(
            size, latency_ns=latency, gBps=speed) / 1e3, "µs", fitted=size in (MIB, 8 * GIB))
        for size, measured in NVLS_US.items()
    ]  # fmt: skip
    rows.append(PublishedRow("bus bandwidth of the ring", 370.0,
                    NVLINKS["H100"] * NVLINK_GBPS["H100"], "GB/s",
                    note="18 links at NCCL's own figure; nothing fitted"))  # fmt: skip
    return System(
        name="8× H100, one node, NVLS",
        source="NVIDIA, nccl-tests",
        model="t = (√α + √(S(n+1)/(nB)))², in-switch reduction in pieces of the best size",
        inputs=["NVLink: 18 × 20.6 GB/s in each direction (NCCL topo.h)"],
        fitted=[Fitted("α", latency / 1e3, "µs"), Fitted("B", speed, "GB/s")],
        rows=rows,
        limits="At 64 and 128 MiB it is 7 % too slow; NCCL's changes of protocol are not in it.",
    )


def peaks() -> System:
    """Two and three nodes of A100 and H100."""
    latency, _ = nvls_fit()
    large = 16 * GIB
    peak = NODE_PAIRS["dgx-h100", large]
    speed = _solve(bus_factor("all_reduce", 16) * large / peak, latency, _nvls_wire(large, 8))
    tree = 15 / 16 * NVLINKS["A100"] * NVLINK_GBPS["A100"]
    small_nodes = [_ring_bus(size, 8, 4 * 50.0, latency) for size in (16 * MIB, 256 * MIB)]
    rows = [
        PublishedRow("16 H100, 2 nodes, 8×400G, 16 GiB", peak, peak, "GB/s", fitted=True),
        PublishedRow("16 H100, 2 nodes, 8×400G, 1 GiB", NODE_PAIRS["dgx-h100", GIB], bus_gBps(
            GIB, 16, nvls_ns(GIB, latency_ns=latency, gBps=speed)), "GB/s"),
        PublishedRow("16 A100, 2 nodes, 8×200G, 8 GiB", NODE_PAIRS["dgx-a100", 8 * GIB],
            min(tree, 15 / 8 * 200 * NIC_SHARE), "GB/s",
            note="a chain in each node carries the data up and down: half of 240 GB/s"),
        PublishedRow(
            "24 A100, 3 nodes, 4×200G, peak", 96.0, 4 * 25 * NIC_SHARE, "GB/s", note="ring"),
        PublishedRow("16 A100, 2 nodes, 8×100G RoCE", 75.0, 8 * 12.5 * NIC_SHARE, "GB/s",
            note="ring; NCCL's maintainers call the measurement low (NVIDIA/nccl issue 495)"),
        PublishedRow("8 H100 as 2×4, 4×400G, 16 MiB", 120.0, small_nodes[0], "GB/s", note="ring"),
        PublishedRow("8 H100 as 2×4, 4×400G, 256 MiB", 159.0, small_nodes[1], "GB/s", fitted=True,
            note="decides that the ring's bound holds there, not the two-node tree's"),
    ]  # fmt: skip
    return System(
        name="two and three nodes, NCCL",
        source="NVIDIA/nccl and nccl-tests issues 119, 495, 1357; NVIDIA",
        model="the slowest stage of a pipeline: NVLink in the node, or the NICs (ring: "
              "2S(n−1)/n over all NICs; two nodes by tree: S over all NICs)",
        inputs=["NIC: 96 % of nominal (24 of 25 GB/s, NVIDIA/nccl issue 1048)",
                "A100 NVLink: 12 × 20 GB/s (NCCL topo.h)", "α as on one node of H100"],
        fitted=[Fitted("B, NVLS over two nodes", speed, "GB/s")],
        rows=rows,
        limits="The RoCE cluster reaches 75 % of its NICs and no input says why. NVLS over two "
               "nodes is slower than on one for reasons the closed form does not know, hence its "
               "own number; the 2×4 nodes should profit from a tree and do not.",
    )  # fmt: skip


def simulated() -> list[PublishedRow]:
    """The rows whose machine has a preset, simulated with nothing fitted."""
    rows = [
        PublishedRow(f"8 H100, {size // MIB:,} MiB", measured,
                     _simulated("dgx-h100", 1, size).alone_ns / 1e3, "µs")
        for size, measured in NVLS_US.items()
    ]  # fmt: skip
    for (preset, size), measured in NODE_PAIRS.items():
        found = _simulated(preset, 2, size).busbw_gBps or 0.0
        rows.append(
            PublishedRow(f"16 GPUs, {preset}, {size // MIB:,} MiB", measured, found, "GB/s")
        )
    return rows


def _simulated(preset: str, nodes: int, size_bytes: int) -> CollectiveUse:
    sets = [f"preset={preset}", f"cluster.nodes={nodes}", "work.kind=collective",
            f"work.gradient_bytes={size_bytes}", "run.steps=1"]  # fmt: skip
    return simulate(scenarios.parse({}, sets)).collectives[0]


def _ring_bus(size_bytes: float, ranks: int, node_gbps: float, latency_ns: float) -> float:
    """Bus bandwidth of a ring over all NICs of a node, pipelined."""
    transfer_ns = ring(size_bytes, ranks, Link(node_gbps * NIC_SHARE)).transfer_ns
    return bus_gBps(size_bytes, ranks, pipelined_ns(transfer_ns, latency_ns))


def _solve(time_ns: float, latency_ns: float, wire_bytes: float) -> float:
    """The bandwidth with which `wire_bytes` take `time_ns` in pieces of the best size."""
    return wire_bytes / (math.sqrt(time_ns) - math.sqrt(latency_ns)) ** 2
