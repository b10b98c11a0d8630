"""Flows as the engine takes them, and which of them share a link with nobody.

A link belongs to whoever sends on it: a rank, in a lane of a stream of its job. Where that is one
and the same for all that a link ever carries, nothing is ever there at the same time, and a
collective all of whose links are such is `closed`: its ends follow from its entries.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evenstep.simulate.fabric.flows import Flow, FlowRound
from evenstep.simulate.wires.world import (
    COLLECTIVE,
    STREAMS,
    STUCK,
    Carriage,
    MessageVolley,
    StepPlan,
    make_world,
)

Array = npt.NDArray[Any]

SAME = 1e-12  # of times: messages that take so nearly as long end together


class Used(NamedTuple):
    """A flow of a job, on one of its streams; `first` is the number of the job's rank 0."""

    flow: Flow
    job: int
    stream: int
    first: int


def shared_links(uses: Sequence[Used], links: int) -> Array:
    """Links that more than one sender may be on at a time, or messages that end one by one."""
    owner = np.full(links, -1, np.int64)
    shared = np.zeros(links, bool)
    laid = {
        (id(stage), use.stream): (use, stage)
        for use in uses
        if not use.flow.apart
        for stage in use.flow.stages
    }
    for use, stage in laid.values():
        lane, _ = stage.round.ends
        sender = ((lane * STREAMS + use.stream) << 32) + use.first + stage.round.source
        message, link = stage.routes.message, stage.routes.link
        moving = stage.hop_ns - stage.latency_ns
        shared |= _differ(sender[message], link, links) | _differ(moving[message], link, links)
        shared[link] |= (owner[link] >= 0) & (owner[link] != sender[message])
        owner[link] = sender[message]
    return shared


def closed(uses: Sequence[Used], shared: Array) -> list[bool]:
    """Of each use, whether nobody else is ever on its links.

    Beside flows that are followed message by message only those are closed that nobody leaves
    before the last has entered: ends of others would be known too late.
    """
    alone = [
        use.flow.apart
        or not any(bool(shared[stage.routes.link].any()) for stage in use.flow.stages)
        for use in uses
    ]
    if all(alone):
        return alone
    return [one and _binds(use.flow) for one, use in zip(alone, uses, strict=True)]


def _differ(value: Array, link: Array, links: int) -> Array:
    """Links whose messages do not all have the same value."""
    low, high = np.full(links, np.inf), np.full(links, -np.inf)
    np.minimum.at(low, link, value)
    np.maximum.at(high, link, value)
    return np.asarray(high > low * (1 + SAME))


def _binds(flow: Flow) -> bool:
    """Whether every end depends on every entry: rings that go all the way around."""
    stages = flow.stages
    if len(stages) != 1 or stages[0].round.ring is None:
        return not stages or all(stage.round.ring is not None for stage in stages)
    return stages[0].round.repeats >= stages[0].round.ring[1] - 1


def carriage(flow: Flow, *, first: int, ranks: int, is_closed: bool) -> Carriage:
    """A flow of a job whose rank 0 is `first` of the world's so many ranks."""
    laid = {id(stage): stage for stage in flow.stages}
    lanes = 1 + max((int(np.max(np.stack(s.round.ends), initial=0)) for s in laid.values()),
                    default=0)  # fmt: skip
    members = flow.members.reshape(-1)
    keys = [members * lanes]
    for stage in laid.values():
        lane, other = stage.round.ends
        keys += [stage.round.source * lanes + lane, stage.round.target * lanes + other]
    inside = np.unique(np.concatenate(keys))
    inside = inside[inside >= 0]
    made = {number: _messages(stage, inside, lanes) for number, stage in laid.items()}
    group = np.full(ranks, -1)
    group[first + flow.members] = np.arange(len(flow.members))[:, None]
    if flow.apart:
        group[first + members] = np.arange(len(members))
        return Carriage(first + np.sort(members), group, (), closed=True,
                        launch_ns=flow.duration_ns)  # fmt: skip
    return Carriage(
        first + inside // lanes,
        group,
        tuple(made[id(stage)]._replace(repeats=stage.round.repeats) for stage in flow.stages),
        closed=is_closed or not flow.stages or flow.spared > 0,
        joined=flow.joined,
        spared=flow.spared,
        launch_ns=flow.launch_ns,
        steady=flow.steady,
    )


