"""The kind of work from the collectives of a step, and links fitted to their durations.

A ring of n ranks takes t = r α + w/B, with r = 2(n-1) rounds and w = 2S(n-1)/n bytes for an
all-reduce, half of both for a half; rings side by side share w over the cards of a node. α and B
are fitted to the means of all kinds of collective, neither negative; groups within a node and those
between nodes each have their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np
from scipy.optimize import nnls

from evenstep.documents import Amount, Document, Positive
from evenstep.scenario.hardware import Cluster
from evenstep.scenario.parts import Work
from evenstep.simulate.fabric.collectives import Request, node_blocks
from evenstep.trace.columns import Array

MESSAGE = "send"  # the operation of what one rank sends to another
HALVES = ("all_gather", "reduce_scatter")
OFTEN = 0.5  # in a step: a rarer collective is not part of it, unless all are
FASTEST_GBPS = 10_000.0  # where bytes take no time


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedCollectives(Document):
    """Collectives of one group, operation and size. Times from the last entry to the end."""

    computed: ClassVar[tuple[str, ...]] = ("ranks",)

    operation: str
    members: tuple[int, ...] = field(repr=False)  # ranks, by index
    bytes: Amount  # as nccl-tests counts them: of the whole
    per_step: Amount
    transfer_ns: float  # mean
    floor_ns: float  # of undisturbed ones
    blocking: bool = field(repr=False)

    @property
    def rounds(self) -> float:
        """Number of rounds: of a ring, or the one in which an all-to-all is posted."""
        if self.operation == "all_to_all":
            return 1.0
        return (len(self.members) - 1) * (2.0 if self.operation == "all_reduce" else 1.0)

    def beside(self, node: Array) -> int:
        """Members on the node that has fewest; 1 where all are on one, or none are neighbours."""
        ranks = np.array([self.members])
        least = int(node_blocks(Request(self.operation, ranks, node, self.bytes)).min())
        return 1 if least == self.ranks else least

    def wire_bytes(self, node: Array) -> float:
        """Bytes that each rank sends over one link: to others of its node or, where there are
        several, over a card, as of an all-to-all or of as many rings as a node has members."""
        if self.operation == MESSAGE:
            return self.bytes
        beside = self.beside(node)
        if self.operation == "all_to_all":
            return (self.ranks - beside) * self.bytes / self.ranks
        return self.rounds * self.bytes / self.ranks / beside

    @property
    def ranks(self) -> Positive:
        """Number of ranks in the group."""
        return len(self.members)


Calls = Sequence[ObservedCollectives]


# -- the kind of work ------------------------------------------------------------------------------


class ObservedPipeline(NamedTuple):
    """Stages that send to the one `apart` ranks behind: micro-batches of a step, bytes of each, the
    schedule, and chunks of layers of a stage."""

    stages: int
    apart: int
    micro_batches: int
    bytes: float
    schedule: str = "1f1b"
    interleaved: int = 1


class WorkPlan(NamedTuple):
    """The kind of work, its fields, its collectives, and the collectives it leaves out."""

    kind: str
    fields: dict[str, Any]
    used: tuple[ObservedCollectives, ...]
    limits: tuple[str, ...] = ()


def work_of(
    seen: Calls, ranks: int, *, overlapped: bool, phased: bool = True,
    pipeline: ObservedPipeline | None = None, micro_batches: int = 1,
) -> WorkPlan:  # fmt: skip
    """The work that has these collectives; not `phased`: without a backward phase. Gradients leave
    in the last of `micro_batches`."""
    usual = [one for one in seen if one.per_step >= OFTEN and one.bytes > 0]
    inner = [one for one in usual if one.blocking and len(one.members) < ranks]
    mixed = [one for one in usual if one.operation == "all_to_all"]
    sharded = [one for one in usual if one.operation in HALVES]
    reduced = [one for one in usual if one.operation == "all_reduce"]
    if not phased and usual and all(one.blocking for one in usual):
        return _plan_repeated(usual)
    outer = [one for one in reduced if one not in inner]
    gathers = [one for one in inner if one.operation == "all_gather"]
    inner = [one for one in inner if one in reduced]
    context = [one for one in gathers if one.members[1] - one.members[0] == _width(inner)]
    if pipeline is not None and pipeline.apart == _width(inner) * _width(context):
        return _plan_stages(pipeline, inner, context, mixed, outer)
    if mixed:
        return _plan_layers("experts", mixed, reduced)
    if inner:
        return _plan_layers("tensor", inner, outer)
    if _total(sharded) > _total(reduced):
        return _plan_sharded(sharded, reduced, ranks)
    plan = _plan_reduced(usual, reduced, ranks, overlapped=overlapped)
    if plan.kind == "ddp" and plan.used:
        plan.fields["micro_batches"] = micro_batches
    return plan


def every(seen: Calls) -> int:
    """Steps between two exchanges: above 1 only where most steps have none (local SGD)."""
    most = max((one.per_step for one in seen), default=1.0)
    return round(1 / most) if 0 < most < OFTEN else 1


def _plan_repeated(usual: Calls) -> WorkPlan:
    main = max(usual, key=lambda one: one.per_step * one.bytes)
    fields = {
        "operation": main.operation,
        "gradient_bytes": round(main.bytes),
        "buckets": max(1, round(main.per_step)),
    }
    limits = ("only the collective that moves most is in it",) if len(usual) > 1 else ()
    return WorkPlan("collective", fields, (main,), limits)


def _total(seen: Calls) -> float:
    """Bytes in a step, counting one group of each operation."""
    return sum(one.bytes * one.per_step for one in _one_group(seen))


def _one_group(seen: Calls) -> list[ObservedCollectives]:
    """The first of groups with the same collective side by side."""
    first: dict[tuple[str, float], ObservedCollectives] = {}
    for one in seen:
        first.setdefault((one.operation, one.bytes), one)
    return list(first.values())


def _width(seen: Calls) -> int:
    """Ranks of a group; 1 without one."""
    return len(seen[0].members) if seen else 1


def _plan_layers(kind: str, inner: Calls, outer: Calls) -> WorkPlan:
    """Layers with collectives in small groups, and gradients among the replicas."""
    mine = _one_group(inner)
    calls = sum(one.per_step for one in mine)
    layers = max(1, round(calls / 4))
    fields = {
        "tensor_parallel": len(mine[0].members),
        "buckets": layers,
        "message_bytes": round(_total(inner) / (4 * layers)),
        "gradient_bytes": round(_total(outer)),
    }
    limits = () if calls >= 4 else ("fewer than four collectives in a layer: taken as one layer",)
    return WorkPlan(kind, fields, (*mine, *_one_group(outer)), limits)


def _plan_stages(
    pipeline: ObservedPipeline, inner: Calls, context: Calls, mixed: Calls, outer: Calls
) -> WorkPlan:
    """Stages. In both directions each layer of one has two all-reduces, a gather of the context's
    keys and values, and two exchanges with experts."""
    width, passes = _width(context), 2 * pipeline.micro_batches * pipeline.bytes
    keys = _total(context) / (passes * width)  # of all layers, over activations
    layers = max(1, round(_total(inner or mixed) / (2 * passes) or keys / Work().key_share))
    fields = {
        "pipeline_parallel": pipeline.stages,
        "tensor_parallel": _width(inner),
        "context_parallel": width,
        "key_share": float(f"{keys / layers or Work().key_share:.4g}"),
        "expert_parallel": _width(mixed),
        "micro_batches": pipeline.micro_batches,
        "message_bytes": round(pipeline.bytes * width),
        "layers": pipeline.stages * layers if inner or context or mixed else 0,
        "gradient_bytes": round(_total(outer)),
        "schedule": pipeline.schedule,
        "interleaved": pipeline.interleaved,
    }
    used = [one for part in (inner, context, mixed, outer) for one in _one_group(part)]
    return WorkPlan("pipeline", fields, tuple(used))


def _plan_sharded(sharded: Calls, reduced: Calls, ranks: int) -> WorkPlan:
    """Layers gathered and scattered among shards; replicas reduce after the last micro-batch."""
    scatters = [one for one in _one_group(sharded) if one.operation == "reduce_scatter"]
    gathers = [one for one in _one_group(sharded) if one.operation == "all_gather"]
    parts = scatters or gathers
    calls = sum(one.per_step for one in parts) / (1 if scatters else 2)
    total = _total(parts) / (1 if scatters else 2)
    shards = len(parts[0].members)
    copies = [one for one in _one_group(reduced) if len(one.members) * shards == ranks]
    batches = max(1, round(calls / sum(one.per_step for one in copies))) if copies else 1
    fields = {
        "gradient_bytes": round(total / batches),
        "buckets": max(1, round(calls / batches)),
        "micro_batches": batches,
        "shard_ranks": shards if shards < ranks else 0,
    }
    left = len(_one_group(reduced)) > len(copies)
    limits = ("all-reduces beside the sharded layers are left out",) if left else ()
    return WorkPlan("fsdp", fields, (*scatters, *gathers, *copies), limits)


def _plan_reduced(usual: Calls, reduced: Calls, ranks: int, *, overlapped: bool) -> WorkPlan:
    mine = _one_group(reduced)
    left = len(_one_group(usual)) - len(mine)
    limits = ("collectives other than all-reduces are left out",) if left else ()
    if not mine:
        quiet = ("no gradients are exchanged: ranks do not wait for one another here",)
        return WorkPlan("ddp", {"gradient_bytes": 0}, (), quiet)
    fields: dict[str, Any] = {"gradient_bytes": round(_total(reduced))}
    if len(mine[0].members) < ranks:
        fields["tensor_parallel"] = ranks // len(mine[0].members)
        return WorkPlan("tensor", fields, tuple(mine), limits)
    fields["buckets"] = max(1, round(sum(one.per_step for one in mine)))
    fields["overlap"] = overlapped
    return WorkPlan("ddp", fields, tuple(mine), limits)


# -- links -----------------------------------------------------------------------------------------


class FittedLink(NamedTuple):
    """Latency of a message, and bandwidth."""

    latency_ns: Amount
    bandwidth_gBps: Amount  # noqa: N815 - as JSON calls it


@dataclass(frozen=True, slots=True)
class FittedLinks(Document):
    """Links within nodes and between them; None without measurements. `cards` of a node: links not
    measured within a node are no bottleneck of rings over all of these."""

    within_node: FittedLink | None
    between_nodes: FittedLink | None
    limits: list[str] = field(default_factory=list, repr=False)
    cards: int = field(default=1, repr=False)

    @property
    def cluster(self) -> dict[str, Any]:
        far = self.between_nodes or self.within_node or FittedLink(0.0, FASTEST_GBPS)
        near = self.within_node or far._replace(bandwidth_gBps=self.cards * far.bandwidth_gBps)
        return {
            "gpu_link_gBps": near.bandwidth_gBps,
            "gpu_link_latency_us": near.latency_ns / 1e3,
            "nic_gBps": far.bandwidth_gBps,
            "nic_latency_us": far.latency_ns / 2e3,  # on each end
        }


def fit_links(seen: Calls, node: Array, cards: int) -> FittedLinks:
    """Fit α and B within nodes and between them, of nodes with a number of cards; to messages where
    there are no collectives, which these meet and which are simulated again."""
    near = [one for one in seen if len(set(node[list(one.members)].tolist())) == 1]
    inside, across = (
        [one for one in part if one.operation != MESSAGE] or part
        for part in (near, [one for one in seen if one not in near])
    )
    limits = []
    if any(len({one.bytes for one in part}) == 1 for part in (inside, across)):
        limits.append(
            "collectives are of one size: latency and bandwidth cannot be told apart, and messages "
            "are taken to have the latency of scenarios by default, or none where they take less"
        )
    disturbed = [one for one in seen if one.transfer_ns > 1.5 * one.floor_ns > 0]
    if disturbed:
        limits.append(
            "transfers take half as long again as undisturbed ones, or more: the links are fitted "
            "to the mean, and that transfers vary is not in the scenario"
        )
    usual = Cluster()
    within = fit_line(inside, usual_ns=1e3 * usual.gpu_link_latency_us)
    between = fit_line(across, node, usual_ns=2e3 * usual.nic_latency_us)  # of both ends
    return FittedLinks(within, between, limits, cards)


def fit_line(seen: Calls, node: Array | None = None, *, usual_ns: float = 0.0) -> FittedLink | None:
    """Fit α in ns and B in GB/s of t = rα + w/B: non-negative least squares of the relative error.

    With collectives of one size α is `usual_ns`, or 0 where they take less. Without the node of
    each rank, all are on one.
    """
    if not seen:
        return None
    if node is None:
        node = np.zeros(1 + max(max(one.members) for one in seen), np.int64)
    time = np.array([max(one.transfer_ns, 1.0) for one in seen])
    weight = np.sqrt([one.per_step for one in seen]) / time
    sent = [[one.rounds, one.wire_bytes(node)] for one in seen]
    columns = np.array(sent) * weight[:, None]
    target = time * weight
    known = 0.0
    if len({one.bytes for one in seen}) == 1:
        known = usual_ns if (target > usual_ns * columns[:, 0]).all() else 0.0
        target, columns[:, 0] = target - known * columns[:, 0], 0.0
    alpha, slope = nnls(columns, target)[0] + [known, 0.0]
    speed = 1 / float(slope) if slope > 0 else FASTEST_GBPS
    return FittedLink(float(f"{alpha:.6g}"), float(f"{min(speed, FASTEST_GBPS):.6g}"))
