"""A scenario: cluster, fabric, job, and disturbances. One TOML file.

Contradictions between fields, such as more ranks than GPUs, are checked when a `Scenario` is made.
"""

# ruff: noqa: RUF009 - the fields of a settings class are made by functions of `schema`

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evenstep.errors import ConfigError
from evenstep.scenario import parts, schema
from evenstep.scenario.hardware import Cluster, Fabric, NodeKind
from evenstep.scenario.schema import table, tables, text
from evenstep.trace.ranks import parse_ranks
from evenstep.trace.spool.files import read_toml
from evenstep.values import refusal

MOST_NUMA_NODES = 64  # of a machine
MOST_GPUS = 1_000_000  # of a cluster: what a machine's memory holds
MOST_PASSES = 1_000_000  # of a step's micro-batches through layers or stages: likewise
AVERAGING = ("local_sgd", "diloco")  # strategies that average parameters every few steps
UNSYNCHRONISED = ("asynchronous", "stale_synchronous")  # whose exchanges wait for no other rank
SPARING = ("backup_workers", "partial_reduce")  # that leave the latest ranks out
SPLITS = (  # fields of `work` without which it would be another job
    *("tensor_parallel", "pipeline_parallel", "context_parallel", "expert_parallel"),
    *("interleaved", "shard_ranks", "micro_batches"),
)
#: Fields without any of which a table is not accounted for.
_NEEDED = {
    "energy": [f"{state}_watts" for state in ("compute", "communicate", "spin_wait", "node_share")]
    + ["price_per_hour"],
    "reliability": ["failures_per_1000_node_days", "parts", "slow_nodes_per_1000_node_days"],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """The input of a simulation. Raises `ConfigError` where fields contradict each other."""

    name: str = text("", "what it is called")
    cluster: Cluster = table(Cluster, "the machines")
    fabric: Fabric = table(Fabric, "the network between them")
    job: parts.Job = table(parts.Job, "the ranks and where they are")
    work: parts.Work = table(parts.Work, "one training step")
    collectives: parts.Collectives = table(parts.Collectives, "how collectives are carried out")
    noise: tuple[parts.Noise, ...] = tables(parts.Noise, "what makes steps differ")
    neighbours: tuple[parts.Neighbour, ...] = tables(
        parts.Neighbour, "other jobs on the same fabric"
    )
    strategy: parts.Strategy = table(parts.Strategy, "how ranks keep together")
    energy: parts.Energy = table(parts.Energy, "power and price")
    reliability: parts.Reliability = table(parts.Reliability, "failures and checkpoints")
    run: parts.Run = table(parts.Run, "how long, and from which seed")

    def __post_init__(self) -> None:
        _check_cluster(self.cluster)
        _check_fabric(self)
        _check_neighbours(self)
        _check_job(self)
        _check_work(self)
        _check_noise(self)
        _check_parts(self)

    @property
    def replica_ranks(self) -> int:
        """Ranks of one replica of the model."""
        work = self.work
        return work.tensor_parallel * work.context_parallel * work.pipeline_parallel

    @property
    def ranks(self) -> int:
        if self.job.ranks:
            return self.job.ranks
        if self.job.placement == "given":
            return len(nodes_in(self.job.nodes, "job.nodes")) * self.cluster.gpus_per_node
        taken = {n for other in self.neighbours for n in nodes_in(other.nodes, "neighbours.nodes")}
        drawn = sum(other.node_count for other in self.neighbours)
        free = self.cluster.nodes - len(taken) - drawn
        return max(free, 0) * self.cluster.gpus_per_node


def without_effect(scenario: Scenario) -> Iterator[str]:
    """What is set but changes nothing, each as a sentence."""
    yield from schema.unused_settings(scenario)
    for index, noise in enumerate(scenario.noise):
        if noise.first_step >= scenario.run.steps:
            yield (f"noise[{index}] has no effect: its first_step is {noise.first_step}, and the "
                   f"last of run.steps is {scenario.run.steps - 1}")  # fmt: skip
    for place, needs in _NEEDED.items():
        settings = getattr(scenario, place)
        given = [n for n in schema.plain(settings) if not schema.no_part_of(settings, n)]
        if given and not set(given) & set(needs):
            names = " and ".join(f"{place}.{name}" for name in given)
            yield f"{names} without effect: give {' or '.join(needs)}"
    for name, has_effect, remedy in _conditions(scenario):
        place, _, field = name.partition(".")
        settings = getattr(scenario, place)
        if not has_effect and field in schema.plain(settings):
            yield f"{name} without effect: {remedy}"
    if scenario.neighbours and scenario.strategy.kind in UNSYNCHRONISED:
        yield (f"neighbours do not slow the job: with strategy.kind {scenario.strategy.kind} an "
               "exchange takes as long as without other traffic")  # fmt: skip


def _conditions(scenario: Scenario) -> Iterator[tuple[str, object, str]]:
    """Fields with what they need of other tables, or of the step as a whole, and the remedy."""
    work, kind = scenario.work, scenario.strategy.kind
    is_pipeline, sends = work.kind == "pipeline", kind not in AVERAGING or work.kind != "ddp"
    inside = max(work.tensor_parallel, work.context_parallel, work.expert_parallel) > 1
    yield "cluster.storage_gBps", work.input_bytes, "give work.input_bytes"
    yield "work.input_bytes", scenario.cluster.storage_gBps, "give cluster.storage_gBps"
    yield "fabric.incast_goodput", scenario.neighbours, "give neighbours"
    given = scenario.reliability
    accounted = any(getattr(given, name) for name in _NEEDED["reliability"])
    broken = given.failures_per_1000_node_days * given.node_share
    lasts = broken or any(part.hardware for part in given.parts)
    for name in ("repair_h", "spares"):
        yield f"reliability.{name}", lasts or not accounted, "no failure takes a node out"
    messages = work.pipeline_parallel > 1 or work.expert_parallel > 1 or work.kind == "experts"
    own = scenario.collectives.algorithm != "nccl" or messages or work.operation == "all_to_all"
    why = "collectives.algorithm nccl has NCCL's latencies"
    yield "cluster.gpu_link_latency_us", own, why
    yield "work.expert_parallel", work.layers, "give work.layers"
    if is_pipeline:
        sent, imbalanced = work.pipeline_parallel > 1 or inside, work.expert_parallel > 1
        widths = "work.tensor_parallel, context_parallel or expert_parallel"
        yield "work.layers", inside, f"give {widths}"
        yield "work.message_bytes", sent, "give work.pipeline_parallel"
        yield "work.expert_imbalance", imbalanced, "give work.expert_parallel"
    for name in ("buckets", "overlap", "overlap_slowdown"):
        yield f"work.{name}", sends, f"strategy.kind {kind} exchanges no gradients"
    why = "machines of fabric.kind torus are linked to each other, without cards"
    for name in ("nic_latency_us", "gpu_nics", "gpus_per_pcie_switch", "numa_gBps"):
        yield f"cluster.{name}", scenario.fabric.kind != "torus", why


def load(path: Path, assignments: Sequence[str] = ()) -> Scenario:
    """A scenario from its file, with `a.b=c` assignments."""
    data = read(path)
    with named(path):
        return parse(data, assignments)


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Name the scenario's file in a `ConfigError`."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def read(path: Path) -> dict[str, Any]:
    """The plain values of a scenario's file."""
    try:
        return read_toml(path)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}; name a scenario file") from error


