"""The place of this rank: its host, processors, network adapters, GPUs, and their distances.

Read once when a rank attaches; JSON-able values for the spool.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from evenstep.host.sources.amdgpu import cards
from evenstep.host.sources.cpu import CpuController
from evenstep.host.sources.nic import interfaces, ports
from evenstep.host.sources.nvml import Nvml, NvmlError, visible_handles
from evenstep.host.sources.source import AMD, pick, visible
from evenstep.host.sysfs import children, read_head, read_int, read_text, target
from evenstep.trace.ranks import format_ranks

#: PCI classes of GPUs (VGA, 3D, other display, accelerator) and of network adapters.
GPU_CLASSES, NET_CLASSES = (0x0300, 0x0302, 0x0380, 0x1200), (0x0200, 0x0207)
_ADDRESS = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_ROOT = re.compile(r"pci[0-9a-f]{4,}:[0-9a-f]{2}")
_VENDORS = {0x10DE: "nvidia", 0x1002: "amd", 0x8086: "intel"}
_HEAD_LINES = 40  # /proc/cpuinfo names the model in its first block


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
    the host has a single one, so that no distance is longer than NODE.

    Levels are those of `nvidia-smi topo -m`, from near to far:

        PIX   at most one PCIe switch between them
        PXB   several switches, but no host bridge
        PHB   through the host bridge of one CPU
        NODE  through several host bridges of one NUMA node
        SYS   between NUMA nodes
    """
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


def locality(
    device_index: int | None,
    sysroot: str = "/",
    nvml: Nvml | None = None,
    *,
    affinity: Iterable[int] | None = None,
    environ: Mapping[str, str] = os.environ,
) -> dict[str, Any]:
    """Facts about this rank's place; `unknown` has the reasons for values that were not found.

    `device_index` is this rank's GPU in torch's numbering. `nvml` adds names, NVLinks and the
    mapping from that number to a GPU; without it GPUs are known from sysfs alone. `index` of NICs
    and ports is the device number of their samples.
    """
    root = Path(sysroot)
    unknown: dict[str, str] = {}
    numa = numa_nodes(root)
    adapters = _adapters(root)
    gpus = _gpus(root, nvml, unknown)
    if not numa:
        unknown["numa"] = "/sys/devices/system/node lists no NUMA node"
    return {
        "hostname": _fact(root, "proc/sys/kernel/hostname", "hostname", unknown),
        "boot_id": _fact(root, "proc/sys/kernel/random/boot_id", "boot_id", unknown),
        "cpu": _cpu(root, sysroot, affinity, unknown),
        "numa": numa,
        "nics": [nic for nic, _ in adapters],
        "ib_ports": [_port(root, *pair, index) for index, pair in enumerate(ports(sysroot))],
        "gpus": [gpu for gpu, _ in gpus],
        "device": device_index,
        "gpu": _own_gpu(device_index, sysroot, nvml, environ, unknown),
        "gpu_nic": _distances(gpus, adapters, "name", unknown, one_node=len(numa) == 1),
        "gpu_gpu": _distances(gpus, gpus, "pci", unknown, one_node=len(numa) == 1),
        "unknown": unknown,
    }


Placed = list[tuple[dict[str, Any], PciPlace | None]]


def numa_nodes(root: Path) -> list[dict[str, Any]]:
    """NUMA nodes with their CPUs as the kernel lists them; nodes of memory only have none."""
    base = root / "sys/devices/system/node"
    names = [n for n in children(str(base)) if n.startswith("node") and n[4:].isdigit()]
    return [{"node": int(n[4:]), "cpus": read_text(f"{base}/{n}/cpulist") or ""} for n in names]


def _fact(root: Path, file: str, name: str, unknown: dict[str, str]) -> str | None:
    text = read_text(str(root / file))
    if not text:
        unknown[name] = f"/{file} cannot be read"
    return text or None


def _cpu(
    root: Path, sysroot: str, affinity: Iterable[int] | None, unknown: dict[str, str]
) -> dict[str, Any]:
    lines = read_head(str(root / "proc/cpuinfo"), lines=_HEAD_LINES)
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    if not models:
        unknown["cpu.model"] = "/proc/cpuinfo names no model (usual on ARM)"
    return {
        "model": models[0] if models else None,
        "online": read_text(str(root / "sys/devices/system/cpu/online")),
        "allowed": format_ranks(os.sched_getaffinity(0) if affinity is None else affinity),
        "quota_cores": CpuController(sysroot).quota_cores(),
    }


