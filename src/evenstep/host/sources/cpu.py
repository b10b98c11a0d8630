"""Processors: whether the training thread gets a core when it wants one, and their energy."""

from __future__ import annotations

import os
from pathlib import Path

from evenstep.host.sources.source import Reading, Source, SourceUnavailable
from evenstep.host.sysfs import children, read_int, read_text
from evenstep.trace.spool.layout import HOST_DEVICE

_MOUNT_V2 = ("sys/fs/cgroup", "sys/fs/cgroup/unified")
_MOUNT_V1 = ("sys/fs/cgroup/cpu", "sys/fs/cgroup/cpu,cpuacct")
_METRICS = {  # by the zone's name; core and uncore are parts of the package
    "package": "cpu.package_energy_joules",
    "dram": "cpu.dram_energy_joules",
    "psys": "cpu.platform_energy_joules",
}


class CpuController:
    """CPU bandwidth control of this process: its own control group and all above it, of which the
    lowest quota applies.

    Reads version 2, version 1 and the hybrid of both. Inside a container the group's own path may
    not exist below the mount; then the mount's root is the container's group.
    """

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


class CpuSource(Source):
    """`cpu.*` of the host. `thread_id` is the training thread's `threading.get_native_id()`."""

    name = "cpu"

    def __init__(self, thread_id: int, *, sysroot: str = "/") -> None:
        self._thread_id = thread_id
        self._root = sysroot.rstrip("/")
        self._controller = CpuController(sysroot)

    def open(self) -> None:
        if "running_tasks" not in self.runnable():
            raise SourceUnavailable("/proc/loadavg cannot be read, so CPU contention is not known")

    def read(self) -> list[Reading]:
        return [(f"cpu.{key}", HOST_DEVICE, v) for key, v in self.runnable().items()]

    def runnable(self) -> dict[str, float]:
        """Allowed cores and runnable tasks; values that cannot be read are left out.

        `allowed_cores` of `online_cores`, `quota_cores` (control group), `running_tasks` (whole
        host, at this instant), and counters that only grow: `throttled_periods` and `throttled_ns`
        (quota used up), `pressure_ns` (some task of the host waited for a core), and `children_ns`,
        which falls when one ends: processes that the training thread started, such as DataLoader
        workers, ran or waited for a core.
        """
        tasks = (read_text(f"{self._root}/proc/loadavg", held=True) or "").split()  # … 3/811 …
        facts: dict[str, float | None] = {
            "online_cores": os.cpu_count(),
            "allowed_cores": self._allowed_cores(),
            "quota_cores": self._controller.quota_cores(),
            "running_tasks": int(tasks[3].partition("/")[0]) if len(tasks) > 3 else None,
            "pressure_ns": self._pressure_ns(),
            "children_ns": self._children_ns(),
        }
        throttled = self._controller.throttled() or (None, None)
        facts["throttled_periods"], facts["throttled_ns"] = throttled
        return {name: fact for name, fact in facts.items() if fact is not None}

    def _allowed_cores(self) -> int | None:
        try:
            return len(os.sched_getaffinity(self._thread_id))
        except OSError:  # the thread has ended
            return None

    def _children_ns(self) -> int | None:
        """Run and run-queue time of their main threads (the kernel's sched-stats.rst)."""
        path = f"{self._root}/proc/self/task/{self._thread_id}/children"
        if (children := read_text(path, held=True)) is None:
            return None
        paths = [f"{self._root}/proc/{child}/schedstat" for child in children.split()]
        accounts = [(read_text(path, held=True) or "").split() for path in paths]
        return sum(sum(map(int, account[:2])) for account in accounts)

    def _pressure_ns(self) -> int | None:
        """Total of `some` in the kernel's pressure-stall information (psi.rst), there in µs."""
        for line in (read_text(f"{self._root}/proc/pressure/cpu", held=True) or "").splitlines():
            if line.startswith("some") and "total=" in line:
                return int(line.rpartition("total=")[2]) * 1000
        return None


class Zone:
    """One energy counter, which wraps at `range_uj` (at 500 W and 32 bits every nine minutes);
    unwrapped as long as it is read in time."""

    def __init__(self, path: str, *, metric: str, device: int) -> None:
        self.metric = metric
        self.device = device
        self._path = path
        self._range_uj = read_int(f"{path}/max_energy_range_uj") or 0
        self._last_uj = self.counter_uj() or 0
        self._total_uj = self._last_uj

    def counter_uj(self) -> int | None:
        """The counter's value; None if unreadable."""
        return read_int(f"{self._path}/energy_uj")

    def joules(self) -> float | None:
        """Energy since the counter's zero, corrected for wraps since `open`."""
        now_uj = self.counter_uj()
        if now_uj is None:
            return None
        wrapped = now_uj < self._last_uj
        self._total_uj += now_uj - self._last_uj + (self._range_uj if wrapped else 0)
        self._last_uj = now_uj
        return self._total_uj / 1e6


class RaplSource(Source):
    """`cpu.*_energy_joules` per package, from the kernel's powercap interface (Intel and AMD)."""

    name = "rapl"

    def __init__(self, *, sysroot: str = "/") -> None:
        self._base = Path(sysroot) / "sys/class/powercap"
        self._zones: list[Zone] = []

    def open(self) -> None:
        zones = [zone for name in children(str(self._base)) if (zone := self._zone(name))]
        if not zones:
            raise SourceUnavailable("this host has no RAPL energy counters in /sys/class/powercap")
        self._zones = [zone for zone in zones if zone.counter_uj() is not None]
        if not self._zones:
            raise SourceUnavailable("the RAPL energy counters of this host are for root only")

    def _zone(self, folder: str) -> Zone | None:
        """The zone `intel-rapl:PACKAGE[:PART]`, if it has one of our metrics. `intel-rapl-mmio` has
        the same packages a second time."""
        control, _, numbers = folder.partition(":")
        label = (read_text(f"{self._base}/{folder}/name") or "").partition("-")[0]
        if control != "intel-rapl" or not numbers or label not in _METRICS:
            return None
        package = int(numbers.partition(":")[0])
        return Zone(f"{self._base}/{folder}", metric=_METRICS[label], device=package)

    def read(self) -> list[Reading]:
        values = ((zone, zone.joules()) for zone in self._zones)
        return [(zone.metric, zone.device, joules) for zone, joules in values if joules is not None]
