"""The page of `evenstep lab compare`: the result, its steps by block, and the simulator's gains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evenstep.lab import prediction, steps
from evenstep.lab import tier as tiers
from evenstep.lab.arms import Schedule
from evenstep.lab.run import Record, arms_for
from evenstep.lab.scenario import Scenario
from evenstep.report import lab_page
from evenstep.report.sheet import check_free, write_whole

__all__ = ["check_free", "draw"]


def draw(
    path: Path,
    scenario: Scenario,
    names: Sequence[str],
    record: Record,
    folder: Path,
    found: Mapping[str, Any],
) -> None:
    """Write the page of a comparison whose traces are still in `folder`."""
    run = scenario.run
    arms = arms_for(names, tiers.tier(scenario.fabric).ARMS)
    schedule = Schedule(arms, run.rounds, run.warm_up_rounds, scenario.seed)
    jobs = steps.job_steps(scenario, schedule, record, folder)
    series = [
        lab_page.Series(
            job.name, (job.start_ns - record.starts_ns[0]) / 1e9, job.step_ns / 1e6, job.block >= 0
        )
        for job in jobs
    ]
    blocks = _blocks(schedule, record)
    told = {name: _told(scenario, name) for name in names if name != lab_page.BASELINE}
    write_whole(lab_page.render(found, series, blocks, told), path)


def _told(scenario: Scenario, name: str) -> list[float] | None:
    """What the simulator says of an arm; None for a tier's own arm, which it does not know."""
    if name in tiers.tier(scenario.fabric).ARMS:
        return None
    return prediction.predicted_gains(scenario, name)


def _blocks(schedule: Schedule, record: Record) -> list[lab_page.Block]:
    """When each block was on, in s since the first."""
    edges = [(at - record.starts_ns[0]) / 1e9 for at in (*record.starts_ns, record.end_ns)]
    return [
        lab_page.Block(
            schedule.arms[schedule.arm_at(at)].name,
            edges[at],
            edges[at + 1],
            schedule.round_of(at) >= schedule.warm_up_rounds and at < record.whole,
        )
        for at in range(len(record.starts_ns))
    ]
