"""Steps of jobs, written down as graphs of operations: one function for each kind of work.

Lengths are before noise. A collective is laid on the network once, over all groups of a partition,
and is an instance of the graph each time it is used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.scenario.scenario import Scenario
from evenstep.simulate.fabric.flows import CollectiveLibrary, Flow
from evenstep.simulate.job import schedules
from evenstep.simulate.job.graph import BACKWARD, ONWARD, JobGraph, RankProgram
from evenstep.simulate.job.schedules import Task
from evenstep.trace.spool.layout import Phase

Array = npt.NDArray[Any]
Partition = tuple[str, Array]

AVERAGING = ("local_sgd", "diloco")  # strategies that exchange parameters, every so many steps


class GraphDraft:
    """A graph being written: its instances so far, and what every kind of work needs."""

    def __init__(self, scenario: Scenario, library: CollectiveLibrary) -> None:
        self.scenario, self.library = scenario, library
        self.work, self.strategy = scenario.work, scenario.strategy
        self.flows: list[Flow] = []
        self.partitions: list[Partition] = []

    def use(self, flow: Flow) -> int:
        """One more instance of a collective; -1 where it moves nothing."""
        if not flow.stages and flow.algorithm != "barrier":
            return -1
        self.flows.append(flow)
        return len(self.flows) - 1

    def partition(self, name: str, members: Array) -> Array:
        """Groups that the trace knows by a name."""
        if not any(np.array_equal(members, known) for _, known in self.partitions):
            self.partitions.append((name, members))
        return members

    def graph(self, *roles: RankProgram, role: Array | None = None) -> JobGraph:
        """What was written."""
        of_rank = np.zeros(self.scenario.ranks, np.int64) if role is None else role
        return JobGraph(roles, of_rank, self.flows, tuple(self.partitions))

    # -- what all steps have -----------------------------------------------------------------------

    @property
    def everybody(self) -> Array:
        """All ranks as one group."""
        return self.partition("world", np.arange(self.scenario.ranks)[None, :])

    @property
    def sent_bytes(self) -> float:
        """Gradients as they are sent."""
        return self.work.gradient_bytes * self.strategy.compression

    @property
    def exchanges(self) -> bool:
        """Whether gradients are exchanged; else parameters are, now and then."""
        return self.strategy.kind not in AVERAGING

    def before(self, role: RankProgram) -> None:
        """Being held by pacing, and the input."""
        if self.strategy.kind == "paced":
            role.compute(0.0)
        work = self.work
        if work.input_ms or work.input_bytes:
            with role.phase(Phase.INPUT):
                if work.input_bytes and self.scenario.cluster.storage_gBps:
                    role.block(self.use(self.library.storage(work.input_bytes)))
                role.compute(work.input_ms * 1e6)

    def after(self, role: RankProgram) -> None:
        """The optimizer."""
        length = (self.work.optimizer_ms + self.strategy.encode_ms) * 1e6
        if length:
            with role.phase(Phase.OPTIMIZER):
                role.compute(length)

    def reduced(self, role: RankProgram, exchanges: list[int]) -> None:
        """Wait for what was issued; who is spared does not."""
        if exchanges:
            role.wait(*exchanges, drops=self.strategy.kind == "backup_workers")

    def gradients(self, members: Array, parts: int = 1) -> int:
        """One of so many parts of the gradients, all-reduced among groups."""
        flow = self.library.flow("all_reduce", self.sent_bytes / parts, members)
        return self.use(_as_kept(flow, self.scenario))


def _as_kept(flow: Flow, scenario: Scenario) -> Flow:
    """The flow as a strategy exchanges it: without the latest ranks, or each rank by itself."""
    strategy = scenario.strategy
    if strategy.kind in ("backup_workers", "partial_reduce") and flow.stages:
        return _known(flow, "spared", lambda: replace(flow, spared=strategy.backups))
    if strategy.kind in ("asynchronous", "stale_synchronous") and flow.stages:
        return _known(flow, "alone", lambda: replace(flow, apart=True))
    return flow


def _known(flow: Flow, name: str, make: Callable[[], Flow]) -> Flow:
    """A variant of a flow, made once."""
    if name not in flow.variants:
        flow.variants[name] = make()
    return flow.variants[name]


def repeated(flow: Flow, times: int) -> Flow:
    """A collective so many times in a row, as one."""

    def make() -> Flow:
        stages = flow.stages * times
        if len(flow.stages) == 1:
            item = flow.stages[0]
            stages = (replace(item, round=item.round._replace(repeats=item.round.repeats * times)),)
        return replace(
            flow, stages=stages, bytes=flow.bytes * times, launch_ns=flow.launch_ns * times
        )

    return flow if times == 1 else _known(flow, f"{times} times", make)


# -- data parallel ---------------------------------------------------------------------------------


def _ddp(draft: GraphDraft) -> JobGraph:
    """Gradients in buckets, all-reduced behind the backward of the last micro-batch."""
    work, role = draft.work, RankProgram()
    members = draft.everybody
    if draft.strategy.kind == "priority":
        return _urgent(draft)
    draft.before(role)
    each = work.micro_batches
    for last in [False] * (each - 1) + [True]:
        with role.phase(Phase.FORWARD):
            role.compute(work.forward_ms * 1e6 / each)
        with role.phase(Phase.BACKWARD):
            issued = _bucketed(draft, role, members, work.backward_ms * 1e6 / each, sends=last)
    draft.reduced(role, issued)
    draft.after(role)
    return draft.graph(role)


def _bucketed(
    draft: GraphDraft, role: RankProgram, members: Array, length_ns: float, *, sends: bool
) -> list[int]:
    """A backward, with the all-reduces of its buckets behind its parts or after it."""
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


def _urgent(draft: GraphDraft) -> JobGraph:
    """What the next forward needs first is sent first, awaited only there (Peng et al. 2019)."""
    work, role = draft.work, RankProgram()
    draft.before(role)
    parts = work.buckets
    numbers = [draft.gradients(draft.everybody, parts) for _ in range(parts)]
    layers = 2 * parts  # operations of the forward: a wait and a layer for each
    first = len(role.operations) + layers  # then a part of backward and its exchange, each
    with role.phase(Phase.FORWARD):
        for layer in range(parts):
            role.wait(first + 2 * (parts - 1 - layer) + 1, back=1)
            role.compute(work.forward_ms * 1e6 / parts)
    with role.phase(Phase.BACKWARD):
        for number in numbers:
            done = role.compute(work.backward_ms * 1e6 / parts)
            if number >= 0:
                role.urgent(number, done)
            else:
                role.wait(done)
    draft.after(role)
    return draft.graph(role)


def _collective(draft: GraphDraft) -> JobGraph:
    """One collective a step, as a benchmark does; `forward_ms` before it."""
    work, role, members = draft.work, RankProgram(), draft.everybody
    draft.before(role)
    with role.phase(Phase.FORWARD):
        for _ in range(work.buckets):
            role.compute(work.forward_ms * 1e6 / work.buckets)
            flow = draft.library.flow(work.operation, draft.sent_bytes, members)
            if (number := draft.use(_as_kept(flow, draft.scenario))) >= 0:
                role.block(number)
    role.block(draft.use(draft.library.barrier(members)))
    return draft.graph(role)


def _fsdp(draft: GraphDraft) -> JobGraph:
    """Gather layers ahead of use, twice, and scatter their gradients; replicas all-reduce those."""
    work, role = draft.work, RankProgram()
    size = work.shard_ranks or draft.scenario.ranks
    shards = np.arange(draft.scenario.ranks).reshape(-1, size)
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
                sends = phase is Phase.BACKWARD and draft.exchanges
                issued += _gathered(draft, role, shards, layer, chunk_ns, sends=sends, last=last)
    draft.reduced(role, issued)
    draft.after(role)
    return draft.graph(role)


def _gathered(
    draft: GraphDraft,
    role: RankProgram,
    shards: Array,
    layer: float,
    chunk_ns: float,
    *,
    sends: bool,
    last: bool,
) -> list[int]:
    """Layers, each of which needs its gather; the next one's is issued when a layer begins."""
    library, issued = draft.library, []

    def gather(*needs: int) -> int:
        number = draft.use(library.flow("all_gather", layer, shards))
        return role.exchange(number, *needs) if number >= 0 else -1

    begun = role.compute(0.0)
    coming = gather(begun)
    for place in range(draft.work.buckets):
        if coming >= 0:
            begun = role.wait(coming)
        coming = gather(begun) if place + 1 < draft.work.buckets else -1
        begun = done = role.compute(chunk_ns)
        if sends:
            sent = layer * draft.strategy.compression
            number = draft.use(library.flow("reduce_scatter", sent, shards))
            if number >= 0:
                issued.append(role.exchange(number, done))
            if last and len(shards) > 1:
                replicas = draft.partition("replica", shards.T.copy())
                share = library.flow("all_reduce", sent / shards.shape[1], replicas)
                number = draft.use(share)
                issued.append(role.exchange(number, *issued[-1:] or [done]))
    return issued


