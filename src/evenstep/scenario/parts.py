"""The tables of a scenario besides hardware: job, work, noise, neighbours, strategy, run.

The meaning of every field is in its metadata.
"""

from __future__ import annotations

from dataclasses import dataclass

from evenstep.pacing import CONTROLLERS, OBJECTIVES
from evenstep.scenario.schema import choice, count, flag, number, numbers, size, tables, text

ALGORITHMS = (
    *("auto", "nccl", "ring", "tree", "halving_doubling"),
    *("hierarchical", "direct", "server", "nvls"),
)
PLACEMENTS = ("packed", "scattered", "random", "given")
SCHEDULES = ("1f1b", "gpipe", "zero_bubble")
WORKS = ("ddp", "fsdp", "collective", "tensor", "experts", "pipeline")
OPERATIONS = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast")
PHASES = ("compute", "model", "input", "forward", "backward", "optimizer")
NOISES = (
    *("normal", "lognormal", "pareto", "hits", "daemon", "drift", "thermal"),
    *("slow", "rotating", "collector", "recorded"),
)
STRATEGIES = (
    *("synchronous", "paced", "local_sgd", "diloco", "stale_synchronous", "asynchronous"),
    *("backup_workers", "partial_reduce", "priority"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The ranks and where they are."""

    ranks: int = count(0, "ranks, one per GPU; 0: all GPUs no neighbour has")
    placement: str = choice(
        "packed", "nodes in order, dealt out over the leaves, at random, or those given", PLACEMENTS
    )
    nodes: str = text("", 'of given: the nodes, in order: "0-3,8"')


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One training step."""

    kind: str = choice("ddp", "what a step consists of", WORKS)
    input_ms: float = number(0.0, "loading a batch")
    input_bytes: int = size(0, "read by each rank from storage that all share")
    forward_ms: float = number(0.0, "forward of all micro-batches of a step; likewise backward")
    backward_ms: float = number(0.0, "of ddp, fsdp, tensor, experts and pipeline: backward")
    optimizer_ms: float = number(0.0, "of ddp, fsdp, tensor, experts and pipeline: optimizer")
    gradient_bytes: int = size(
        0, "gradients (of fsdp: parameters) exchanged in a step; of collective: each time"
    )
    buckets: int = count(
        1,
        "of ddp: parts they are exchanged in; of collective: how often; of fsdp, tensor and "
        "experts: layers",
        least=1,
        most=100_000,
    )
    overlap: bool = flag(True, "of ddp: exchange while backward goes on; else after it")
    overlap_slowdown: float = number(
        0.0,
        "of ddp with overlap and fsdp: how much longer compute takes while a collective is in "
        "flight",
    )
    operation: str = choice("all_reduce", "of collective: which", OPERATIONS)
    message_bytes: int = size(0, "of tensor and experts: one collective; of pipeline: activations")
    shard_ranks: int = count(0, "of fsdp: ranks that shard the parameters; 0: all, else replicas")
    tensor_parallel: int = count(
        1, "of tensor, experts and pipeline: ranks that share a layer", least=1
    )
    context_parallel: int = count(1, "of pipeline: ranks that share a sequence", least=1)
    key_share: float = number(
        0.25, "of context_parallel: bytes of keys and values over those of activations"
    )
    expert_parallel: int = count(
        1, "of pipeline: replicas that share the experts of a layer", least=1
    )
    expert_imbalance: float = number(
        0.0, "of experts and pipeline: how much more the busiest gets than the others, as a share"
    )
    pipeline_parallel: int = count(1, "of pipeline: stages", least=1)
    schedule: str = choice(
        "1f1b", "of pipeline: in what order stages take micro-batches", SCHEDULES
    )
    layers: int = count(
        0, "of pipeline: of the model, for the collectives within its stages; 0: not known, none"
    )
    micro_batches: int = count(
        1, "of ddp, fsdp and pipeline: in a step; gradients are accumulated", least=1, most=100_000
    )
    interleaved: int = count(
        1,
        "of pipeline: chunks of layers of a stage; above 1, micro_batches is a multiple of stages",
        least=1,
    )
    batch_spread: float = number(
        0.0, "standard deviation of a rank's share of the work, as sequence lengths cause it"
    )
    sequence_lengths: tuple[float, ...] = numbers(
        "lengths that samples have, each as often; every rank draws its samples anew in each step"
    )
    attention_share: float = number(
        0.0,
        "of sequence_lengths: share of forward and backward that grows with their square",
        high=1.0,
    )
    samples_per_rank: int = count(0, "samples a rank works through in a step; 0: not known")
    teraflop: float = number(
        0.0, "10^12 operations of a rank's step that the model asks for; 0: not known"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Collectives:
    """How collectives are carried out."""

    algorithm: str = choice(
        "auto", "auto: the fastest on this fabric at this size; nccl: what NCCL takes", ALGORITHMS
    )
    nccl_algo: str = choice(
        "", "of nccl: only this, as its variable NCCL_ALGO; empty: any",
        ("", "ring", "tree", "nvls", "nvls_tree"),
    )  # fmt: skip
    channels: int = count(
        0, "of auto, nccl, ring and tree: side by side; 0: one for each card of a node"
    )
    order: str = choice("rank", "of a ring: by rank, or by place", ("rank", "topology"))
    launch_us: float = number(0.0, "to start one, before its first byte")
    servers: int = count(1, "of server: ranks that hold the parameters", least=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """One thing that makes steps differ. Delays add up, factors multiply."""

    kind: str = choice("normal", "where the time goes", NOISES)
    phase: str = choice("compute", "what it makes longer; model: forward and backward", PHASES)
    scope: str = choice("rank", "who has it in common", ("rank", "node", "rack"))
    sigma: float = number(0.02, "of normal, lognormal and drift: relative standard deviation")
    alpha: float = number(2.5, "of pareto: tail index", low=1.0, above=True)
    scale: float = number(0.01, "of pareto: mean excess, as a share")
    probability: float = number(0.001, "of hits: in a step", high=1.0)
    delay_ms: float = number(10.0, "of hits, daemon and collector: one pause")
    period_ms: float = number(1000.0, "of daemon: between two runs", above=True)
    every: int = count(100, "of rotating and collector: steps between two", least=1)
    aligned: bool = flag(False, "of collector: all ranks pause in the same steps")
    ranks: str = text("", 'who is concerned, as in "3,8-11"; empty: all, and of slow: rank 0')
    factor: float = number(1.2, "of slow, rotating and thermal: how much longer", above=True)
    steps: float = number(200.0, "of drift and thermal: steps it takes to change", above=True)
    first_step: int = count(0, "begins here")
    last_step: int = count(0, "ends after this step; 0: never")
    values: tuple[float, ...] = numbers("of recorded: factors, drawn in any order")
    draws: int = count(1, "of recorded: factors drawn in a step; their mean counts", least=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """Another job on the same fabric."""

    name: str = text("", "what it is called")
    kind: str = choice(
        "periodic", "computes, then exchanges; or comes and goes", ("periodic", "bursty")
    )
    nodes: str = text("", 'its nodes, as in "8-15"; these may be the job\'s own')
    node_count: int = count(0, "or: how many nodes, drawn from those free")
    compute_ms: float = number(100.0, "of periodic: between two exchanges; of bursty: mean pause")
    message_bytes: int = size(
        100_000_000, "of periodic: all-reduced at a time; of bursty: mean of a burst"
    )
    responsive: bool = flag(True, "shares links fairly; else it takes its rate whatever others do")
    rate_gBps: float = number(  # noqa: N815
        0.0, "what it takes of each of its links when not responsive; 0: all of a card", low=0.0
    )
    jitter: float = number(0.01, "of periodic: standard deviation of its compute time, as a share")
    offset_ms: float = number(0.0, "when it begins")


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """How ranks keep together."""

    kind: str = choice("synchronous", "when ranks wait for one another", STRATEGIES)
    controller: str = choice("slack", "of paced: the rule", CONTROLLERS)
    objective: str = choice("throughput", "of paced: what the guard weighs", OBJECTIVES)
    max_delay: float = number(0.10, "of paced: longest delay, as a share of the step", high=0.5)
    imbalance: float = number(0.03, "of paced: slack below this is left alone", high=1.0)
    sharing: bool = flag(False, "of paced: the slowest rank's work is shared")
    guarded: bool = flag(True, "of paced: the guard may switch it off")
    every: int = count(1, "of local_sgd and diloco: steps between two averages", least=1)
    island_ranks: int = count(
        0, "of diloco: ranks that hold different parts of one replica, and average apart"
    )
    outer_ms: float = number(0.0, "of local_sgd and diloco: the outer optimizer")
    bound: int = count(0, "of stale_synchronous: steps a rank may be ahead")
    backups: int = count(0, "of backup_workers and partial_reduce: ranks not waited for")
    compression: float = number(
        1.0, "bytes sent over those of the gradients, or of the averages", high=1.0, above=True
    )
    encode_ms: float = number(0.0, "time to compress and expand these again, each time")


@dataclass(frozen=True, slots=True, kw_only=True)
class Energy:
    """What a GPU draws by what it does, and what it costs; 0 W in all states: not accounted."""

    compute_watts: float = number(0.0, "while it computes, loads input or is held")
    communicate_watts: float = number(0.0, "while it waits for a transfer")
    spin_wait_watts: float = number(0.0, "while it waits for other ranks")
    node_share_watts: float = number(0.0, "its part of processors, fans and network, at all times")
    pue: float = number(1.0, "all of it is multiplied by this, for cooling and supply", low=1.0)
    price_per_hour: float = number(0.0, "of one GPU")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A kind of part that fails."""

    name: str = text("", "what it is called")
    failures_per_million_hours: float = number(0.0, "of one of them")
    per_node: float = number(1.0, "how many a node has; below 1 for what nodes share")
    hardware: bool = flag(True, "its failure takes the node out until it is repaired")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reliability:
    """Failures and what is done about them; 0 failures: not accounted."""

    failures_per_1000_node_days: float = number(0.0, "interruptions of the job by its nodes")
    parts: tuple[Part, ...] = tables(Part, "what fails, beside or instead of whole nodes")
    checkpoint_every_s: float = number(0.0, "between two checkpoints; 0: the best interval")
    write_s: float = number(60.0, "to write one, while the job waits", above=True)
    detect_s: float = number(60.0, "until a failure is noticed")
    restart_s: float = number(300.0, "until the job is back")
    restore_s: float = number(0.0, "and until its checkpoint is loaded")
    node_share: float = number(
        1.0, "of failures_per_1000_node_days: share of these that take a node out", high=1.0
    )
    repair_h: float = number(24.0, "until such a node is back")
    spares: int = count(8, "nodes that can take its place")
    slow_nodes_per_1000_node_days: float = number(0.0, "nodes that turn slow and stay so")
    slow_factor: float = number(
        1.3, "of slow_nodes_per_1000_node_days: how much longer a step is with one", low=1.0
    )
    notice_s: float = number(
        3600.0, "of slow_nodes_per_1000_node_days: until one is noticed and replaced"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """How long, and from which seed."""

    steps: int = count(100, "steps", least=1, most=10_000_000)
    seed: int = count(0, "of everything random", most=2**63 - 1)
    warm_up: int = count(0, "steps left out of the numbers")
