"""Predicted against measured: the simulator's answer beside that of real processes.

One figure is taken from this machine, in a run of its own: what an exchange takes here beyond its
time on the link, as it has to be asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import Annotated, Literal, TypedDict

import numpy as np

from evenstep.documents import Meta
from evenstep.trace.loading import load
from evenstep.trace.spool.layout import Kind
from lab.arms import Schedule, arm
from lab.fair.jobs import ring_bytes
from lab.page import columns, known
from lab.prediction import is_link_world, predicted
from lab.run import INTERRUPTED, Progress, Record, carry_out, folder_for
from lab.scenario import Job, Network, Run, Scenario
from lab.single import Ended, Fabric, Figures, JobFigures, carried, cells, figures, plain

PROBE_COMPUTE_MS, PROBE_BUCKETS, PROBE_BUCKET_NS = 5.0, 8, 500_000


def fixed_cost_ns(scenario: Scenario, seconds: float = 1.5) -> float:
    """What an exchange takes here beyond the time on its link: median over buckets.

    Measured in a run of its own: the job with most ranks, alone on the link, with short buckets.
    """
    largest = max(scenario.jobs, key=lambda job: job.ranks)
    link_gBps = scenario.network.link_gBps  # noqa: N806
    each = PROBE_BUCKET_NS * link_gBps / ring_bytes(1.0, largest.ranks)
    job = Job(
        name="probe", ranks=largest.ranks, compute_ms=PROBE_COMPUTE_MS, buckets=PROBE_BUCKETS,
        gradient_bytes=round(PROBE_BUCKETS * each),
    )  # fmt: skip
    run = Run(rounds=1, warm_up_rounds=0, block_s=seconds, settle_s=0.0)
    probe = Scenario(jobs=(job,), network=Network(link_gBps=link_gBps), run=run)
    with folder_for(None) as folder:
        record = carry_out(probe, Schedule((arm("baseline"),), 1, 0, 0), folder)
        if record.ended == INTERRUPTED:  # and with it what it was for
            raise KeyboardInterrupt
        seen = load(folder / job.name).of_kind(Kind.COLLECTIVE)
    took = (seen.exit_ns - seen.enter_ns)[seen.group_seq % PROBE_BUCKETS > 0]
    return max(0.0, float(np.median(took)) - PROBE_BUCKET_NS)


# -- predicted and measured ------------------------------------------------------------------------


class PredictedJob(TypedDict):
    """A job as predicted and as measured."""

    job: str
    predicted: Figures
    measured: Figures
    step_error: Annotated[float | None, Meta("As a share of what was measured.")]
    cv_error: float | None
    wait_error: float | None


class PredictionDocument(TypedDict):
    """What `python -m lab predict --json` prints."""

    schema: Literal["evenstep.lab.prediction/1"]
    scenario: str
    fabric: Fabric
    simulator: Literal["link_worlds", "engine"]
    partial: bool
    ended: Ended
    jobs: list[PredictedJob]
    predicted_gain: Annotated[
        dict[str, list[float] | None],
        Meta("Of each job, by arm; null where the simulator cannot pace the scenario."),
    ]


@dataclass(frozen=True, slots=True)
class Compared:
    """One job as predicted and as measured."""

    predicted: JobFigures
    measured: JobFigures

    @property
    def step_error(self) -> float:
        """Of the mean step time, as a share of what was measured."""
        return self.predicted.step_ms / self.measured.step_ms - 1

    @property
    def cv_error(self) -> float:
        """Predicted CV minus measured."""
        return self.predicted.cv - self.measured.cv

    @property
    def wait_error(self) -> float:
        """Predicted share of waiting minus measured."""
        return self.predicted.wait - self.measured.wait


def validated(
    scenario: Scenario, folder: Path, progress: Progress | None = None
) -> tuple[Record, list[Compared]]:
    """Predict, then run, the baseline of a scenario."""
    fixed_ns = fixed_cost_ns(scenario) if scenario.fabric == "fair" else 0.0
    said = predicted(scenario, fixed_ns)
    record = carried(scenario, "baseline", folder, progress)
    seen = figures(scenario, record, folder)
    return record, [Compared(one, other) for one, other in zip(said, seen, strict=True)]


def document(
    scenario: Scenario,
    record: Record,
    compared: Sequence[Compared],
    gains: Mapping[str, list[float] | None],
) -> PredictionDocument:
    """Prediction and measurement as JSON has them."""
    return {
        "schema": "evenstep.lab.prediction/1",
        "scenario": scenario.name,
        "fabric": scenario.fabric,
        "simulator": "link_worlds" if is_link_world(scenario) else "engine",
        "partial": bool(record.ended),
        "ended": record.ended or None,
        "jobs": [
            {
                "job": one.predicted.name,
                "predicted": plain(one.predicted),
                "measured": plain(one.measured),
                "step_error": known(one.step_error),
                "cv_error": known(one.cv_error),
                "wait_error": known(one.wait_error),
            }
            for one in compared
        ],
        "predicted_gain": dict(gains),
    }


def text(found: PredictionDocument) -> str:
    """The same as a page."""
    rows: list[Sequence[str]] = [("job", "", "step", "CV", "wait")]
    for job in found["jobs"]:
        rows.append((job["job"], "predicted", *cells(job["predicted"])))
        rows.append(("", "measured", *cells(job["measured"])))
        rows.append(("", "error", *errors(job)))
    ended = [f"partial: {found['ended']}"] if found["partial"] else []
    lines = [found["scenario"] or "a scenario without a name", *ended, "", *columns(rows)]
    for name, gains in found["predicted_gain"].items():
        lines += ["", *wrap(f"{name}, predicted gain of each job: {foretold(gains)}", 80)]
    return "\n".join(lines)


def errors(job: PredictedJob) -> tuple[str, str, str]:
    """How far step, CV and waiting are off, as text; "" for what is not known."""
    step, cv, wait = job["step_error"], job["cv_error"], job["wait_error"]
    return (
        "" if step is None else f"{100 * step:+.1f} %",
        "" if cv is None else f"{cv:+.3f}",
        "" if wait is None else f"{100 * wait:+.1f} %",
    )


def foretold(gains: Sequence[float] | None) -> str:
    """Gains of jobs as text, or why there are none."""
    if gains is None:
        return "not known; only jobs on one link, with nothing wrong, are simulated paced"
    return ", ".join(f"{100 * gain:+.1f} %" for gain in gains)
