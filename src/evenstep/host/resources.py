"""This process's use of resources per step, by two system calls."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from typing import NamedTuple

from evenstep.host.sysfs import pread_held


class ResourceCounters(NamedTuple):
    """The kernel's counters at one moment, unparsed."""

    usage: resource.struct_rusage  # of the whole process
    schedule: bytes  # of the training thread, from /proc; empty where the kernel has none


class ResourceUse(NamedTuple):
    """Use of resources between two moments. Times in ns, processor time to the microsecond."""

    cpu_ns: int
    minor_faults: int
    major_faults: int  # had to wait for the disk
    involuntary_switches: int  # preempted
    voluntary_switches: int  # went to sleep
    run_delay_ns: int  # the training thread was ready to run but had no core


class ResourceMeter:
    """Reads the counters of this process and its thread `thread_id` (the native number)."""

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
        """The counters now; `used` gives the difference of two."""
        schedule = b""
        if self._fd >= 0:
            schedule = pread_held(self._fd, 80) or b""
            if not schedule:  # the thread has ended
                self.close()
        return ResourceCounters(self._usage(resource.RUSAGE_SELF), schedule)

    def close(self) -> None:
        """Close the file."""
        fd, self._fd = self._fd, -1  # first: another thread may see the file fail and close it
        if fd >= 0:
            os.close(fd)


def used(before: ResourceCounters, after: ResourceCounters) -> ResourceUse:
    """Use of resources from one moment to another."""
    first, last = before.usage, after.usage
    seconds = last.ru_utime + last.ru_stime - first.ru_utime - first.ru_stime
    return ResourceUse(
        max(round(seconds * 1e9), 0), last.ru_minflt - first.ru_minflt,
        last.ru_majflt - first.ru_majflt, last.ru_nivcsw - first.ru_nivcsw,
        last.ru_nvcsw - first.ru_nvcsw,
        max(_run_delay_ns(after.schedule) - _run_delay_ns(before.schedule), 0),
    )  # fmt: skip


def _run_delay_ns(schedule: bytes) -> int:
    """The second number of the scheduler's account (Linux, sched-stats.rst)."""
    fields = schedule.split()
    return int(fields[1]) if len(fields) > 1 else 0
