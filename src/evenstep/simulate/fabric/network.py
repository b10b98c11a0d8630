"""The network: every link's capacity and latency as arrays, and the route of every message.

Links within a node come first (what a GPU sends and receives, PCIe switches, cards), then those of
the fabric. A link carries one direction.
"""

from __future__ import annotations

import re
from fnmatch import translate
from functools import cached_property
from typing import NamedTuple

import numpy as np

from evenstep.errors import ConfigError
from evenstep.scenario.hardware import Cluster, Fabric, LinkChange
from evenstep.simulate.fabric import fabrics
from evenstep.simulate.fabric.machines import Machines, parts_of
from evenstep.trace.columns import Array, positions_by_key

LEAST_SHARE = 0.05  # of a link, left by traffic that does not yield
PACKET_BYTES = 4096  # the largest payload of RoCE and InfiniBand


class Routes(NamedTuple):
    """Links of each message, CSR: message m takes `link[start[m]:start[m + 1]]`."""

    start: Array
    link: Array

    @property
    def message(self) -> Array:
        """The message of each entry of `link`."""
        return np.repeat(np.arange(len(self.start) - 1), np.diff(self.start))

    def without(self, messages: Array) -> Routes:
        """The same routes, with none for these messages (a mask)."""
        hops = np.where(messages, 0, np.diff(self.start))
        start = np.concatenate([[0], np.cumsum(hops)])
        return Routes(start, self.link[~messages[self.message]])

    def reduced(self, ufunc: np.ufunc, per_link: Array) -> Array:
        """A link's values over each route, as their sum or the largest; 0 on one without links."""
        found = np.zeros(len(self.start) - 1)
        some = np.diff(self.start) > 0
        if some.any():
            found[some] = ufunc.reduceat(per_link[self.link], self.start[:-1][some])
        return found