def parse(data: dict[str, Any], assignments: Sequence[str] = ()) -> Scenario:
    """A scenario from plain values, over those of the presets it names."""
    from evenstep.scenario import presets

    for assignment in assignments:
        schema.assign(data, assignment)
    return schema.read(Scenario, presets.merge_presets(data))


def nodes_in(ranges: str, place: str) -> tuple[int, ...]:
    """Numbers in text such as "0-3,8", in the order given. Raises `ConfigError`."""
    try:
        found = parse_ranks(ranges.replace(" ", ""))
    except ValueError:
        raise refusal(place, 'ranges of whole numbers such as "0-3,8"', ranges) from None
    if len(set(found)) < len(found):
        raise ConfigError(f"{place} is {ranges!r}, which names a number twice; name each once")
    return found


# -- checks; each raises `ConfigError` that names the field and what to do -------------------------


def _check_cluster(cluster: Cluster) -> None:
    gpus = cluster.nodes * cluster.gpus_per_node
    if gpus > MOST_GPUS or cluster.nodes * cluster.nics_per_node > MOST_GPUS:
        raise ConfigError(
            f"cluster.nodes is {cluster.nodes} with {cluster.gpus_per_node} GPUs and "
            f"{cluster.nics_per_node} cards each; a cluster may have {MOST_GPUS:,} of either"
        )
    _check_layout(cluster, cluster, "cluster")
    different: set[int] = set()
    for index, kind in enumerate(cluster.kinds):
        place = f"cluster.kinds[{index}]"
        nodes = _ranges_within(kind.nodes, cluster.nodes, f"{place}.nodes", "nodes")
        if not nodes:
            raise ConfigError(f'{place}.nodes names no node; say which differ, as in "4-7"')
        if both := different.intersection(nodes):
            raise ConfigError(f"{place}.nodes names {min(both)}, which is of another kind already")
        different.update(nodes)
        for name, need in (("numa_gBps", "numa_gBps"), ("pcie_gBps", "gpus_per_pcie_switch")):
            if getattr(kind, name) and not getattr(cluster, need):
                raise ConfigError(
                    f"{place}.{name} needs cluster.{need}: what the others have there"
                )
        _check_layout(kind, cluster, place)
    _ranges_within(cluster.slow_nodes, cluster.nodes, "cluster.slow_nodes", "nodes")


