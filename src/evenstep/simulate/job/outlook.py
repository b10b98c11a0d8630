"""Beyond the simulated steps: energy and cost, and goodput over weeks with failures.

A rank that polls while waiting draws nearly as much as one that communicates, so waiting costs
energy, too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from evenstep import checkpoints
from evenstep.scenario.parts import Part, Reliability
from evenstep.scenario.scenario import Scenario
from evenstep.simulate.formulas.reliability import (
    DAY_NS,
    HOUR_NS,
    OperatingConditions,
    by_cause,
    expected_goodput,
    failures_per_day,
    interval_ns,
)
from evenstep.simulate.job.engine import StepSums

NODE = "node"
MOST_NS = 36_500.0 * DAY_NS  # a hundred years: MTBF of a job without failures
SECOND_NS = 1e9


def operate(scenario: Scenario) -> dict[str, Any] | None:
    """Shares of the time over weeks, with failures, checkpoints, restarts and slow nodes.

    None where nothing fails and no node turns slow. Without an interval, that of Daly (2006).
    """
    given = scenario.reliability
    parts = _parts(given)
    nodes = -(-scenario.ranks // scenario.cluster.gpus_per_node)
    turns = given.slow_nodes_per_1000_node_days / 1000 * nodes if given.slow_factor > 1 else 0.0
    broken = failures_per_day(parts, nodes) if parts else 0.0
    if not broken and not turns:
        return None
    mtbf_ns = min(interval_ns(broken), MOST_NS)
    write_ns, shares = given.write_s * SECOND_NS, by_cause(parts)
    job = OperatingConditions(
        interval_ns=given.checkpoint_every_s * SECOND_NS or checkpoints.daly(write_ns, mtbf_ns),
        write_ns=write_ns,
        mtbf_ns=mtbf_ns,
        detect_ns=given.detect_s * SECOND_NS,
        restart_ns=(given.restart_s + given.restore_s) * SECOND_NS,
        node_share=min(1.0, sum(
            shares[part.name] * (given.node_share if part.name == NODE else part.hardware)
            for part in parts
        )),
        repair_ns=given.repair_h * HOUR_NS,
        spares=given.spares,
        slow_every_ns=interval_ns(turns),
        slowdown=given.slow_factor if turns else 1.0,
        notice_ns=given.notice_s * SECOND_NS,
    )  # fmt: skip
    found = expected_goodput(job)
    return {
        **found._asdict(),
        "reruns": found.reruns,
        "lost_hours_per_day": 24 * found.lost,
        "by_cause": shares,
        "mtbf_ns": job.mtbf_ns,
        "checkpoint_interval_ns": job.interval_ns,
    }


def _parts(given: Reliability) -> tuple[Part, ...]:
    """Parts that fail: those named, and whole nodes at their own rate."""
    parts = [
        replace(part, name=part.name or f"part {index}") for index, part in enumerate(given.parts)
    ]
    rate = given.failures_per_1000_node_days / 1000 / 24e-6
    return tuple(parts + [Part(name=NODE, failures_per_million_hours=rate)] * bool(rate))


class State(NamedTuple):
    """A state of ranks: time spent in it by all ranks together, and power of one in it."""

    time_ns: float
    watts: float
    waits: bool = False  # spinning or idle


class Bill(NamedTuple):
    """Energy and cost of a job, in total and for each unit of progress."""

    joules: float
    joules_waiting: float  # of them while spinning or idle
    cost: float  # in the currency of the price
    joules_per_unit: float
    cost_per_unit: float
    mean_watts: float  # per rank, everything included


def bill(
    states: Sequence[State],
    *,
    node_share_watts: float = 0.0,
    pue: float = 1.0,
    progress: float,
    price_per_hour: float = 0.0,
) -> Bill:
    """Energy E = Σ time × power × PUE and cost of `progress` units (samples, tokens, steps).

    `node_share_watts` is a rank's part of processors, memory, fans and network, drawn at all times;
    `pue` multiplies all of it for cooling and supply (power usage effectiveness, ISO/IEC 30134-2).
    `price_per_hour` is that of one accelerator. Work that was lost and done again is in the states
    but not in `progress`.
    """
    used = [state.time_ns * 1e-9 * (state.watts + node_share_watts) * pue for state in states]
    joules = sum(used)
    total_ns = sum(state.time_ns for state in states)
    cost = total_ns / HOUR_NS * price_per_hour
    return Bill(
        joules=joules,
        joules_waiting=sum(each for each, state in zip(used, states, strict=True) if state.waits),
        cost=cost,
        joules_per_unit=joules / progress if progress else math.inf,
        cost_per_unit=cost / progress if progress else math.inf,
        mean_watts=joules / total_ns * 1e9 if total_ns else 0.0,
    )


def energy(
    scenario: Scenario, account: StepSums, amount: float, weeks: dict[str, Any] | None
) -> dict[str, float | None] | None:
    """Energy and cost of the counted steps; None where no power is given.

    A useful unit also carries its part of what failures, checkpoints and restarts use over weeks.
    """
    given = scenario.energy
    if not (given.compute_watts or given.node_share_watts or given.price_per_hour):
        return None
    totals = {name: float(total.sum()) for name, total in account.totals.items()}
    states = [
        State(totals["work"] + totals["held"], given.compute_watts),
        State(max(totals["blocked"] - totals["waited"], 0.0), given.communicate_watts),
        State(totals["waited"], given.spin_wait_watts, waits=True),
    ]
    steps = account.counted.stop - account.counted.start
    found = bill(
        states, node_share_watts=given.node_share_watts, pue=given.pue, progress=amount * steps,
        price_per_hour=given.price_per_hour,
    )  # fmt: skip
    used = found._asdict()
    if weeks is not None:  # down, a rank draws what its node does; else what it does on average
        useful, down = weeks["useful"], weeks["restarting"] + weeks["waiting"]
        idle = down * given.node_share_watts * given.pue / (found.mean_watts or math.inf)
        drawn = found.joules_per_unit * (1 - down + idle)
        used["joules_per_useful_unit"] = drawn / useful if useful else math.inf
        used["cost_per_useful_unit"] = found.cost_per_unit / useful if useful else math.inf
    return {name: value if math.isfinite(value) else None for name, value in used.items()}
