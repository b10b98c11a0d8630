"""Places of devices in the PCI tree, and distances between two of them.

Levels are those of `nvidia-smi topo -m`, from near to far:

    PIX   at most one PCIe switch between them
    PXB   several switches, but no host bridge
    PHB   through the host bridge of one CPU
    NODE  through several host bridges of one NUMA node
    SYS   between NUMA nodes
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from evenstep.host.sysfs import read_int, target

#: PCI classes of GPUs (VGA, 3D, other display, accelerator) and of network adapters.
GPU_CLASSES, NET_CLASSES = (0x0300, 0x0302, 0x0380, 0x1200), (0x0200, 0x0207)
_ADDRESS = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_ROOT = re.compile(r"pci[0-9a-f]{4,}:[0-9a-f]{2}")


@dataclass(frozen=True, slots=True)
class PciPlace:
    """A device's path in the tree: its root complex, the bridges from there, and its address."""

    root: str  # "pci0000:00"
    bridges: tuple[str, ...]  # nearest to the root first; a switch is two: up- and downstream
    address: str
    numa_node: int | None

    @classmethod
    def of(cls, path: str) -> PciPlace | None:
        """Place of the sysfs folder `path` (links allowed), or None if it is not below PCI."""
        folder = target(path)
        if folder is None:
            return None
        parts = Path(folder).parts
        addresses = [part for part in parts if _ADDRESS.fullmatch(part)]
        roots = [part for part in parts if _ROOT.fullmatch(part)]
        if not addresses or not roots:
            return None
        device = Path(*parts[: parts.index(addresses[-1]) + 1])
        node = read_int(str(device / "numa_node"))
        known = node if node is not None and node >= 0 else None  # -1: the firmware did not say
        return cls(roots[0], tuple(addresses[:-1]), addresses[-1], known)


def distance(a: PciPlace, b: PciPlace, *, one_node: bool) -> str | None:
    """Level between two devices; None if the firmware does not report their NUMA nodes. `one_node`:
    the host has a single one, so that no distance is longer than NODE."""
    if a.root != b.root:
        if one_node:
            return "NODE"
        if a.numa_node is None or b.numa_node is None:
            return None
        return "NODE" if a.numa_node == b.numa_node else "SYS"
    pairs = zip(a.bridges, b.bridges, strict=False)
    shared = len([*takewhile(lambda pair: pair[0] == pair[1], pairs)])
    if not shared:
        return "PHB"
    # Below the last shared bridge each side has its own downstream port; more is another switch.
    return "PIX" if max(len(a.bridges), len(b.bridges)) - shared <= 1 else "PXB"