def _check_layout(layout: Cluster | NodeKind, cluster: Cluster, place: str) -> None:
    """Check that a list of a layout has an entry for each part, within range."""
    gpus, cards = cluster.gpus_per_node, cluster.nics_per_node
    for name, number, what, limit in (
        ("gpu_nics", gpus, "GPUs", cards),
        ("gpu_numa", gpus, "GPUs", MOST_NUMA_NODES),
        ("nic_numa", cards, "cards", MOST_NUMA_NODES),
        ("core_numa", gpus, "GPUs", MOST_NUMA_NODES),
    ):
        given = getattr(layout, name)
        if given and len(given) != number:
            raise ConfigError(
                f"{place}.{name} has {len(given)} entries for {number} {what} of a node; give one "
                "for each"
            )
        if any(not 0 <= entry < limit or entry != int(entry) for entry in given):
            allowed = f"whole numbers from 0 to {limit - 1}"
            raise refusal(f"{place}.{name}", allowed, list(given))


def _ranges_within(ranges: str, limit: int, place: str, what: str) -> tuple[int, ...]:
    found = nodes_in(ranges, place)
    if found and max(found) >= limit:
        raise ConfigError(f"{place} names {max(found)}, but {what} are 0 to {limit - 1}")
    return found


def _check_fabric(scenario: Scenario) -> None:
    fabric, nodes = scenario.fabric, scenario.cluster.nodes
    if fabric.kind == "torus":
        whole = all(length >= 1 and length == int(length) for length in fabric.shape)
        if len(fabric.shape) not in (2, 3) or math.prod(fabric.shape) != nodes or not whole:
            raise ConfigError(
                f"fabric.shape must be two or three lengths whose product is cluster.nodes "
                f"({nodes}), found {list(fabric.shape)}"
            )
    for index, change in enumerate(fabric.changes):
        if change.gBps and change.factor != 1:
            raise ConfigError(
                f"fabric.changes[{index}] has factor and gBps; give the share of the capacity that "
                "is left or the capacity"
            )


