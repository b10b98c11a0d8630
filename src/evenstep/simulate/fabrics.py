"""Fabrics: which links lie between two cards of the network, and which ways there are to go.

A core numbers its links from 0 and knows, for pairs of ports, the path of each choice. A port is
a network card, numbered node × cards + card; on a torus, whose nodes forward, it is the node.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from evenstep.errors import ConfigError
from evenstep.simulate.hardware import Cluster, Fabric

Array = npt.NDArray[Any]


class Block(NamedTuple):
    """Links of one kind: a name for each, capacity in GB/s, latency in ns."""

    links: int
    name: Callable[[int], str]
    capacity: float
    latency_ns: float


class Core(Protocol):
    """The switches' side of a fabric."""

    @property
    def blocks(self) -> list[Block]:
        """Its links, in order of their numbers."""

    @property
    def choices(self) -> int:
        """Ways between two ports that are as good as each other."""

    @property
    def by_flow(self) -> bool:
        """Whether flows are spread over the choices; else all take choice 0 unless it failed."""

    @property
    def injects(self) -> bool:
        """Whether traffic enters through the cards' own links."""

    def place(self, port: Array) -> Array:
        """The leaf, router or node that a port hangs on: what a rack is here."""

    def paths(self, source: Array, target: Array, choice: Array) -> Array:
        """Links of each path, filled up with -1. Shape (pairs, longest)."""


class Switch:
    """One switch that blocks nobody."""

    choices, by_flow, injects = 1, False, True

    def __init__(self, cluster: Cluster, fabric: Fabric) -> None:
        self.blocks: list[Block] = []
        self._under = fabric.nodes_per_leaf * cluster.nics_per_node

    def place(self, port: Array) -> Array:
        """Racks still have a size, for noise that comes by the rack."""
        return port // self._under

    def paths(self, source: Array, target: Array, choice: Array) -> Array:  # noqa: ARG002
        """No link but the cards' own."""
        return np.full((len(source), 0), -1)


class LeafSpine:
    """Leaves below spines: every leaf has one link to every spine.

    With `rails`, a leaf carries the same card of all nodes of a pod (rail-optimised).
    """

    by_flow, injects = True, True

    def __init__(self, cluster: Cluster, fabric: Fabric, *, rails: bool = False) -> None:
        self._cards, self._per_leaf, self._rails = (
            cluster.nics_per_node,
            fabric.nodes_per_leaf,
            rails,
        )
        pods = -(-cluster.nodes // fabric.nodes_per_leaf)
        ports = fabric.nodes_per_leaf * (1 if rails else cluster.nics_per_node)
        self.leaves = pods * (cluster.nics_per_node if rails else 1)
        self.choices = _uplinks(fabric, ports)
        spines = self.choices
        capacity = _uplink_capacity(cluster, fabric, ports, spines)
        links, latency = self.leaves * spines, fabric.latency_us * 1e3
        self.blocks = [
            Block(links, lambda i: f"leaf{i // spines}->spine{i % spines}", capacity, latency),
            Block(links, lambda i: f"spine{i % spines}->leaf{i // spines}", capacity, latency),
        ]

    def place(self, port: Array) -> Array:
        """The leaf of a port."""
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


class FatTree:
    """Leaves, aggregation switches of a pod, cores: an aggregation switch has cores of its own."""

    by_flow, injects = True, True

    def __init__(self, cluster: Cluster, fabric: Fabric) -> None:
        self._under = fabric.nodes_per_leaf * cluster.nics_per_node
        self._in_pod = fabric.leaves_per_pod
        self.leaves = -(-cluster.nodes // fabric.nodes_per_leaf)
        pods = -(-self.leaves // self._in_pod)
        aggs = self._aggs = _uplinks(fabric, self._under)
        cores = self._cores = max(1, round(self._in_pod / fabric.pod_oversubscription))
        self.choices = aggs * cores
        low = _uplink_capacity(cluster, fabric, self._under, aggs)
        high = fabric.link_gBps or low * self._in_pod / (fabric.pod_oversubscription * cores)
        latency = fabric.latency_us * 1e3
        self._low, self._high = self.leaves * aggs, pods * aggs * cores

        def agg(i: int) -> str:
            return f"pod{i // aggs}.agg{i % aggs}"

        def leaf_agg(i: int) -> tuple[str, str]:
            return f"leaf{i // aggs}", agg(i // aggs // self._in_pod * aggs + i % aggs)

        def agg_core(i: int) -> tuple[str, str]:
            return agg(i // cores), f"core{i // cores % aggs * cores + i % cores}"

        self.blocks = [
            Block(self._low, lambda i: "->".join(leaf_agg(i)), low, latency),
            Block(self._low, lambda i: "->".join(leaf_agg(i)[::-1]), low, latency),
            Block(self._high, lambda i: "->".join(agg_core(i)), high, latency),
            Block(self._high, lambda i: "->".join(agg_core(i)[::-1]), high, latency),
        ]

    def place(self, port: Array) -> Array:
        """The leaf of a port."""
        return port // self._under

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


class Torus:
    """Nodes in a grid that wraps around; messages go dimension by dimension, the shorter way."""

    by_flow, injects = False, False

    def __init__(self, cluster: Cluster, fabric: Fabric) -> None:
        self._shape = tuple(int(length) for length in fabric.shape)
        self._cards = cluster.nics_per_node
        self.choices = 2 ** len(self._shape)  # a bit for each dimension: the other way around
        ways = self._ways = 2 * len(self._shape)
        capacity = fabric.link_gBps or cluster.nic_gBps
        self.blocks = [
            Block(
                cluster.nodes * ways,
                lambda i: f"node{i // ways}->{'xyz'[i % ways // 2]}{'+-'[i % 2]}",
                capacity,
                fabric.latency_us * 1e3,
            )
        ]

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


class Dragonfly:
    """Groups of routers, all joined within a group; one bundle of links between two groups."""

    by_flow, injects, choices = False, True, 1

    def __init__(self, cluster: Cluster, fabric: Fabric) -> None:
        self._under = fabric.nodes_per_router * cluster.nics_per_node
        self._in_group = fabric.routers_per_group
        routers = -(-cluster.nodes // fabric.nodes_per_router)
        groups = self._groups = max(1, -(-routers // self._in_group))
        width, latency = fabric.link_gBps or cluster.nic_gBps, fabric.latency_us * 1e3
        leaving = self._under * self._in_group * cluster.nic_gBps / fabric.oversubscription
        self._local = groups * self._in_group**2

        def local(i: int) -> str:
            group, pair = divmod(i, self._in_group**2)
            first, second = divmod(pair, self._in_group)
            base = group * self._in_group
            return f"router{base + first}->router{base + second}"

        self.blocks = [
            Block(self._local, local, width, latency),
            Block(
                groups**2,
                lambda i: f"group{i // groups}->group{i % groups}",
                max(width, leaving / max(groups - 1, 1)),
                latency,
            ),
        ]

    def place(self, port: Array) -> Array:
        """The router of a port."""
        return port // self._under

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
    """The fabric of a scenario."""
    core = BUILDERS[fabric.kind](cluster, fabric)
    if math.prod([max(block.links, 1) for block in core.blocks[:1]]) > 1 << 26:
        raise ConfigError(f"fabric.{fabric.kind} of {cluster.nodes} nodes has too many links")
    return core
