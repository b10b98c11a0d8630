"""A model in parts: stages that pass micro-batches on, and what is exchanged inside a stage."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.scenario.scenario import Scenario
from evenstep.simulate.fabric.flows import Flow
from evenstep.simulate.job import schedules
from evenstep.simulate.job.graph import (
    BACKWARD,
    ONWARD,
    GraphDraft,
    JobGraph,
    RankProgram,
    repeated,
)
from evenstep.simulate.job.schedules import Task
from evenstep.trace.spool.layout import Phase

Array = npt.NDArray[Any]


def grid(scenario: Scenario) -> Array:
    """(data, stages, context, tensor): ranks; those that share a layer are neighbours."""
    work = scenario.work
    shape = (-1, work.pipeline_parallel, work.context_parallel, work.tensor_parallel)
    return np.arange(scenario.ranks).reshape(shape)


def replicas(scenario: Scenario) -> Array:
    """Ranks that hold the same parameters: (groups, size)."""
    places = grid(scenario).transpose(1, 3, 0, 2)
    return places.reshape(places.shape[0] * places.shape[1], -1)


def pipeline(draft: GraphDraft) -> JobGraph:
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
