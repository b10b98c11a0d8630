"""Beyond the simulated steps: what they cost, and what failures leave of them over weeks."""

from __future__ import annotations

import math

from evenstep.simulate.account import Account
from evenstep.simulate.energy import Power, Times, bill
from evenstep.simulate.formulas import checkpoints
from evenstep.simulate.goodput import Operation, expected
from evenstep.simulate.reliability import mttf_ns
from evenstep.simulate.scenario import Scenario

SECOND_NS = 1e9
HOUR_NS = 3600 * SECOND_NS


def operated(scenario: Scenario) -> dict[str, float] | None:
    """Shares of the time over weeks, with failures, checkpoints and restarts; None where no
    failures are given. Without an interval, that of Daly (2006)."""
    given = scenario.reliability
    if not given.failures_per_1000_node_days:
        return None
    mtbf_ns = mttf_ns(
        given.failures_per_1000_node_days,
        gpus=scenario.ranks,
        gpus_per_node=scenario.cluster.gpus_per_node,
    )
    write_ns = given.write_s * SECOND_NS
    interval_ns = given.checkpoint_every_s * SECOND_NS or checkpoints.daly(write_ns, mtbf_ns)
    found = expected(
        Operation(
            interval_ns=interval_ns,
            write_ns=write_ns,
            mtbf_ns=mtbf_ns,
            detect_ns=given.detect_s * SECOND_NS,
            restart_ns=given.restart_s * SECOND_NS,
            node_share=given.node_share,
            repair_ns=given.repair_h * HOUR_NS,
            spares=given.spares,
        )
    )
    times = {"mtbf_ns": mtbf_ns, "checkpoint_interval_ns": interval_ns}
    return {**found._asdict(), **times}


def energy(scenario: Scenario, account: Account, amount: float) -> dict[str, float | None] | None:
    """What the counted steps used and cost; None where no power is given."""
    given = scenario.energy
    power = Power(
        compute_watts=given.compute_watts,
        communicate_watts=given.communicate_watts,
        spin_wait_watts=given.spin_wait_watts,
        idle_watts=0.0,
        node_share_watts=given.node_share_watts,
        pue=given.pue,
    )
    if not (given.compute_watts or given.node_share_watts or given.price_per_hour):
        return None
    totals = {name: float(total.sum()) for name, total in account.totals.items()}
    times = Times(
        compute_ns=totals["work"] + totals["held"],
        communicate_ns=max(totals["blocked"] - totals["waited"], 0.0),
        spin_wait_ns=totals["waited"],
    )
    steps = account.counted.stop - account.counted.start
    found = bill(times, power, progress=amount * steps, price_per_hour=given.price_per_hour)
    return {n: v if math.isfinite(v) else None for n, v in found._asdict().items()}
