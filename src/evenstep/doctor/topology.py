"""Which GPU is near which adapter and which processors, whoever tells it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from evenstep.doctor.check import Check, Subject, listed
from evenstep.documents import Document, Meta, Positive

_SOURCE = "nvidia-smi topo -m, legend; NCCL user guide, NCCL_NET_GDR_LEVEL"
_NICS = Subject("topology.gpu_nic", _SOURCE)
_GPUS = Subject("topology.gpu_gpu", _SOURCE)
_NUMA = Subject("topology.numa", "Linux kernel, sysfs-bus-pci numa_node")
#: From near to far, as `nvidia-smi topo -m` names them; NVLinks are "NV" and their number.
LEVELS = ("PIX", "PXB", "PHB", "NODE", "SYS")
_FAR = ("PHB", "NODE", "SYS")  # through a processor


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology(Document):
    """Devices of one host and the ways between them."""

    computed: ClassVar[tuple[str, ...]] = ("nearest",)

    place: Annotated[str, Meta("Who tells it: this host, or a file.")]
    gpus: tuple[str, ...]
    nics: tuple[str, ...]
    gpu_nic: Mapping[tuple[str, str], str] = field(repr=False)  # level of each pair
    gpu_gpu: Mapping[tuple[str, str], str] = field(repr=False)
    numa: Annotated[Mapping[str, int | None], Meta("Node of each GPU and adapter.")] = field(
        default_factory=dict
    )
    numa_nodes: Positive = 1

    @property
    def nearest(
        self,
    ) -> Annotated[
        dict[str, tuple[str | None, list[str]]],
        Meta("Of each GPU: how near its nearest adapters are, and which."),
    ]:
        """Of each GPU the shortest way to any adapter, and the adapters at that distance."""
        return {gpu: self._nearest(gpu) for gpu in self.gpus}

    def _nearest(self, gpu: str) -> tuple[str | None, list[str]]:
        levels = {nic: self.gpu_nic[gpu, nic] for nic in self.nics if (gpu, nic) in self.gpu_nic}
        if not levels:
            return None, []
        best = min(levels.values(), key=rank_of)
        return best, [nic for nic, level in levels.items() if level == best]


def rank_of(level: str) -> int:
    """How far a level is; NVLinks are nearest, what is unknown farthest."""
    if level.startswith("NV"):
        return -1
    return LEVELS.index(level) if level in LEVELS else len(LEVELS)


def of_host(facts: Mapping[str, Any]) -> Topology:
    """From the facts of `agent.locality`."""
    nics = {nic["name"]: nic for nic in facts["nics"] if nic["pci"]}
    gpu_gpu = {
        (gpu, other): level for gpu, row in facts["gpu_gpu"].items() for other, level in row.items()
    }
    for gpu in facts["gpus"]:
        for peer, links in (gpu["nvlinks"] or {}).items():
            others = [g["pci"] for g in facts["gpus"]] if peer == "switch" else [peer]
            gpu_gpu |= {(gpu["pci"], o): f"NV{links}" for o in others if o != gpu["pci"]}
    return Topology(
        place="this host",
        gpus=tuple(gpu["pci"] for gpu in facts["gpus"]),
        nics=tuple(nics),
        gpu_nic={
            (gpu, nic): level
            for gpu, row in facts["gpu_nic"].items()
            for nic, level in row.items()
            if nic in nics
        },
        gpu_gpu=gpu_gpu,
        numa={d.get("name") or d["pci"]: d["numa_node"] for d in nics.values()}
        | {gpu["pci"]: gpu["numa_node"] for gpu in facts["gpus"]},
        numa_nodes=max(len(facts["numa"]), 1),
    )


def checks(topology: Topology) -> Iterator[Check]:
    """What is wrong with the pairing."""
    where = "" if topology.place == "this host" else f" in {topology.place}"
    if not topology.gpus:
        yield _NICS.skipped(f"there is no GPU{where}")
        return
    yield from _adapters(topology, where)
    yield _peers(topology, where)
    yield _numa(topology, where)


def _adapters(topology: Topology, where: str) -> Iterator[Check]:
    nearest = topology.nearest
    known = {gpu: (level, nics) for gpu, (level, nics) in nearest.items() if level}
    if not known:
        reason = "no network adapter" if not topology.nics else "no distance to an adapter is known"
        yield _NICS.skipped(f"{reason}{where}")
        return
    best = min((level for level, _ in known.values()), key=rank_of)
    far = {g: level for g, (level, _) in known.items() if rank_of(level) > rank_of(best)}
    if far:
        yield _NICS.warning(
            listed(f"{gpu} reaches its nearest adapter by {level}" for gpu, level in far.items())
            + f", others by {best}{where}",
            "these GPUs send slower than the others, and collectives go at the slowest pace",
            "move an adapter next to them, or let NCCL go by a near GPU (NCCL_PXN_DISABLE=0)",
        )
    elif best in _FAR:
        yield _NICS.advice(
            f"every way from a GPU to an adapter is {best}{where}",
            "traffic passes through the processor; GPU Direct RDMA may stay off",
            "NCCL_NET_GDR_LEVEL=SYS tries it all the same; measure with evenstep probe",
        )
    else:
        yield _NICS.ok(f"every GPU has an adapter at {best}{where}")
    yield from _crowded(known, where)


def _crowded(known: Mapping[str, tuple[str | None, list[str]]], where: str) -> Iterator[Check]:
    """GPUs that have to share one adapter while others have more."""
    shares = Counter(nic for _, nics in known.values() for nic in nics if len(nics) == 1)
    if len(shares) > 1 and max(shares.values()) > min(shares.values()):
        most, fewest = max(shares, key=lambda n: shares[n]), min(shares, key=lambda n: shares[n])
        yield _NICS.advice(
            f"{most} is nearest to {shares[most]} GPUs, {fewest} to {shares[fewest]}{where}",
            "GPUs that share an adapter get less of the network than the others",
            "choose GPUs evenly: CUDA_VISIBLE_DEVICES",
        )


def _peers(topology: Topology, where: str) -> Check:
    if len(topology.gpus) < 2:
        return _GPUS.skipped(f"there is one GPU{where}")
    levels = Counter(topology.gpu_gpu.values())
    if not levels:
        return _GPUS.skipped(f"no distance between GPUs is known{where}")
    said = ", ".join(f"{level} × {n}" for level, n in levels.most_common())
    links = {level for level in levels if level.startswith("NV")}
    if links and (len(links) > 1 or len(links) < len(levels)):
        return _GPUS.advice(
            f"pairs of GPUs are linked unequally ({said}){where}",
            "rings and tensor parallel groups over the weaker pairs are slower",
            "put ranks that exchange most on the strongest pairs: CUDA_VISIBLE_DEVICES",
        )
    if set(levels) == {"SYS"}:
        return _GPUS.advice(
            f"all pairs of GPUs are {said}{where}",
            "all traffic between GPUs crosses between processors",
            "use GPUs below one processor for groups that exchange most",
        )
    return _GPUS.ok(f"{said}{where}")


def _numa(topology: Topology, where: str) -> Check:
    devices = [*topology.gpus, *topology.nics]
    unknown = [name for name in devices if topology.numa.get(name) is None]
    if topology.numa_nodes > 1 and unknown:
        return _NUMA.advice(
            f"the NUMA node of {listed(unknown)} is not told{where}",
            "ranks cannot be placed on the processors next to their GPU",
            "switch NUMA reporting on in the firmware, or give the VM a virtual NUMA topology",
        )
    gpu_nodes = {topology.numa[gpu] for gpu in topology.gpus if gpu in topology.numa}
    nic_nodes = {topology.numa[nic] for nic in topology.nics if nic in topology.numa}
    if topology.nics and gpu_nodes - nic_nodes and topology.numa_nodes > 1:
        nodes = listed(sorted(str(n) for n in gpu_nodes - nic_nodes))
        return _NUMA.advice(
            f"NUMA node {nodes} has GPUs and no adapter{where}",
            "their traffic crosses between processors",
            "bind each rank to its GPU's node: numactl --cpunodebind=N --membind=N",
        )
    return _NUMA.ok(
        f"{topology.numa_nodes} NUMA node{'s' if topology.numa_nodes > 1 else ''}{where}"
    )
