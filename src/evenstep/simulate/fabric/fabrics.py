"""Fabrics: switches above switches, torus and dragonfly, and the one that a scenario asks for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from evenstep.errors import ConfigError
from evenstep.scenario.hardware import Cluster, Fabric
from evenstep.simulate.fabric.machines import Core, End, LinkBlock, Tier, machines
from evenstep.trace.columns import Array


class Torus(Core):
    """Nodes in a grid that wraps around; messages go dimension by dimension, the shorter way."""

    injects = False

    def __init__(self, cluster: Cluster, fabric: Fabric) -> None:
        self._shape = tuple(int(length) for length in fabric.shape)
        self._cards = cluster.nics_per_node
        self.choices = 2 ** len(self._shape)  # a bit for each dimension: the other way around
        ways = self._ways = 2 * len(self._shape)
        capacity = fabric.link_gBps or cluster.nic_gBps
        self.tiers = (machines(cluster, 1),)
        self.above = End("node", self.place)  # unused: no traffic enters through cards
        self.blocks = [
            LinkBlock(
                cluster.nodes * ways,
                lambda i: f"node{i // ways}->{'xyz'[i % ways // 2]}{'+-'[i % 2]}",
                capacity,
                fabric.latency_us * 1e3,
                End("node", lambda i: i // ways),
                End("node", self._neighbour),
            )
        ]

    def _neighbour(self, link: Array) -> Array:
        """The node a link leads to."""
        at = list(np.unravel_index(link // self._ways, self._shape))
        step = 1 - 2 * (link % 2)
        for axis, length in enumerate(self._shape):
            at[axis] = (at[axis] + step * (link % self._ways // 2 == axis)) % length
        return np.asarray(np.ravel_multi_index(tuple(at), self._shape))

    def place(self, port: Array) -> Array:
        """The plane of a node."""
        return np.asarray(np.unravel_index(port // self._cards, self._shape)[0])

    def paths(self, source: Array, target: Array, choice: Array) -> Array:
        """Hop by hop through the grid."""
        here = np.stack(np.unravel_index(source // self._cards, self._shape))
        there = np.stack(np.unravel_index(target // self._cards, self._shape))
        hops: list[Array] = []
        for axis, length in enumerate(self._shape):
            forward = (there[axis] - here[axis]) % length
            other = (choice >> axis & 1).astype(bool)
            onward = (forward * 2 <= length) ^ other
            left = np.where(onward, forward, (length - forward) % length)
            while (left > 0).any():
                node = np.ravel_multi_index(tuple(here), self._shape)
                link = node * self._ways + 2 * axis + ~onward
                hops.append(np.where(left > 0, link, -1))
                step = np.where(onward, 1, -1) * (left > 0)
                here[axis] = (here[axis] + step) % length
                left = left - 1
        return np.stack(hops, axis=1) if hops else np.full((len(source), 0), -1)


class Dragonfly(Core):
    """Groups of routers, all joined within a group; one bundle of links between two groups."""

    def __init__(self, cluster: Cluster, fabric: Fabric) -> None:
        self.ports = fabric.nodes_per_router * cluster.nics_per_node
        self._in_group = fabric.routers_per_group
        routers = -(-cluster.nodes // fabric.nodes_per_router)
        groups = self._groups = max(1, -(-routers // self._in_group))
        width, latency = fabric.link_gBps or cluster.nic_gBps, fabric.latency_us * 1e3
        leaving = self.ports * self._in_group * cluster.nic_gBps / fabric.oversubscription
        size = self._in_group
        self._local = groups * size**2
        self.tiers = (
            machines(cluster, fabric.nodes_per_router),
            Tier("router", "routers", groups * size, size),
        )
        self.above = End("router", self.place)

        def ends(i: Any) -> tuple[Any, Any]:
            return i // size**2 * size + i % size**2 // size, i // size**2 * size + i % size

        def gate(of: Array, towards: Array) -> Array:
            return of * size + _gateway(of, towards, size)

        self.blocks = [
            LinkBlock(
                self._local,
                lambda i: "->".join(f"router{end}" for end in ends(i)),
                width,
                latency,
                End("router", lambda i: ends(i)[0]),
                End("router", lambda i: ends(i)[1]),
            ),
            LinkBlock(
                groups**2,
                lambda i: f"group{i // groups}->group{i % groups}",
                max(width, leaving / max(groups - 1, 1)),
                latency,
                End("router", lambda i: gate(i // groups, i % groups)),
                End("router", lambda i: gate(i % groups, i // groups)),
            ),
        ]

    def paths(self, source: Array, target: Array, choice: Array) -> Array:  # noqa: ARG002
        """The minimal path: to the router that has the bundle, across, to the target's router."""
        size = self._in_group
        one, other = self.place(source), self.place(target)
        here, there = one // size, other // size
        leaves_by = np.where(here == there, other % size, _gateway(here, there, size))
        enters_by = np.where(here == there, other % size, _gateway(there, here, size))
        first = here * size**2 + one % size * size + leaves_by
        across = self._local + here * self._groups + there
        last = there * size**2 + enters_by * size + other % size
        path = np.stack([first, across, last], axis=1)
        path[one % size == leaves_by, 0] = -1
        path[here == there, 1] = -1
        path[(here == there) | (enters_by == other % size), 2] = -1
        return path


