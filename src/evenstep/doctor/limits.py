"""Checks of limits: shared memory, locked memory, and the folder of traces."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from evenstep.doctor.check import Check, fine, skip, wrong
from evenstep.doctor.host import Host
from evenstep.host.sources.nic import ports
from evenstep.trace.spool.files import filesystem_type, unfit_for_mapping

_CONTAINER_DEFAULT_BYTES = 67_108_864  # Docker's and Kubernetes' /dev/shm: 64 MiB
_WANTED_BYTES = 1_073_741_824  # recommended for NVIDIA's containers
_SPOOL_BYTES = 33_000_000  # per rank, with default settings


def checks(host: Host) -> Iterator[Check]:
    yield _check_shared_memory(host)
    yield _check_locked_memory(host)
    yield _spool(host)


def _check_shared_memory(host: Host) -> Check:
    try:
        space = host.statvfs(host.root / "dev/shm")
    except OSError:
        return skip("limits.shared_memory", "there is no /dev/shm")
    size, free = space.f_blocks * space.f_frsize, space.f_bavail * space.f_frsize
    said = f"/dev/shm has {size / 1e9:.2g} GB, {free / 1e9:.2g} GB free"
    mend = (
        "docker run --shm-size=1g --ulimit memlock=-1 …; Kubernetes: an emptyDir of medium Memory"
    )
    if size <= _CONTAINER_DEFAULT_BYTES:
        return wrong("limits.shared_memory.small", said=said, mend=mend)
    if free < _WANTED_BYTES:
        return wrong("limits.shared_memory.full", said=said, mend=mend)
    return fine("limits.shared_memory", said)


def _check_locked_memory(host: Host) -> Check:
    text = host.text("proc/self/limits") or ""
    soft = re.search(r"^Max locked memory\s+(\w+)", text, re.MULTILINE)
    if soft is None:
        return skip("limits.locked_memory", "/proc/self/limits cannot be read")
    if not soft[1].isdigit():
        return fine("limits.locked_memory", "unlimited")
    said = f"{int(soft[1]) / 1e6:.3g} MB"
    if ports(str(host.root)):
        return wrong("limits.locked_memory.locked", said=said)
    return fine("limits.locked_memory", f"{said}; enough without RDMA")


def _spool(host: Host) -> Check:
    """Check that the folder of traces can be mapped and has enough space."""
    mounts = host.text("proc/self/mountinfo")
    spool = host.spool.absolute()
    folder = next((one for one in (spool, *spool.parents) if one.exists()), Path("/"))
    kind = filesystem_type(folder, mounts or "")
    if not kind:
        return skip("limits.spool", f"the filesystem of {folder} is unknown")
    space = host.statvfs(folder) if host.live else None  # of another machine's disk there is none
    needed = _SPOOL_BYTES * (host.ranks or 1)
    if space and (free := space.f_bavail * space.f_frsize) < needed:
        room = {"free_mb": free / 1e6, "needed_mb": needed / 1e6}
        return wrong("limits.spool.full", folder=folder, **room)
    if unfit := unfit_for_mapping(kind):
        return wrong("limits.spool.unfit", folder=folder, unfit=unfit)
    return fine("limits.spool", f"{folder} is on {kind}")
