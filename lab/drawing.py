"""The pages of the laboratory: a result, its steps by block, and the simulator's gains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lab import comparison_page as lab_page
from lab import jobs_page as lab_jobs_page
from lab import prediction, steps
from lab import tier as tiers
from lab.arms import BASELINE, Schedule
from lab.run import Record, arms_for
from lab.scenario import Scenario
from lab.single import schedule

Document = Mapping[str, Any]


def of_comparison(
    scenario: Scenario, names: Sequence[str], record: Record, folder: Path, found: Document
) -> str:
    """The page of a comparison whose traces are still in `folder`."""
    run = scenario.run
    arms = arms_for(names, tiers.tier(scenario.fabric).ARMS)
    turns = Schedule(arms, run.rounds, run.warm_up_rounds, scenario.seed)
    told = {name: _told(scenario, name) for name in names if name != BASELINE}
    series, blocks = _steps(scenario, turns, record, folder)
    return lab_page.render(found, series, blocks, told)


def of_jobs(scenario: Scenario, arm: str, record: Record, folder: Path, found: Document) -> str:
    """The page of a run under one arm, or of a prediction and the run beside it."""
    series, blocks = _steps(scenario, schedule(scenario, arm), record, folder)
    return lab_jobs_page.render(found, series, blocks)


def _told(scenario: Scenario, name: str) -> list[float] | None:
    """What the simulator says of an arm; None for a tier's own arm, which it does not know."""
    if name in tiers.tier(scenario.fabric).ARMS:
        return None
    return prediction.predicted_gains(scenario, name)


def _steps(
    scenario: Scenario, turns: Schedule, record: Record, folder: Path
) -> tuple[list[lab_page.Series], list[lab_page.Block]]:
    """Every step of every job, and whose turn it was; times in s since the first block."""
    begin_ns = record.starts_ns[0]
    series = [
        lab_page.Series(
            job.name, (job.start_ns - begin_ns) / 1e9, job.step_ns / 1e6, job.block >= 0
        )
        for job in steps.job_steps(scenario, turns, record, folder)
    ]
    edges = [(at - begin_ns) / 1e9 for at in (*record.starts_ns, record.end_ns)]
    blocks = [
        lab_page.Block(
            turns.arms[turns.arm_at(at)].name,
            edges[at],
            edges[at + 1],
            turns.round_of(at) >= turns.warm_up_rounds and at < record.whole,
        )
        for at in range(len(record.starts_ns))
    ]
    return series, blocks
