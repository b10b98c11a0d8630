"""One arm alone: its run, and what every job's trace says of it."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TypedDict

from evenstep.diagnose.engine import diagnose
from evenstep.documents import Amount, Meta, Portion
from evenstep.trace.loading import load
from lab import tier as tiers
from lab.arms import Schedule, arm
from lab.page import columns, known
from lab.run import INTERRUPTED, UNFINISHED, Progress, Record, carry_out
from lab.scenario import FABRICS, Scenario
from lab.steps import job_steps

Fabric = Annotated[str, Meta(enum=FABRICS)]
Ended = Annotated[str | None, Meta(enum=(INTERRUPTED, "time limit", UNFINISHED, None))]


class Figures(TypedDict):
    """What is known of a job under one arm."""

    step_ms: Amount | None
    cv: Amount | None
    wait_share: Portion | None


class RunJob(Figures):
    """A job of a run."""

    job: str
    verdict: str
    trace: Annotated[str | None, Meta("The folder of its trace; null where that was not kept.")]


class RunDocument(TypedDict):
    """What `python -m lab run --json` prints."""

    schema: Literal["evenstep.lab.run/1"]
    scenario: str
    fabric: Fabric
    arm: str
    partial: bool
    ended: Ended
    real_time: bool
    jobs: list[RunJob]


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
    return carry_out(scenario, schedule(scenario, name), folder, progress)


def schedule(scenario: Scenario, name: str) -> Schedule:
    """One arm's turn, always."""
    run = scenario.run
    chosen = arm(name, tiers.tier(scenario.fabric).ARMS)
    return Schedule((chosen,), run.rounds, run.warm_up_rounds, scenario.seed)


def figures(scenario: Scenario, record: Record, folder: Path) -> list[JobFigures]:
    """Step time and CV of the steps that count, wait share of the whole run."""
    found = []
    for job in job_steps(scenario, schedule(scenario, "baseline"), record, folder):
        times = job.step_ns[job.block >= 0]
        if not len(times):
            times = job.step_ns
        summary = diagnose(load(folder / job.name)).summary
        wait = (summary.get("shares") or {}).get("wait")
        mean = float(times.mean()) if len(times) else math.nan
        found.append(
            JobFigures(
                job.name,
                mean / 1e6,
                float(times.std() / mean) if len(times) else math.nan,
                math.nan if wait is None else float(wait),
                str(summary["verdict"]),
            )
        )
    return found


def document(
    scenario: Scenario, name: str, record: Record, folder: Path, *, kept: bool
) -> RunDocument:
    """The run of an arm as JSON has it, with each job's verdict; `kept`: its traces stay."""
    jobs: list[RunJob] = [
        {
            "job": one.name,
            **plain(one),
            "verdict": one.verdict,
            "trace": str(folder / one.name) if kept else None,
        }
        for one in figures(scenario, record, folder)
    ]
    return {
        "schema": "evenstep.lab.run/1",
        "scenario": scenario.name,
        "fabric": scenario.fabric,
        "arm": name,
        "partial": bool(record.ended),
        "ended": record.ended or None,
        "real_time": record.real_time,
        "jobs": jobs,
    }


def plain(one: JobFigures) -> Figures:
    """Its numbers; what is not known is null."""
    return {"step_ms": known(one.step_ms), "cv": known(one.cv), "wait_share": known(one.wait)}


def cells(numbers: Figures) -> tuple[str, str, str]:
    """Step, CV and share of waiting as text; "" for what is not known."""
    step, cv, wait = numbers["step_ms"], numbers["cv"], numbers["wait_share"]
    return (
        "" if step is None else f"{step:.2f} ms",
        "" if cv is None else f"{cv:.3f}",
        "" if wait is None else f"{100 * wait:.1f} %",
    )


def text(found: RunDocument) -> str:
    """The run as a page."""
    rows: list[Sequence[str]] = [("job", "step", "CV", "wait")]
    rows += [(job["job"], *cells(job)) for job in found["jobs"]]
    title = found["scenario"] or "a scenario without a name"
    ended = f"partial: {found['ended']}" if found["partial"] else ""
    verdicts = [
        textwrap.fill(f"{job['job']}: {job['verdict']}", 80, break_on_hyphens=False)
        for job in found["jobs"]
    ]
    return "\n".join([title, *([ended] if ended else []), "", *columns(rows), "", *verdicts])
