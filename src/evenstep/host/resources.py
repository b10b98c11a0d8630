"""What the operating system did to this process: per step on the training thread, and its CPU.

`ResourceMeter` is asked once a step: two system calls, nothing is parsed. `CpuContention` tells
from the background thread whether more wants to run here than there are cores.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from typing import NamedTuple

from evenstep.host.cgroup import CpuController
from evenstep.host.sysfs import read_text


class ResourceCounters(NamedTuple):
    """The kernel's counters at one moment, as it gave them."""

    usage: resource.struct_rusage  # of the whole process
    schedule: bytes  # of the training thread, from /proc; empty where the kernel keeps no account


class ResourceUse(NamedTuple):
    """What was used between two moments. Times in ns, processor time to the microsecond."""

    cpu_ns: int
    minor_faults: int
    major_faults: int  # had to wait for the disk
    involuntary_switches: int  # taken off a core while it could have gone on
    voluntary_switches: int  # went to sleep by itself
    run_delay_ns: int  # the training thread was ready to run but had no core


class ResourceMeter:
    """Where the counters stand, of this process and its thread `thread_id` (the native one)."""

    __slots__ = ("_fd", "_usage")

    def __init__(
        self,
        thread_id: int,
        *,
        sysroot: str = "/",
        usage: Callable[[int], resource.struct_rusage] = resource.getrusage,
    ) -> None:
        self._usage = usage
        try:
            path = f"{sysroot.rstrip('/')}/proc/self/task/{thread_id}/schedstat"
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._fd = -1

    def now(self) -> ResourceCounters:
        """The counters of now; `used` tells what lies between two of them."""
        schedule = b""
        if self._fd >= 0:
            try:
                schedule = os.pread(self._fd, 80, 0)
            except OSError:  # the thread has ended
                self.close()
        return ResourceCounters(self._usage(resource.RUSAGE_SELF), schedule)

    def close(self) -> None:
        """Let go of the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def used(before: ResourceCounters, after: ResourceCounters) -> ResourceUse:
    """What was used from one moment to another."""
    first, last = before.usage, after.usage
    seconds = last.ru_utime + last.ru_stime - first.ru_utime - first.ru_stime
    return ResourceUse(
        max(round(seconds * 1e9), 0),
        last.ru_minflt - first.ru_minflt,
        last.ru_majflt - first.ru_majflt,
        last.ru_nivcsw - first.ru_nivcsw,
        last.ru_nvcsw - first.ru_nvcsw,
        max(_run_delay_ns(after.schedule) - _run_delay_ns(before.schedule), 0),
    )


def _run_delay_ns(schedule: bytes) -> int:
    """The second number of the scheduler's account (Linux, sched-stats.rst)."""
    fields = schedule.split()
    return int(fields[1]) if len(fields) > 1 else 0


class CpuContention:
    """Whether the training thread gets a core when it wants one. For the background thread.

    `thread_id` is the training thread's `threading.get_native_id()`.
    """

    def __init__(self, thread_id: int, *, sysroot: str = "/") -> None:
        self._thread_id = thread_id
        self._root = sysroot.rstrip("/")
        self._controller = CpuController(sysroot)

    def runnable(self) -> dict[str, float]:
        """Cores allowed against tasks that want one; what cannot be read is left out.

        `allowed_cores` of `online_cores`, `quota_cores` (control group), `running_tasks` (whole
        host, at this instant), and counters that only grow: `run_delay_ns` (the training thread
        waited for a core), `running_ns` (it had one), `throttled_periods` and `throttled_ns`
        (quota used up), `pressure_ns` (some task of the host waited for a core).
        """
        facts: dict[str, float | None] = {
            "online_cores": os.cpu_count(),
            "allowed_cores": self._allowed_cores(),
            "quota_cores": self._controller.quota_cores(),
            "running_tasks": self._running_tasks(),
            "pressure_ns": self._pressure_ns(),
        }
        facts["running_ns"], facts["run_delay_ns"] = self._schedule()
        facts["throttled_periods"], facts["throttled_ns"] = self._controller.throttled() or (
            None,
            None,
        )
        return {name: fact for name, fact in facts.items() if fact is not None}

    def _allowed_cores(self) -> int | None:
        try:
            return len(os.sched_getaffinity(self._thread_id))
        except OSError:  # the thread has ended
            return None

    def _schedule(self) -> tuple[int, int] | tuple[None, None]:
        """Time on a core and time waiting for one, ns (Linux, sched-stats.rst)."""
        text = read_text(f"{self._root}/proc/self/task/{self._thread_id}/schedstat") or ""
        fields = text.split()
        if len(fields) < 3 or fields[0] == "0":  # all zeros: the kernel does not account for it
            return None, None
        return int(fields[0]), int(fields[1])

    def _running_tasks(self) -> int | None:
        """Runnable tasks of the host, from the fourth field of loadavg: `3/811`."""
        fields = (read_text(f"{self._root}/proc/loadavg") or "").split()
        return int(fields[3].partition("/")[0]) if len(fields) > 3 else None

    def _pressure_ns(self) -> int | None:
        """Total of `some` in the kernel's pressure-stall information (psi.rst), there in µs."""
        for line in (read_text(f"{self._root}/proc/pressure/cpu") or "").splitlines():
            if line.startswith("some") and "total=" in line:
                return int(line.rpartition("total=")[2]) * 1000
        return None
