"""Options on a cluster: repairs, strategies, algorithms and layouts, as changed fields.

An option is a list of assignments to the scenario, which `evenstep simulate --set` repeats.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from itertools import chain
from typing import Any

from evenstep.pacing import CONTROLLERS
from evenstep.scenario import scenario as scenarios
from evenstep.scenario import schema
from evenstep.scenario.scenario import Scenario, nodes_in

LOCAL_STEPS = (4, 16)
BOUNDS = (1, 4)
SPARED_SHARE = 0.05  # of the ranks, at least one: backup workers of Chen et al. (2016)
MOST_PAIRS = 4096  # messages of a round of a parameter server or a direct exchange
RATIO = 0.25  # 8 bits of 32
#: Reading 32-bit gradients and writing 8 bits, then the reverse: 2.5 times their bytes, at
#: 500 GB/s, a third of an A100's memory bandwidth (1,555 GB/s, data sheet).
ENCODE_BYTES, ENCODE_GBPS = 2.5, 500.0

AGENT, LAUNCH, CODE, OPERATORS = "the agent", "the launch", "the training code", "the operators"


@dataclass(frozen=True, slots=True)
class DecisionOption:
    """One option. `sets`: assignments to the scenario with a synchronous strategy; `training`:
    whether it changes the training result."""

    name: str
    family: str  # repair, strategy, collective or layout
    sets: tuple[str, ...]
    training: bool
    by: str  # who applies it


def neutral(scenario: Scenario) -> dict[str, Any]:
    """The scenario's plain values with the synchronous strategy and no compression."""
    data = schema.plain(scenario)
    data.pop("strategy", None)
    data.setdefault("job", {})["ranks"] = scenario.ranks
    return data


def change(data: dict[str, Any], sets: tuple[str, ...]) -> Scenario:
    """A scenario from a copy of plain values, with assignments."""
    return scenarios.parse(deepcopy(data), sets)


#: Name and assignments of an option, whether it changes the training result, and who applies it.
OptionRow = tuple[str, tuple[str, ...], bool, str]


def options(scenario: Scenario) -> tuple[list[DecisionOption], list[str]]:
    """All options, the synchronous one first, and notes on what is not compared."""
    layouts, missing = _layouts(scenario)
    families: dict[str, Iterable[OptionRow]] = {
        "repair": _repairs(scenario),
        "strategy": chain(_as_written(scenario), _pacing_options(scenario), _looser(scenario)),
        "collective": _collectives(scenario),
        "layout": layouts,
    }
    found = [
        DecisionOption(name, family, sets, training, by)
        for family, rows in families.items()
        for name, sets, training, by in rows
    ]
    synchronous = DecisionOption("synchronous", "strategy", (), False, LAUNCH)
    return [synchronous, *found], _left_out(scenario) + missing