def coflow(flow: Flow, shared: Array, *, first: int, ranks: int) -> Carriage:
    """A flow whose messages of a group keep pace with the slowest of them, as one fluid.

    It begins when the last of its group is there. Of links that nobody shares only the narrowest
    counts.
    """
    members = np.sort(flow.members.reshape(-1))
    place = np.full(ranks, -1)
    place[members] = np.arange(len(members))
    group = np.full(ranks, -1)
    group[first + flow.members] = np.arange(len(flow.members))[:, None]
    heads, of_rank = place[flow.members[:, 0]], group[first:]
    stages = [_fluid(stage, flow.capacity, shared, heads, of_rank) for stage in flow.stages]
    return Carriage(
        first + members, group, tuple(stages), joined=True, led=True, launch_ns=flow.launch_ns,
        steady=flow.steady,
    )  # fmt: skip


def _fluid(
    stage: FlowRound, capacity: Array, shared: Array, heads: Array, of_rank: Array
) -> MessageVolley:
    """One message a group: all bytes of the stage, and of each link what its round puts there."""
    sizes = np.broadcast_to(stage.round.bytes, stage.round.source.shape)
    largest = float(sizes.max(initial=0.0))
    group = of_rank[stage.round.source]
    weights, links = [], []
    for number in range(len(heads)):
        mine = (group == number)[stage.routes.message]
        load = np.bincount(
            stage.routes.link[mine], sizes[stage.routes.message[mine]], len(capacity)
        )
        weight = load / (largest or 1.0)
        kept = np.flatnonzero((weight > 0) & shared[: len(capacity)])
        if weight.any():
            slowest = np.argmax(np.divide(weight, capacity, out=weight * 0, where=weight > 0))
            kept = np.union1d(kept, slowest)
        weights.append(weight[kept])
        links.append(kept)
    alone = np.array([
        (weight / capacity[link]).max(initial=0.0) * largest
        for weight, link in zip(weights, links, strict=True)
    ])  # fmt: skip
    repeats, count = stage.round.repeats, len(heads)
    latency = np.maximum(float(stage.hop_ns.max(initial=0.0)) - alone, 0.0) * repeats
    return MessageVolley(
        heads, np.full(count, -1), np.full(count, largest * repeats), latency,
        latency + alone * repeats, np.concatenate([[0], np.cumsum([len(of) for of in links])]),
        np.concatenate(links), weight=np.concatenate(weights),
    )  # fmt: skip


def _messages(stage: FlowRound, inside: Array, lanes: int) -> MessageVolley:
    lane, other = stage.round.ends
    item, rows = stage.round, stage.round.ring
    target = np.searchsorted(inside, item.target * lanes + other)
    return MessageVolley(
        np.searchsorted(inside, item.source * lanes + lane),
        np.where(item.target >= 0, target, -1),
        np.broadcast_to(item.bytes, item.source.shape),
        stage.latency_ns,
        stage.hop_ns,
        stage.routes.start,
        stage.routes.link,
        ring=rows[1] if rows is not None and rows[0] * rows[1] == len(inside) else 0,
        posted=item.posted,
    )


def most_hops(carriages: Iterable[Carriage]) -> int:
    """Links of the longest route."""
    return max(
        (int(np.diff(stage.route).max(initial=1)) for one in carriages for stage in one.stages),
        default=1,
    )


def alone_ns(flow: Flow) -> float:
    """How long a collective takes where all enter together and nobody else is there."""
    if not flow.stages:
        return flow.launch_ns
    flow = replace(flow, apart=False)
    ranks = 1 + int(flow.members.max())
    use = Used(flow, 0, 0, 0)
    is_closed = all(closed([use], shared_links([use], len(flow.capacity))))
    made = carriage(flow, first=0, ranks=ranks, is_closed=is_closed)
    world = make_world(flow.capacity, (ranks,), most_hops([made]))
    number = world.flow(made)
    one, none = np.zeros(1, np.int64), np.zeros(0, np.int64)
    plan = StepPlan(
        role=np.zeros(ranks, np.int64), start=np.array([0, 1]), kind=one + COLLECTIVE, stream=one,
        instance=one, soft=one - 1, need_start=np.zeros(2, np.int64), need=none, back=none,
        flow=one + number,
    )  # fmt: skip
    world.job(0, np.zeros(ranks), eager=False)
    world.feed(0, world.graph(plan), np.zeros((1, ranks)), np.ones(1))
    world.final(0)
    while world.run(1 << 40) != STUCK:
        pass
    found = world.take(0)
    assert found is not None
    return float(found[1].max())
