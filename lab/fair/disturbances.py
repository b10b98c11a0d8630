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

from lab.fair.jobs import links_of
from lab.fair.link import Fabric
from lab.faults import Fault
from lab.scenario import Scenario

NEVER = float("inf")
MS = 1e6
QUOTA_PERIOD_NS = 20 * MS


class Disturbance:
    """Something that happens at its own times, or as jobs go on."""

    due_ns = NEVER

    def act(self, fabric: Fabric) -> None:
        """Do what is due now, `fabric.now_ns`, and say when the next is."""

    def stepped(self, job: int, step: int, fabric: Fabric) -> None:
        """A job is about to do this step."""


class Lasting(Disturbance):
    """Comes and goes with its fault: `change` is told whether it is here, whenever that changes."""

    def __init__(self, fault: Fault, change: Callable[[bool, Fabric], None]) -> None:
        self.fault, self.here = fault, False
        self._change = change

    def stepped(self, job: int, step: int, fabric: Fabric) -> None:
        """Come and go with the fault."""
        if job == self.fault.job and self.fault.happens(step) is not self.here:
            self.here = not self.here
            self._change(self.here, fabric)


class Flows(Disturbance):
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


class Neighbour(Lasting):
    """A job without processes: computes, then exchanges, for as long as its fault lasts."""

    def __init__(self, fault: Fault, links: tuple[int, ...], nbytes: float, key: object) -> None:
        super().__init__(fault, lambda _, fabric: self._compute(fabric.now_ns))
        self.key = key
        self._links, self._nbytes = links, nbytes
        self._busy = False

    def act(self, fabric: Fabric) -> None:
        """It has computed: exchange."""
        self.due_ns = NEVER
        if self.here:
            self._busy = True
            fabric.begin(self.key, self._nbytes, self._links)

    def ended(self, now_ns: float) -> None:
        """Its exchange is over: compute."""
        self._busy = False
        self._compute(now_ns)

    def _compute(self, now_ns: float) -> None:
        if self.here and not self._busy:
            self.due_ns = now_ns + self.fault.compute_ms * MS


class Pause(Disturbance):
    """Ranks that are stopped for a while when a step of the fault begins."""

    def __init__(self, fault: Fault, processes: Sequence[int]) -> None:
        self._fault, self._processes = fault, processes

    def act(self, fabric: Fabric) -> None:
        """Let them go on."""
        self.due_ns = NEVER
        send(self._processes, signal.SIGCONT)

    def stepped(self, job: int, step: int, fabric: Fabric) -> None:
        """Stop them."""
        if job == self._fault.job and self._fault.happens(step):
            send(self._processes, signal.SIGSTOP)
            self.due_ns = fabric.now_ns + self._fault.delay_ms * MS


class Quota(Lasting):
    """Processes that get only a share of a core: stopped for the rest of every period, as the
    kernel does with those that have used up their quota."""

    def __init__(self, fault: Fault, processes: Sequence[int]) -> None:
        super().__init__(fault, lambda _, fabric: self._begin(fabric.now_ns))
        self._processes, self._stopped = processes, False

    def _begin(self, now_ns: float) -> None:
        if self.here and self.due_ns == NEVER:
            self.due_ns = now_ns + self.fault.share * QUOTA_PERIOD_NS

    def act(self, fabric: Fabric) -> None:
        """Stop them, or let them go on."""
        self._stopped = self.here and not self._stopped
        send(self._processes, signal.SIGSTOP if self._stopped else signal.SIGCONT)
        share = 1 - self.fault.share if self._stopped else self.fault.share
        self.due_ns = fabric.now_ns + share * QUOTA_PERIOD_NS if self.here else NEVER


def throttle(fault: Fault, capacity: float) -> Lasting:
    """A link that carries less while the fault lasts."""

    def change(here: bool, fabric: Fabric) -> None:
        fabric.change(fault.link, capacity=capacity * (fault.share if here else 1.0))

    return Lasting(fault, change)


def hog(fault: Fault, processes: Sequence[int]) -> Lasting:
    """Processes that run beside the ranks while the fault lasts, and are stopped else."""
    send(processes, signal.SIGSTOP)
    return Lasting(
        fault, lambda here, _: send(processes, signal.SIGCONT if here else signal.SIGSTOP)
    )


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
            found.append(throttle(fault, network.link_gBps))
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
        "cpu_hog": lambda fault: hog(fault, [start_hog(fault.share) for _ in range(cores)]),
    }
    return [kinds[fault.kind](fault) for fault in scenario.faults if fault.kind in kinds]