def _repairs(scenario: Scenario) -> Iterator[OptionRow]:
    """Slow GPUs or nodes replaced or left out, and links mended, where the scenario has such."""
    noises, cluster = schema.plain(scenario).get("noise", []), scenario.cluster
    slow = [noise for noise in scenario.noise if noise.kind == "slow"]
    kept = [given for given, noise in zip(noises, scenario.noise, strict=True) if noise not in slow]
    healthy = f"noise={schema.literal(kept)}"
    if slow:
        yield "slow GPU replaced", (healthy,), False, OPERATORS
        size, ranks = cluster.gpus_per_node, [noise.ranks or "0" for noise in slow]
        gone = {rank // size for named in ranks for rank in nodes_in(named, "noise.ranks")}
        left = scenario.ranks - len(gone) * size
        packed = all(noise.scope == "rank" for noise in slow) and scenario.ranks % size == 0
        if packed and scenario.work.kind == "ddp" and left > 0:
            yield "its node left out", (healthy, f"job.ranks={left}"), False, LAUNCH
    alike = [f"cluster.kinds.{n}.factor=1" for n, k in enumerate(cluster.kinds) if k.factor > 1]
    alike += ['cluster.slow_nodes=""'] if cluster.slow_nodes else []
    if alike:
        yield "slow nodes replaced", tuple(alike), False, OPERATORS
    if scenario.fabric.changes:
        yield "links mended", ("fabric.changes=[]",), False, OPERATORS


def _as_written(scenario: Scenario) -> Iterator[OptionRow]:
    """The scenario's own strategy, unless synchronous."""
    written = schema.plain(scenario).get("strategy", {})
    if written.get("kind", "synchronous") == "synchronous" and "compression" not in written:
        return
    sets = tuple(f"strategy.{name}={schema.literal(value)}" for name, value in written.items())
    training = scenario.strategy.kind != "paced"
    yield "as written", sets, training, AGENT if not training else CODE


def _pacing_options(scenario: Scenario) -> Iterator[OptionRow]:
    """Every controller of pacing, with the scenario's own bounds where given."""
    written = schema.plain(scenario).get("strategy", {})
    bounds = ("objective", "max_delay", "imbalance", "sharing")
    kept = tuple(f"strategy.{n}={schema.literal(written[n])}" for n in bounds if n in written)
    for name in CONTROLLERS:
        sets = ("strategy.kind=paced", f"strategy.controller={name}", *kept)
        yield f"paced, {name}", sets, False, AGENT


def _looser(scenario: Scenario) -> Iterator[OptionRow]:
    """Strategies that wait less, for data parallel work."""
    work = scenario.work
    if scenario.ranks < 2:
        return
    if work.kind in ("ddp", "tensor", "pipeline", "experts"):
        for every in LOCAL_STEPS:
            sets: tuple[str, ...] = ("strategy.kind=local_sgd", f"strategy.every={every}")
            yield f"local SGD, every {every}", sets, True, CODE
    if _compressible(scenario):
        yield _compression_option(scenario)
    if work.kind != "ddp":
        return
    served = _parameter_servers(scenario)
    for bound in BOUNDS:
        sets = ("strategy.kind=stale_synchronous", f"strategy.bound={bound}", *served)
        yield f"stale synchronous, {bound}", sets, True, CODE
    yield "asynchronous", ("strategy.kind=asynchronous", *served), True, CODE
    spared = max(1, round(SPARED_SHARE * scenario.ranks))
    for kind in ("backup_workers", "partial_reduce"):
        sets = (f"strategy.kind={kind}", f"strategy.backups={spared}")
        yield f"{kind.replace('_', ' ')}, {spared}", sets, True, CODE
    if work.overlap and not work.overlap_slowdown and work.buckets > 1:
        yield "priority buckets", ("strategy.kind=priority",), False, CODE


def _compressible(scenario: Scenario) -> bool:
    """Whether there are gradients to compress."""
    return bool(scenario.work.gradient_bytes) and scenario.work.kind != "collective"


def _parameter_servers(scenario: Scenario) -> tuple[str, ...]:
    """Parameter servers: the scenario's, else one for each card."""
    if scenario.collectives.algorithm == "server":
        return ()
    cards = -(-scenario.ranks // scenario.cluster.gpus_per_node) * scenario.cluster.nics_per_node
    servers = max(1, min(cards, scenario.ranks, MOST_PAIRS // scenario.ranks))
    return ("collectives.algorithm=server", f"collectives.servers={servers}")


def _compression_option(scenario: Scenario) -> OptionRow:
    """Compression as in the scenario, else to 8 bits."""
    own = scenario.strategy
    ratio = own.compression if own.compression < 1 else RATIO
    encode_ms = own.encode_ms
    if own.compression == 1:
        encode_ms = scenario.work.gradient_bytes * ENCODE_BYTES / ENCODE_GBPS / 1e6
    sets = (f"strategy.compression={ratio:g}", f"strategy.encode_ms={encode_ms:.4g}")
    return f"compressed to {100 * ratio:g} %", sets, True, CODE


def _collectives(scenario: Scenario) -> Iterator[OptionRow]:
    """Algorithms of the all-reduce, and a ring in topology order."""
    if scenario.ranks < 2 or scenario.work.kind in ("fsdp", "experts"):
        return
    for name in _algorithms(scenario):
        servers = _parameter_servers(scenario) if name == "server" else None
        sets = (f"collectives.algorithm={name}",) if servers is None else servers
        yield f"{name.replace('_', ' ')} all-reduce", sets, False, LAUNCH
    ring = ("collectives.algorithm=ring", "collectives.order=topology")
    yield "ring in order of place", ring, False, LAUNCH


def _algorithms(scenario: Scenario) -> Iterator[str]:
    cluster, ranks = scenario.cluster, scenario.ranks
    several = ranks > cluster.gpus_per_node
    yield from ("ring", "tree", "halving_doubling")
    if several and cluster.gpus_per_node > 1:
        yield "hierarchical"
    if not several and cluster.gpu_link_reduces:
        yield "nvls"
    if ranks * ranks <= MOST_PAIRS:
        yield "direct"
    served = _parameter_servers(scenario)
    if f"collectives.servers={ranks}" not in served:  # else each to each, as direct
        yield "server"


# -- layouts ---------------------------------------------------------------------------------------


def _layouts(scenario: Scenario) -> tuple[list[OptionRow], list[str]]:
    """dp × tp × pp of the same global batch: powers of two, tensor parallel within a node."""
    work = scenario.work
    if work.kind not in ("ddp", "tensor", "pipeline") or scenario.ranks < 2:
        return [], []
    if not work.message_bytes:
        return [], [
            "layouts (dp × tp × pp) are not compared: give work.message_bytes, the activations "
            "between two layers of one rank's batch, and work.layers"
        ]
    layers = work.layers or (work.buckets if work.kind == "tensor" else 0)
    if not layers:
        return [], ["layouts (dp × tp × pp) are not compared: give work.layers"]
    own = (work.tensor_parallel, work.pipeline_parallel) if work.kind != "ddp" else (1, 1)
    pairs = [
        (tensor, stages)
        for stages in _powers(min(layers, scenario.ranks))
        for tensor in _powers(scenario.cluster.gpus_per_node)
        if scenario.ranks % (tensor * stages) == 0 and (tensor, stages) != own
    ]
    return [_layout(scenario, layers, own, *pair) for pair in pairs], [
        "layouts: memory is not modelled; whether a layout fits is not said"
    ]


def _powers(most: int) -> list[int]:
    return [1 << k for k in range(most.bit_length()) if 1 << k <= min(most, 16)]


def _layout(
    scenario: Scenario, layers: int, own: tuple[int, int], tensor: int, stages: int
) -> OptionRow:
    """The same batch and compute of each rank in another layout; exchanged bytes change.

    A replica of t·p ranks works on t·p ranks' batches; its parameters are spread over them.
    """
    work = scenario.work
    split, before = tensor * stages, own[0] * own[1]
    micro = max(1, round(work.micro_batches * split / before)) if stages > 1 else 1
    batches = (work.micro_batches if work.kind == "pipeline" else 1) * split / before
    sets = [
        f"work.tensor_parallel={tensor}",
        f"work.pipeline_parallel={stages}",
        f"work.gradient_bytes={round(work.gradient_bytes * before / split)}",
        f"work.message_bytes={max(1, round(work.message_bytes * batches / micro))}",
        f"work.layers={layers}",
        f"work.micro_batches={micro}",
    ]
    if stages > 1:
        sets.append("work.kind=pipeline")
    elif tensor > 1:
        sets += ["work.kind=tensor", f"work.buckets={layers}"]
    else:
        sets.append("work.kind=ddp")
    return f"dp {scenario.ranks // split} × tp {tensor} × pp {stages}", tuple(sets), False, CODE


def _left_out(scenario: Scenario) -> list[str]:
    """Notes on strategies that do not apply to this work, and on assumptions."""
    found = []
    if _compressible(scenario) and scenario.strategy.compression == 1:
        found.append(
            f"compressed: 8 of 32 bits, encoded and decoded at {ENCODE_GBPS:g} GB/s of memory "
            "traffic, is an assumption; give strategy.compression and strategy.encode_ms"
        )
    if scenario.work.kind != "ddp":
        found.append(
            f"work.kind {scenario.work.kind!r}: strategies that do not wait for every gradient "
            "are compared for ddp only"
        )
    elif scenario.neighbours:
        found.append("stale synchronous and asynchronous: neighbours' load is not modelled there")
    return found
