"""Faults of links, carried out on the network that stands: slower, shorter of buffer, or shared."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Protocol

from lab.fair.disturbances import Disturbance, Lasting, hog
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
    found = (
        _of_link(fault, f"{scenario.seed}/fault/{index}", where)
        for index, fault in enumerate(scenario.faults)
    )
    return [one for one in found if one is not None]


def _of_link(fault: Fault, seed: str, where: Elsewhere) -> Disturbance | None:
    good = where.plan.layout.uplink
    assert good is not None  # a plan always has uplinks
    if fault.kind == "throttled_link":
        return _reshaping(fault, where.network, good, slowed(good, fault.share))
    if fault.kind == "lossy_buffer":
        return _reshaping(fault, where.network, good, shrunk(good, fault.share))
    if fault.kind == "bursty_neighbour":
        times_ms = fault.on_ms, fault.off_ms
        return hog(fault, [_start_flows(where, fault.link, fault.flows, times_ms, seed)])
    if fault.kind == "neighbour_job":
        source, target = where.plan.path(fault.link)
        nbytes = round(fault.exchange_ms * 1e-3 * good.gbps / 8 * BYTES_PER_GB)
        command = [*_MODULE, "job", address(target), str(fault.compute_ms), str(nbytes)]
        return hog(fault, [where.on_host(source, command)])
    return None


def _reshaping(fault: Fault, network: Network, good: Shape, bad: Shape) -> Lasting:
    """A leaf's uplink that is worse than it should be while the fault lasts."""
    return Lasting(fault, lambda here, _: network.reshape(fault.link, bad if here else good))


def _start_flows(
    where: Elsewhere, leaf: int, flows: float, times_ms: tuple[float, float], seed: str
) -> int:
    source, target = where.plan.path(leaf)
    on_ms, off_ms = (str(value) for value in times_ms)
    number = str(max(1, round(flows)))
    return where.on_host(source, [*_MODULE, "flows", address(target), number, on_ms, off_ms, seed])
