"""Checks of PCIe: narrow or slow links, and direct access of adapters to GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from evenstep.doctor.check import Check, fine, or_ok, skip, wrong
from evenstep.doctor.host import Host
from evenstep.host.locality import GPU_CLASSES, NET_CLASSES, PciPlace
from evenstep.host.sources.nic import ports
from evenstep.host.sysfs import read_int, read_text

_DEVICES = "sys/bus/pci/devices"


class LinkRate(NamedTuple):
    """Width and speed of a link; 0 is unknown."""

    lanes: int
    speed: float  # GT/s of a lane

    @classmethod
    def of(cls, device: Path | None, which: str) -> LinkRate:
        """Read the kernel's values; 255 lanes and a speed that is not a number are unknown."""
        if device is None:
            return cls(0, 0.0)
        lanes = read_int(str(device / f"{which}_link_width")) or 0
        text = read_text(str(device / f"{which}_link_speed")) or ""
        match = re.match(r"([\d.]{1,8}) GT/s", text)  # "16.0 GT/s PCIe", "Unknown"
        return cls(lanes if lanes < 255 else 0, float(match[1]) if match else 0.0)


class PcieLink(NamedTuple):
    """The link of a device: its rate now, its highest rate, and that of its slot."""

    kind: str
    address: str
    now: LinkRate
    most: LinkRate
    slot: LinkRate

    @property
    def fitting(self) -> LinkRate:
        """The highest rate of device and slot together."""
        (lanes, speed), slot = self.most, self.slot
        return LinkRate(min(lanes, slot.lanes or lanes), min(speed, slot.speed or speed))


def checks(host: Host) -> Iterator[Check]:
    found = links(host)
    if found:
        said = f"{len(found)} GPUs and adapters run at full width and speed"
        yield from or_ok((c for link in found for c in _link(link)), fine("pcie.links", said))
    else:
        yield skip("pcie.links", "no GPU or adapter reports its link (usual for virtual ones)")
    yield _gpu_direct(host)


def links(host: Host) -> list[PcieLink]:
    base = host.root / _DEVICES
    found = []
    for address in host.children(_DEVICES):
        kind = (read_int(str(base / address / "class")) or 0) >> 8
        place = PciPlace.of(str(base / address))
        if kind in (*GPU_CLASSES, *NET_CLASSES) and place is not None:
            device, above = base / address, place.bridges[-1:]
            rates = LinkRate.of(device, "current"), LinkRate.of(device, "max")
            slot = LinkRate.of(base / above[0] if above else None, "max")
            name = "GPU" if kind in GPU_CLASSES else "adapter"
            found.append(PcieLink(name, place.address, *rates, slot))
    return [link for link in found if link.now.lanes > 0 and link.most.lanes > 0]


def _link(link: PcieLink) -> Iterator[Check]:
    fitting = link.fitting
    if link.now.lanes < fitting.lanes:
        yield wrong("pcie.links.lanes", link=link, share=link.now.lanes / fitting.lanes)
    if 0 < link.now.speed < fitting.speed:
        what = "idle" if link.kind == "GPU" else "speed"
        yield wrong(f"pcie.links.{what}", link=link, share=link.now.speed / fitting.speed)
    if fitting.lanes < link.most.lanes or 0 < fitting.speed < link.most.speed:
        yield wrong("pcie.links.slot", link=link)


def _gpu_direct(host: Host) -> Check:
    """Check whether adapters can access the memory of NVIDIA GPUs."""
    nvidia = bool(host.children("proc/driver/nvidia/gpus"))
    if not nvidia or not ports(str(host.root)):
        return skip("pcie.gpu_direct_rdma", "there are no NVIDIA GPUs beside RDMA adapters here")
    loaded = {line.split()[0] for line in (host.text("proc/modules") or "").splitlines() if line}
    if loaded & {"nvidia_peermem", "nv_peer_mem"}:
        return fine("pcie.gpu_direct_rdma", "nvidia-peermem is loaded")
    if "Open Kernel Module" in (host.text("proc/driver/nvidia/version") or ""):
        return fine("pcie.gpu_direct_rdma", "the open driver can share GPU memory by DMA-BUF")
    return wrong("pcie.gpu_direct_rdma.unreached")
