"""All-reduces measured with nccl-tests on NVLink and across nodes, and simulated without a fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from evenstep.reproduce.published.rows import PublishedRow, System
from evenstep.scenario import scenario as scenarios
from evenstep.simulate.result import CollectiveUse
from evenstep.simulate.simulation import simulate
from evenstep.trace.spool.files import read_toml

MIB = 2**20
_MEASURED: Mapping[str, Any] = read_toml(Path(__file__).with_name("measured.toml"))
NVLS_US = {int(mib) * MIB: us for mib, us in _MEASURED["nvls"].items()}


class Pair(NamedTuple):
    """A measured bus bandwidth in GB/s, and the machines: a preset with some settings changed."""

    what: str
    measured: float
    preset: str
    nodes: int
    mib: int
    sets: Sequence[str] = ()
    note: str = ""
    modelled: bool = True  # as `PublishedRow`


SEVERAL = [Pair(**row) for row in _MEASURED["several"]]
P5 = [
    Pair(f"{8 * int(nodes)} H100, {nodes} p5 nodes, {int(mib):,} MiB", measured, "p5", int(nodes),
         int(mib), modelled=False)
    for nodes, row in _MEASURED["p5"].items() for mib, measured in row.items()
]  # fmt: skip


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
        found = simulated_collective(pair.preset, pair.nodes, pair.mib * MIB, pair.sets)
        reached = found.busbw_gBps or 0.0
        rows.append(PublishedRow(pair.what, pair.measured, reached, "GB/s",
                                 modelled=pair.modelled, note=pair.note))  # fmt: skip
    return System.of(key, rows)


def simulated_collective(
    preset: str, nodes: int, size_bytes: int, more: Sequence[str] = ()
) -> CollectiveUse:
    """An all-reduce over all GPUs of so many machines of a preset, or what `more` says."""
    sets = [f"preset={preset}", f"cluster.nodes={nodes}", "work.kind=collective",
            f"work.gradient_bytes={size_bytes}", "run.steps=1", *more]  # fmt: skip
    return simulate(scenarios.parse({}, sets)).collectives[0]
