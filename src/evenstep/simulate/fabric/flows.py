"""Collectives laid on the network: links of each message, and its duration without other traffic.

Without other traffic a message takes the latencies of its route plus the largest quotient, over its
links, of a round's bytes on a link and its capacity: messages of a round share links equally.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from evenstep.scenario.parts import Collectives
from evenstep.simulate.fabric import collectives, nccl
from evenstep.simulate.fabric.collectives import Pattern, Request, Round
from evenstep.simulate.fabric.network import Network, Routes
from evenstep.simulate.fabric.placement import Placement
from evenstep.trace.columns import Array

MOST_KNOWN = 256  # collectives that a library remembers


@dataclass(slots=True)
class FlowRound:
    """A round on the network."""

    round: Round
    routes: Routes
    latency_ns: Array  # of each message
    hop_ns: Array  # duration of each message, with the round's other messages
    load: Array  # bytes on each link in one round

    @property
    def duration_ns(self) -> float:
        """Duration of all repeats where all ranks enter together."""
        return float(self.hop_ns.max(initial=0.0)) * self.round.repeats


@dataclass(eq=False)
class Flow:
    """One collective of all its groups."""

    algorithm: str
    operation: str
    bytes: float
    members: Array  # (groups, size)
    stages: tuple[FlowRound, ...]
    launch_ns: float
    capacity: Array = field(repr=False)  # of the network's links
    imbalance: float = 0.0  # additional share of the first rank of a group
    spared: int = 0  # ranks of a group that are not waited for
    steady: float = 0.0  # GB/s of each message regardless of other traffic; 0: its fair share
    apart: bool = False  # no rank waits for others: each takes `alone_ns`
    joined: bool = False  # no rank begins before the last of the group has entered
    alone_ns: float | None = None  # duration where all ranks enter together, once known
    variants: dict[str, Flow] = field(default_factory=dict, repr=False)

    @cached_property
    def link_bytes(self) -> Array:
        loads = [stage.load * stage.round.repeats for stage in self.stages]
        return np.asarray(sum(loads)) if loads else np.zeros(len(self.capacity))


class CollectiveLibrary:
    """Chooses the algorithm of each collective and lays it on the network, once."""

    def __init__(self, network: Network, placement: Placement, settings: Collectives) -> None:
        self.network = network
        self.placement = placement
        self._settings = settings
        self._known: dict[tuple[object, ...], Flow] = {}
        self.hops = len(network.capacity)  # and links of their routes: how much memory it takes

    def flow(
        self, operation: str, size_bytes: float, members: Array, *, imbalance: float = 0.0
    ) -> Flow:
        """A collective of these groups. `imbalance`: additional share of the first rank of a group,
        as of the expert that most tokens go to."""
        key = (operation, float(size_bytes), imbalance, members.shape, members.tobytes())
        if key not in self._known:
            if len(self._known) == MOST_KNOWN:
                self._known.clear()
            made = self._known[key] = self._chosen(operation, size_bytes, members, imbalance)
            distinct = {id(stage): stage for stage in made.stages}
            self.hops += sum(len(stage.routes.link) for stage in distinct.values())
        return self._known[key]

    def pairs(self, size_bytes: float, source: Array, target: Array) -> Flow:
        """One message from each source to its target, each pair a group."""
        item = Round(source, target, np.asarray(float(size_bytes)))
        members = np.stack([source, target], axis=1)
        laid = (stage(self.network, self.placement.gpu, item),)
        launch_ns = self._settings.launch_us * 1e3
        return Flow("pair", "send", size_bytes, members, laid, launch_ns, self.network.capacity)

    def storage(self, size_bytes: float) -> Flow:
        """Every rank reads over the storage link that all share, numbered after the network's."""
        capacity = self.network.with_storage
        ranks, zero = np.arange(len(self.placement.gpu)), np.zeros(len(self.placement.gpu))
        item = Round(ranks, np.full(len(ranks), -1), np.asarray(float(size_bytes)))
        routes = Routes(np.arange(len(ranks) + 1), np.full(len(ranks), len(capacity) - 1))
        laid = FlowRound(
            item, routes, zero, zero + size_bytes / capacity[-1], np.zeros(len(capacity))
        )
        return Flow("storage", "read", size_bytes, ranks[:, None], (laid,), 0.0, capacity)

    def barrier(self, members: Array, wait_ns: float = 0.0) -> Flow:
        """A barrier of each group, followed by `wait_ns`."""
        return Flow("barrier", "barrier", 0.0, members, (), wait_ns, self.network.capacity)

    def _chosen(self, operation: str, size_bytes: float, members: Array, imbalance: float) -> Flow:
        settings, cluster = self._settings, self.network.cluster
        if settings.order == "topology":
            order = np.lexsort((self.placement.gpu[members], self.placement.rack[members]), axis=1)
            members = np.take_along_axis(members, order, axis=1)
        request = Request(
            operation, members, self.placement.node, size_bytes,
            settings.channels or cluster.nics_per_node, settings.servers, imbalance,
            cluster.gpu_link_reduces,
        )  # fmt: skip
        launch_ns = settings.launch_us * 1e3
        if settings.algorithm == "nccl" and operation != "all_to_all" and request.size > 1:
            return self._as_nccl(request, launch_ns)
        names: tuple[str, ...] = (settings.algorithm,)
        if settings.algorithm in ("auto", "nccl"):
            names = collectives.candidates(request)
        found = [lay_on(self.network, self.placement, request, name, launch_ns) for name in names]
        return min(found, key=lambda flow: sum(stage.duration_ns for stage in flow.stages))

    def _as_nccl(self, request: Request, launch_ns: float) -> Flow:
        """Lay a collective out with the algorithm and protocol that NCCL chooses."""
        first, node = self.placement.gpu[request.members[0]], request.node[request.members[0]]
        after, there = np.roll(first, -1), np.roll(node, -1)
        routes = self.network.routes(first[node != there], after[node != there])
        network_us = float(routes.reduced(np.add, self.network.latency_ns).max(initial=0.0)) / 1e3
        team = nccl.team_of(request, self.network.cluster, network_us)
        way = nccl.choose(team, request.operation, request.bytes, only=self._settings.nccl_algo)
        pattern = nccl.lay_out(way, team, request) if request.bytes > 0 else ()
        return _flow(self.network, self.placement, request, way.name, pattern, launch_ns)


