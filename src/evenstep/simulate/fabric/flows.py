"""A collective laid on the network: how long each hop takes, and the longest way to the end.

Alone on the network, a message takes the latencies of its route plus, at its narrowest link, all
bytes of its round over the link's capacity: equal messages that start together share it equally.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.scenario.scenario import Collectives
from evenstep.simulate.fabric import collectives
from evenstep.simulate.fabric.collectives import Pattern, Request, Round
from evenstep.simulate.fabric.network import Network, Routes
from evenstep.simulate.fabric.placement import Placement
from evenstep.simulate.fabric.rings import RingProfile, ring_tails

Array = npt.NDArray[Any]

MOST_ROUNDS = 512  # followed back one by one; beyond it a collective starts when all are there


@dataclass(slots=True)
class Stage:
    """A round on the network."""

    round: Round
    routes: Routes
    latency_ns: Array  # of each message
    hop_ns: Array  # of each message, under the round's own load
    load: Array  # bytes on each link in one round

    @property
    def duration_ns(self) -> float:
        """All its repeats, everybody starting together."""
        return float(self.hop_ns.max(initial=0.0)) * self.round.repeats


@dataclass
class Flow:
    """One collective of all its groups. `tail_ns` is (ranks,): from a rank's entry to the end of
    its group, everybody else being there already; 0 for ranks that take no part."""

    algorithm: str
    operation: str
    bytes: float
    members: Array  # (groups, size)
    stages: tuple[Stage, ...]
    launch_ns: float
    tail_ns: Array
    following_ns: float  # from the end of one to the end of another right behind it

    @property
    def duration_ns(self) -> float:
        """From the last entry to the end, where all enter together."""
        return float(self.tail_ns.max(initial=0.0))

    @cached_property
    def pace(self) -> float:
        """Share of the rounds' own lengths that it takes behind another: ranks need not be in
        step."""
        rounds = sum(stage.duration_ns for stage in self.stages)
        return (self.following_ns - self.launch_ns) / rounds if rounds else 1.0

    def timed(self, duration_ns: float, following_ns: float) -> Flow:
        """The same flow, known to take this long without its launch."""
        factor = duration_ns / (self.duration_ns - self.launch_ns)
        inside = self.tail_ns > 0
        tail = np.where(inside, (self.tail_ns - self.launch_ns) * factor + self.launch_ns, 0.0)
        return replace(self, tail_ns=tail, following_ns=following_ns + self.launch_ns)

    @cached_property
    def ring(self) -> RingProfile | None:
        """Of one round of rings whose hops differ: who is through it sooner than others."""
        part = self.stages[0] if len(self.stages) == 1 else None
        if part is None or part.round.ring is None or len(self.members) > 1:
            return None
        factor = (self.duration_ns - self.launch_ns) / part.duration_ns
        shape = part.round.ring
        hops = part.hop_ns.reshape(shape) * factor
        if hops.max() - hops.min() <= 1e-9 * hops.max():
            return None
        return RingProfile(part.round.source.reshape(shape), hops, part.round.repeats)

    @cached_property
    def link_bytes(self) -> Array:
        """Bytes on each link, in all."""
        loads = [stage.load * stage.round.repeats for stage in self.stages]
        return np.asarray(sum(loads)) if loads else np.zeros(0)


class Library:
    """Chooses algorithms and lays collectives out, each once.

    `timing` may know better than the sum of the rounds how long a flow takes.
    """

    def __init__(
        self,
        network: Network,
        placement: Placement,
        settings: Collectives,
        timing: Callable[[Network, Flow], Flow] | None = None,
    ) -> None:
        self.network = network
        self._timing = timing
        self.placement = placement
        self._settings = settings
        self._known: dict[tuple[str, float, bytes], Flow] = {}

    def flow(self, operation: str, size_bytes: float, members: Array) -> Flow:
        """A collective of these groups."""
        key = (operation, float(size_bytes), members.tobytes())
        if key not in self._known:
            flow = self._chosen(operation, size_bytes, members)
            self._known[key] = flow if self._timing is None else self._timing(self.network, flow)
        return self._known[key]

    def _chosen(self, operation: str, size_bytes: float, members: Array) -> Flow:
        settings, cluster = self._settings, self.network.cluster
        if settings.order == "topology":
            members = self._by_place(members)
        request = Request(
            operation,
            members,
            self.placement.node,
            size_bytes,
            settings.channels or cluster.nics_per_node,
            settings.servers,
        )
        names: tuple[str, ...] = (settings.algorithm,)
        if settings.algorithm == "auto":
            names = collectives.candidates(request, switch_reduces=cluster.gpu_link_reduces)
        launch_ns = settings.launch_us * 1e3
        found = [lay_on(self.network, self.placement, request, name, launch_ns) for name in names]
        return min(found, key=lambda flow: flow.duration_ns)

    def _by_place(self, members: Array) -> Array:
        place = np.stack([self.placement.rack[members], self.placement.gpu[members]])
        order = np.lexsort((place[1], place[0]), axis=1)
        return np.take_along_axis(members, order, axis=1)


def lay_on(
    network: Network, placement: Placement, request: Request, algorithm: str, launch_ns: float = 0.0
) -> Flow:
    """Lay a collective on the network with one algorithm."""
    pattern = collectives.lay_out(algorithm, request)
    stages = _stages(network, placement, pattern)
    tail = _tails(stages, len(placement.gpu))
    members = request.members.reshape(-1)
    if stages:
        tail[members] += launch_ns
    return Flow(
        algorithm,
        request.operation,
        request.bytes,
        request.members,
        stages,
        launch_ns,
        tail,
        float(tail.max(initial=0.0)),
    )


def _stages(network: Network, placement: Placement, pattern: Pattern) -> tuple[Stage, ...]:
    """Every round on the network; the same round twice is laid once."""
    laid: dict[int, Stage] = {}
    for item in pattern:
        if id(item) not in laid:
            laid[id(item)] = stage(network, placement.gpu, item)
    return tuple(laid[id(item)] for item in pattern)


def stage(network: Network, gpu: Array, item: Round) -> Stage:
    """One round on the network."""
    routes = network.routes(gpu[item.source], gpu[item.target], item.card)
    network.check_usable(routes)
    sizes = np.broadcast_to(item.bytes, item.source.shape)
    load = np.bincount(routes.link, weights=sizes[routes.message], minlength=len(network.capacity))
    latency = routes.total(network.latency_ns)
    return Stage(item, routes, latency, latency + routes.worst(time_on(load, network)), load)


def time_on(load: Array, network: Network) -> Array:
    """How long each link needs for a load; 0 where there is none."""
    time: Array = np.divide(load, network.capacity, out=np.zeros_like(load), where=load > 0)
    return time


# -- the longest way to the end --------------------------------------------------------------------


def _tails(stages: tuple[Stage, ...], ranks: int) -> Array:
    """Longest chain of hops from each rank's entry to the end."""
    tail = np.zeros(ranks)
    if len(stages) == 1 and stages[0].round.ring is not None:
        item = stages[0].round
        rows = ring_tails(stages[0].hop_ns.reshape(item.ring), item.repeats)
        np.maximum.at(tail, item.source, rows.reshape(-1))
        return tail
    if sum(stage.round.repeats for stage in stages) > MOST_ROUNDS:
        return _together(stages, tail)
    for part in reversed(stages):
        source, target = part.round.source, part.round.target
        for _ in range(part.round.repeats):
            onwards = part.hop_ns + np.maximum(tail[source], tail[target])
            np.maximum.at(tail, source, onwards)
            if part.round.posted:
                np.maximum.at(tail, target, onwards)
    return tail


def _together(stages: tuple[Stage, ...], tail: Array) -> Array:
    """Everybody has to be there for the collective to begin."""
    total = sum(stage.duration_ns for stage in stages)
    for part in stages:
        tail[part.round.source] = tail[part.round.target] = total
    return tail
