"""The tables of a scenario for its machines and the network between them."""

from __future__ import annotations

from dataclasses import dataclass

from evenstep.scenario.schema import choice, count, flag, number, numbers, tables, text

FABRICS = ("switch", "leaf_spine", "fat_tree", "rail", "torus", "dragonfly")
LINKED = ", ".join(FABRICS[1:-1]) + f" and {FABRICS[-1]}"  # all but the switch


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeKind:
    """Machines that differ from the rest of the cluster; 0 or nothing: as there."""

    nodes: str = text("", 'which, as in "4-7"')
    gpu: str = text("", "name of their GPUs")
    factor: float = number(1.0, "how much longer compute takes there", above=True)
    gpu_link_gBps: float = number(0.0, "what a GPU can send to others of its node")  # noqa: N815
    nic_gBps: float = number(0.0, "what a network card can send")  # noqa: N815
    pcie_gBps: float = number(0.0, "what a PCIe switch carries to the cards")  # noqa: N815
    numa_gBps: float = number(0.0, "what crosses from a NUMA node to another")  # noqa: N815
    gpu_nics: tuple[int, ...] = numbers("card of each GPU")
    gpu_numa: tuple[int, ...] = numbers("NUMA node of each GPU")
    nic_numa: tuple[int, ...] = numbers("NUMA node of each card")
    core_numa: tuple[int, ...] = numbers("NUMA node whose cores each GPU's rank runs on")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The machines and what is inside them."""

    nodes: int = count(1, "machines on the fabric", least=1)
    gpus_per_node: int = count(1, "GPUs of a machine", least=1)
    gpu_link_gBps: float = number(  # noqa: N815
        300.0, "what a GPU can send to others of its node, each way", above=True
    )
    gpu_link_latency_us: float = number(1.0, "latency of a message within a node, half on each end")
    gpu_link_reduces: bool = flag(False, "the switch between GPUs can reduce (NVLS)")
    nics_per_node: int = count(1, "network cards of a machine", least=1)
    nic_gBps: float = number(  # noqa: N815
        12.5, "what a network card can send, and receive at the same time", above=True
    )
    nic_latency_us: float = number(1.0, "latency between a card and its switch")
    gpu_nics: tuple[int, ...] = numbers(
        "card of each GPU of a node; unless given, neighbours share them evenly"
    )
    gpus_per_pcie_switch: int = count(
        0, "GPUs whose traffic to the cards shares one PCIe switch; 0: no such limit"
    )
    pcie_gBps: float = number(  # noqa: N815
        25.0, "of gpus_per_pcie_switch: what one carries to the cards, and back", above=True
    )
    gpu: str = text("", "name of the GPUs")
    gpu_tflops: float = number(0.0, "peak of a GPU, 10^12 operations a second; 0: not known")
    gpu_numa: tuple[int, ...] = numbers("NUMA node of each GPU; unless given, all on one")
    nic_numa: tuple[int, ...] = numbers("NUMA node of each card; unless given, all on one")
    core_numa: tuple[int, ...] = numbers(
        "NUMA node whose cores each GPU's rank runs on; unless given, that of the GPU"
    )
    numa_gBps: float = number(  # noqa: N815
        0.0,
        "of gpu_numa, nic_numa and kinds: what the GPUs of a NUMA node exchange with cards of "
        "another, each way; 0: no such limit",
    )
    far_cores_factor: float = number(
        1.0, "of core_numa and kinds: how much longer compute takes with another's cores", low=1.0
    )
    kinds: tuple[NodeKind, ...] = tables(NodeKind, "machines that differ from the others")
    slow_nodes: str = text("", 'of slow_nodes_factor: nodes with slower GPUs, as in "4-7"')
    slow_nodes_factor: float = number(
        1.0, "of slow_nodes: how much longer compute takes there", above=True
    )
    storage_gBps: float = number(  # noqa: N815
        0.0, "what all ranks together can read of their input; 0: no limit"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkChange:
    """Links that differ from the others of their kind."""

    links: str = text("", 'names, with * and ?: "leaf3->spine*", "node7.nic*"')
    factor: float = number(1.0, "share of the capacity that is left", high=1.0)
    gBps: float = number(0.0, "capacity, instead of a share; 0: as it was")  # noqa: N815
    latency_us: float = number(-1.0, "latency; -1: as it was", low=-1.0)
    loss: float = number(0.0, "share of packets lost; costs goodput as in go-back-N", high=0.5)
    failed: bool = flag(False, "carries nothing; routes avoid it where they can")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """The network between machines."""

    kind: str = choice("switch", "how switches are connected", FABRICS)
    nodes_per_leaf: int = count(
        32, "of switch, leaf_spine, fat_tree and rail: machines under a leaf, in a rail's pod, or "
        "in a rack", least=1,
    )  # fmt: skip
    oversubscription: float = number(
        1.0,
        "of leaf_spine, fat_tree, rail and dragonfly: capacity into a leaf, of dragonfly into a "
        "group, over capacity out of it",
        above=True,
    )
    spines: int = count(
        0, "of leaf_spine, fat_tree and rail: spines; 0: as many as uplinks of the cards' speed"
    )
    leaves_per_pod: int = count(4, "of fat_tree: leaves of a pod", least=1)
    pod_oversubscription: float = number(
        1.0, "of fat_tree: capacity into a pod over capacity out of it", above=True
    )
    link_gBps: float = number(  # noqa: N815
        0.0, f"of {LINKED}: capacity of a link between switches; 0: what oversubscription leaves"
    )
    latency_us: float = number(1.0, f"of {LINKED}: latency of a link between switches")
    shape: tuple[int, ...] = numbers("of torus: its size in each dimension")
    nodes_per_router: int = count(4, "of dragonfly: machines under a router", least=1)
    routers_per_group: int = count(4, "of dragonfly: routers of a group", least=1)
    routing: str = choice(
        "ecmp",
        "of leaf_spine, fat_tree and rail: how a path is chosen: by a hash of the flow, by "
        "destination modulo paths, or in turn",
        ("ecmp", "destination", "adaptive"),
    )
    incast_goodput: float = number(
        1.0, "share of a link's capacity kept for each further job on it", high=1.0, above=True
    )
    changes: tuple[LinkChange, ...] = tables(LinkChange, "links that differ from their kind")