# -- models in parts -------------------------------------------------------------------------------


def grid(scenario: Scenario) -> Array:
    """(data, stages, context, tensor): ranks; those that share a layer are neighbours."""
    work = scenario.work
    shape = (-1, work.pipeline_parallel, work.context_parallel, work.tensor_parallel)
    return np.arange(scenario.ranks).reshape(shape)


def replicas(scenario: Scenario) -> Array:
    """Ranks that hold the same parameters: (groups, size)."""
    places = grid(scenario).transpose(1, 3, 0, 2)
    return places.reshape(places.shape[0] * places.shape[1], -1)


def _tensor(draft: GraphDraft) -> JobGraph:
    """Tensor parallel layers: two all-reduces in forward and in backward of each."""
    return _layered(draft, "all_reduce")


def _experts(draft: GraphDraft) -> JobGraph:
    """Experts spread over `tensor_parallel` ranks: two all-to-alls each way in every layer."""
    return _layered(draft, "all_to_all")


def _layered(draft: GraphDraft, operation: str) -> JobGraph:
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
    _exchanged(draft, role, outer)
    draft.after(role)
    return draft.graph(role)


def _exchanged(draft: GraphDraft, role: RankProgram, outer: Array) -> None:
    """Gradients among replicas, all at once behind the backward, and the wait for them."""
    if not draft.exchanges:
        return
    number = draft.gradients(outer)
    if number >= 0:
        done = role.compute(0.0)
        draft.reduced(role, [role.exchange(number, done)])


