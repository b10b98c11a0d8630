"""A scenario as a network: where every rank is, how fast the links are. Pure.

With one leaf all jobs share a single link: the first half of each job's ranks is on one side of it,
the rest on the other, so that a ring crosses it once each way. With more, every leaf has an uplink.
Each rank has a host of its own; each leaf one more where other traffic is wanted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from evenstep.errors import ConfigError
from lab.fair.jobs import leaf_of
from lab.scenario import Network, Scenario
from lab.tcp.layout import Layout
from lab.tcp.shaping import FRAME_BYTES, Shape

BUFFER_S = 0.010  # of the link's rate, where the scenario does not say
OTHER_TRAFFIC = ("bursty_neighbour", "neighbour_job")


@dataclass(frozen=True, slots=True)
class Plan:
    """The network of a scenario, and who is where in it."""

    layout: Layout
    hosts: dict[tuple[int, int], int]  # of (job, rank)
    others: tuple[int, ...]  # of each leaf the host for other traffic; () where there is none

    def path(self, leaf: int) -> tuple[int, int]:
        """From which host to which other traffic on a leaf's uplink goes."""
        return self.others[leaf], self.others[(leaf + 1) % len(self.others)]


def plan(scenario: Scenario) -> Plan:
    """Raises `ConfigError` where the links do not fit together."""
    network = scenario.network
    leaf: list[int] = []  # of each host
    sides = max(2, network.leaves)
    hosts: dict[tuple[int, int], int] = {}
    for number, job in enumerate(scenario.jobs):
        for rank in range(job.ranks):
            hosts[number, rank] = len(leaf)
            single = network.leaves == 1
            leaf.append(rank * 2 // job.ranks if single else leaf_of(rank, job, network))
    disturbed = any(fault.kind in OTHER_TRAFFIC for fault in scenario.faults)
    others: tuple[int, ...] = ()
    if disturbed or network.background_flows:
        others = tuple(len(leaf) + side for side in range(sides))
        leaf += range(sides)
    missing = set(range(sides)) - set(leaf)
    if missing:
        raise ConfigError(f"network.leaves: nobody is under leaf {min(missing)}; take fewer leaves")
    ranks = [leaf[host] for host in hosts.values()]
    edge, uplink = shapes(network, max(ranks.count(side) for side in range(sides)))
    layout = Layout(leaf_of=leaf, edge=edge, uplink=uplink, congestion=network.congestion)
    return Plan(layout, hosts, others)


def shapes(network: Network, hosts_per_leaf: int) -> tuple[Shape | None, Shape]:
    """A host's link and an uplink.

    Oversubscribed as asked, an uplink carries what its hosts can send together over that ratio;
    else it is `link_gBps`.
    """
    uplink_gbps = 8 * network.link_gBps
    if network.oversubscription != 1:
        if not network.nic_gBps:
            raise ConfigError(
                "network.oversubscription needs network.nic_gBps, what one rank can send"
            )
        uplink_gbps = 8 * network.nic_gBps * hosts_per_leaf / network.oversubscription
    edge = _shape(network, 8 * network.nic_gBps) if network.nic_gBps else None
    return edge, _shape(network, uplink_gbps)


def _shape(network: Network, gbps: float) -> Shape:
    own = round(gbps * 1e9 / 8 * BUFFER_S)
    return Shape(
        gbps=gbps,
        buffer_bytes=network.buffer or max(own, 16 * FRAME_BYTES),
        shaper=network.shaper,
        queue=network.queue,
    )


def shrunk(shape: Shape, share: float) -> Shape:
    """The same link with only a share of its buffer; two frames always fit."""
    return replace(shape, buffer_bytes=max(2 * FRAME_BYTES, round(share * shape.buffer_bytes)))


def slowed(shape: Shape, share: float) -> Shape:
    """The same link with only a share of its rate."""
    return replace(shape, gbps=share * shape.gbps)
