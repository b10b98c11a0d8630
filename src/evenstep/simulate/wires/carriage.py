"""Flows converted for the engine, and the flows whose links carry no other traffic.

A link is shared unless one sender, a rank in one stream of its job, sends all of its messages, all
of the same duration, or one group that begins together: then only those of one round are under way
at a time. A collective without shared links is `closed`: its ends follow from its entries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from evenstep.simulate.fabric.flows import Flow, FlowRound
from evenstep.simulate.wires.interface import (
    COLLECTIVE,
    STREAMS,
    STUCK,
    Carriage,
    MessageVolley,
    StepPlan,
)
from evenstep.simulate.wires.world import make_world
from evenstep.trace.columns import Array

SAME = 1e-12  # relative: messages whose durations differ by less end together


class FlowUse(NamedTuple):
    """A flow on a stream of a job; `first` is the world's number of the job's rank 0."""

    flow: Flow
    job: int
    stream: int
    first: int


@lru_cache(maxsize=16)  # options and trial runs of a study share flows
def carriages(uses: tuple[FlowUse, ...], links: int, ranks: int) -> dict[Flow, Carriage]:
    """The flows for a world of so many ranks."""
    shared = _shared_links(uses, links)
    are_closed = _closed_uses(uses, shared)
    return {
        use.flow: _carriage(use.flow, shared, first=use.first, ranks=ranks, is_closed=one)
        for use, one in zip(uses, are_closed, strict=True)
    }


def _shared_links(uses: Sequence[FlowUse], links: int) -> Array:
    """Whether several senders, or messages of different durations, may be on each link at once."""
    owner = np.full(links, -1, np.int64)
    shared = np.zeros(links, bool)
    bound = [use for use in uses if not use.flow.apart]
    laid = {(id(stage), use.stream): (use, stage) for use in bound for stage in use.flow.stages}
    for use, stage in laid.values():
        message, link = stage.routes.message, stage.routes.link
        sender = (use.stream << 32) + use.first + stage.round.source
        if use.flow.joined:
            together = np.zeros(1 + int(use.flow.members.max()), np.int64)
            together[use.flow.members] = use.flow.members[:, :1]
            sender = ((STREAMS + use.stream) << 32) + use.first + together[stage.round.source]
        else:
            moving = stage.hop_ns - stage.latency_ns
            shared |= _differ(moving[message], link, links, SAME)
        shared |= _differ(sender[message], link, links, 0.0)
        shared[link] |= (owner[link] >= 0) & (owner[link] != sender[message])
        owner[link] = sender[message]
    return shared


def _closed_uses(uses: Sequence[FlowUse], shared: Array) -> list[bool]:
    """Whether each use is closed: none of its links is shared.

    Beside flows that are followed message by message, a flow is closed only if no rank leaves it
    before the last has entered: the engine would know the ends of early ranks too late.
    """
    alone = [
        use.flow.apart
        or not any(bool(shared[stage.routes.link].any()) for stage in use.flow.stages)
        for use in uses
    ]
    if all(alone):
        return alone
    binds = [not use.flow.spared and _binds(use.flow.stages) for use in uses]
    return [one and other for one, other in zip(alone, binds, strict=True)]


def _differ(value: Array, link: Array, links: int, same: float) -> Array:
    """Links whose messages have values that differ, relatively, by more than `same`."""
    one, found = np.zeros(links, value.dtype), np.zeros(links, bool)
    one[link] = value
    found[link[np.abs(value - one[link]) > same * value]] = True
    return found


def _binds(stages: Sequence[FlowRound]) -> bool:
    """Whether every end depends on every entry: rings of at least n - 1 rounds."""
    if len(stages) != 1 or stages[0].round.ring is None:
        return not stages or all(stage.round.ring is not None for stage in stages)
    return stages[0].round.repeats >= stages[0].round.ring[1] - 1


def _carriage(flow: Flow, shared: Array, *, first: int, ranks: int, is_closed: bool) -> Carriage:
    """Convert a flow of a job whose rank 0 is number `first` of the world's `ranks`."""
    laid = {id(stage): stage for stage in flow.stages}
    members = flow.members.reshape(-1)
    ends = [end[end >= 0] for s in laid.values() for end in (s.round.source, s.round.target)]
    inside = np.unique(np.concatenate([members, *ends]))
    made = {number: _messages(stage, inside, shared) for number, stage in laid.items()}
    group = np.full(ranks, -1)
    group[first + flow.members] = np.arange(len(flow.members))[:, None]
    if flow.apart:
        group[first + members] = np.arange(len(members))
        return Carriage(first + np.sort(members), group, (), closed=True,
                        launch_ns=alone_ns(flow))  # fmt: skip
    stages = (made[id(stage)]._replace(repeats=stage.round.repeats) for stage in flow.stages)
    return Carriage(
        first + inside, group, tuple(stages),
        closed=is_closed or not flow.stages, joined=flow.joined,
        spared=flow.spared, launch_ns=flow.launch_ns, steady=flow.steady,
    )  # fmt: skip


def _messages(stage: FlowRound, inside: Array, shared: Array) -> MessageVolley:
    item, rows, link = stage.round, stage.round.ring, stage.routes.link
    return MessageVolley(
        np.searchsorted(inside, item.source),
        np.where(item.target >= 0, np.searchsorted(inside, item.target), -1),
        np.broadcast_to(item.bytes, item.source.shape),
        stage.latency_ns,
        stage.hop_ns,
        stage.routes.start,
        link,
        ring=rows[1] if rows is not None and rows[0] * rows[1] == len(inside) else 0,
        posted=item.posted,
        shared=shared[link],
    )


def alone_ns(flow: Flow) -> float:
    """Duration of a collective that all ranks enter together, without other traffic."""
    if flow.alone_ns is None:
        flow.alone_ns = _by_itself(replace(flow, apart=False)) if flow.stages else flow.launch_ns
    return flow.alone_ns


def _by_itself(flow: Flow) -> float:
    ranks = 1 + int(flow.members.max())
    world = make_world(flow.capacity, (ranks,))
    number = world.flow(carriages((FlowUse(flow, 0, 0, 0),), len(flow.capacity), ranks)[flow])
    plan = one_by_one(ranks, [COLLECTIVE], [number])
    world.job(0, np.zeros(ranks))
    world.feed(0, world.graph(plan), np.zeros((1, ranks)), np.ones(1))
    world.final(0)
    while world.run(1 << 40) != STUCK:
        pass
    found = world.take(0)
    assert found is not None
    return float(found[1].max())


def one_by_one(ranks: int, kinds: Sequence[int], flows: Sequence[int]) -> StepPlan:
    """A step of operations in sequence, the same on all ranks; one flow for each collective."""
    kind, nothing = np.array(kinds), np.zeros(0, np.int64)
    count = len(kind)
    instance = np.zeros(count, np.int64)
    instance[kind == COLLECTIVE] = np.arange(len(flows))
    return StepPlan(
        role=np.zeros(ranks, np.int64), start=np.array([0, count]), kind=kind,
        stream=np.zeros(count, np.int64), instance=instance, soft=np.full(count, -1),
        need_start=np.zeros(count + 1, np.int64), need=nothing, back=nothing, flow=np.array(flows),
    )  # fmt: skip
