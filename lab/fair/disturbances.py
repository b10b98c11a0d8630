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
from collections.abc import Callable, Sequence
from typing import Protocol

from lab.fair.jobs import links_of
from lab.fair.link import Fabric
from lab.faults import Fault
from lab.scenario import Scenario

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


def of_links(scenario: Scenario) -> list[Disturbance]:
    """What carries out the faults that concern emulated links."""
    network, begin_ns = scenario.network, time.monotonic_ns()
    found: list[Disturbance] = []
    for index, fault in enumerate(scenario.faults):
        if fault.kind == "throttled_link":
            found.append(Throttle(fault, network.link_gBps))
        elif fault.kind == "bursty_neighbour":
            found.append(
                Flows(fault.link, fault.flows, fault.on_ms, fault.off_ms,
                      key=f"{scenario.seed}/fault/{index}", begin_ns=begin_ns)
            )  # fmt: skip
        elif fault.kind == "neighbour_job":
            links = links_of(scenario.jobs[fault.job], network) or (fault.link,)
            nbytes = fault.exchange_ms * MS * network.link_gBps
            found.append(Neighbour(fault, links, nbytes, ("fault", index)))
    return found


def of_processes(
    scenario: Scenario, process_of: Callable[[int, int], int], start_hog: Callable[[float], int]
) -> list[Disturbance]:
    """What carries out the faults that concern processes: `process_of` a job's rank.

    `start_hog` starts one that computes for a share of the time; its process id.
    """

    def ranks(fault: Fault) -> list[int]:
        concerned = sorted(fault.who(scenario.jobs[fault.job].ranks))
        return [process_of(fault.job, rank) for rank in concerned]

    cores = len(os.sched_getaffinity(0))
    kinds: dict[str, Callable[[Fault], Disturbance]] = {
        "paused_rank": lambda fault: Pause(fault, ranks(fault)),
        "slow_core": lambda fault: Quota(fault, ranks(fault)),
        "cpu_hog": lambda fault: Hog(fault, [start_hog(fault.share) for _ in range(cores)]),
    }
    return [kinds[fault.kind](fault) for fault in scenario.faults if fault.kind in kinds]
