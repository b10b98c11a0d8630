"""The pages of the laboratory: gains with intervals, the simulator's beside them, every step.

A comparison has its page, and so has a run under one arm, or beside its prediction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from evenstep.report.page import sheet
from evenstep.report.page.sheet import Directory, pack
from evenstep.trace.columns import Columns
from lab import prediction, steps
from lab import tier as tiers
from lab.arms import AGAIN, BASELINE, Schedule
from lab.forest import forest
from lab.page import percent, plain
from lab.run import Record, schedule_of
from lab.scenario import Scenario
from lab.single import schedule

SCRIPTS = ("quantities.js", "columns.js", "canvas.js", "blocks.js", "lab.js")

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Block:
    """Whose turn it was, and when, in s since the first block."""

    arm: str
    start_s: float
    end_s: float
    counts: bool


@dataclass(frozen=True, slots=True)
class Series:
    """One job's steps in order: starts in s since the first block, lengths in ms."""

    job: str
    start_s: Any
    step_ms: Any
    counts: Any  # whether the comparison counts the step


def render(
    document: Document,
    series: Sequence[Series] = (),
    blocks: Sequence[Block] = (),
    predicted: Mapping[str, Sequence[float] | None] | None = None,
) -> str:
    """The page of what `python -m lab compare --json` prints.

    `predicted` is the simulator's gain of each job, by arm; None where it does not know the
    scenario. Raises `MissingExtra` without jinja2.
    """
    directory, data = packed_steps(series)
    foretold = {arm: list(each) for arm, each in (predicted or {}).items() if each is not None}
    template = sheet.template("lab.html.j2", "the page of a comparison", SCRIPTS, gain=gain,
                              cv=lambda interval: plain(interval) or "unknown")  # fmt: skip
    text: str = template.render(
        document=document,
        verdict=verdict(document["arms"]),
        compared=[arm for arm in document["arms"] if arm["gain"] is not None],
        again=next((arm for arm in document["arms"] if arm["arm"] == AGAIN), None),
        forest=forest(document["arms"], foretold),
        foretold=foretold,
        drawn=bool(series),
        comparison=sheet.embed(document),
        facts=sheet.embed(
            facts(directory, [arm["arm"] for arm in document["arms"]], series, blocks)
        ),
        data=data,
    )
    return text


def verdict(arms: Sequence[Mapping[str, Any]]) -> str:
    """What came of each arm, in a line: slack: gains, +2.1 % (+1.0 to +3.2); paper: …"""
    said = [(arm["arm"], arm["verdict"], gain(arm["gain"])) for arm in arms if arm["verdict"]]
    if not said:
        return "Only the baseline ran: there is nothing to compare it with"
    return "; ".join(f"{name}: {found}, {change}" for name, found, change in said)


def gain(interval: Mapping[str, float | None] | None) -> str:
    """A gain in percent with its interval: +2.1 % (+1.0 to +3.2)."""
    return percent(interval) or "unknown"


def packed_steps(series: Sequence[Series]) -> tuple[Directory, str]:
    """The steps as they travel in a page: job0, job1 …"""
    return pack(
        {
            f"job{at}": Columns(
                {
                    "start_s": np.asarray(one.start_s, np.float64),
                    "step_ms": np.asarray(one.step_ms, np.float32),
                    "counts": np.asarray(one.counts, np.uint8),
                }
            )
            for at, one in enumerate(series)
        }
    )


def facts(
    directory: Mapping[str, Any],
    arms: Sequence[str],
    series: Sequence[Series],
    blocks: Sequence[Block],
) -> dict[str, Any]:
    """What the page's script has to know of the steps: where they lie, and whose turn was when."""
    return {
        "directory": directory,
        "jobs": [one.job for one in series],
        "arms": list(arms),
        "blocks": [
            {"arm": arms.index(one.arm), "from": one.start_s, "to": one.end_s, "counts": one.counts}
            for one in blocks
        ],
    }


def render_jobs(
    document: Document, series: Sequence[Series] = (), blocks: Sequence[Block] = ()
) -> str:
    """The page of what `python -m lab run` or `python -m lab predict` prints with --json.

    Raises `MissingExtra` without jinja2.
    """
    directory, data = packed_steps(series)
    arm = document.get("arm", BASELINE)
    template = sheet.template("lab_jobs.html.j2", "the page of a run of the laboratory", SCRIPTS)
    text: str = template.render(
        document=document,
        arm=arm,
        foretold="predicted_gain" in document,
        drawn=bool(series),
        result=sheet.embed(document),
        facts=sheet.embed(facts(directory, [arm], series, blocks)),
        data=data,
    )
    return text


def of_comparison(
    scenario: Scenario, names: Sequence[str], record: Record, folder: Path, found: Document
) -> str:
    """The page of a comparison whose traces are still in `folder`."""
    told = {name: _told(scenario, name) for name in names if name != BASELINE}
    series, blocks = _steps(scenario, schedule_of(scenario, names), record, folder)
    return render(found, series, blocks, told)


def of_jobs(scenario: Scenario, arm: str, record: Record, folder: Path, found: Document) -> str:
    """The page of a run under one arm, or of a prediction and the run beside it."""
    series, blocks = _steps(scenario, schedule(scenario, arm), record, folder)
    return render_jobs(found, series, blocks)


def _told(scenario: Scenario, name: str) -> list[float] | None:
    """What the simulator says of an arm; None for a tier's own arm, which it does not know."""
    if name in tiers.tier(scenario.fabric).ARMS:
        return None
    return prediction.predicted_gains(scenario, name)


def _steps(
    scenario: Scenario, turns: Schedule, record: Record, folder: Path
) -> tuple[list[Series], list[Block]]:
    """Every step of every job, and whose turn it was; times in s since the first block."""
    begin_ns = record.starts_ns[0]
    series = [
        Series(job.name, (job.start_ns - begin_ns) / 1e9, job.step_ns / 1e6, job.block >= 0)
        for job in steps.job_steps(scenario, turns, record, folder)
    ]
    edges = [(at - begin_ns) / 1e9 for at in (*record.starts_ns, record.end_ns)]
    blocks = [
        Block(
            turns.arms[turns.arm_at(at)].name,
            edges[at],
            edges[at + 1],
            turns.round_of(at) >= turns.warm_up_rounds and at < record.whole,
        )
        for at in range(len(record.starts_ns))
    ]
    return series, blocks
