"""Margins: how far ranks, jitter, oversubscription or load can grow before a limit is crossed.

Each axis grows from the scenario's value, all else unchanged, until CV or efficiency crosses its
limit; interpolation, secured by bisection, then finds the crossing. All trial runs have the same
random numbers, so that both change steadily along an axis.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from evenstep.documents import Amount
from evenstep.scenario.parts import Noise
from evenstep.scenario.scenario import Scenario
from evenstep.simulate.fabric.noise import are_alike
from evenstep.simulate.result import Result
from evenstep.simulate.simulation import Setup, set_up, step_times
from evenstep.trace.columns import Array

MOST_STEPS = 50  # of a trial run
LEAST_STEPS, MOST_MESSAGES = 10, 1_000_000  # a trial run with more messages gets fewer steps
CLEAR = 4.0  # standard errors between a run and each limit that decide it before its end
MOST_RANKS = 512  # tried, or twice the scenario's
MOST_OVERSUBSCRIPTION = 64.0
MOST_JITTER = 1.0
MOST_LOAD = 0.95
MOST_SERVERS = 64  # messages are ranks × servers
RESOLUTION = 0.05  # of the value found, relative
TRIALS = 4  # of an axis, about


class LimitCheck(NamedTuple):
    """The limit that a trial run crosses, or None; `excess`: how far beyond each limit it is, below
    0 within."""

    crosses: str | None
    excess: tuple[float, ...]


INSIDE = LimitCheck(None, ())
TOO_LONG = LimitCheck("too long", ())  # of a run that would follow too many messages


class Edges(NamedTuple):
    """The job is stable while CV is not above and efficiency not below these."""

    cv: Amount = 0.10
    efficiency: Amount = 0.5

    def judge(self, cv: float, efficiency: float) -> LimitCheck:
        """Whether a run crosses a limit."""
        excess = cv - self.cv, self.efficiency - efficiency
        crossed = [name for name, by in zip(self._fields, excess, strict=True) if by > 0]
        return LimitCheck(crossed[0] if crossed else None, excess)


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


def margins(
    scenario: Scenario, result: Result, edges: Edges, axes: tuple[str, ...],
    like: dict[str, Margin] | None = None,
) -> dict[str, Margin]:  # fmt: skip
    """The margin on each axis of a scenario with this result; `like`: those of a job like it."""
    here = edges.judge(result.step_time.cv, result.efficiency)

    def margin(axis: GrowthAxis | str, like: Margin | None) -> Margin:
        if isinstance(axis, str):
            return Margin(0.0, None, None, 0.0, axis)
        return search(axis, lambda at: here if at == axis.now else _trial(axis.at(at), edges), like)

    return {name: margin(AXES[name](scenario), (like or {}).get(name)) for name in axes}


def search(
    axis: GrowthAxis, judge: Callable[[float], LimitCheck], like: Margin | None = None
) -> Margin:
    """Find the smallest value that crosses, to the resolution: on both sides of that of a job like
    this one, else by steps that double while trial runs are not too long, then between the last
    two."""
    low, step, above = axis.now, axis.now or axis.most / 16, INSIDE
    below = judge(low)
    if below.crosses:
        return Margin(low, low, below.crosses, low, "crossed already")
    for at in (like.tried, like.tried / (1 + RESOLUTION)) if like else ():
        place = axis.place(at)
        found = judge(place) if low < place <= axis.most else TOO_LONG
        if found == TOO_LONG:
            break
        if not found.crosses:
            low, step, below = place, place - low, found
            break
        high, above = place, found
    while not above.crosses:
        if low >= axis.most:
            return Margin(axis.now, None, None, low)
        high = axis.place(axis.most if low + 1.5 * step > axis.most else low + step)
        step *= 2
        above = judge(high)
        if above == TOO_LONG:
            return Margin(axis.now, None, None, low)
        if not above.crosses:
            low, below = high, above
    is_halved = True
    while high - low > max(axis.unit, RESOLUTION * high):
        share = _linear(below, above) if is_halved else 0.5
        root, near = low + share * (high - low), max(axis.unit, RESOLUTION * low)
        # a little above it, or so near an end that it is then known closely enough
        middle = low + near if root < low + near else min(root + near / 2, high - near)
        middle = min(max(axis.place(middle), low + axis.unit), high - axis.unit)
        here, width = judge(middle), high - low
        if here == TOO_LONG:
            break
        low, below, high, above = (
            (low, below, middle, here) if here.crosses else (middle, here, high, above)
        )
        is_halved = high - low <= width / 2
    return Margin(axis.now, high, above.crosses, high)


def _linear(below: LimitCheck, above: LimitCheck) -> float:
    """The share of the way from below to above where a limit is crossed, if all grows evenly."""
    ends = zip(below.excess, above.excess, strict=True)
    return min(first / (first - last) for first, last in ends if last > 0)


def _trial(setup: Setup, edges: Edges) -> LimitCheck:
    """Check a trial run; `TOO_LONG` instead of a run that would follow too many messages even over
    the fewest steps. It ends early once its steps so far are clear of, or beyond, every limit."""
    alike, most = are_alike(setup.scenario), math.inf

    def check(step: Array) -> tuple[LimitCheck, tuple[float, float]]:
        """Also the standard errors of CV and efficiency, of independent normal steps."""
        mean, count = float(step.mean()), len(step)
        cv, efficiency = float(step.std()) / mean, setup.compute_ns(count) / mean
        errors = cv * math.sqrt((0.5 + cv**2) / count), efficiency * cv / math.sqrt(count)
        return edges.judge(cv, efficiency), errors

    def enough(step: Array, messages: float) -> bool:
        nonlocal most
        most = MOST_MESSAGES / max(messages, 1.0)
        if most < LEAST_STEPS or len(step) >= int(most):
            return True
        if not alike or len(step) < LEAST_STEPS:
            return False
        found, errors = check(step)
        apart = [by / (CLEAR * error) if error else math.copysign(math.inf, by)
                 for by, error in zip(found.excess, errors, strict=True)]  # fmt: skip
        return max(apart) > 1 or max(apart) < -1

    step = step_times(setup, enough, MOST_MESSAGES // LEAST_STEPS)
    return check(step)[0] if len(step) and most >= LEAST_STEPS else TOO_LONG


# -- axes ------------------------------------------------------------------------------------------


def _shorter(scenario: Scenario, ranks: int = 0, **tables: Any) -> Scenario:
    """A shorter run, at this number of ranks, with other tables."""
    run, job = scenario.run, replace(scenario.job, ranks=ranks or scenario.ranks)
    counted = max(MOST_STEPS, scenario.strategy.every)
    run = replace(run, steps=min(run.steps, counted + run.warm_up))
    return replace(scenario, run=run, job=job, **tables)


def _ranks(scenario: Scenario) -> GrowthAxis | str:
    """More nodes of the same kind; the work of a rank stays."""
    cluster = scenario.cluster
    if scenario.job.placement == "given":
        return "the job's nodes are given"
    if scenario.fabric.kind == "torus":
        return "a torus has its shape"
    first = -(-scenario.ranks // cluster.gpus_per_node)
    unit = math.lcm(scenario.replica_ranks, cluster.gpus_per_node)  # with whole replicas

    def at(value: float) -> Setup:
        nodes, how = round(value) // cluster.gpus_per_node, scenario.collectives
        if nodes <= first:
            return set_up(_shorter(scenario))
        if how.servers > 1:
            how = replace(how, servers=min(how.servers * nodes // first, MOST_SERVERS))
        grown = replace(cluster, nodes=cluster.nodes + nodes - first)
        ranks = nodes * cluster.gpus_per_node
        return set_up(_shorter(scenario, ranks, cluster=grown, collectives=how))

    most = max(MOST_RANKS, 2 * scenario.ranks) // unit * unit
    return GrowthAxis(scenario.ranks, most, at, unit)


def _jitter(scenario: Scenario) -> GrowthAxis | str:
    """Independent normal noise of every rank's compute, in addition to the scenario's."""

    def at(sigma: float) -> Setup:
        return set_up(_shorter(scenario, noise=(*scenario.noise, Noise(sigma=sigma))))

    return GrowthAxis(0.0, MOST_JITTER, at)


def _oversubscription(scenario: Scenario) -> GrowthAxis | str:
    fabric = scenario.fabric
    if fabric.kind in ("switch", "torus"):
        return f"a {fabric.kind} has none"
    if fabric.link_gBps:
        return "links between switches have a given speed"

    def at(value: float) -> Setup:
        return set_up(_shorter(scenario, fabric=replace(fabric, oversubscription=value)))

    most = max(MOST_OVERSUBSCRIPTION, fabric.oversubscription)
    return GrowthAxis(fabric.oversubscription, most, at)


def _load(scenario: Scenario) -> GrowthAxis | str:
    """Background traffic in a ring over the job's nodes, as a share of every card."""
    if len(set(set_up(scenario).placement.node.tolist())) == 1:
        return "the job is on one node"
    asked, card = _shorter(scenario), scenario.cluster.nic_gBps
    return GrowthAxis(0.0, MOST_LOAD, lambda share: set_up(asked, load_gBps=share * card))


AXES: dict[str, Callable[[Scenario], GrowthAxis | str]] = {
    "ranks": _ranks,
    "jitter": _jitter,
    "oversubscription": _oversubscription,
    "load": _load,
}
