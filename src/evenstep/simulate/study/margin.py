"""Margins: how far ranks, jitter, oversubscription or load can grow before a limit is crossed.

Each axis grows from the scenario's value, all else unchanged, until CV or efficiency crosses its
limit; bisection then finds the crossing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from evenstep.documents import Amount
from evenstep.scenario import scenario as scenarios
from evenstep.scenario import schema
from evenstep.scenario.scenario import Scenario
from evenstep.simulate.simulation import (
    MessageLimit,
    Setup,
    TooLongError,
    set_up,
    simulate_set_up,
)
from evenstep.simulate.study.scaling_sizes import split

MOST_STEPS = 50  # of a trial run
LEAST_STEPS, MOST_MESSAGES = 10, 1_000_000  # a trial run with more messages gets fewer steps
MOST_RANKS = 512  # tried, or twice the scenario's
MOST_OVERSUBSCRIPTION = 64.0
MOST_JITTER = 1.0
MOST_LOAD = 0.95
MOST_SERVERS = 64  # messages are ranks × servers
RESOLUTION = 0.05  # of the value found, relative
TRIALS = 8  # of an axis, about
TOO_LONG = "too long"  # result of a trial run that would follow too many messages


class Edges(NamedTuple):
    """The job is stable while CV is not above and efficiency not below these."""

    cv: Amount = 0.10
    efficiency: Amount = 0.5

    def crossed(self, cv: float, efficiency: float) -> str | None:
        """The name of the crossed limit; None: neither."""
        if cv > self.cv:
            return "cv"
        return "efficiency" if efficiency < self.efficiency else None


class Margin(NamedTuple):
    """The value at which an axis crosses a limit; None where it does not up to `tried`."""

    now: float
    value: float | None
    crosses: str | None
    tried: float
    note: str = ""


class GrowthAxis(NamedTuple):
    """A quantity that may grow from `now` to `most`, and the job at a value of it.

    With a `unit`, only its multiples are tried.
    """

    now: float
    most: float
    at: Callable[[float], Setup]
    unit: float = 0.0

    def place(self, value: float) -> float:
        """The nearest possible value."""
        return round(value / self.unit) * self.unit if self.unit else value


def margins(scenario: Scenario, edges: Edges, axes: tuple[str, ...]) -> dict[str, Margin]:
    """The margin on each axis. The trial run at their common start is made once."""
    here = cache(lambda: _crossed(set_up(scenarios.parse(_plain(scenario))), edges))

    def margin(axis: GrowthAxis | str) -> Margin:
        if isinstance(axis, str):
            return Margin(0.0, None, None, 0.0, axis)
        return search(
            axis, lambda at: here() if at == axis.now else _crossed(axis.at(at), edges, least=True)
        )

    return {name: margin(AXES[name](scenario)) for name in axes}


def relative_cost(steps: int, axes: int) -> float:
    """Cost of a run of `steps` steps with its margins, relative to the run alone."""
    return 1 + TRIALS * axes * min(1.0, MOST_STEPS / steps)


def search(axis: GrowthAxis, crossed: Callable[[float], str | None]) -> Margin:
    """Find the smallest value that crosses, to the resolution: by steps that double while trial
    runs are not too long, then by bisection."""
    found = crossed(axis.now)
    if found:
        return Margin(axis.now, axis.now, found, axis.now, "crossed already")
    low, high = axis.now, axis.now
    step = axis.now or axis.most / 16
    while found is None and high < axis.most:
        low, high = high, axis.place(min(axis.most, high + step))
        step *= 2
        found = crossed(high)
    if found == TOO_LONG:
        return Margin(axis.now, None, None, low)
    if found is None:
        return Margin(axis.now, None, None, high)
    while high - low > max(axis.unit, RESOLUTION * high):
        middle = axis.place((low + high) / 2)
        here = crossed(middle)
        low, high, found = (low, middle, here) if here else (middle, high, found)
    return Margin(axis.now, high, found, high)


def _crossed(setup: Setup, edges: Edges, *, least: bool = False) -> str | None:
    """Make a trial run and return the crossed limit; with `least`, `TOO_LONG` instead of a run that
    would follow too many messages even over the fewest steps."""
    try:
        most = MessageLimit(MOST_MESSAGES, LEAST_STEPS, strict=least)
        result = simulate_set_up(setup, most=most)
    except TooLongError:
        return TOO_LONG
    if result.partial:
        raise KeyboardInterrupt
    return edges.crossed(result.step_time.cv, result.efficiency)


# -- axes ------------------------------------------------------------------------------------------


def _plain(scenario: Scenario) -> dict[str, Any]:
    """Plain values of a shorter run, with all tables that axes change."""
    data = schema.plain(scenario)
    for name in ("cluster", "fabric", "job", "run"):
        data.setdefault(name, {})
    data["run"]["steps"] = min(scenario.run.steps, MOST_STEPS + scenario.run.warm_up)
    data["job"]["ranks"] = scenario.ranks
    return data


def _ranks(scenario: Scenario) -> GrowthAxis | str:
    """More nodes of the same kind; the work of a rank stays."""
    cluster = scenario.cluster
    if scenario.job.placement == "given":
        return "the job's nodes are given"
    if scenario.fabric.kind == "torus":
        return "a torus has its shape"
    first = -(-scenario.ranks // cluster.gpus_per_node)
    unit = _least_nodes(scenario) * cluster.gpus_per_node

    def at(value: float) -> Setup:
        data = _plain(scenario)
        more = round(value) // cluster.gpus_per_node - first
        if more > 0:
            data["cluster"]["nodes"] = cluster.nodes + more
            data["job"]["ranks"] = (first + more) * cluster.gpus_per_node
            if "collectives" in data and "servers" in data["collectives"]:
                servers = scenario.collectives.servers * (first + more) // first
                data["collectives"]["servers"] = min(servers, MOST_SERVERS)
        return set_up(scenarios.parse(data))

    most = max(MOST_RANKS, 2 * scenario.ranks) // unit * unit
    return GrowthAxis(scenario.ranks, most, at, unit)


def _least_nodes(scenario: Scenario) -> int:
    """Nodes that whole replicas fill, so that every size tried has whole replicas."""
    size = scenario.cluster.gpus_per_node
    return math.lcm(split(scenario.work), size) // size


def _jitter(scenario: Scenario) -> GrowthAxis | str:
    """Independent normal noise of every rank's compute, in addition to the scenario's."""

    def at(value: float) -> Setup:
        data = _plain(scenario)
        if value:
            extra = {"kind": "normal", "sigma": value, "phase": "compute"}
            data["noise"] = [*data.get("noise", []), extra]
        return set_up(scenarios.parse(data))

    return GrowthAxis(0.0, MOST_JITTER, at)


def _oversubscription(scenario: Scenario) -> GrowthAxis | str:
    fabric = scenario.fabric
    if fabric.kind in ("switch", "torus"):
        return f"a {fabric.kind} has none"
    if fabric.link_gBps:
        return "links between switches have a given speed"

    def at(value: float) -> Setup:
        data = _plain(scenario)
        data["fabric"]["oversubscription"] = value
        return set_up(scenarios.parse(data))

    return GrowthAxis(
        fabric.oversubscription, max(MOST_OVERSUBSCRIPTION, fabric.oversubscription), at
    )


def _load(scenario: Scenario) -> GrowthAxis | str:
    """Background traffic in a ring over the job's nodes, as a share of every card."""
    if len(set(set_up(scenario).placement.node.tolist())) == 1:
        return "the job is on one node"
    asked = scenarios.parse(_plain(scenario))

    def at(value: float) -> Setup:
        return set_up(asked, load_gBps=value * scenario.cluster.nic_gBps)

    return GrowthAxis(0.0, MOST_LOAD, at)


AXES: dict[str, Callable[[Scenario], GrowthAxis | str]] = {
    "ranks": _ranks,
    "jitter": _jitter,
    "oversubscription": _oversubscription,
    "load": _load,
}
