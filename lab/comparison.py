"""Arms compared in one run: carried out, then read from the traces it left."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lab import tier as tiers
from lab.arms import Schedule
from lab.outcome import ArmOutcome, Part, outcomes
from lab.run import Progress, Record, arms_for, carry_out
from lab.scenario import Scenario
from lab.steps import job_steps


def compared(
    scenario: Scenario, names: Sequence[str], folder: Path, progress: Progress | None = None
) -> tuple[Record, list[ArmOutcome]]:
    """Run a scenario with these arms, the baseline twice among them; what each came to."""
    arms = arms_for(names, tiers.tier(scenario.fabric).ARMS)
    run = scenario.run
    schedule = Schedule(arms, run.rounds, run.warm_up_rounds, scenario.seed)
    record = carry_out(scenario, schedule, folder, progress)
    jobs = job_steps(scenario, schedule, record, folder)
    return record, outcomes([Part(jobs, schedule, record.whole)])
