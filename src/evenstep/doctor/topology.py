"""Distances between GPUs, adapters and processors.

They come from this host, or from the output of `nvidia-smi topo -m` here or elsewhere.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar

from evenstep.doctor.check import Check, fine, skip, wrong
from evenstep.documents import Document, Meta, Positive
from evenstep.errors import UsageError, refuse_as
from evenstep.trace.facts import LEVELS, level_order, nearest
from evenstep.words import plural

_FAR = ("PHB", "NODE", "SYS")  # through a processor
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")  # the header is underlined on a terminal
_DEVICE = re.compile(r"(GPU|NIC)\d+|mlx\w+|bnxt_re\d+|roce\w+|ib\w+|rdmap\w+|irdma\w+|hns_\w+")
_LEVEL = re.compile(rf"X|NV\d{{1,2}}|{'|'.join(LEVELS)}")
_LEGEND = re.compile(r"^\s*(NIC\d+):\s*(\S+)\s*$")
MOST_BYTES = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology(Document):
    """Devices of one host and the distances between them."""

    computed: ClassVar[tuple[str, ...]] = ("nearest",)

    place: Annotated[str, Meta("The source: this host, or a file.")]
    gpus: tuple[str, ...]
    nics: tuple[str, ...]
    gpu_nic: Mapping[tuple[str, str], str] = field(repr=False)  # level of each pair
    gpu_gpu: Mapping[tuple[str, str], str] = field(repr=False)
    numa: Annotated[Mapping[str, int | None], Meta("NUMA node of each GPU and adapter.")] = field(
        default_factory=dict
    )
    numa_nodes: Positive = 1

    @property
    def nearest(
        self,
    ) -> Annotated[
        dict[str, tuple[str | None, list[str]]],
        Meta("Distance of each GPU to its nearest adapters, and these adapters."),
    ]:
        known = self.gpu_nic
        levels = ({n: known[g, n] for n in self.nics if (g, n) in known} for g in self.gpus)
        return dict(zip(self.gpus, map(nearest, levels), strict=True))


def of_host(facts: Mapping[str, Any]) -> Topology:
    nics = {nic["name"]: nic for nic in facts["nics"] if nic["pci"]}
    gpu_gpu, gpu_nic = (
        {(gpu, other): level for gpu, row in facts[name].items() for other, level in row.items()}
        for name in ("gpu_gpu", "gpu_nic")
    )
    for gpu in facts["gpus"]:
        for peer, links in (gpu["nvlinks"] or {}).items():
            others = [g["pci"] for g in facts["gpus"]] if peer == "switch" else [peer]
            gpu_gpu |= {(gpu["pci"], o): f"NV{links}" for o in others if o != gpu["pci"]}
    return Topology(
        place="this host",
        gpus=tuple(gpu["pci"] for gpu in facts["gpus"]),
        nics=tuple(nics),
        gpu_nic={pair: level for pair, level in gpu_nic.items() if pair[1] in nics},
        gpu_gpu=gpu_gpu,
        numa={d.get("name") or d["pci"]: d["numa_node"] for d in nics.values()}
        | {gpu["pci"]: gpu["numa_node"] for gpu in facts["gpus"]},
        numa_nodes=max(len(facts["numa"]), 1),
    )


# -- output of `nvidia-smi topo -m` ----------------------------------------------------------------


def load(path: Path) -> Topology:
    """Read a file. Raises `UsageError` if it has no matrix."""
    with refuse_as(UsageError, f"cannot read {path}"):
        text = path.read_bytes()[:MOST_BYTES].decode(errors="replace")
    found = parse(text, str(path))
    if found is None:
        raise UsageError(
            f"{path} has no matrix of GPUs; give the output of `nvidia-smi topo -m`"
            + (", and XML of lstopo with --lstopo" if "<topology" in text else "")
        )
    return found


def parse(text: str, place: str) -> Topology | None:
    lines = [_ESCAPE.sub("", line) for line in text.splitlines()]
    start = next((i for i, line in enumerate(lines) if line.split()[:1] == ["GPU0"]), None)
    if start is None:
        return None
    head = [word for word in re.split(r"\s+", lines[start].strip()) if _DEVICE.fullmatch(word)]
    rows = dict(_rows(lines[start + 1 :], len(head)))
    legend = (match for line in lines if (match := _LEGEND.match(line)))
    names = {match[1]: match[2] for match in legend}  # of adapters that the matrix only numbers
    gpus = tuple(name for name in head if name.startswith("GPU") and name in rows)
    nics = tuple(name for name in head if not name.startswith("GPU"))
    if not gpus:
        return None
    pairs = ((gpu, *pair) for gpu in gpus for pair in zip(head, rows[gpu][0], strict=False))
    levels = {(gpu, other): level for gpu, other, level in pairs if level != "X"}
    rest = {gpu: rows[gpu][1] for gpu in gpus}  # the processors, then the NUMA affinity
    numa = {gpu: int(w[1]) if w[1:] and w[1].isdecimal() else None for gpu, w in rest.items()}
    return Topology(
        place=place,
        gpus=gpus,
        nics=tuple(names.get(nic, nic) for nic in nics),
        gpu_nic={(g, names.get(o, o)): level for (g, o), level in levels.items() if o in nics},
        gpu_gpu={pair: level for pair, level in levels.items() if pair[1] in gpus},
        numa=numa,
        numa_nodes=len({node for node in numa.values() if node is not None}) or 1,
    )


def _rows(lines: Sequence[str], columns: int) -> list[tuple[str, tuple[list[str], list[str]]]]:
    """Return the name of each row, its levels, and the words after them."""
    found = []
    for line in lines:
        words = line.split()
        if words and _DEVICE.fullmatch(words[0]) and not words[0].endswith(":"):
            levels = words[1 : 1 + columns]
            if len(levels) == columns and all(map(_LEVEL.fullmatch, levels)):
                found.append((words[0], (levels, words[1 + columns :])))
    return found


# -- checks ----------------------------------------------------------------------------------------


def checks(topology: Topology) -> Iterator[Check]:
    where = "" if topology.place == "this host" else f" in {topology.place}"
    if not topology.gpus:
        yield skip("topology.gpu_nic", f"there is no GPU{where}")
        return
    yield from _adapters(topology, where)
    yield _peers(topology, where)
    yield _numa(topology, where)


def _adapters(topology: Topology, where: str) -> Iterator[Check]:
    nearest = topology.nearest
    known = {gpu: (level, nics) for gpu, (level, nics) in nearest.items() if level}
    if not known:
        reason = "no network adapter" if not topology.nics else "no distance to an adapter is known"
        yield skip("topology.gpu_nic", f"{reason}{where}")
        return
    best = min((level for level, _ in known.values()), key=level_order)
    far = {g: level for g, (level, _) in known.items() if level_order(level) > level_order(best)}
    if far:
        gpus = [f"{gpu} reaches its nearest adapter by {level}" for gpu, level in far.items()]
        yield wrong("topology.gpu_nic.far", gpus=gpus, best=best, where=where)
    elif best in _FAR:
        yield wrong("topology.gpu_nic.all_far", best=best, where=where)
    else:
        yield fine("topology.gpu_nic", f"every GPU has an adapter at {best}{where}")
    shares = Counter(nic for _, nics in known.values() for nic in nics if len(nics) == 1)
    if len(shares) > 1 and max(shares.values()) > min(shares.values()):
        most, fewest = (end(shares.items(), key=lambda row: row[1]) for end in (max, min))
        yield wrong("topology.gpu_nic.crowded", most=most, fewest=fewest, where=where)


def _peers(topology: Topology, where: str) -> Check:
    if len(topology.gpus) < 2:
        return skip("topology.gpu_gpu", f"there is one GPU{where}")
    levels = Counter(topology.gpu_gpu.values())
    if not levels:
        return skip("topology.gpu_gpu", f"no distance between GPUs is known{where}")
    said = ", ".join(f"{level} × {n}" for level, n in levels.most_common())
    links = {level for level in levels if level.startswith("NV")}
    if links and (len(links) > 1 or len(links) < len(levels)):
        return wrong("topology.gpu_gpu.unequal", said=said, where=where)
    if set(levels) == {"SYS"}:
        return wrong("topology.gpu_gpu.far", said=said, where=where)
    return fine("topology.gpu_gpu", f"{said}{where}")


def _numa(topology: Topology, where: str) -> Check:
    silent = topology.nics if not set(topology.nics) & topology.numa.keys() else ()  # nvidia-smi
    unknown = [name for name in (*topology.gpus, *topology.nics)
               if name not in silent and topology.numa.get(name) is None]  # fmt: skip
    if topology.numa_nodes > 1 and unknown:
        return wrong("topology.numa.unknown", devices=unknown, where=where)
    gpu_nodes = {topology.numa[gpu] for gpu in topology.gpus if gpu in topology.numa}
    nic_nodes = {topology.numa[nic] for nic in topology.nics if nic in topology.numa}
    if topology.nics and not silent and gpu_nodes - nic_nodes and topology.numa_nodes > 1:
        nodes = sorted(str(n) for n in gpu_nodes - nic_nodes)
        return wrong("topology.numa.apart", nodes=nodes, where=where)
    return fine("topology.numa", f"{plural(topology.numa_nodes, 'NUMA node')}{where}")
