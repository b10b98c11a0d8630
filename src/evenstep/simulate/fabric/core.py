"""What a fabric is made of: tiers of machines and switches, links between them, ways to go.

A core numbers its links from 0 and knows, for pairs of ports, the path of each choice. A port is
a network card, numbered node × cards + card; on a torus, whose nodes forward, it is the node.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy.typing as npt

from evenstep.scenario.hardware import Cluster

Array = npt.NDArray[Any]


class Tier(NamedTuple):
    """Machines or switches of one level; `together` neighbouring ones belong to each other."""

    name: str
    plural: str
    size: int
    together: int = 1


class End(NamedTuple):
    """Where links begin or end: a tier, and which of it by the number of the link."""

    tier: str
    of: Callable[[Array], Array]


class LinkBlock(NamedTuple):
    """Links of one kind: a name for each, capacity in GB/s, latency in ns, and their ends."""

    links: int
    name: Callable[[int], str]
    capacity: float
    latency_ns: float
    source: End
    target: End

    @property
    def pattern(self) -> str:
        """What matches all their names, as `fabric.changes.links` takes it."""
        return re.sub(r"\d+|(?<=->)[xyz][+-]$", "*", self.name(0))


class Core(Protocol):
    """The switches' side of a fabric."""

    @property
    def blocks(self) -> list[LinkBlock]:
        """Its links, in order of their numbers."""

    @property
    def tiers(self) -> tuple[Tier, ...]:
        """What there is, from the machines upwards."""

    @property
    def choices(self) -> int:
        """Ways between two ports that are as good as each other."""

    @property
    def by_flow(self) -> bool:
        """Whether flows are spread over the choices; else all take choice 0 unless it failed."""

    @property
    def injects(self) -> bool:
        """Whether traffic enters through the cards' own links."""

    @property
    def above(self) -> End:
        """What the cards of machines are connected to."""

    def place(self, port: Array) -> Array:
        """The leaf, router or node that a port hangs on: what a rack is here."""

    def paths(self, source: Array, target: Array, choice: Array) -> Array:
        """Links of each path, filled up with -1. Shape (pairs, longest)."""


def machines(cluster: Cluster, together: int) -> Tier:
    """The nodes, of which so many are under one switch."""
    return Tier("node", "nodes", cluster.nodes, together)
