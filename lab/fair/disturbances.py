"""What disturbs jobs from outside: flows and jobs on the links, pauses, competitors for the CPU.

Each has a moment at which it is due next, and acts then. Those that go by a job's steps are told
when a step is over.
"""

# ruff: noqa: ARG002 - what all of them are told, not each needs

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from lab.fair.link import Fabric
from lab.faults import Fault

NEVER = float("inf")
MS = 1e6
QUOTA_PERIOD_NS = 20 * MS


class Disturbance(Protocol):
    """Something that happens at its own times."""

    due_ns: float

    def act(self, fabric: Fabric) -> None:
        """Do what is due now, `fabric.now_ns`, and say when the next is."""

    def stepped(self, job: int, step: int, fabric: Fabric) -> None:
        """A job is about to do this step."""


class Flows:
    """Flows that do not yield, on and off for exponential times, on one link."""

    def __init__(
        self, link: int, flows: float, on_ms: float, off_ms: float, *, key: str, begin_ns: float
    ) -> None:
        self._link, self._flows = link, flows
        self._means_ns = (off_ms * MS, on_ms * MS)
        self._random = random.Random(key)
        self._on = False
        self.due_ns = begin_ns + self._random.expovariate(1 / self._means_ns[0])

    def act(self, fabric: Fabric) -> None:
        """Come or go."""
        self._on = not self._on
        change = self._flows if self._on else -self._flows
        fabric.change(self._link, flows=max(0.0, fabric.links[self._link].flows + change))
        self.due_ns += self._random.expovariate(1 / self._means_ns[self._on])

    def stepped(self, job: int, step: int, fabric: Fabric) -> None:
        """Steps of others are nothing to it."""


class Neighbour:
    """A job without processes: computes, then exchanges, for as long as its fault lasts."""

    def __init__(self, fault: Fault, links: tuple[int, ...], nbytes: float, key: object) -> None:
        self.fault, self.key = fault, key
        self._links, self._nbytes = links, nbytes
        self._here = self._busy = False
        self.due_ns = NEVER

    def act(self, fabric: Fabric) -> None:
        """It has computed: exchange."""
        self.due_ns = NEVER
        if self._here:
            self._busy = True
            fabric.begin(self.key, self._nbytes, self._links)

    def ended(self, now_ns: float) -> None:
        """Its exchange is over: compute."""
        self._busy = False
        if self._here:
            self.due_ns = now_ns + self.fault.compute_ms * MS

    def stepped(self, job: int, step: int, fabric: Fabric) -> None:
        """Come and go with the fault."""
        if job != self.fault.job:
            return
        came = self.fault.happens(step) and not self._here
        self._here = self.fault.happens(step)
        if came and not self._busy:
            self.due_ns = fabric.now_ns + self.fault.compute_ms * MS


class Throttle:
    """A link that carries less while the fault lasts."""

    due_ns = NEVER

    def __init__(self, fault: Fault, capacity: float) -> None:
        self._fault, self._capacity = fault, capacity

    def act(self, fabric: Fabric) -> None:
        """Never due by itself."""

    def stepped(self, job: int, step: int, fabric: Fabric) -> None:
        """Come and go with the fault."""
        if job == self._fault.job:
            share = self._fault.share if self._fault.happens(step) else 1.0
            fabric.change(self._fault.link, capacity=share * self._capacity)


class Pause:
    """Ranks that are stopped for a while when a step of the fault begins."""

    def __init__(self, fault: Fault, processes: Sequence[int]) -> None:
        self._fault, self._processes = fault, processes
        self.due_ns = NEVER

    def act(self, fabric: Fabric) -> None:
        """Let them go on."""
        self.due_ns = NEVER
        send(self._processes, signal.SIGCONT)

    def stepped(self, job: int, step: int, fabric: Fabric) -> None:
        """Stop them."""
        if job == self._fault.job and self._fault.happens(step):
            send(self._processes, signal.SIGSTOP)
            self.due_ns = fabric.now_ns + self._fault.delay_ms * MS


