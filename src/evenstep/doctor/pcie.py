"""PCIe: links narrower or slower than they could be, and what redirects traffic between devices."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from evenstep.doctor.check import Check, Subject, listed, or_ok
from evenstep.doctor.host import Host
from evenstep.host.pci import PciPlace
from evenstep.host.sources.infiniband import ports
from evenstep.host.sysfs import read_int, read_text

_LINKS = Subject(
    "pcie.links", "PCI Express Base Specification, Link Status; Linux kernel, sysfs-bus-pci"
)
_ACS = Subject("pcie.access_control", "NCCL user guide, PCI Access Control Services (ACS)")
_DIRECT = Subject("pcie.gpu_direct_rdma", "NCCL user guide, GPU-to-NIC communication")
_DEVICES = "sys/bus/pci/devices"
_GPU_CLASSES, _NET_CLASSES, _BRIDGE = (0x0300, 0x0302, 0x0380, 0x1200), (0x0200, 0x0207), 0x0604
_NVIDIA = 0x10DE
_EXTENDED, _ACS_CAPABILITY, _ACS_CONTROL = 0x100, 0x000D, 6  # offsets of PCIe 6.0, 7.7.11
_REDIRECTING = 0x001D  # source validation, P2P request and completion redirect, upstream forwarding


class PcieLink(NamedTuple):
    """A device's link: what it runs at, what it could, what its slot could."""

    address: str
    gpu: bool
    lanes: int
    most_lanes: int
    slot_lanes: int
    speed: float  # GT/s of a lane
    most_speed: float
    slot_speed: float

    @property
    def fitting_lanes(self) -> int:
        """What device and slot can do together."""
        return min(self.most_lanes, self.slot_lanes or self.most_lanes)

    @property
    def fitting_speed(self) -> float:
        """What device and slot can do together."""
        return min(self.most_speed, self.slot_speed or self.most_speed)


def checks(host: Host) -> Iterator[Check]:
    """All of them."""
    found = links(host)
    if found:
        fine = f"{len(found)} GPUs and adapters run at full width and speed"
        yield from or_ok((c for link in found for c in _link(link)), _LINKS.ok(fine))
    else:
        yield _LINKS.skipped("no GPU or adapter tells its link (usual for virtual ones)")
    yield _access_control(host)
    yield _gpu_direct(host)


def links(host: Host) -> list[PcieLink]:
    """Links of GPUs and network adapters."""
    base = host.root / _DEVICES
    found = []
    for address in host.children(_DEVICES):
        kind = (read_int(str(base / address / "class")) or 0) >> 8
        place = PciPlace.of(str(base / address))
        if kind in (*_GPU_CLASSES, *_NET_CLASSES) and place is not None:
            found.append(_read(base, place, gpu=kind in _GPU_CLASSES))
    return [link for link in found if link.lanes > 0 and link.most_lanes > 0]


def _read(base: Path, place: PciPlace, *, gpu: bool) -> PcieLink:
    device = base / place.address
    slot = base / place.bridges[-1] if place.bridges else None
    return PcieLink(
        address=place.address,
        gpu=gpu,
        lanes=_lanes(device, "current"),
        most_lanes=_lanes(device, "max"),
        slot_lanes=_lanes(slot, "max"),
        speed=_speed(device, "current"),
        most_speed=_speed(device, "max"),
        slot_speed=_speed(slot, "max"),
    )


def _lanes(device: Path | None, which: str) -> int:
    """Lanes; 0 where it is not told. 255 stands for "unknown" in the kernel."""
    lanes = read_int(str(device / f"{which}_link_width")) if device else None
    return lanes if lanes and lanes < 255 else 0


def _speed(device: Path | None, which: str) -> float:
    """GT/s; 0 where it is not told: "16.0 GT/s PCIe", "Unknown"."""
    text = read_text(str(device / f"{which}_link_speed")) if device else None
    match = re.match(r"([\d.]{1,8}) GT/s", text or "")
    return float(match[1]) if match else 0.0


