"""Pipelines: stages that pass micro-batches on, and the collectives inside a stage.

One forward one backward (PipeDream-Flush, Narayanan et al. 2021): a stage has at most as many
micro-batches under way as stages follow it. Interleaved (ibid., section 2.2), each of p ranks holds
every p-th chunk of layers: a micro-batch passes each rank several times, which shortens the bubble.
Zero bubble (Qi et al. 2023, ZB-H1) splits the backward: gradients of weights, for which no other
stage waits, fill idle time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from typing import NamedTuple

import numpy as np

from evenstep.scenario.scenario import Scenario
from evenstep.simulate.fabric.flows import Flow
from evenstep.simulate.job.graph import (
    BACKWARD,
    ONWARD,
    GraphDraft,
    JobGraph,
    RankProgram,
    repeat,
)
from evenstep.trace.columns import Array
from evenstep.trace.spool.layout import Phase


def grid(scenario: Scenario) -> Array:
    """Ranks as (data, stages, context, tensor); ranks that share a layer are neighbours."""
    work = scenario.work
    shape = (-1, work.pipeline_parallel, work.context_parallel, work.tensor_parallel)
    return np.arange(scenario.ranks).reshape(shape)


def replicas(scenario: Scenario) -> Array:
    """Groups of ranks that hold the same parameters. (groups, size)"""
    places = grid(scenario).transpose(1, 3, 0, 2)
    return places.reshape(places.shape[0] * places.shape[1], -1)


def pipeline(draft: GraphDraft) -> JobGraph:
    """Stages that pass micro-batches on, then an all-reduce among the replicas of a stage."""
    scenario, work, use = draft.scenario, draft.work, draft.use
    places, count = grid(scenario), work.pipeline_parallel
    stages = places.transpose(0, 2, 3, 1).reshape(-1, count)
    draft.partition("pipeline", stages)
    outer = draft.partition("data", replicas(scenario))
    flows, size = _collectives(draft, places), work.message_bytes / work.context_parallel
    laid = cache(lambda one, other: draft.library.pairs(size, stages[:, one], stages[:, other]))
    #: Instances of a message between chunks of layers, -1: one rank; and of a pass's collectives.
    message = cache(lambda a, b, _: use(laid(a % count, b % count)) if count > 1 else -1)
    inside = cache(lambda *_: [number for flow in flows if (number := use(flow)) >= 0])
    roles = []
    for tasks in tasks_of(
            work.schedule, count, work.micro_batches, work.interleaved,
            forward=work.forward_ms, backward=work.backward_ms,
        ):  # fmt: skip
        role = RankProgram()
        draft.before(role)
        for task in tasks:
            _carry_out(draft, role, task, message, inside)
        roles.append(role)
    draft.reduce_gradients(outer, *roles)
    for role in roles:
        draft.after(role)
    of_rank = np.zeros(scenario.ranks, np.int64)
    of_rank[stages] = np.arange(count)
    return draft.graph(*roles, role=of_rank)


def _collectives(draft: GraphDraft, places: Array) -> list[Flow]:
    """Collectives inside a stage, for a micro-batch's pass through a chunk of its layers."""
    work, library = draft.work, draft.library
    size, keys = work.message_bytes / work.context_parallel, work.message_bytes * work.key_share
    layers = -(-work.layers // (work.pipeline_parallel * work.interleaved))  # of the fullest
    flows: list[Flow] = []
    for name, axes, operation, sent, times, imbalance in (
        ("tensor", (0, 1, 2, 3), "all_reduce", size, 2 * layers, 0.0),
        ("context", (0, 1, 3, 2), "all_gather", keys, layers, 0.0),
        ("expert", (1, 2, 3, 0), "all_to_all", size, 2 * layers, work.expert_imbalance),
    ):
        width = getattr(work, f"{name}_parallel")
        if layers and width > 1:
            members = draft.partition(name, places.transpose(axes).reshape(-1, width))
            flow = library.flow(operation, sent, members, imbalance=imbalance)
            flows.append(repeat(flow, times))
    return flows


def _carry_out(
    draft: GraphDraft, role: RankProgram, task: Task, message: Callable[[int, int, int], int],
    inside: Callable[[int, int, int], list[int]],
) -> None:  # fmt: skip
    """Add the operations of a task: receive, compute with collectives, and send on."""
    work, stages = draft.work, draft.work.pipeline_parallel
    chunks = stages * work.interleaved
    forward = task.kind == FORWARD_PASS
    step = -1 if forward else 1
    near, far = task.chunk + step, task.chunk - step
    ends = task.kind != WEIGHT_GRADIENTS
    phase = Phase.FORWARD if forward else Phase.BACKWARD
    if ends and 0 <= near < chunks and (number := message(near, task.chunk, task.batch)) >= 0:
        role.block(number, receives=True)
    with role.phase(phase):
        length = (work.forward_ms if forward else work.backward_ms) * 1e6
        done = role.compute(length * task.share / work.micro_batches / work.interleaved)
        chunk = task.chunk // stages  # its stages have their collectives together
        for number in inside(task.kind, chunk, task.batch) if ends else ():
            done = role.block(number)
    if ends and 0 <= far < chunks and (number := message(task.chunk, far, task.batch)) >= 0:
        role.exchange(number, done, stream=ONWARD if forward else BACKWARD)


# -- schedules -------------------------------------------------------------------------------------

FORWARD_PASS, BACKWARD_PASS, WEIGHT_GRADIENTS = range(3)  # kinds of tasks


class Task(NamedTuple):
    """A micro-batch's pass through one chunk of layers, counted along the model. `share`: its part
    of a whole forward or backward."""

    kind: int
    chunk: int
    batch: int
    share: float = 1.0


def tasks_of(
    schedule: str, stages: int, micro_batches: int, interleaved: int, *, forward: float,
    backward: float,
) -> tuple[tuple[Task, ...], ...]:  # fmt: skip
    """The tasks of each stage, in order. `forward`, `backward`: times of a micro-batch."""
    if schedule == "zero_bubble":
        return _zero_bubble(stages, micro_batches, forward, backward)
    return tuple(
        tuple(_of_stage(schedule, stages, stage, micro_batches, interleaved))
        for stage in range(stages)
    )


def _of_stage(
    schedule: str, stages: int, stage: int, micro_batches: int, interleaved: int
) -> Iterator[Task]:
    """Tasks of a stage: forwards that fill the pipeline, then one of each, then backwards."""
    total = micro_batches * interleaved
    ahead = stages - stage - 1
    if interleaved > 1:
        ahead = 2 * ahead + (interleaved - 1) * stages
    ahead = total if schedule == "gpipe" else min(ahead, total)
    forwards = [_turn(stages, stage, interleaved, k, FORWARD_PASS) for k in range(total)]
    backwards = [_turn(stages, stage, interleaved, k, BACKWARD_PASS) for k in range(total)]
    yield from forwards[:ahead]
    for onward, back in zip(forwards[ahead:], backwards, strict=False):
        yield from (onward, back)
    yield from backwards[total - ahead :]


def _turn(stages: int, stage: int, interleaved: int, k: int, kind: int) -> Task:
    """The k-th forward or backward of a rank: micro-batches pass its chunks in groups as large as
    the number of stages."""
    group, place = divmod(k, stages * interleaved)
    turn = place // stages
    chunk = turn if kind == FORWARD_PASS else interleaved - 1 - turn
    return Task(kind, chunk * stages + stage, group * stages + place % stages)


@lru_cache(maxsize=8)
def _zero_bubble(
    stages: int, micro_batches: int, forward: float, backward: float
) -> tuple[tuple[Task, ...], ...]:
    """A stage takes a backward that has arrived, else a forward if not too many are under way, else
    gradients of weights; the order is simulated with the given times."""
    length = (forward, backward / 2, backward / 2)
    over: dict[tuple[int, int, int], float] = {}
    done: list[list[Task]] = [[] for _ in range(stages)]
    free = [0.0] * stages
    count = [[0, 0, 0] for _ in range(stages)]

    def ready(stage: int, kind: int) -> float:
        """When the next task of a kind could begin; infinite where that is not known yet."""
        batch, (forwards, backwards, _) = count[stage][kind], count[stage]
        most = {
            FORWARD_PASS: backwards + stages - stage,
            BACKWARD_PASS: forwards,
            WEIGHT_GRADIENTS: backwards,
        }[kind]
        if batch >= min(most, micro_batches):
            return float("inf")
        near = {FORWARD_PASS: stage - 1, BACKWARD_PASS: stage + 1}.get(kind, -1)
        came = over.get((near, kind, batch), float("inf")) if 0 <= near < stages else 0.0
        return max(free[stage], came)

    for _ in range(3 * stages * micro_batches):
        at, _, kind, stage = min(
            (ready(stage, kind), order, kind, stage)
            for stage in range(stages)
            for order, kind in enumerate((BACKWARD_PASS, FORWARD_PASS, WEIGHT_GRADIENTS))
        )
        batch = count[stage][kind]
        count[stage][kind] += 1
        free[stage] = over[stage, kind, batch] = at + length[kind]
        share = 1.0 if kind == FORWARD_PASS else 0.5
        done[stage].append(Task(kind, stage, batch, share))
    return tuple(tuple(of) for of in done)
