"""A scenario of the laboratory as the simulator's engine knows it, seen by one of its jobs.

The other jobs become its neighbours, links those of a leaf-spine, faults noise. What has no
counterpart is refused, not left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from evenstep.errors import UsageError
from evenstep.scenario.scenario import Scenario as Simulated
from evenstep.scenario.scenario import parse
from evenstep.simulate.formulas import normal_exact
from evenstep.trace.ranks import format_ranks
from lab.fair.jobs import leaf_of
from lab.fair.rank import BACKWARD, FORWARD, OPTIMIZER
from lab.faults import Fault
from lab.scenario import Job, Scenario

STEPS = 3000
CARD_FACTOR = 1000.0  # a rank's card carries so much more than the link where it is not to matter
MS = 1e6
NOTHING_MS = 1e-3  # an input that takes no time, so that it can take longer
IN_RANK = ("slow_rank", "rotating_rank", "collector", "input_stall")
KNOWN = (*IN_RANK, "throttled_link", "neighbour_job")


def as_simulated(
    scenario: Scenario, job: int, fixed_ns: float = 0.0, *, steps: int = STEPS
) -> Simulated:
    """The scenario as one of its jobs sees it."""
    _check_known(scenario)
    mine, network = scenario.jobs[job], scenario.network
    room = _room(scenario)
    places = _places(scenario, room)
    data: dict[str, Any] = {
        "cluster": {
            "nodes": max(network.leaves, 2) * room,
            "nic_gBps": network.nic_gBps or CARD_FACTOR * network.link_gBps,
            "nic_latency_us": 0.0,
            "storage_gBps": network.storage_gBps,
        },
        "fabric": {
            "kind": "leaf_spine",
            "nodes_per_leaf": room,
            "spines": 1,
            "link_gBps": network.link_gBps,
            "latency_us": 0.0,
            "incast_goodput": network.goodput,
            "changes": _changes(scenario),
        },
        "job": {"ranks": mine.ranks, "placement": "given", "nodes": places[job]},
        "work": _work(scenario, job),
        "collectives": {"algorithm": "ring", "channels": 1, "launch_us": fixed_ns / 1e3},
        "noise": _noises(scenario, job),
        "neighbours": _neighbours(scenario, job, places, room, fixed_ns),
        "run": {"steps": steps, "seed": scenario.seed + 1},
    }
    return parse(data)


def _check_known(scenario: Scenario) -> None:
    what = "network.background_flows" if scenario.network.background_flows else ""
    for index, fault in enumerate(scenario.faults):
        always = not (fault.first_step or fault.last_step or fault.ramp_steps)
        if fault.kind not in KNOWN or not always:
            what = f"faults[{index}], {fault.kind}"
        elif fault.during != fault.every and fault.kind not in ("rotating_rank", "collector"):
            what = f"faults[{index}], {fault.kind} now and then"
    if what:
        raise UsageError(
            f"the simulator has no counterpart of {what}: the scenario can be run, not predicted"
        )


def _room(scenario: Scenario) -> int:
    """Nodes under a leaf: enough for everybody."""
    return scenario.ranks + len(scenario.faults)


def _places(scenario: Scenario, room: int) -> list[str]:
    """The nodes of every job's ranks, each rank on its own.

    With a single shared link, half of a job's ranks are under one leaf and half under another, so
    that its ring crosses the uplink once each way.
    """
    network, taken, places = scenario.network, 0, []
    for job in scenario.jobs:
        nodes = []
        for rank in range(job.ranks):
            leaf = leaf_of(rank, job, network) if network.leaves > 1 else rank * 2 // job.ranks
            nodes.append(leaf * room + taken)
            taken += 1
        places.append(",".join(map(str, nodes)))
    return places


def _work(scenario: Scenario, job: int) -> dict[str, Any]:
    mine = scenario.jobs[job]
    stalls = any(fault.kind == "input_stall" and fault.job == job for fault in scenario.faults)
    return {
        "input_ms": NOTHING_MS if stalls else 0.0,
        "forward_ms": FORWARD * mine.compute_ms,
        "backward_ms": BACKWARD * mine.compute_ms,
        "optimizer_ms": OPTIMIZER * mine.compute_ms,
        "gradient_bytes": mine.gradient_bytes,
        "buckets": mine.buckets,
        "overlap": False,
        "input_bytes": mine.input_bytes if scenario.network.storage_gBps else 0,
    }


def _changes(scenario: Scenario) -> list[dict[str, Any]]:
    """Links that are throttled, each way."""
    return [
        {"links": links, "factor": fault.share}
        for fault in scenario.faults
        if fault.kind == "throttled_link"
        for links in (f"leaf{fault.link}->spine*", f"spine*->leaf{fault.link}")
    ]


def _noises(scenario: Scenario, job: int) -> list[dict[str, Any]]:
    mine = scenario.jobs[job]
    noises: list[dict[str, Any]] = []
    if mine.jitter:
        noises.append(_jitter(mine))
    return noises + [
        _noise(fault, mine)
        for fault in scenario.faults
        if fault.job == job and fault.kind in ("slow_rank", "rotating_rank", "collector",
                                               "input_stall")
    ]  # fmt: skip


def _jitter(job: Job) -> dict[str, Any]:
    if job.noise == "pareto":
        raise UsageError(
            "the simulator says Pareto noise by its mean excess, not by its deviation: a scenario "
            'with noise = "pareto" can be run, not predicted'
        )
    return {"kind": job.noise, "sigma": job.jitter, "phase": "compute"}


def _noise(fault: Fault, job: Job) -> dict[str, Any]:
    """A fault as the engine says it: delays are factors of the phase they make longer."""
    if fault.kind == "collector":
        return {
            "kind": "collector",
            "delay_ms": fault.delay_ms,
            "every": fault.every,
            "ranks": format_ranks(fault.who(job.ranks)),
        }
    if fault.kind == "input_stall":
        phase, alone_ms = "input", NOTHING_MS
    else:
        share = {"forward": FORWARD, "backward": BACKWARD, "optimizer": OPTIMIZER}.get(fault.phase)
        if share is None:
            raise UsageError("slow input is predicted as the fault input_stall; take that")
        phase, alone_ms = fault.phase, share * job.compute_ms
    noise = {"phase": phase, "factor": 1 + fault.delay_ms / alone_ms, "every": fault.every}
    if fault.kind == "rotating_rank":
        return {"kind": "rotating", **noise}
    return {"kind": "slow", "ranks": format_ranks(fault.who(job.ranks)), **noise}


def _neighbours(
    scenario: Scenario, job: int, places: Sequence[str], room: int, fixed_ns: float
) -> list[dict[str, Any]]:
    """The other jobs, and those a fault brings."""
    found = [
        {
            "name": other.name,
            "nodes": places[index],
            "compute_ms": other.compute_ms * longest(other) + other.buckets * fixed_ns / MS,
            "message_bytes": other.gradient_bytes,
            "jitter": other.jitter,
            "offset_ms": other.start_ms,
        }
        for index, other in enumerate(scenario.jobs)
        if index != job
    ]
    for index, fault in enumerate(scenario.faults):
        if fault.kind == "neighbour_job":
            node = room - 1 - index
            found.append(
                {
                    "name": f"neighbour-{index}",
                    "nodes": f"{node},{node + room}",  # a ring of two puts its message on a link
                    "compute_ms": fault.compute_ms,
                    "message_bytes": int(fault.exchange_ms * MS * scenario.network.link_gBps),
                    "jitter": 0.0,
                }
            )
    return found


def longest(job: Job) -> float:
    """Mean of the longest of a job's ranks' computes, over their mean."""
    if job.jitter == 0:
        return 1.0
    return 1 + job.jitter * normal_exact(job.ranks)
