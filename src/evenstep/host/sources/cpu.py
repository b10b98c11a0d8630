"""CPU contention: does the training thread get a core when it wants one?"""

from __future__ import annotations

from evenstep.host.resources import CpuContention
from evenstep.host.sources.source import Reading, Source, SourceUnavailable
from evenstep.trace.spool.layout import HOST_DEVICE


class CpuSource(Source):
    """`cpu.*`: what `CpuContention.runnable` tells, as readings of the host."""

    name = "cpu"

    def __init__(self, thread_id: int, *, sysroot: str = "/") -> None:
        self._contention = CpuContention(thread_id, sysroot=sysroot)

    def open(self) -> None:
        if "running_tasks" not in self._contention.runnable():
            raise SourceUnavailable("/proc/loadavg cannot be read, so CPU contention is not known")

    def read(self) -> list[Reading]:
        return [(f"cpu.{key}", HOST_DEVICE, v) for key, v in self._contention.runnable().items()]