class Quota:
    """Processes that get only a share of a core: stopped for the rest of every period, as the
    kernel does with those that have used up their quota."""

    def __init__(self, fault: Fault, processes: Sequence[int]) -> None:
        self._fault, self._processes = fault, processes
        self._stopped = self._here = False
        self.due_ns = NEVER

    def act(self, fabric: Fabric) -> None:
        """Stop them, or let them go on."""
        self._stopped = self._here and not self._stopped
        send(self._processes, signal.SIGSTOP if self._stopped else signal.SIGCONT)
        share = 1 - self._fault.share if self._stopped else self._fault.share
        self.due_ns = fabric.now_ns + share * QUOTA_PERIOD_NS if self._here else NEVER

    def stepped(self, job: int, step: int, fabric: Fabric) -> None:
        """Come and go with the fault."""
        if job == self._fault.job:
            self._here = self._fault.happens(step)
            if self._here and self.due_ns == NEVER:
                self.due_ns = fabric.now_ns + self._fault.share * QUOTA_PERIOD_NS


class Hog:
    """Processes that compute beside the ranks while the fault lasts."""

    due_ns = NEVER

    def __init__(self, fault: Fault, processes: Sequence[int]) -> None:
        self._fault, self._processes = fault, processes
        self._here = False
        send(processes, signal.SIGSTOP)

    def act(self, fabric: Fabric) -> None:
        """Never due by itself."""

    def stepped(self, job: int, step: int, fabric: Fabric) -> None:
        """Come and go with the fault."""
        if job == self._fault.job and self._fault.happens(step) != self._here:
            self._here = not self._here
            send(self._processes, signal.SIGCONT if self._here else signal.SIGSTOP)


def burn(share: float) -> None:
    """Compute for a share of the time, for ever."""
    while True:
        until = time.monotonic_ns() + share * QUOTA_PERIOD_NS
        while time.monotonic_ns() < until:
            sum(range(200))
        time.sleep((1 - share) * QUOTA_PERIOD_NS * 1e-9)


def send(processes: Sequence[int], number: int) -> None:
    """Send a signal to those that are still there."""
    for process in processes:
        try:
            os.kill(process, number)
        except ProcessLookupError:
            continue


class Casualties(Protocol):
    """What a fault needs to know of the trial it is injected into."""

    @property
    def processes(self) -> Mapping[tuple[int, int], int]:
        """Of (job, rank)."""

    @property
    def capacity(self) -> float:
        """Of a shared link, bytes per ns."""

    def links(self, job: int) -> tuple[int, ...]:
        """The links a job crosses."""

    def fork(self, work: Callable[[], None]) -> int:
        """Start a process that ends with this one."""


def of_fault(fault: Fault, index: int, where: Casualties, *, seed: int) -> Disturbance | None:
    """What carries out a fault from outside; None for those that ranks carry out themselves."""
    ranks = [
        process
        for (job, rank), process in sorted(where.processes.items())
        if job == fault.job and rank in fault.who(_world(where, fault.job))
    ]
    if fault.kind == "throttled_link":
        return Throttle(fault, where.capacity)
    if fault.kind == "bursty_neighbour":
        return Flows(fault.link, fault.flows, fault.on_ms, fault.off_ms,
                     key=f"{seed}/fault/{index}", begin_ns=time.monotonic_ns())  # fmt: skip
    if fault.kind == "neighbour_job":
        nbytes = fault.exchange_ms * MS * where.capacity
        return Neighbour(fault, where.links(fault.job) or (fault.link,), nbytes, ("fault", index))
    if fault.kind == "paused_rank":
        return Pause(fault, ranks)
    if fault.kind == "slow_core":
        return Quota(fault, ranks)
    if fault.kind == "cpu_hog":
        cores = len(os.sched_getaffinity(0))
        return Hog(fault, [where.fork(lambda: burn(fault.share)) for _ in range(cores)])
    return None


def _world(where: Casualties, job: int) -> int:
    return sum(number == job for number, _ in where.processes)