def lay_on(
    network: Network, placement: Placement, request: Request, algorithm: str, launch_ns: float = 0.0
) -> Flow:
    """Lay a collective on the network with one algorithm, or what stands in where it has none."""
    pattern = collectives.lay_out(algorithm, request)
    is_ring = len(pattern) == 1 and pattern[0].ring is not None
    stands_in = algorithm == "server" and request.operation != "all_reduce"
    is_direct = stands_in or request.operation == "all_to_all"
    name = "ring" if is_ring else "direct" if is_direct else algorithm
    return _flow(network, placement, request, name, pattern, launch_ns)


def _flow(
    network: Network, placement: Placement, request: Request, algorithm: str, pattern: Pattern,
    launch_ns: float,
) -> Flow:  # fmt: skip
    distinct = {id(item): item for item in pattern}
    laid = {key: stage(network, placement.gpu, item) for key, item in distinct.items()}
    stages = tuple(laid[id(item)] for item in pattern)
    return Flow(
        algorithm, request.operation, request.bytes, request.members, stages,
        launch_ns if stages else 0.0, network.capacity, request.imbalance,
        joined=bool(stages) and all(s.round.joined for s in stages),
    )  # fmt: skip


def stage(network: Network, gpu: Array, item: Round) -> FlowRound:
    """Lay one round on the network. A rank's message to itself without bytes takes no time."""
    routes = network.routes(gpu[item.source], gpu[item.target], rails=item.rails)
    sizes = np.broadcast_to(item.bytes, item.source.shape)
    told = (sizes == 0) & (item.source == item.target)
    if told.any():
        routes = routes.without(told)
    network.check_usable(routes)
    load = np.bincount(routes.link, weights=sizes[routes.message], minlength=len(network.capacity))
    latency = routes.reduced(np.add, network.latency_ns)
    if item.latency_ns is not None:
        latency = np.full(len(latency), item.latency_ns)
    time = np.divide(load, network.capacity, out=np.zeros(len(load)), where=load > 0)
    moving = routes.reduced(np.maximum, time)
    if item.depth is not None:
        group = np.repeat(np.arange(item.groups), len(moving) // item.groups)
        level = np.zeros((item.groups, 1 + int(item.depth.max())))
        np.maximum.at(level, (group, item.depth), latency)
        moving = moving.reshape(item.groups, -1).max(axis=1)[group]
        latency = 2 * level.sum(axis=1)[group]
        latency += (2 * level.shape[1] - 3) / item.pieces * moving
    return FlowRound(item, routes, latency, latency + moving, load)