def _adapters(root: Path) -> Placed:
    """Network interfaces, then InfiniBand devices that have none."""
    infiniband = root / "sys/class/infiniband"
    by_folder = {target(f"{infiniband}/{name}/device"): name for name in children(str(infiniband))}
    found: Placed = []
    for index, name in enumerate(interfaces(str(root))):
        folder = root / "sys/class/net" / name
        place = PciPlace.of(str(folder / "device"))
        ib_device = by_folder.pop(target(str(folder / "device")), None) if place else None
        found.append((_adapter(name, folder, place, index, ib_device), place))
    for ib_name in by_folder.values():
        folder = infiniband / ib_name
        place = PciPlace.of(str(folder / "device"))
        found.append((_adapter(ib_name, folder, place, None, ib_name), place))
    return found


def _adapter(
    name: str, folder: Path, place: PciPlace | None, index: int | None, ib_device: str | None
) -> dict[str, Any]:
    driver = target(str(folder / "device/driver"))
    speed_mbps = read_int(str(folder / "speed")) or 0  # -1 where the driver does not know
    return {
        "name": name,
        "index": index,
        "pci": place.address if place else None,
        "numa_node": place.numa_node if place else None,
        "speed_gbps": speed_mbps / 1000 if speed_mbps > 0 else None,
        "driver": Path(driver).name if driver else None,
        "ib_device": ib_device,
    }


def _port(root: Path, device: str, port: str, index: int) -> dict[str, Any]:
    folder = root / "sys/class/infiniband" / device / "ports" / port
    rate = (read_text(str(folder / "rate")) or "").split()  # "400 Gb/sec (4X NDR)"
    return {
        "name": f"{device}/{port}",
        "index": index,
        "rate_gbps": float(rate[0]) if rate and rate[0].replace(".", "").isdigit() else None,
        "link_layer": read_text(str(folder / "link_layer")),
    }


def _gpus(root: Path, nvml: Nvml | None, unknown: dict[str, str]) -> Placed:
    base = root / "sys/bus/pci/devices"
    details = _nvml_details(nvml, unknown)
    found: Placed = []
    for address in sorted(children(str(base))):
        vendor = read_int(f"{base}/{address}/vendor")
        kind = (read_int(f"{base}/{address}/class") or 0) >> 8
        place = PciPlace.of(f"{base}/{address}")
        if vendor in _VENDORS and kind in GPU_CLASSES and place:
            gpu = _gpu(base / address, _VENDORS[vendor], place, details.get(address))
            found.append((gpu, place))
    if nvml is None and any(one["vendor"] == "nvidia" for one, _ in found):
        unknown["gpus.nvlinks"] = "NVML is not available"
    return found


def _gpu(folder: Path, vendor: str, place: PciPlace, nvml: dict[str, Any] | None) -> dict[str, Any]:
    width, top = (read_int(str(folder / f"{which}_link_width")) for which in ("current", "max"))
    return {
        "pci": place.address,
        "vendor": vendor,
        "numa_node": place.numa_node,
        "pcie_lanes": width,
        "pcie_lanes_max": top,
        "pcie_speed": read_text(str(folder / "current_link_speed")),
        "name": nvml["name"] if nvml else None,
        "nvlinks": nvml["nvlinks"] if nvml else None,
    }


def _nvml_details(nvml: Nvml | None, unknown: dict[str, str]) -> dict[str, dict[str, Any]]:
    """Name and NVLinks by PCI address, if NVML answers."""
    if nvml is None:
        return {}
    try:
        return {
            nvml.pci_address(handle): {
                "name": nvml.text("nvmlDeviceGetName", handle),
                "nvlinks": nvml.nvlinks(handle),
            }
            for handle in nvml.handles()
        }
    except NvmlError as error:
        unknown["gpus.nvlinks"] = str(error)
        return {}


def _own_gpu(
    device_index: int | None,
    sysroot: str,
    nvml: Nvml | None,
    environ: Mapping[str, str],
    unknown: dict[str, str],
) -> str | None:
    """PCI address of this rank's GPU."""
    if device_index is None:
        return None
    addresses: list[str] = []
    if nvml is not None:
        with suppress(NvmlError):
            addresses = [nvml.pci_address(handle) for handle in visible_handles(nvml, environ)]
    else:
        places = [PciPlace.of(str(card)) for card in cards(sysroot)]
        positions = pick(visible(environ, AMD), [""] * len(places))
        addresses = [place.address for i in positions if (place := places[i])]
    if device_index < len(addresses):
        return addresses[device_index]
    unknown["gpu"] = f"device {device_index} cannot be mapped to a PCI address"
    return None


def _distances(
    gpus: Placed, others: Placed, key: str, unknown: dict[str, str], *, one_node: bool
) -> dict[str, dict[str, str]]:
    """Level from each GPU to each other device: {GPU's address: {name or address: level}}."""
    levels: dict[str, dict[str, str]] = {}
    for gpu, place in gpus:
        row = levels.setdefault(gpu["pci"], {})
        for other, there in others:
            if place is None or there is None or place == there:
                continue
            level = distance(place, there, one_node=one_node)
            if level is None:
                unknown["numa_node"] = "the firmware does not say at which NUMA node devices are"
            else:
                row[other[key]] = level
    return levels