def _pipeline(draft: GraphDraft) -> JobGraph:
    """Stages that pass micro-batches on, then an all-reduce among the replicas of a stage."""
    scenario, work = draft.scenario, draft.work
    places = grid(scenario)
    stages = places.transpose(0, 2, 3, 1).reshape(-1, work.pipeline_parallel)
    draft.partition("pipeline", stages)
    outer = draft.partition("data", replicas(scenario))
    inside = _Inside(draft, places)
    messages = _Messages(draft, stages)
    roles = []
    for tasks in schedules.tasks(
            work.schedule, work.pipeline_parallel, work.micro_batches, work.interleaved,
            forward=work.forward_ms, backward=work.backward_ms,
        ):  # fmt: skip
        role = RankProgram()
        draft.before(role)
        for task in tasks:
            _carry_out(draft, role, task, messages, inside)
        roles.append(role)
    if draft.exchanges:
        reduced = draft.gradients(outer)
        for role in roles if reduced >= 0 else ():
            draft.reduced(role, [role.exchange(reduced, role.compute(0.0))])
    for role in roles:
        draft.after(role)
    of_rank = np.zeros(scenario.ranks, np.int64)
    of_rank[stages] = np.arange(work.pipeline_parallel)
    return draft.graph(*roles, role=of_rank)


class _Messages:
    """Activations and their gradients between the stages of a pipeline."""

    def __init__(self, draft: GraphDraft, stages: Array) -> None:
        self._draft, self._stages = draft, stages
        self._count = stages.shape[1]
        self._laid: dict[tuple[int, int], Flow] = {}
        self._known: dict[tuple[int, int, int], int] = {}

    def between(self, source: int, target: int, batch: int) -> int:
        """The message of a micro-batch from a chunk of layers to the next; -1: on one rank."""
        one, other = source % self._count, target % self._count
        if one == other:
            return -1
        if (one, other) not in self._laid:
            size = self._draft.work.message_bytes / self._draft.work.context_parallel
            self._laid[one, other] = self._draft.library.pairs(
                size, self._stages[:, one], self._stages[:, other]
            )
        key = (source, target, batch)
        if key not in self._known:
            self._known[key] = self._draft.use(self._laid[one, other])
        return self._known[key]


