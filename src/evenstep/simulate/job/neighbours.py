"""Other jobs on the same links: they compute, exchange around a ring, and begin again together."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.scenario.parts import Neighbour
from evenstep.scenario.scenario import Scenario
from evenstep.simulate.fabric.collectives import Request
from evenstep.simulate.fabric.flows import Flow, lay_on
from evenstep.simulate.fabric.network import Network
from evenstep.simulate.fabric.noise import generator
from evenstep.simulate.fabric.placement import Placement
from evenstep.simulate.job.graph import JobGraph, RankProgram
from evenstep.simulate.wires.world import World

Array = npt.NDArray[Any]

_STREAM = 500


@dataclass
class Other:
    """One neighbour: its settings, its exchange on the network, and how many it has begun."""

    settings: Neighbour
    flow: Flow
    seed: int
    stream: int
    turn: int = 0
    moved: float = 0.0  # in exchanges of mean size, for the bytes on links
    under_way: list[float] = field(default_factory=list)  # sizes of exchanges, likewise

    @property
    def ranks(self) -> int:
        """One for each GPU of its nodes."""
        return int(self.flow.members.size)

    def graph(self) -> JobGraph:
        """A step: compute, exchange, wait for everybody."""
        role = RankProgram()
        role.compute(0.0)
        role.block(0)
        role.block(1)
        members = self.flow.members
        barrier = Flow("barrier", "barrier", 0.0, members, (), 0.0, self.flow.capacity)
        return JobGraph((role,), np.zeros(self.ranks, np.int64), [self.flow, barrier], ())

    def feed(self, world: World, job: int, graph: int) -> None:
        """The next step, with its own pause and size."""
        value = np.zeros((3, self.ranks))
        offset = self.settings.offset_ms * 1e6 if self.turn == 0 else 0.0
        value[0] = offset + self._pause_ns()
        size = 1.0
        if self.settings.kind == "bursty":
            size = float(generator(self.seed, self.stream + 1, self.turn).exponential())
        world.feed(job, graph, value, np.array([size, 1.0]))
        self.under_way.append(size)
        self.turn += 1

    def count(self, world: World, job: int) -> None:
        """Add up what is over."""
        while world.take(job) is not None:
            self.moved += self.under_way.pop(0)

    @property
    def link_bytes(self) -> Array:
        """What its exchanges so far have put on each link."""
        return self.moved * self.flow.link_bytes

    def _pause_ns(self) -> float:
        mean = self.settings.compute_ms * 1e6
        random = generator(self.seed, self.stream, self.turn)
        if self.settings.kind == "bursty":
            return mean * float(random.exponential())
        return mean * max(0.05, 1 + self.settings.jitter * float(random.standard_normal()))


def others(scenario: Scenario, network: Network, placement: Placement) -> list[Other]:
    """The neighbours of a scenario."""
    found = []
    for index, settings in enumerate(scenario.neighbours):
        flow = _ring(network, placement.neighbours[index], settings.message_bytes)
        if not settings.responsive:
            card = network.cluster.nic_gBps
            flow = replace(flow, steady=min(settings.rate_gBps or card, card))
        found.append(Other(settings, flow, scenario.run.seed, _STREAM + 2 * index))
    return found


def ring_messages(network: Network, node: Array) -> Array:
    """How many messages of a ring over all GPUs of these nodes take each link."""
    (stage,) = _ring(network, np.array(list(dict.fromkeys(node.tolist()))), 1).stages
    return np.bincount(stage.routes.link, minlength=len(network.capacity))


def _ring(network: Network, nodes: Array, message_bytes: float) -> Flow:
    seats = _seats(network, nodes)
    request = Request(
        "all_reduce", np.arange(len(seats.gpu))[None], seats.node, message_bytes,
        network.cluster.nics_per_node,
    )  # fmt: skip
    return lay_on(network, seats, request, "ring")


def within_reach(own: list[Flow], found: list[Other], links: int) -> list[Other]:
    """Those that can touch us: on our links, or on those of others that can."""
    touched = np.zeros(links, bool)
    for flow in own:
        for stage in flow.stages:
            touched[stage.routes.link[stage.routes.link < links]] = True
    left = list(found)
    near: list[Other] = []
    while True:
        mine = [one for one in left if any(touched[s.routes.link].any() for s in one.flow.stages)]
        if not mine:
            return [one for one in found if any(one is other for other in near)]
        for one in mine:
            for stage in one.flow.stages:
                touched[stage.routes.link] = True
        near += mine
        left = [one for one in left if not any(one is other for other in mine)]


def _seats(network: Network, nodes: Array) -> Placement:
    """All GPUs of some nodes."""
    size = network.cluster.gpus_per_node
    gpu = (nodes[:, None] * size + np.arange(size)).reshape(-1)
    node = gpu // size
    rack = network.core.place(node * network.cluster.nics_per_node)
    return Placement(gpu, node, rack, ())
