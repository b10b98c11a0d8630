"""This process's use of resources, by two system calls."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Sequence
from typing import NamedTuple

from evenstep.host.sysfs import pread_held
from evenstep.trace.spool.files import Held


class ResourceUse(NamedTuple):
    """Use of resources, since the process began or between two moments (`resources_used`). Times in
    ns, processor time to the microsecond; in the order of `USE` in recorder.cpp."""

    cpu_ns: int = 0  # this and the next four of the whole process
    minor_faults: int = 0
    major_faults: int = 0  # had to wait for the disk
    involuntary_switches: int = 0  # preempted
    voluntary_switches: int = 0  # went to sleep
    run_delay_ns: int = 0  # the training thread was ready to run but had no core


class ResourceMeter:
    """Reads the counters of this process and its thread `thread_id` (the native number). `fd` is
    the kernel's account of that thread; -1 where there is none."""

    __slots__ = ("_account", "_usage")

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
            self._account = Held(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        except OSError:
            self._account = Held(-1)

    @property
    def fd(self) -> int:
        return self._account.fd

    def now(self) -> ResourceUse:
        found = self._usage(resource.RUSAGE_SELF)
        return ResourceUse(
            round((found.ru_utime + found.ru_stime) * 1e9), found.ru_minflt, found.ru_majflt,
            found.ru_nivcsw, found.ru_nvcsw, self._run_delay_ns(),
        )  # fmt: skip

    def _run_delay_ns(self) -> int:
        """The second number of the scheduler's account (Linux, sched-stats.rst)."""
        account = pread_held(fd, 80) if (fd := self.fd) >= 0 else None
        if not account:  # the thread has ended
            self.close()
            return 0
        return int(account.split()[1])

    def close(self) -> None:
        self._account.close()


def resources_used(before: Sequence[int], after: Sequence[int]) -> ResourceUse:
    return ResourceUse(*(max(b - a, 0) for a, b in zip(before, after, strict=True)))