class _Inside:
    """What the ranks of a stage exchange in a micro-batch's pass through a chunk of its layers."""

    def __init__(self, draft: GraphDraft, places: Array) -> None:
        work = draft.work
        self._draft, self._flows = draft, []
        layers = work.layers // (work.pipeline_parallel * work.interleaved)
        self._known: dict[tuple[int, ...], list[int]] = {}
        if not layers:
            return
        library, size = draft.library, work.message_bytes / work.context_parallel
        if work.tensor_parallel > 1:
            inner = draft.partition("tensor", places.reshape(-1, work.tensor_parallel))
            self._flows.append(repeated(library.flow("all_reduce", size, inner), 2 * layers))
        if work.context_parallel > 1:
            context = draft.partition(
                "context", places.transpose(0, 1, 3, 2).reshape(-1, work.context_parallel)
            )
            keys = work.message_bytes * work.key_share
            self._flows.append(repeated(library.flow("all_gather", keys, context), layers))
        if work.expert_parallel > 1:
            width = work.expert_parallel
            data = places.transpose(1, 2, 3, 0).reshape(-1, width)
            experts = draft.partition("expert", data)
            flow = library.flow("all_to_all", size, experts, imbalance=work.expert_imbalance)
            self._flows.append(repeated(flow, 2 * layers))

    def instances(self, task: Task, stages: int) -> list[int]:
        """The collectives of a task, the same for the stages of one chunk."""
        key = (task.kind, task.chunk // stages, task.batch)
        if key not in self._known:
            self._known[key] = [self._draft.use(flow) for flow in self._flows]
        return self._known[key]


def _carry_out(
    draft: GraphDraft, role: RankProgram, task: Task, messages: _Messages, inside: _Inside
) -> None:
    """Receive, compute with what the stage exchanges, and send on."""
    work, stages = draft.work, draft.work.pipeline_parallel
    chunks = stages * work.interleaved
    step = -1 if task.kind == schedules.FORWARD else 1
    near, far = task.chunk + step, task.chunk - step
    ends = task.kind != schedules.WEIGHTS
    forward = task.kind == schedules.FORWARD
    phase = Phase.FORWARD if forward else Phase.BACKWARD
    if ends and 0 <= near < chunks:
        number = messages.between(near, task.chunk, task.batch)
        if number >= 0:
            role.block(number, receives=True)
    with role.phase(phase):
        length = (work.forward_ms if forward else work.backward_ms) * 1e6
        done = role.compute(length * task.share / work.micro_batches / work.interleaved)
        for number in inside.instances(task, stages) if ends else ():
            if number >= 0:
                done = role.block(number)
    if ends and 0 <= far < chunks:
        number = messages.between(task.chunk, far, task.batch)
        if number >= 0:
            role.exchange(number, done, stream=ONWARD if forward else BACKWARD)


# -- exchanges of parameters -----------------------------------------------------------------------


def _averaged(draft: GraphDraft, graph: JobGraph) -> JobGraph:
    """The step behind which parameters are averaged: nothing is left to hide that behind."""
    strategy = draft.strategy
    members = draft.everybody
    if strategy.kind == "diloco" and strategy.island_ranks > 1:
        members = np.arange(draft.scenario.ranks).reshape(-1, strategy.island_ranks).T.copy()
        draft.partition("islands", members)
    flow = draft.library.flow("all_reduce", draft.sent_bytes, members)
    number = draft.use(flow)
    for role in graph.roles:
        if number >= 0:
            role.wait(role.exchange(number, role.compute(0.0)))
        if strategy.outer_ms:
            with role.phase(Phase.OPTIMIZER):
                role.compute(strategy.outer_ms * 1e6)
    return draft.graph(*graph.roles, role=graph.role)


Build = Callable[[GraphDraft], JobGraph]

PROGRAMS: dict[str, Build] = {
    "ddp": _ddp,
    "fsdp": _fsdp,
    "collective": _collective,
    "tensor": _tensor,
    "experts": _experts,
    "pipeline": _pipeline,
}


def build(scenario: Scenario, library: CollectiveLibrary, *, exchanges: bool = True) -> JobGraph:
    """A step of a scenario's work. Without `exchanges`: one between two averages of parameters."""
    draft = GraphDraft(scenario, library)
    graph = PROGRAMS[scenario.work.kind](draft)
    if scenario.strategy.kind in AVERAGING and exchanges:
        graph = _averaged(draft, graph)
    if scenario.strategy.kind == "stale_synchronous":
        _bounded(draft, graph)
        graph = draft.graph(*graph.roles, role=graph.role)
    return graph


def _bounded(draft: GraphDraft, graph: JobGraph) -> None:
    """Step k + 1 begins when all have finished step k - bound (Ho et al. 2013)."""
    number = draft.use(draft.library.barrier(draft.everybody))
    for role in graph.roles:
        over = role.compute(0.0)
        role.wait(role.exchange(number, over, stream=ONWARD), back=draft.strategy.bound)


def together(graph: JobGraph, library: CollectiveLibrary) -> JobGraph:
    """The same step, but that ranks begin the next when the last is through."""
    everybody = np.arange(len(graph.role))[None, :]
    flows = [*graph.flows, library.barrier(everybody)]
    for role in graph.roles:
        role.block(len(flows) - 1)
    return JobGraph(graph.roles, graph.role, flows, graph.partitions)