class Network:
    """Links and routes of a cluster on its fabric."""

    def __init__(self, cluster: Cluster, fabric: Fabric, seed: int = 0) -> None:
        self.cluster = cluster
        self.fabric = fabric
        self.core = fabrics.build(cluster, fabric)
        self._seed = seed
        self.machines = Machines(cluster)
        self._parts = parts = parts_of(self.machines, injects=self.core.injects)
        blocks = [block for part in parts for block in part.blocks(cluster.nodes, self.core.above)]
        blocks += self.core.blocks
        self.blocks = blocks
        self.first = np.cumsum([0, *(block.links for block in blocks)])
        self.inside = len(blocks) - len(self.core.blocks)  # blocks of machines, before the fabric's
        self._core_first = int(self.first[self.inside])
        self.capacity = np.repeat([b.capacity for b in blocks], [b.links for b in blocks])
        self.latency_ns = np.repeat([b.latency_ns for b in blocks], [b.links for b in blocks])
        for index, part in enumerate(parts):
            first, last = self.first[2 * index], self.first[2 * index + 2]
            each = np.repeat(self.machines.capacities(part.setting), part.each)
            self.capacity[first:last] = np.tile(each, 2)
        for index, change in enumerate(fabric.changes):
            self._change(change, f"fabric.changes[{index}]")

    @cached_property
    def with_storage(self) -> Array:
        """Capacity of every link, and last of the storage that all ranks read from."""
        return np.append(self.capacity, self.cluster.storage_gBps or np.inf)

    @cached_property
    def names(self) -> list[str]:
        """A name for every link."""
        return [block.name(i) for block in self.blocks for i in range(block.links)]

    def name(self, link: int) -> str:
        block = int(np.searchsorted(self.first, link, side="right")) - 1
        return self.blocks[block].name(link - int(self.first[block]))

    def _change(self, change: LinkChange, place: str) -> None:
        fits = re.compile(translate(change.links)).match
        chosen = np.array([i for i, name in enumerate(self.names) if fits(name)], int)
        if not len(chosen):
            shown = ", ".join(self.name(int(first)) for first in self.first[:-1][-4:])
            raise ConfigError(
                f"{place}.links: no link is called {change.links!r}; there are {shown} …"
            )
        if change.gBps:
            self.capacity[chosen] = change.gBps
        self.capacity[chosen] *= change.factor
        if change.latency_us >= 0:
            self.latency_ns[chosen] = change.latency_us * 1e3
        if change.loss:
            self.capacity[chosen] *= go_back_n(
                change.loss, self.capacity[chosen], self.latency_ns[chosen]
            )
        if change.failed or change.factor == 0:
            self.capacity[chosen] = 0.0

    def take(self, rate_gBps: Array) -> None:  # noqa: N803
        """Take background traffic that never yields off the capacity of each link."""
        self.capacity = np.maximum(self.capacity - rate_gBps, LEAST_SHARE * self.capacity)

    # -- routes ------------------------------------------------------------------------------------

    def routes(self, source: Array, target: Array, *, rails: bool = False) -> Routes:
        """Routes between GPUs, numbered node × GPUs + GPU.

        Each takes its GPU's own card of a node; with `rails` on both that of the target, unless the
        scenario names the cards. A message of a GPU to itself goes to the switch between the GPUs
        and back.
        """
        size = self.cluster.gpus_per_node
        outside = source // size != target // size
        own = np.column_stack([source, self.first[1] + target])  # links of the GPUs of a node
        parts = np.where((outside | (size == 1))[:, None], -1, own)
        if outside.any():
            far = self._between(source[outside], target[outside], rails=rails)
            wide = np.full((len(source), far.shape[1]), -1)
            wide[outside] = far
            parts = np.concatenate([parts, wide], axis=1)
        used = parts >= 0
        return Routes(np.concatenate([[0], np.cumsum(used.sum(axis=1))]), parts[used])

    def _between(self, source: Array, target: Array, *, rails: bool) -> Array:
        """Links between nodes: those of the fabric, and around them those of the machines' parts,
        each of which sends and receives."""
        size, cards = self.cluster.gpus_per_node, self.cluster.nics_per_node
        card, rails = self.machines.card, rails and not self.machines.maps_cards
        ends = [
            (gpu // size, gpu, card[self.machines.kind[by // size], by % size])
            for gpu, by in ((source, target if rails else source), (target, target))
        ]
        found = self._through(*(node * cards + chosen for node, _, chosen in ends))
        for number, part in enumerate(self._parts):
            if part.name != "gpu":
                links = []
                for first, (node, gpu, chosen) in zip(self.first[2 * number :], ends, strict=False):
                    place = self._place_in(part.name, node, gpu, chosen)
                    links.append(np.where(place < 0, -1, first + node * part.each + place))
                found = np.column_stack([links[0], found, links[1]])
        return found

    def _place_in(self, part: str, node: Array, gpu: Array, card: Array) -> Array:
        """The card, NUMA node or PCIe switch of its machine whose link to a card a GPU's message
        takes; -1 without one, where GPU and card are on the same NUMA node."""
        local, machines = gpu % self.cluster.gpus_per_node, self.machines
        if part == "nic":
            return card
        if part == "pcie":
            return local // self.cluster.gpus_per_pcie_switch
        kind = machines.kind[node]
        here = machines.gpu_numa[kind, local]
        return np.where(here != machines.nic_numa[kind, card], here, -1)

    def _through(self, source: Array, target: Array) -> Array:
        """Links of the fabric on each path, around failed links."""
        choice = self._choice(source, target)
        path = self.core.paths(source, target, choice)
        for _ in range(self.core.choices):
            dead = self._broken(path)
            if not dead.any():
                return np.where(path >= 0, path + self._core_first, -1)
            choice[dead] = (choice[dead] + 1) % self.core.choices
            again = self.core.paths(source[dead], target[dead], choice[dead])
            width = max(path.shape[1], again.shape[1])
            path = _widen(path, width)
            path[dead] = _widen(again, width)
        dead = np.flatnonzero(self._broken(path))
        one, other = (int(at[dead[0]]) // self.cluster.nics_per_node for at in (source, target))
        raise ConfigError(
            f"fabric.changes: the fabric is disconnected, every path from node {one} to node "
            f"{other} has a failed link; repair one, or keep these nodes out of the job"
        )

    def _broken(self, path: Array) -> Array:
        capacity = self.capacity[self._core_first :]
        if not path.size or (capacity > 0).all():
            return np.zeros(len(path), bool)
        return np.asarray(((path >= 0) & (capacity[path] == 0)).any(axis=1))

    def _choice(self, source: Array, target: Array) -> Array:
        if not self.core.by_flow:
            return np.zeros(len(source), np.int64)
        if self.fabric.routing == "destination":
            return np.asarray(target % self.core.choices)
        if self.fabric.routing == "adaptive":
            return _in_turn(self.core.place(source), self.core.place(target)) % self.core.choices
        mixed = hash_keys(self._seed, source, target)
        return np.asarray(mixed % np.uint64(self.core.choices)).astype(np.int64)

    def check_usable(self, routes: Routes) -> None:
        """Raise `ConfigError` where a route has a failed card or GPU link."""
        dead = np.flatnonzero(self.capacity[routes.link] == 0)
        if len(dead):
            name = self.name(int(routes.link[dead[0]]))
            raise ConfigError(
                f"fabric.changes: {name} has failed and the job needs it; keep its node out of "
                "the job, or repair it"
            )


def _in_turn(above: Array, below: Array) -> Array:
    """The turn of each message among those that leave a switch, for one target switch after the
    other. Switches begin apart, so that what they send to a target does not meet below it."""
    order, turn = np.lexsort((below, above)), np.empty(len(above), np.int64)
    turn[order] = positions_by_key(above[order])
    switches, sent = np.unique(above, return_counts=True)
    begins = (np.cumsum(sent) - sent) // len(np.unique(below))
    return turn + begins[np.searchsorted(switches, above)]


def hash_keys(seed: int, *keys: Array) -> Array:
    """A well-mixed number for each combination of keys (splitmix64, Steele et al. 2014)."""
    mixed = np.full(len(keys[0]), seed & (2**63 - 1), np.uint64)
    for key in keys:
        mixed = mixed * np.uint64(0x9E3779B97F4A7C15) + key.astype(np.uint64) + np.uint64(1)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(31)
    return mixed


def go_back_n(loss: float, capacity: Array, latency_ns: Array) -> Array:
    """Share of a link's capacity left when a lost packet repeats the window after it.

    (1 - p) / (1 - p + p w), w the packets in flight (Bertsekas & Gallager 1992, 2.4.3).
    """
    window = 1.0 + 2.0 * capacity * latency_ns / PACKET_BYTES
    return np.asarray((1 - loss) / (1 - loss + loss * window))


def _widen(path: Array, width: int) -> Array:
    return np.pad(path, ((0, 0), (0, width - path.shape[1])), constant_values=-1)
