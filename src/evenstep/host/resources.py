"""What the operating system did to this process per step: two system calls, nothing is parsed."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from typing import NamedTuple

from evenstep.host.sysfs import pread_held


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
            schedule = pread_held(self._fd, 80) or b""
            if not schedule:  # the thread has ended
                self.close()
        return ResourceCounters(self._usage(resource.RUSAGE_SELF), schedule)

    def close(self) -> None:
        """Let go of the file."""
        fd, self._fd = self._fd, -1  # first: another thread may see the file fail and close it
        if fd >= 0:
            os.close(fd)


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
