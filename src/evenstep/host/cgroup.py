"""The control group of this process: its CPU quota and throttling.

Reads version 2, version 1 and the hybrid of both. Inside a container the group's own path may not
exist below the mount; then the mount's root is the container's group.
"""

from __future__ import annotations

from pathlib import Path

from evenstep.host.sysfs import read_int, read_text

_MOUNT_V2 = ("sys/fs/cgroup", "sys/fs/cgroup/unified")
_MOUNT_V1 = ("sys/fs/cgroup/cpu", "sys/fs/cgroup/cpu,cpuacct")


class CpuController:
    """CPU bandwidth control of this process: its own group and all groups above it, of which the
    lowest quota applies."""

    def __init__(self, sysroot: str = "/") -> None:
        self._groups = _groups(Path(sysroot))  # own group first

    def quota_cores(self) -> float | None:
        """Allowed processor time per period, in cores; None without a limit."""
        limits = [limit for group in self._groups if (limit := _quota_cores(group)) is not None]
        return min(limits, default=None)

    def throttled(self) -> tuple[int, int] | None:
        """Number of throttled periods and time throttled, ns, since the group's creation; None if
        unknown or without a quota."""
        seen = [found for group in self._groups if (found := _throttling(group)) is not None]
        return max(seen, default=None)


def _groups(root: Path) -> list[str]:
    version_1, version_2 = _own_paths(read_text(str(root / "proc/self/cgroup")) or "")
    places = [(root / mount, version_1) for mount in _MOUNT_V1]
    places += [(root / mount, version_2) for mount in _MOUNT_V2]
    for mount, path in places:
        if path is not None and (mount / "cpu.stat").exists():
            return _upwards(mount, path)
    return []


def _own_paths(membership: str) -> tuple[str | None, str | None]:
    """Path in the cpu hierarchy of version 1 and in version 2, from `/proc/self/cgroup`."""
    version_1 = version_2 = None
    for line in membership.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if "cpu" in controllers.split(","):
            version_1 = path
        elif not controllers:
            version_2 = path
    return version_1, version_2


def _upwards(mount: Path, path: str) -> list[str]:
    """Folders from the group up to the mount; only the mount if the path leads out of it."""
    parts = [part for part in path.split("/") if part]
    if ".." in parts or not mount.joinpath(*parts).is_dir():
        return [str(mount)]
    return [str(mount.joinpath(*parts[:depth])) for depth in range(len(parts), -1, -1)]


def _quota_cores(group: str) -> float | None:
    text = read_text(f"{group}/cpu.max", held=True) or ""  # version 2: "200000 100000"
    bandwidth = text.split()
    if len(bandwidth) == 2 and bandwidth[0].isdigit() and bandwidth[1].isdigit():
        return int(bandwidth[0]) / max(int(bandwidth[1]), 1)
    quota_us = read_int(f"{group}/cpu.cfs_quota_us", held=True)  # version 1; -1 is no limit
    period_us = read_int(f"{group}/cpu.cfs_period_us", held=True)
    return quota_us / period_us if quota_us and period_us and quota_us > 0 else None


def _throttling(group: str) -> tuple[int, int] | None:
    text = read_text(f"{group}/cpu.stat", held=True) or ""
    pairs = (line.split() for line in text.splitlines())
    stat = {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}
    if "nr_throttled" not in stat:
        return None
    stopped_ns = stat.get("throttled_usec", 0) * 1000 or stat.get("throttled_time", 0)
    return stat["nr_throttled"], stopped_ns
