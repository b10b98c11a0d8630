"""Beyond the simulated steps: energy and cost, and goodput over weeks with failures.

A rank that polls while waiting draws nearly as much as one that communicates, so waiting costs
energy, too.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from evenstep import checkpoints
from evenstep.scenario.parts import Energy, Part, Reliability
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


def energy(
    scenario: Scenario, account: StepSums, amount: float, weeks: dict[str, Any] | None
) -> dict[str, float | None] | None:
    """Energy E = Σ time × power × PUE and cost of the counted steps, `amount` units each; None
    where neither power nor price is given.

    The PUE multiplies everything for cooling and supply (ISO/IEC 30134-2). A useful unit also
    carries its part of what failures, checkpoints and restarts use over weeks.
    """
    given = scenario.energy
    if replace(given, pue=1.0) == Energy():
        return None
    of = {name: float(total.sum()) for name, total in account.totals.items()}
    sending_ns = max(of["blocked"] - of["waited"], 0.0)
    time_ns = np.array([of["work"] + of["held"], sending_ns, of["waited"]])
    watts = np.array([given.compute_watts, given.communicate_watts, given.spin_wait_watts])
    joules = time_ns * 1e-9 * (watts + given.node_share_watts) * given.pue
    whole, total_ns = float(joules.sum()), float(time_ns.sum())
    cost = total_ns / HOUR_NS * given.price_per_hour
    units = amount * (account.counted.stop - account.counted.start)
    found = {
        "joules": whole,
        "joules_waiting": float(joules[2]),
        "cost": cost,  # in the currency of the price
        "joules_per_unit": whole / units if units else None,
        "cost_per_unit": cost / units if units else None,
        "mean_watts": whole / total_ns * 1e9 if total_ns else 0.0,  # of a rank
    }
    if weeks is not None:  # down, a rank draws what its node does; else what it does on average
        useful, down = weeks["useful"] * units, weeks["restarting"] + weeks["waiting"]
        idle = down * given.node_share_watts * given.pue * total_ns * 1e-9
        drawn = whole * (1 - down) + idle
        found["joules_per_useful_unit"] = drawn / useful if useful else None
        found["cost_per_useful_unit"] = cost / useful if useful else None
    return found
