"""The XML of hwloc's `lstopo --of xml`, versions 1 and 2, from this or another machine."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree as Xml

from evenstep.doctor.check import Check, fine, or_ok, wrong
from evenstep.doctor.topology import Topology
from evenstep.errors import UsageError, refuse_as
from evenstep.host.locality import GPU_CLASSES, NET_CLASSES, PciPlace, distance

MOST_BYTES = 64_000_000
_DEPTH = 200  # most levels of a valid tree
_OPEN_FABRICS, _NETWORK = ("3", "OpenFabrics"), ("2", "Network")


class PciDevice(NamedTuple):
    """A PCI device; the root of its place is the host bridge."""

    place: PciPlace
    name: str
    kind: int  # PCI class: 0x0302; -1 unknown
    package: Xml.Element | None
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
    with refuse_as(UsageError, f"cannot read {path}"):
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
    above = {child: parent for parent in root.iter() for child in parent}
    objects = [element for element in root.iter("object") if element in above]
    nodes = {one.get("os_index") for one in objects if one.get("type") == "NUMANode"}
    devices = (_device(one, above) for one in objects if one.get("type") == "PCIDev")
    return Tree(tuple(devices), max(len(nodes), 1))


def _device(element: Xml.Element, above: Mapping[Xml.Element, Xml.Element]) -> PciDevice:
    around = [element]  # the device, and all objects that contain it
    while around[-1] in above and len(around) < _DEPTH:
        around.append(above[around[-1]])
    nodes = (_node_of(one) for one in around if one.get("nodeset") or one.get("type") == "NUMANode")
    bridges = [str(id(one)) for one in around if one.get("type") == "Bridge"][::-1]
    address = element.get("pci_busid", "")
    ours = [child for child in element.iter("object") if child.get("type") == "OSDev"]
    by_type = [c for ids in (_OPEN_FABRICS, _NETWORK) for c in ours if c.get("osdev_type") in ids]
    kind, speed = element.get("pci_type", "")[:4], element.get("pci_link_speed", "")
    return PciDevice(
        PciPlace(
            bridges[0] if bridges else str(id(element)),
            tuple(bridges[1:]),
            address,
            next(nodes, None),
        ),
        name=by_type[0].get("name", "") if by_type else address,
        kind=int(kind, 16) if re.fullmatch("[0-9a-fA-F]{4}", kind) else -1,
        package=next((one for one in around if one.get("type") in ("Package", "Socket")), None),
        link_gBps=float(speed) if re.fullmatch(r"\d{1,5}(\.\d{1,9})?", speed) else 0.0,
    )


def _node_of(element: Xml.Element) -> int | None:
    """Return the NUMA node of an object; None if it spans several."""
    if element.get("type") == "NUMANode":
        index = element.get("os_index", "")
        return int(index) if re.fullmatch(r"\d{1,6}", index) else None
    words = element.get("nodeset", "").split(",")
    if not all(re.fullmatch(r"0x[0-9a-fA-F]{1,8}", word) for word in words):
        return None
    bits = int("".join(word[2:].zfill(8) for word in words), 16)
    return bits.bit_length() - 1 if bits.bit_count() == 1 else None


def topology(tree: Tree, place: str) -> Topology:
    """Return the topology, with distances from the common ancestors of devices."""
    gpus = [one for one in tree.devices if one.kind in GPU_CLASSES]
    nics = [one for one in tree.devices if one.kind in NET_CLASSES]
    single = tree.numa_nodes == 1
    return Topology(
        place=place,
        gpus=tuple(one.place.address for one in gpus),
        nics=tuple(one.name for one in nics),
        gpu_nic={(g.place.address, n.name): level(g, n, one_node=single)
                 for g in gpus for n in nics},
        gpu_gpu={(a.place.address, b.place.address): level(a, b, one_node=single)
                 for a in gpus for b in gpus if a is not b},
        numa={one.place.address: one.place.numa_node for one in gpus}
        | {one.name: one.place.numa_node for one in nics},
        numa_nodes=tree.numa_nodes,
    )  # fmt: skip


def level(a: PciDevice, b: PciDevice, *, one_node: bool) -> str:
    """Return the distance of two devices; those of one package are at one node."""
    if a.place.root != b.place.root and a.package is not None and a.package is b.package:
        return "NODE"
    return distance(a.place, b.place, one_node=one_node) or "SYS"


def link_checks(tree: Tree, place: str) -> Iterator[Check]:
    found = []
    for word, kinds in (("GPU", GPU_CLASSES), ("adapter", NET_CLASSES)):
        speeds = {d.name: d.link_gBps for d in tree.devices if d.kind in kinds and d.link_gBps}
        most = max(speeds.values(), default=0.0)
        slow = [f"{word} {name} {gBps:.3g} GB/s" for name, gBps in speeds.items() if gBps < most]
        if slow:
            found.append(wrong("topology.links.slower", slower=slow, most=most, place=place))
    yield from or_ok(found, fine("topology.links", f"equally fast in {place}"))