def _link(link: PcieLink) -> Iterator[Check]:
    kind = "GPU" if link.gpu else "adapter"
    look = f"lspci -vv -s {link.address} | grep -E 'LnkCap|LnkSta'"
    if link.lanes < link.fitting_lanes:
        yield _LINKS.problem(
            f"{kind} {link.address} runs on {link.lanes} of {link.fitting_lanes} lanes",
            f"its bandwidth is {link.lanes / link.fitting_lanes:.0%} of what it should be",
            f"{look}; reseat the card or its riser, then look for AER errors in dmesg",
        )
    if 0 < link.speed < link.fitting_speed:
        said = f"{kind} {link.address} runs at {link.speed:g} of {link.fitting_speed:g} GT/s"
        if link.gpu:
            yield _LINKS.advice(
                said,
                "idle GPUs lower their link by themselves; under load it must be at full speed",
                f"during a job: {look}",
            )
        else:
            yield _LINKS.problem(
                said,
                f"its bandwidth is {link.speed / link.fitting_speed:.0%} of what it should be",
                f"{look}; reseat the card, then look for AER errors in dmesg",
            )
    if link.fitting_lanes < link.most_lanes or 0 < link.fitting_speed < link.most_speed:
        yield _LINKS.advice(
            f"{kind} {link.address} could use {link.most_lanes} lanes at {link.most_speed:g} GT/s, "
            f"its slot gives {link.fitting_lanes} at {link.fitting_speed:g} GT/s",
            "the slot is the limit, not the card",
            "nothing in software; another slot may be wider",
        )


# -- between devices -------------------------------------------------------------------------------


def _access_control(host: Host) -> Check:
    """Whether bridges send traffic between devices up to the processor."""
    base = host.root / _DEVICES
    bridges = [
        address
        for address in host.children(_DEVICES)
        if (read_int(str(base / address / "class")) or 0) >> 8 == _BRIDGE
    ]
    if not bridges or not host.gpu_count:
        return _ACS.skipped("there are no PCIe bridges with GPUs behind them here")
    controls = [access_control(base / address / "config") for address in bridges]
    if all(control is None for control in controls):
        return _ACS.skipped("PCI registers cannot be read; try as root")
    redirecting = [a for a, c in zip(bridges, controls, strict=True) if c and c & _REDIRECTING]
    if redirecting:
        return _ACS.warning(
            f"on at {listed(redirecting)}",
            "traffic between GPUs and adapters goes up to the processor and back, or hangs",
            f"setpci -s {redirecting[0]} ECAP_ACS+0x6.w=0000, for each (not in a virtual machine)",
        )
    return _ACS.ok(f"off at all of {len(bridges)} bridges")


def access_control(config: Path) -> int | None:
    """The ACS control register in a device's configuration space; None without one."""
    try:
        space = config.read_bytes()
    except OSError:
        return None
    offset, seen = _EXTENDED, set[int]()
    while offset and offset not in seen and offset + 8 <= len(space):
        seen.add(offset)
        (header,) = struct.unpack_from("<I", space, offset)
        if header & 0xFFFF == _ACS_CAPABILITY:
            return int(struct.unpack_from("<H", space, offset + _ACS_CONTROL)[0])
        offset = header >> 20 & 0xFFC
    return None


def _gpu_direct(host: Host) -> Check:
    """Whether adapters can reach the memory of NVIDIA's GPUs."""
    nvidia = bool(host.children("proc/driver/nvidia/gpus"))
    if not nvidia or not ports(str(host.root)):
        return _DIRECT.skipped("there are no NVIDIA GPUs beside RDMA adapters here")
    loaded = {line.split()[0] for line in (host.text("proc/modules") or "").splitlines() if line}
    if loaded & {"nvidia_peermem", "nv_peer_mem"}:
        return _DIRECT.ok("nvidia-peermem is loaded")
    if "Open Kernel Module" in (host.text("proc/driver/nvidia/version") or ""):
        return _DIRECT.ok("the open driver can share GPU memory by DMA-BUF")
    return _DIRECT.warning(
        "neither nvidia-peermem nor the open driver is loaded",
        "adapters cannot reach GPU memory: every byte passes through host memory",
        "modprobe nvidia-peermem",
    )
