"""Faults of links, carried out on the network that stands: slower, shorter of buffer, or shared."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Protocol

from lab.fair.disturbances import NEVER, Disturbance, Hog
from lab.fair.link import Fabric
from lab.faults import Fault
from lab.scenario import Scenario
from lab.tcp.layout import address
from lab.tcp.network import Network
from lab.tcp.plan import Plan, shrunk, slowed
from lab.tcp.shaping import Shape

_MODULE = [sys.executable, "-m", "lab.tcp.traffic"]
BYTES_PER_GB = 1e9

#: starts a command on a host; its process id
Start = Callable[[int, list[str]], int]


class Reshaping:
    """A leaf's uplink that is worse than it should be while the fault lasts."""

    due_ns = NEVER

    def __init__(self, fault: Fault, network: Network, good: Shape, bad: Shape) -> None:
        self._fault, self._network = fault, network
        self._good, self._bad = good, bad
        self._here = False

    def act(self, fabric: Fabric) -> None:
        """Never due by itself."""

    def stepped(self, job: int, step: int, fabric: Fabric) -> None:  # noqa: ARG002
        """Come and go with the fault."""
        if job == self._fault.job and self._fault.happens(step) != self._here:
            self._here = not self._here
            self._network.reshape(self._fault.link, self._bad if self._here else self._good)


class Elsewhere(Protocol):
    """What the faults of links need."""

    plan: Plan
    network: Network

    def on_host(self, host: int, command: list[str]) -> int:
        """Start a process on a host; its id."""


def background(scenario: Scenario, where: Elsewhere) -> None:
    """Start the other traffic that is always there, and what takes it."""
    network, plan = scenario.network, where.plan
    for host in plan.others:
        where.on_host(host, [*_MODULE, "sink"])
    if network.background_flows:
        for leaf in range(network.leaves):
            seed = f"{scenario.seed}/background/{leaf}"
            times = (network.background_on_ms, network.background_off_ms)
            _start_flows(where, leaf, network.background_flows, times, seed)


def of_links(scenario: Scenario, where: Elsewhere) -> list[Disturbance]:
    """What carries out the faults that concern links."""
    found: list[Disturbance] = []
    for index, fault in enumerate(scenario.faults):
        one = _of_link(fault, f"{scenario.seed}/fault/{index}", where)
        found += [one] if one is not None else []
    return found


def _of_link(fault: Fault, seed: str, where: Elsewhere) -> Disturbance | None:
    good = where.plan.layout.uplink
    assert good is not None  # a plan always has uplinks
    if fault.kind == "throttled_link":
        return Reshaping(fault, where.network, good, slowed(good, fault.share))
    if fault.kind == "lossy_buffer":
        return Reshaping(fault, where.network, good, shrunk(good, fault.share))
    if fault.kind == "bursty_neighbour":
        return Hog(
            fault,
            [_start_flows(where, fault.link, fault.flows, (fault.on_ms, fault.off_ms), seed)],
        )
    if fault.kind == "neighbour_job":
        source, target = where.plan.path(fault.link)
        nbytes = round(fault.exchange_ms * 1e-3 * good.gbps / 8 * BYTES_PER_GB)
        command = [*_MODULE, "job", address(target), str(fault.compute_ms), str(nbytes)]
        return Hog(fault, [where.on_host(source, command)])
    return None


def _start_flows(
    where: Elsewhere, leaf: int, flows: float, times_ms: tuple[float, float], seed: str
) -> int:
    source, target = where.plan.path(leaf)
    on_ms, off_ms = (str(value) for value in times_ms)
    number = str(max(1, round(flows)))
    return where.on_host(source, [*_MODULE, "flows", address(target), number, on_ms, off_ms, seed])
