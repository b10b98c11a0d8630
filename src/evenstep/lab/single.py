"""One arm alone: its run, and what every job's trace says of it."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evenstep.diagnose.engine import diagnose
from evenstep.lab import tier as tiers
from evenstep.lab.arms import Schedule, arm
from evenstep.lab.page import columns
from evenstep.lab.run import Progress, Record, carry_out
from evenstep.lab.scenario import Scenario
from evenstep.lab.steps import job_steps
from evenstep.trace.trace import load

SCHEMA = "evenstep.lab.run/1"


@dataclass(frozen=True, slots=True)
class JobFigures:
    """What is measured of a job, and predicted of it."""

    name: str
    step_ms: float
    cv: float
    wait: float  # share of the step that its ranks wait for each other, on average
    verdict: str = ""  # of the diagnosis, where there is a trace


def carried(
    scenario: Scenario, name: str, folder: Path, progress: Progress | None = None
) -> Record:
    """Run a scenario with one arm all the time."""
    return carry_out(scenario, _schedule(scenario, name), folder, progress)


def _schedule(scenario: Scenario, name: str) -> Schedule:
    run = scenario.run
    chosen = arm(name, tiers.tier(scenario.fabric).ARMS)
    return Schedule((chosen,), run.rounds, run.warm_up_rounds, scenario.seed)


def figures(scenario: Scenario, record: Record, folder: Path) -> list[JobFigures]:
    """Step time and CV of the steps that count, wait share of the whole run."""
    found = []
    for job in job_steps(scenario, _schedule(scenario, "baseline"), record, folder):
        times = job.step_ns[job.block >= 0]
        if not len(times):
            times = job.step_ns
        summary = diagnose(load(folder / job.name)).summary
        wait = (summary.get("shares") or {}).get("wait")
        mean = float(times.mean())
        found.append(
            JobFigures(
                job.name,
                mean / 1e6,
                float(times.std() / mean),
                math.nan if wait is None else float(wait),
                str(summary["verdict"]),
            )
        )
    return found


def document(scenario: Scenario, record: Record, folder: Path) -> dict[str, Any]:
    """The run as JSON has it, with each job's verdict."""
    jobs = [
        {
            "job": one.name,
            "step_ms": one.step_ms,
            "cv": one.cv,
            "wait_share": one.wait if math.isfinite(one.wait) else None,
            "verdict": one.verdict,
            "trace": str(folder / one.name),
        }
        for one in figures(scenario, record, folder)
    ]
    return {
        "schema": SCHEMA,
        "scenario": scenario.name,
        "fabric": scenario.fabric,
        "partial": bool(record.ended),
        "ended": record.ended or None,
        "real_time": record.real_time,
        "jobs": jobs,
    }


def text(found: Mapping[str, Any]) -> str:
    """The run as a page."""
    rows = [("job", "step", "CV", "wait")]
    for job in found["jobs"]:
        wait = "" if job["wait_share"] is None else f"{100 * job['wait_share']:.1f} %"
        rows.append((job["job"], f"{job['step_ms']:.2f} ms", f"{job['cv']:.3f}", wait))
    title = found["scenario"] or "a scenario without a name"
    ended = f"partial: {found['ended']}" if found["partial"] else ""
    verdicts = [
        textwrap.fill(f"{job['job']}: {job['verdict']}", 80, break_on_hyphens=False)
        for job in found["jobs"]
    ]
    return "\n".join([title, *([ended] if ended else []), "", *columns(rows), "", *verdicts])
