"""Graphs of a step, built by one function for each kind of work.

Durations are before noise. A collective is laid on the network once, for all groups of a partition;
each use of it is an instance of the graph.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from evenstep.scenario.scenario import AVERAGING, Scenario
from evenstep.simulate.fabric.flows import CollectiveLibrary
from evenstep.simulate.job.graph import (
    BACKWARD,
    ONWARD,
    GraphDraft,
    JobGraph,
    RankProgram,
    as_kept,
)
from evenstep.simulate.job.pipelines import grid, pipeline, replicas
from evenstep.trace.columns import Array
from evenstep.trace.spool.layout import Phase

# -- data parallel ---------------------------------------------------------------------------------


def _ddp(draft: GraphDraft) -> JobGraph:
    """Gradients in buckets, all-reduced during or after the last micro-batch's backward."""
    work, role = draft.work, RankProgram()
    members = draft.everybody
    if draft.strategy.kind == "priority":
        numbers = [draft.gradients(members, work.buckets) for _ in range(work.buckets)]
        if numbers[0] >= 0:
            return _urgent(draft, numbers)
    draft.before(role)
    each = work.micro_batches
    for last in [False] * (each - 1) + [True]:
        with role.phase(Phase.FORWARD):
            role.compute(work.forward_ms * 1e6 / each)
        with role.phase(Phase.BACKWARD):
            issued = _add_buckets(draft, role, members, work.backward_ms * 1e6 / each, sends=last)
    draft.reduced(role, issued)
    draft.after(role)
    return draft.graph(role)