def _gateway(group: Array, towards: Array, size: int) -> Array:
    """Router of a group that holds the bundle to another."""
    return np.asarray(np.where(towards < group, towards, towards - 1) % size)


class Switch(Core):
    """One switch that blocks nobody. Racks still have a size, for noise that comes by the rack."""

    def __init__(self, cluster: Cluster, fabric: Fabric) -> None:
        self.blocks: list[LinkBlock] = []
        self.tiers = (machines(cluster, fabric.nodes_per_leaf), Tier("switch", "switches", 1))
        self.above = End("switch", np.zeros_like)
        self.ports = fabric.nodes_per_leaf * cluster.nics_per_node


class LeafSpine(Core):
    """Leaves below spines: every leaf has one link to every spine.

    With `rails`, a leaf carries the same card of all nodes of a pod (rail-optimised).
    """

    by_flow = True

    def __init__(self, cluster: Cluster, fabric: Fabric, *, rails: bool = False) -> None:
        self._cards, self._per_leaf = cluster.nics_per_node, fabric.nodes_per_leaf
        self._rails = rails
        pods = -(-cluster.nodes // fabric.nodes_per_leaf)
        ports = fabric.nodes_per_leaf * (1 if rails else cluster.nics_per_node)
        self.leaves = pods * (cluster.nics_per_node if rails else 1)
        self.choices = _uplinks(fabric, ports)
        spines = self.choices
        capacity = _uplink_capacity(cluster, fabric, ports, spines)
        links, latency = self.leaves * spines, fabric.latency_us * 1e3
        self.tiers = (
            machines(cluster, fabric.nodes_per_leaf),
            Tier("leaf", "leaves", self.leaves, cluster.nics_per_node if rails else 1),
            Tier("spine", "spines", spines),
        )
        self.above = End("leaf", self.place)
        ends = End("leaf", lambda i: i // spines), End("spine", lambda i: i % spines)
        self.blocks = _both_ways(links, capacity, latency, ends)

    def place(self, port: Array) -> Array:
        pod = port // self._cards // self._per_leaf
        return pod * self._cards + port % self._cards if self._rails else pod

    def paths(self, source: Array, target: Array, choice: Array) -> Array:
        """Up to the chosen spine and down; nothing within a leaf."""
        above, below = self.place(source), self.place(target)
        spine = choice % self.choices
        path = np.stack([above * self.choices + spine, below * self.choices + spine], axis=1)
        path[:, 1] += self.leaves * self.choices
        path[above == below] = -1
        return path


class FatTree(Core):
    """Leaves, aggregation switches of a pod, cores: an aggregation switch has cores of its own."""

    by_flow = True

    def __init__(self, cluster: Cluster, fabric: Fabric) -> None:
        self.ports = fabric.nodes_per_leaf * cluster.nics_per_node
        self._in_pod = fabric.leaves_per_pod
        self.leaves = -(-cluster.nodes // fabric.nodes_per_leaf)
        pods = -(-self.leaves // self._in_pod)
        aggs = self._aggs = _uplinks(fabric, self.ports)
        cores = self._cores = max(1, round(self._in_pod / fabric.pod_oversubscription))
        self.choices = aggs * cores
        low = _uplink_capacity(cluster, fabric, self.ports, aggs)
        high = fabric.link_gBps or low * self._in_pod / (fabric.pod_oversubscription * cores)
        latency = fabric.latency_us * 1e3
        self._low, self._high = self.leaves * aggs, pods * aggs * cores
        self.tiers = (
            machines(cluster, fabric.nodes_per_leaf),
            Tier("leaf", "leaves", self.leaves, self._in_pod),
            Tier("aggregation switch", "aggregation switches", pods * aggs, aggs),
            Tier("core", "cores", aggs * cores, cores),
        )
        self.above = End("leaf", self.place)
        leaf = End("leaf", lambda i: i // aggs)
        over = End(self.tiers[2].name, lambda i: i // aggs // self._in_pod * aggs + i % aggs)
        below = End(self.tiers[2].name, lambda i: i // cores)
        core = End("core", lambda i: i // cores % aggs * cores + i % cores)

        def name(tier: str, number: Any) -> str:
            inside = tier == self.tiers[2].name
            return f"pod{number // aggs}.agg{number % aggs}" if inside else f"{tier}{number}"

        self.blocks = [
            *_both_ways(self._low, low, latency, (leaf, over), name),
            *_both_ways(self._high, high, latency, (below, core), name),
        ]

    def paths(self, source: Array, target: Array, choice: Array) -> Array:
        """Up as far as needed and down through the mirrored switches."""
        above, below = self.place(source), self.place(target)
        agg, core = choice % self._aggs, choice // self._aggs % self._cores
        from_pod, to_pod = above // self._in_pod, below // self._in_pod
        cores, first = self._cores, 2 * self._low
        path = np.stack(
            [
                above * self._aggs + agg,
                first + (from_pod * self._aggs + agg) * cores + core,
                first + self._high + (to_pod * self._aggs + agg) * cores + core,
                self._low + below * self._aggs + agg,
            ],
            axis=1,
        )
        path[from_pod == to_pod, 1:3] = -1
        path[above == below] = -1
        return path


def _both_ways(
    links: int, capacity: float, latency_ns: float, ends: tuple[End, End],
    name: Callable[[str, Any], str] = "{}{}".format,
) -> list[LinkBlock]:  # fmt: skip
    """Links up between two tiers, and those down; `name`: of a switch, by tier and number."""

    def block(*ends: End) -> LinkBlock:
        def link(i: Any) -> str:
            return "->".join(name(end.tier, end.of(i)) for end in ends)

        return LinkBlock(links, link, capacity, latency_ns, *ends)

    return [block(*ends), block(*ends[::-1])]


def _uplinks(fabric: Fabric, ports: int) -> int:
    return fabric.spines or max(1, round(ports / fabric.oversubscription))


def _uplink_capacity(cluster: Cluster, fabric: Fabric, ports: int, uplinks: int) -> float:
    """So that all uplinks of a leaf carry what its cards can send over the oversubscription."""
    total = ports * cluster.nic_gBps / fabric.oversubscription
    return fabric.link_gBps or total / uplinks


BUILDERS: dict[str, Callable[[Cluster, Fabric], Core]] = {
    "switch": Switch,
    "leaf_spine": LeafSpine,
    "rail": lambda cluster, fabric: LeafSpine(cluster, fabric, rails=True),
    "fat_tree": FatTree,
    "torus": Torus,
    "dragonfly": Dragonfly,
}


def build(cluster: Cluster, fabric: Fabric) -> Core:
    core = BUILDERS[fabric.kind](cluster, fabric)
    if any(block.links > 1 << 26 for block in core.blocks):
        raise ConfigError(f"fabric.{fabric.kind} of {cluster.nodes} nodes has too many links")
    return core