def _check_job(scenario: Scenario) -> None:
    cluster, job = scenario.cluster, scenario.job
    gpus = cluster.nodes * cluster.gpus_per_node
    if job.placement == "given" and not job.nodes:
        raise ConfigError(
            'job.placement "given" needs job.nodes: which nodes, in order, as in "0-3,8"'
        )
    given = _ranges_within(job.nodes, cluster.nodes, "job.nodes", "nodes")
    if scenario.ranks > gpus:
        raise ConfigError(
            f"job.ranks is {scenario.ranks}, but the cluster has {gpus} GPUs "
            f"({cluster.nodes} nodes × {cluster.gpus_per_node}); ask for fewer or add nodes"
        )
    if scenario.ranks < 1:
        raise ConfigError("neighbours have all nodes; add nodes, or share theirs by job.ranks")
    if job.placement == "given" and len(given) * cluster.gpus_per_node < scenario.ranks:
        raise ConfigError(
            f"job.nodes gives {len(given) * cluster.gpus_per_node} GPUs for {scenario.ranks} ranks"
        )


def _check_work(scenario: Scenario) -> None:
    work, strategy = scenario.work, scenario.strategy
    for name in SPLITS:
        if getattr(work, name) not in (0, 1) and (reason := schema.no_part_of(work, name)):
            raise ConfigError(
                f"work.{name} is {getattr(work, name)}, which belongs to work.{reason}"
            )
    if work.kind in ("tensor", "experts") and work.message_bytes and work.tensor_parallel == 1:
        raise ConfigError(
            f"work.tensor_parallel is 1, but work.kind {work.kind} exchanges messages among at "
            "least 2 ranks that share a layer"
        )
    replicas = scenario.ranks // scenario.replica_ranks
    for name, size, whole, what in (
        ("work.tensor_parallel × work.context_parallel × work.pipeline_parallel",
         scenario.replica_ranks, scenario.ranks, "ranks"),
        ("work.expert_parallel", work.expert_parallel, replicas, "replicas"),
        ("work.shard_ranks", work.shard_ranks, scenario.ranks, "ranks"),
        ("strategy.island_ranks", strategy.island_ranks, scenario.ranks, "ranks"),
    ):  # fmt: skip
        if whole % (size or 1):
            fits = f"{max(whole // size, 1) * size} {what} would do"
            raise ConfigError(f"{name} is {size}, which does not divide {whole} {what}; {fits}")
    _check_schedule(work)
    if work.kind == "fsdp":
        _check_sharded(work, strategy, scenario.ranks)
    if work.sequence_lengths and min(work.sequence_lengths) <= 0:
        raise refusal("work.sequence_lengths", "lengths above 0", list(work.sequence_lengths))
    _check_strategy(scenario)
    if scenario.run.warm_up >= scenario.run.steps:
        raise ConfigError(
            f"run.warm_up is {scenario.run.warm_up}; it must be below run.steps, "
            f"{scenario.run.steps}"
        )


def _check_schedule(work: parts.Work) -> None:
    chunks = work.pipeline_parallel * work.interleaved
    if 0 < work.layers < chunks:
        raise ConfigError(
            f"work.layers is {work.layers}, too few for the {chunks} parts of the model: each of "
            f"the {work.pipeline_parallel} stages has {work.interleaved}"
        )
    parts = work.buckets if work.kind == "fsdp" else chunks
    if work.micro_batches * parts > MOST_PASSES:
        raise ConfigError(
            f"work.micro_batches is {work.micro_batches} and the model has {parts} parts: a step "
            f"may have {MOST_PASSES:,} passes of micro-batches through them"
        )
    if work.schedule == "zero_bubble" and work.interleaved > 1:
        raise ConfigError('work.schedule "zero_bubble" has one chunk a stage: work.interleaved 1')
    if work.interleaved > 1 and work.micro_batches % work.pipeline_parallel:
        raise ConfigError(
            f"work.interleaved is {work.interleaved}, which needs work.micro_batches to be a "
            f"multiple of the {work.pipeline_parallel} stages, found {work.micro_batches}"
        )


