"""The XML of hwloc's `lstopo --of xml`, versions 1 and 2, from this or another machine."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree as Xml

from evenstep.doctor.check import Check, fine, or_ok, wrong
from evenstep.doctor.pcie import GPU_CLASSES, NET_CLASSES
from evenstep.doctor.topology import Topology
from evenstep.errors import UsageError, refused

MOST_BYTES = 64_000_000
_DEPTH = 200  # most levels of a valid tree
_OPEN_FABRICS, _NETWORK = ("3", "OpenFabrics"), ("2", "Network")


class PciDevice(NamedTuple):
    """A PCI device and the bridges from the root of the tree."""

    address: str
    name: str
    kind: int  # PCI class: 0x0302; -1 unknown
    bridges: tuple[int, ...]  # PCI bridges above it, nearest last
    package: int | None
    numa: int | None
    link_gBps: float  # noqa: N815


class Tree(NamedTuple):
    """The contents of a file."""

    devices: tuple[PciDevice, ...]
    numa_nodes: int


def load(path: Path) -> tuple[Topology, list[Check]]:
    """Return topology and link checks of a file. Raises `UsageError` if it is no topology."""
    tree = read(path)
    return topology(tree, str(path)), list(link_checks(tree, str(path)))


def read(path: Path) -> Tree:
    with refused(UsageError, f"cannot read {path}"):
        content = path.read_bytes()
    if len(content) > MOST_BYTES:
        raise UsageError(f"{path} has {len(content)} bytes: too large for the topology of a host")
    if b"<!ENTITY" in content:
        raise UsageError(f"{path} defines XML entities, which lstopo never writes; export it again")
    try:
        root = Xml.fromstring(content)
    except (Xml.ParseError, LookupError) as error:  # LookupError: an unknown encoding
        raise UsageError(f"{path} is not XML: {error}; write it with: lstopo --of xml") from None
    if root.tag != "topology":
        mend = "write it with: lstopo --of xml"
        raise UsageError(f"{path} is XML of <{root.tag}>, not of lstopo; {mend}")
    devices: list[PciDevice] = []
    nodes: set[int] = set()
    _walk(root, 0, (), None, None, devices, nodes)
    return Tree(tuple(devices), max(len(nodes), 1))


def _walk(
    element: Xml.Element, depth: int, bridges: tuple[int, ...], package: int | None,
    numa: int | None, devices: list[PciDevice], nodes: set[int],
) -> None:  # fmt: skip
    if depth > _DEPTH:
        return
    for child in element.findall("object"):
        kind = child.get("type", "")
        inner = id(child) if kind in ("Package", "Socket") else package
        node = _node_of(child, numa)
        if kind == "NUMANode":
            nodes.add(_whole(child.get("os_index")) or 0)
        if kind == "PCIDev":
            devices.append(_device(child, bridges, inner, node))
        over = (*bridges, id(child)) if kind == "Bridge" and child.get("bridge_type") else bridges
        _walk(child, depth + 1, over, inner, node, devices, nodes)


def _node_of(element: Xml.Element, above: int | None) -> int | None:
    """Return the NUMA node of an object; None if it spans several."""
    if element.get("type") == "NUMANode":
        return _whole(element.get("os_index"))
    mask = element.get("nodeset")
    if mask is None:
        return above
    bits = 0
    for word in mask.split(","):
        if not re.fullmatch(r"0x[0-9a-fA-F]{1,8}", word):
            return above
        bits = bits << 32 | int(word, 16)
    return bits.bit_length() - 1 if bits and bits & (bits - 1) == 0 else None


def _whole(text: str | None) -> int | None:
    return int(text) if text and re.fullmatch(r"\d{1,6}", text) else None


def _device(
    element: Xml.Element, bridges: tuple[int, ...], package: int | None, numa: int | None
) -> PciDevice:
    address = element.get("pci_busid", "")
    ours = [child for child in element.iter("object") if child.get("type") == "OSDev"]
    by_type = [c for ids in (_OPEN_FABRICS, _NETWORK) for c in ours if c.get("osdev_type") in ids]
    kind, speed = element.get("pci_type", "")[:4], element.get("pci_link_speed", "")
    return PciDevice(
        address=address,
        name=by_type[0].get("name", "") if by_type else address,
        kind=int(kind, 16) if re.fullmatch("[0-9a-fA-F]{4}", kind) else -1,
        bridges=bridges,
        package=package,
        numa=numa,
        link_gBps=float(speed) if re.fullmatch(r"\d{1,5}(\.\d{1,9})?", speed) else 0.0,
    )


def topology(tree: Tree, place: str) -> Topology:
    """Return the topology, with distances from the common ancestors of devices."""
    gpus = [one for one in tree.devices if one.kind in GPU_CLASSES]
    nics = [one for one in tree.devices if one.kind in NET_CLASSES]
    single = tree.numa_nodes == 1
    return Topology(
        place=place,
        gpus=tuple(one.address for one in gpus),
        nics=tuple(one.name for one in nics),
        gpu_nic={(g.address, n.name): level(g, n, one_node=single) for g in gpus for n in nics},
        gpu_gpu={(a.address, b.address): level(a, b, one_node=single)
                 for a in gpus for b in gpus if a is not b},
        numa={one.address if one in gpus else one.name: one.numa for one in (*gpus, *nics)},
        numa_nodes=tree.numa_nodes,
    )  # fmt: skip


def level(a: PciDevice, b: PciDevice, *, one_node: bool) -> str:
    """Return the distance of two devices; the first bridge above a device is the host bridge."""
    shared = [bridge for bridge in a.bridges if bridge in b.bridges]
    if len(shared) > 1:
        apart = max(len(a.bridges), len(b.bridges)) - len(shared)
        return "PIX" if apart <= 1 else "PXB"
    if shared:
        return "PHB"
    same = a.numa is not None and a.numa == b.numa
    return "NODE" if one_node or same or (a.package and a.package == b.package) else "SYS"


def link_checks(tree: Tree, place: str) -> Iterator[Check]:
    found = []
    for word, kinds in (("GPU", GPU_CLASSES), ("adapter", NET_CLASSES)):
        speeds = {d.name: d.link_gBps for d in tree.devices if d.kind in kinds and d.link_gBps}
        most = max(speeds.values(), default=0.0)
        slow = [f"{word} {name} {gBps:.3g} GB/s" for name, gBps in speeds.items() if gBps < most]
        if slow:
            found.append(wrong("topology.links.slower", slower=slow, most=most, place=place))
    yield from or_ok(found, fine("topology.links", f"equally fast in {place}"))
