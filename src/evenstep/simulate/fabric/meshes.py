"""Fabrics whose switches or machines are connected to each other directly: torus and dragonfly."""

from __future__ import annotations

from typing import Any

import numpy as np

from evenstep.scenario.hardware import Cluster, Fabric
from evenstep.simulate.fabric.machines import End, LinkBlock, Tier, machines
from evenstep.trace.columns import Array


class Torus:
    """Nodes in a grid that wraps around; messages go dimension by dimension, the shorter way."""

    by_flow, injects = False, False

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

    def place(self, port: Array) -> Array:
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