def _check_strategy(scenario: Scenario) -> None:
    work, strategy = scenario.work, scenario.strategy
    if work.kind == "collective" and strategy.kind in AVERAGING:
        raise ConfigError(
            f'strategy.kind "{strategy.kind}" averages parameters, but work.kind "collective" '
            "trains nothing"
        )
    if strategy.kind == "priority" and (
        work.kind != "ddp" or not work.overlap or work.overlap_slowdown
    ):
        raise ConfigError(
            'strategy.kind "priority" orders the buckets that backward leaves: it needs work.kind '
            '"ddp" with work.overlap, and work.overlap_slowdown 0'
        )
    apart = work.shard_ranks if work.kind == "fsdp" else scenario.replica_ranks
    if strategy.kind in AVERAGING and strategy.island_ranks not in (0, apart) and apart > 1:
        raise ConfigError(
            f"strategy.island_ranks is {strategy.island_ranks}, but the parts of a replica are "
            f"{apart} ranks"
        )
    if strategy.backups >= (replicas := scenario.ranks // scenario.replica_ranks):
        what = "ranks" if scenario.replica_ranks == 1 else "replicas"
        raise ConfigError(
            f"strategy.backups is {strategy.backups}; it must be below the {replicas} {what}"
        )


def _check_sharded(work: parts.Work, strategy: parts.Strategy, ranks: int) -> None:
    """Ranks that hold parts of a replica cannot go on without one another."""
    averages = strategy.kind in AVERAGING
    if averages and work.shard_ranks in (0, ranks):
        raise ConfigError(
            f'strategy.kind "{strategy.kind}" averages replicas, of which there is one: of '
            f'work.kind "fsdp" give work.shard_ranks below the {ranks} ranks'
        )
    if not averages and strategy.kind not in ("synchronous", "paced", "priority"):
        raise ConfigError(
            f'strategy.kind "{strategy.kind}" lets a rank go on without others, but those of '
            f'work.kind "fsdp" hold parts of its parameters'
        )


def _check_noise(scenario: Scenario) -> None:
    for index, noise in enumerate(scenario.noise):
        place = f"noise[{index}]"
        _ranges_within(noise.ranks, scenario.ranks, f"{place}.ranks", "ranks")
        if 0 < noise.last_step < noise.first_step:
            raise ConfigError(f"{place}.last_step is {noise.last_step}, before its first_step")
        if noise.kind == "daemon" and noise.delay_ms >= noise.period_ms:
            raise ConfigError(
                f"{place}.delay_ms is {noise.delay_ms:g} and its period_ms {noise.period_ms:g}: a "
                "daemon that always runs leaves no time for a step"
            )
        if noise.kind == "recorded" and (not noise.values or min(noise.values) <= 0):
            raise ConfigError(f"{place}.values must be factors above 0, for kind recorded")


def _check_neighbours(scenario: Scenario) -> None:
    for index, other in enumerate(scenario.neighbours):
        place = f"neighbours[{index}]"
        nodes = _ranges_within(other.nodes, scenario.cluster.nodes, f"{place}.nodes", "nodes")
        if len(nodes) < 2 and other.node_count < 2:
            raise ConfigError(
                f"{place} needs nodes or node_count: at least two nodes that exchange data"
            )
        if other.nodes and other.node_count:
            raise ConfigError(f"{place} has nodes and node_count; give one of them")
        if other.rate_gBps and other.responsive:
            raise ConfigError(
                f"{place}.rate_gBps is what it takes whatever others do: set responsive = false"
            )
        if not other.message_bytes:
            raise ConfigError(f"{place}.message_bytes must be above 0: it would never be over")


def _check_parts(scenario: Scenario) -> None:
    servers = scenario.collectives.servers
    if scenario.collectives.algorithm == "server" and servers > scenario.ranks:
        raise ConfigError(
            f"collectives.servers is {servers}, but only the {scenario.ranks} ranks can be servers"
        )
    names = [part.name for part in scenario.reliability.parts]
    for index, name in enumerate(names):
        if name == "node" or (name and name in names[:index]):
            raise ConfigError(
                f"reliability.parts[{index}].name {name!r} is taken; give every part its own name"
            )
