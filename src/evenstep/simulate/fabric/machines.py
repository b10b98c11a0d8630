"""The parts of a fabric: tiers of machines and switches, their links and paths, and the machines.

A core numbers its links from 0 and gives, for pairs of ports, the path of each choice. A port is
a network card, numbered node × cards + card; on a torus, whose nodes forward, it is numbered the
same, and stands for its node. A machine has GPUs with their cards, NUMA nodes and cores, and their
speeds. Machines of one kind are alike; settings that a kind lacks are the cluster's.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from evenstep.scenario.hardware import Cluster, NodeKind
from evenstep.scenario.scenario import nodes_in
from evenstep.trace.columns import Array


class Tier(NamedTuple):
    """Machines or switches of one level, in groups of `together` neighbours."""

    name: str
    plural: str
    size: int
    together: int = 1


class End(NamedTuple):
    """One end of links: a tier, and the machine or switch of it by the number of the link."""

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
        """A pattern of all their names, as `fabric.changes.links` takes it."""
        return re.sub(r"\d+|(?<=->)[xyz][+-]$", "*", self.name(0))


class Core:
    """The switches of a fabric and the links between them; without links, one that never blocks."""

    tiers: tuple[Tier, ...]  # from the machines upwards
    above: End  # the tier that the cards of machines are connected to
    ports: int  # under a leaf
    blocks: list[LinkBlock]  # its links, in order of their numbers
    choices = 1  # number of equally good paths between two ports
    by_flow = False  # flows are spread over the choices; else all take choice 0 unless it failed
    injects = True  # traffic enters through the cards' own links

    def place(self, port: Array) -> Array:
        """The leaf, router or node that a port is connected to: its rack."""
        return port // self.ports

    def paths(self, source: Array, target: Array, choice: Array) -> Array:  # noqa: ARG002
        """Links of each path, padded with -1. Shape (pairs, longest)."""
        return np.full((len(source), 0), -1)


def machines(cluster: Cluster, together: int) -> Tier:
    """The tier of the nodes, `together` of which are under one switch."""
    return Tier("node", "nodes", cluster.nodes, together)


# -- machines --------------------------------------------------------------------------------------


CORES = 64  # of a NUMA node, in the facts of a trace


class Machines:
    """The layout of every machine of a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.kind = np.zeros(cluster.nodes, np.int64)  # of each node; 0: the cluster's settings
        for number, kind in enumerate(cluster.kinds, 1):
            self.kind[list(nodes_in(kind.nodes, "cluster.kinds.nodes"))] = number
        self._kinds = (NodeKind(), *cluster.kinds)

        size, cards = cluster.gpus_per_node, cluster.nics_per_node
        #: By kind of machine: of each GPU its card, its NUMA node and that of its rank's cores; of
        #: each card its NUMA node. (kinds, GPUs or cards)
        self.card = self._of_kinds("gpu_nics", np.arange(size) * cards // size)
        self.gpu_numa = self._of_kinds("gpu_numa", np.zeros(size, np.int64))
        self.core_numa = self._of_kinds("core_numa", self.gpu_numa)
        self.nic_numa = self._of_kinds("nic_numa", np.zeros(cards, np.int64))
        #: Whether the scenario says which card a GPU uses.
        self.maps_cards = bool(cluster.gpu_nics or any(kind.gpu_nics for kind in cluster.kinds))

    def _of_kinds(self, name: str, usual: Array) -> Array:
        each = np.broadcast_to(usual, (len(self._kinds), usual.shape[-1])).tolist()
        rows = [
            getattr(kind, name) or getattr(self.cluster, name) or row
            for kind, row in zip(self._kinds, each, strict=True)
        ]
        return np.array(rows, np.int64)

    @property
    def numa_nodes(self) -> int:
        return 1 + int(max(self.gpu_numa.max(), self.nic_numa.max(), self.core_numa.max()))

    def factor(self, gpu: Array) -> Array:
        """How much longer compute takes on these GPUs (node × GPUs + GPU)."""
        size = self.cluster.gpus_per_node
        kind, local = self.kind[gpu // size], gpu % size
        of_kind = np.array([one.factor for one in self._kinds])[kind]
        far = self.core_numa[kind, local] != self.gpu_numa[kind, local]
        return np.asarray(of_kind * np.where(far, self.cluster.far_cores_factor, 1.0))

    def capacities(self, name: str) -> Array:
        """GB/s of each node's links of a kind; `name`: of the setting."""
        usual = getattr(self.cluster, name)
        return np.array([getattr(kind, name) or usual for kind in self._kinds])[self.kind]

    # -- as a rank's agent would describe it ---------------------------------------------------

    def locality(self, gpu: int) -> dict[str, Any]:
        """Where a rank runs: its GPU, the node's GPUs and cards, and their distances."""
        node, local = divmod(gpu, self.cluster.gpus_per_node)
        kind = int(self.kind[node])
        gpus = range(self.cluster.gpus_per_node)
        cards = range(self.cluster.nics_per_node)
        name = self._kinds[kind].gpu or self.cluster.gpu
        return {
            "hostname": f"node{node:04d}",
            "cpu": {"model": None, "allowed": _cores(int(self.core_numa[kind, local]))},
            "numa": [{"node": n, "cpus": _cores(n)} for n in range(self.numa_nodes)],
            "nics": [
                {
                    "name": f"nic{c}",
                    "pci": f"0001:{c + 1:02x}:00.0",
                    "numa_node": int(self.nic_numa[kind, c]),
                    "speed_gbps": 8 * (self._kinds[kind].nic_gBps or self.cluster.nic_gBps),
                }
                for c in cards
            ],
            "gpus": [
                {"pci": _gpu(g), "numa_node": int(self.gpu_numa[kind, g]), "name": name or None}
                for g in gpus
            ],
            "gpu": _gpu(local),
            "gpu_nic": {_gpu(g): {f"nic{c}": self._level(kind, g, c) for c in cards} for g in gpus},
        }

    def _level(self, kind: int, gpu: int, card: int) -> str:
        """Distance of a GPU and a card: one PCIe switch, one NUMA node, or across NUMA nodes."""
        if self.gpu_numa[kind, gpu] != self.nic_numa[kind, card]:
            return "SYS"
        return "PIX" if self.card[kind, gpu] == card else "NODE"


def _cores(numa_node: int) -> str:
    return f"{numa_node * CORES}-{(numa_node + 1) * CORES - 1}"


def _gpu(index: int) -> str:
    return f"0000:{index + 1:02x}:00.0"


class MachinePart(NamedTuple):
    """A kind of part inside machines: number in each machine, and the setting of its speed."""

    name: str
    each: int
    setting: str
    latency_ns: float

    def blocks(self, nodes: int, above: End) -> list[LinkBlock]:
        """Links of the part in all machines: sending, then receiving. Cards are connected to the
        fabric; other parts stay inside their machine."""
        links, machine = nodes * self.each, End("node", lambda i: i // self.each)
        other = above if self.name == "nic" else machine
        send, receive = (_naming(self.name, self.each, way) for way in ("send", "receive"))
        return [
            LinkBlock(links, send, 0.0, self.latency_ns, machine, other),
            LinkBlock(links, receive, 0.0, self.latency_ns, other, machine),
        ]


def parts_of(machines: Machines, *, injects: bool) -> list[MachinePart]:
    """The parts of machines that have links: GPUs, cards, NUMA nodes and PCIe switches."""
    cluster, parts = machines.cluster, []
    if cluster.gpus_per_node > 1:
        half = cluster.gpu_link_latency_us * 500
        parts.append(MachinePart("gpu", cluster.gpus_per_node, "gpu_link_gBps", half))
    if injects:
        parts.append(
            MachinePart("nic", cluster.nics_per_node, "nic_gBps", cluster.nic_latency_us * 1e3)
        )
        if cluster.numa_gBps:
            parts.append(MachinePart("numa", machines.numa_nodes, "numa_gBps", 0.0))
        if cluster.gpus_per_pcie_switch:
            switches = -(-cluster.gpus_per_node // cluster.gpus_per_pcie_switch)
            parts.append(MachinePart("pcie", switches, "pcie_gBps", 0.0))
    return parts


def _naming(kind: str, each: int, way: str) -> Callable[[int], str]:
    return lambda i: f"node{i // each}.{kind}{i % each}.{way}"
