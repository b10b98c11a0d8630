"""Other jobs on the same links: compute, a ring all-reduce, a barrier, and the same again."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from evenstep.scenario.parts import Neighbour
from evenstep.scenario.scenario import Scenario
from evenstep.simulate.fabric.collectives import Request
from evenstep.simulate.fabric.flows import Flow, lay_on
from evenstep.simulate.fabric.network import Network
from evenstep.simulate.fabric.noise import RandomNumbers
from evenstep.simulate.fabric.placement import Placement, seat
from evenstep.simulate.job.graph import JobGraph, RankProgram
from evenstep.simulate.wires.world import World
from evenstep.trace.columns import Array

_STREAM = 500


@dataclass
class NeighbourJob:
    """One neighbour: its settings, its exchange on the network, and its progress."""

    settings: Neighbour
    flow: Flow
    pauses: RandomNumbers
    sizes: RandomNumbers
    turn: int = 0  # exchanges begun
    moved: float = 0.0  # finished exchanges, in multiples of the mean size
    under_way: list[float] = field(default_factory=list)  # sizes of unfinished exchanges, likewise

    @property
    def ranks(self) -> int:
        """One for each GPU of its nodes."""
        return int(self.flow.members.size)

    def graph(self) -> JobGraph:
        """A step: compute, exchange, barrier."""
        role = RankProgram()
        role.compute(0.0)
        role.block(0)
        role.block(1)
        members = self.flow.members
        barrier = Flow("barrier", "barrier", 0.0, members, (), 0.0, self.flow.capacity)
        return JobGraph((role,), np.zeros(self.ranks, np.int64), [self.flow, barrier], ())

    def feed(self, world: World, job: int, graph: int) -> None:
        """Feed the next step, with a pause and an exchange size of its own."""
        self.count(world, job)
        value = np.zeros((3, self.ranks))
        value[0] = (self.settings.offset_ms * 1e6 if self.turn == 0 else 0.0) + self._pause_ns()
        size = 1.0
        if self.settings.kind == "bursty":
            size = float(self.sizes.at(self.turn).exponential())
        world.feed(job, graph, value, np.array([size, 1.0]))
        self.under_way.append(size)
        self.turn += 1

    def count(self, world: World, job: int) -> None:
        """Add up the finished exchanges."""
        while world.take(job) is not None:
            self.moved += self.under_way.pop(0)

    @property
    def link_bytes(self) -> Array:
        """Bytes that the finished exchanges put on each link."""
        return self.moved * self.flow.link_bytes

    def _pause_ns(self) -> float:
        mean = self.settings.compute_ms * 1e6
        random = self.pauses.at(self.turn)
        if self.settings.kind == "bursty":
            return mean * float(random.exponential())
        return mean * max(0.05, 1 + self.settings.jitter * float(random.standard_normal()))


def neighbour_jobs(
    scenario: Scenario, network: Network, placement: Placement
) -> list[NeighbourJob]:
    found = []
    for index, settings in enumerate(scenario.neighbours):
        flow = _ring(network, placement.neighbours[index], settings.message_bytes)
        if not settings.responsive:
            card = network.cluster.nic_gBps
            flow = replace(flow, steady=min(settings.rate_gBps or card, card))
        pauses, sizes = (RandomNumbers(scenario.run.seed, _STREAM + 2 * index + k) for k in (0, 1))
        found.append(NeighbourJob(settings, flow, pauses, sizes))
    return found


def ring_messages(network: Network, node: Array) -> Array:
    """Number of messages on each link, of a ring over all GPUs of these nodes."""
    (stage,) = _ring(network, np.array(list(dict.fromkeys(node.tolist()))), 1).stages
    return np.bincount(stage.routes.link, minlength=len(network.capacity))


def _ring(network: Network, nodes: Array, message_bytes: float) -> Flow:
    seats = seat(network, nodes)
    request = Request(
        "all_reduce", np.arange(len(seats.gpu))[None], seats.node, message_bytes,
        network.cluster.nics_per_node,
    )  # fmt: skip
    return lay_on(network, seats, request, "ring")


def within_reach(own: list[Flow], found: list[NeighbourJob], links: int) -> list[NeighbourJob]:
    """Neighbours that can delay the job: they use its links, or links of a neighbour that can."""
    touched, near = np.zeros(links, bool), list[NeighbourJob]()
    for stage in [stage for flow in own for stage in flow.stages]:
        touched[stage.routes.link[stage.routes.link < links]] = True
    for _ in found:  # one more is reached by those before it, as long as any is
        near = [one for one in found if any(touched[s.routes.link].any() for s in one.flow.stages)]
        for stage in [stage for one in near for stage in one.flow.stages]:
            touched[stage.routes.link] = True
    return near