def _add_buckets(
    draft: GraphDraft, role: RankProgram, members: Array, length_ns: float, *, sends: bool
) -> list[int]:
    """Add a backward, with the all-reduces of its buckets during it or after it."""
    work = draft.work
    parts = work.buckets if work.overlap and sends else 1
    issued: list[int] = []
    for _ in range(parts):
        slowed = issued[-1] if issued and work.overlap_slowdown else -1
        done = role.compute(length_ns / parts, slowed_by=slowed)
        for _ in range(work.buckets // parts if sends and draft.exchanges else 0):
            number = draft.gradients(members, work.buckets)
            issued += [role.exchange(number, done)] if number >= 0 else []
    return issued


def _urgent(draft: GraphDraft, numbers: list[int]) -> JobGraph:
    """Buckets that the next forward needs first go first; it waits for each (Peng et al. 2019)."""
    work, role, parts = draft.work, RankProgram(), len(numbers)
    each = 1e6 / work.micro_batches
    forward, backward = work.forward_ms * each, work.backward_ms * each
    draft.before(role)
    passes = parts + work.micro_batches - 1  # pairs of operations before the first exchange's
    with role.phase(Phase.FORWARD):
        first = len(role.operations) + 2 * passes
        for layer in range(parts):
            role.wait(first + 2 * (parts - 1 - layer) + 1, back=1)
            role.compute(forward / parts)
    for _ in range(work.micro_batches - 1):
        with role.phase(Phase.BACKWARD):
            role.compute(backward)
        with role.phase(Phase.FORWARD):
            role.compute(forward)
    with role.phase(Phase.BACKWARD):
        for number in numbers:
            role.exchange(number, role.compute(backward / parts), yields=True)
    draft.after(role)
    return draft.graph(role)


def _collective(draft: GraphDraft) -> JobGraph:
    """Collectives in sequence, as in a benchmark, each after a part of `forward_ms`."""
    work, role, members = draft.work, RankProgram(), draft.everybody
    draft.before(role)
    with role.phase(Phase.FORWARD):
        for _ in range(work.buckets):
            role.compute(work.forward_ms * 1e6 / work.buckets)
            flow = draft.library.flow(work.operation, draft.sent_bytes, members)
            if (number := draft.use(as_kept(flow, draft.scenario))) >= 0:
                role.block(number)
    draft.after(role)
    role.block(draft.use(draft.library.barrier(members)))
    return draft.graph(role)


def _fsdp(draft: GraphDraft) -> JobGraph:
    """Layers gathered twice, ahead of use; gathers do not wait for all-reduces (FSDP2)."""
    work, role, shards = draft.work, RankProgram(), draft.shards
    draft.partition("world" if len(shards) == 1 else "shard", shards)
    layer = work.gradient_bytes / work.buckets
    draft.before(role)
    issued: list[int] = []
    for last in [False] * (work.micro_batches - 1) + [True]:
        for phase, length_ms in (
            (Phase.FORWARD, work.forward_ms),
            (Phase.BACKWARD, work.backward_ms),
        ):
            with role.phase(phase):
                chunk_ns = length_ms * 1e6 / work.buckets / work.micro_batches
                sends = phase is Phase.BACKWARD
                issued += _add_gathers(draft, role, shards, layer, chunk_ns, sends=sends, last=last)
    draft.reduced(role, issued)
    draft.after(role)
    return draft.graph(role)


def _add_gathers(
    draft: GraphDraft, role: RankProgram, shards: Array, layer: float, chunk_ns: float, *,
    sends: bool, last: bool,
) -> list[int]:  # fmt: skip
    """Add layers, each after its gather; the gather of the next is issued when a layer begins."""
    library, issued = draft.library, list[int]()

    def gather(*needs: int) -> int:
        number = draft.use(library.flow("all_gather", layer, shards))
        return role.exchange(number, *needs) if number >= 0 else -1

    begun = role.compute(0.0)
    coming = gather(begun)
    for place in range(draft.work.buckets):
        if coming >= 0:
            begun = role.wait(coming)
        coming = gather(begun) if place + 1 < draft.work.buckets else -1
        flying = coming if coming >= 0 else (issued or [-1])[-1]  # the last of those before it
        slowed = flying if draft.work.overlap_slowdown else -1
        begun = done = role.compute(chunk_ns, slowed_by=slowed)
        if sends:
            sent = layer * (draft.strategy.compression if draft.exchanges else 1.0)
            number = draft.use(library.flow("reduce_scatter", sent, shards))
            if number >= 0:
                done = role.exchange(number, done)
                issued.append(done)
            if last and len(shards) > 1 and draft.exchanges:
                replicas = draft.partition("replica", shards.T.copy())
                share = library.flow("all_reduce", sent / shards.shape[1], replicas)
                if (number := draft.use(share)) >= 0:
                    issued.append(role.exchange(number, done, stream=BACKWARD))
    return issued


# -- model parallel --------------------------------------------------------------------------------


def _layers_graph(draft: GraphDraft, operation: str) -> JobGraph:
    """Layers spread over `tensor_parallel` ranks: two collectives in forward and in backward."""
    work, role = draft.work, RankProgram()
    inner = draft.partition("tensor", grid(draft.scenario).reshape(-1, work.tensor_parallel))
    outer = draft.partition("data", replicas(draft.scenario))
    flow = draft.library.flow(operation, work.message_bytes, inner, imbalance=work.expert_imbalance)
    number = 2 * work.buckets if flow.stages else 1
    draft.before(role)
    for phase, length_ms in ((Phase.FORWARD, work.forward_ms), (Phase.BACKWARD, work.backward_ms)):
        with role.phase(phase):
            for _ in range(number):
                role.compute(length_ms * 1e6 / number)
                if (instance := draft.use(flow)) >= 0:
                    role.block(instance)
    draft.reduce_gradients(outer, role)
    draft.after(role)
    return draft.graph(role)


# -- exchanges of parameters -----------------------------------------------------------------------


def _add_averaging(draft: GraphDraft, graph: JobGraph) -> JobGraph:
    """Add the averaging of parameters among replicas after a step, which nothing overlaps."""
    strategy, members, size = draft.strategy, replicas(draft.scenario), draft.sent_bytes
    if draft.work.kind == "fsdp":
        members = draft.partition("replica", draft.shards.T.copy())
        size /= draft.shards.shape[1]
    elif strategy.kind == "diloco" and strategy.island_ranks > 1:
        members = np.arange(draft.scenario.ranks).reshape(-1, strategy.island_ranks).T.copy()
        draft.partition("islands", members)
    else:
        members = draft.everybody if len(members) == 1 else draft.partition("data", members)
    number = draft.use(draft.library.flow("all_reduce", size, members))
    for role in graph.roles:
        if number >= 0:
            role.wait(role.exchange(number, role.compute(0.0)))
        if outer_ms := strategy.outer_ms + strategy.encode_ms:
            with role.phase(Phase.OPTIMIZER):
                role.compute(outer_ms * 1e6)
    return draft.graph(*graph.roles, role=graph.role)


Build = Callable[[GraphDraft], JobGraph]

PROGRAMS: dict[str, Build] = {
    "ddp": _ddp,
    "fsdp": _fsdp,
    "collective": _collective,
    "tensor": partial(_layers_graph, operation="all_reduce"),
    "experts": partial(_layers_graph, operation="all_to_all"),
    "pipeline": pipeline,
}


def build(scenario: Scenario, library: CollectiveLibrary, *, exchanges: bool = True) -> JobGraph:
    """A step of a scenario's work. Without `exchanges`: one between two averages of parameters."""
    draft = GraphDraft(scenario, library)
    graph = PROGRAMS[scenario.work.kind](draft)
    if scenario.strategy.kind in AVERAGING and exchanges:
        graph = _add_averaging(draft, graph)
    if scenario.strategy.kind == "stale_synchronous":
        # step k + 1 begins when all have finished step k - bound (Ho et al. 2013)
        number = draft.use(draft.library.barrier(draft.everybody))
        for role in graph.roles:
            over = role.compute(0.0)
            role.wait(role.exchange(number, over, stream=ONWARD), back=draft.strategy.bound)
        graph = draft.graph(*graph.roles, role=graph.role)
    return graph


def in_lockstep(graph: JobGraph, library: CollectiveLibrary) -> JobGraph:
    """The same step with a barrier at its end."""
    flows = [*graph.flows, library.barrier(np.arange(len(graph.role))[None, :])]
    for role in graph.roles:
        role.block(len(flows) - 1)
    return JobGraph(graph.roles, graph.role, flows, graph.partitions)
