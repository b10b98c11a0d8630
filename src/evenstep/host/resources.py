"""What the operating system did to this process: per step on the training thread, and its CPU.

`ResourceMeter` is read once a step (1 µs). `CpuContention` tells from the background thread whether
more wants to run here than there are cores.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from threading import get_ident

from evenstep.host.cgroup import CpuController
from evenstep.host.sysfs import read_text

#: Order of a lap. Times are CPU time in ns (µs resolution); the rest are counts. Names without
#: `thread_` are of the whole process, helper threads of the backward pass included.
LAP_FIELDS = (
    "cpu_ns",
    "involuntary_switches",  # taken off the core while it could have gone on
    "voluntary_switches",  # went to sleep by itself
    "minor_faults",
    "major_faults",  # had to wait for the disk
    "thread_cpu_ns",
    "thread_involuntary_switches",
    "thread_voluntary_switches",
)
Lap = tuple[int, int, int, int, int, int, int, int]

_ZERO_LAP: Lap = (0, 0, 0, 0, 0, 0, 0, 0)


class ResourceMeter:
    """Resource use between two calls of `lap`, which belong on the training thread.

    When another thread calls, its counters have nothing in common with the last ones: the thread's
    part of that lap is zero.
    """

    __slots__ = ("_last", "_thread", "_usage")

    def __init__(self, usage: Callable[[int], resource.struct_rusage] = resource.getrusage) -> None:
        self._usage = usage
        self._thread = get_ident()
        self._last: Lap = _ZERO_LAP
        self.lap()

    def lap(self) -> Lap:
        """What was used since the last call, as `LAP_FIELDS` says."""
        whole = self._usage(resource.RUSAGE_SELF)
        own = self._usage(resource.RUSAGE_THREAD)
        now = (
            int((whole.ru_utime + whole.ru_stime) * 1e9),
            whole.ru_nivcsw,
            whole.ru_nvcsw,
            whole.ru_minflt,
            whole.ru_majflt,
            int((own.ru_utime + own.ru_stime) * 1e9),
            own.ru_nivcsw,
            own.ru_nvcsw,
        )
        last, self._last = self._last, now
        if get_ident() != self._thread:
            self._thread = get_ident()
            last = (*last[:5], *now[5:])
        return (
            now[0] - last[0],
            now[1] - last[1],
            now[2] - last[2],
            now[3] - last[3],
            now[4] - last[4],
            now[5] - last[5],
            now[6] - last[6],
            now[7] - last[7],
        )


class RunDelay:
    """How long a thread was ready to run but had no core, between two calls of `lap`.

    From the scheduler's own account in /proc, kept open: 2 µs a call. Where the kernel keeps none,
    every lap is None.
    """

    __slots__ = ("_fd", "_last")

    def __init__(self, thread_id: int, *, sysroot: str = "/") -> None:
        self._last = 0
        try:
            path = f"{sysroot.rstrip('/')}/proc/self/task/{thread_id}/schedstat"
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._fd = -1
        self.lap()

    def lap(self) -> int | None:
        """Run-queue delay in ns since the last call."""
        if self._fd < 0:
            return None
        try:
            total = int(os.pread(self._fd, 80, 0).split()[1])
        except (OSError, ValueError, IndexError):
            self.close()
            return None
        delay, self._last = total - self._last, total
        return max(delay, 0)

    def close(self) -> None:
        """Let go of the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


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
