"""Predicted against measured: the simulator's answer beside that of real processes.

One figure is taken from this machine, in a run of its own: what an exchange takes here beyond its
time on the link, as it has to be asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from evenstep.lab.arms import Schedule, arm
from evenstep.lab.fair.jobs import ring_bytes
from evenstep.lab.page import columns
from evenstep.lab.prediction import is_link_world, predicted
from evenstep.lab.run import Progress, carry_out, folder_for
from evenstep.lab.scenario import Job, Network, Run, Scenario
from evenstep.lab.single import JobFigures, carried, figures
from evenstep.trace.layout import Kind
from evenstep.trace.trace import load

SCHEMA = "evenstep.lab.prediction/1"
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
        carry_out(probe, Schedule((arm("baseline"),), 1, 0, 0), folder)
        seen = load(folder / job.name).of_kind(Kind.COLLECTIVE)
    took = (seen.exit_ns - seen.enter_ns)[seen.group_seq % PROBE_BUCKETS > 0]
    return max(0.0, float(np.median(took)) - PROBE_BUCKET_NS)


# -- predicted and measured ------------------------------------------------------------------------


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


def validated(scenario: Scenario, folder: Path, progress: Progress | None = None) -> list[Compared]:
    """Predict, then run, the baseline of a scenario."""
    fixed_ns = fixed_cost_ns(scenario) if scenario.fabric == "fair" else 0.0
    said = predicted(scenario, fixed_ns)
    record = carried(scenario, "baseline", folder, progress)
    seen = figures(scenario, record, folder)
    return [Compared(one, other) for one, other in zip(said, seen, strict=True)]


def document(
    scenario: Scenario, compared: Sequence[Compared], gains: Mapping[str, list[float] | None]
) -> dict[str, Any]:
    """Prediction and measurement as JSON has them."""
    return {
        "schema": SCHEMA,
        "scenario": scenario.name,
        "fabric": scenario.fabric,
        "simulator": "link_worlds" if is_link_world(scenario) else "engine",
        "jobs": [
            {
                "job": one.predicted.name,
                "predicted": _plain(one.predicted),
                "measured": _plain(one.measured),
                "step_error": one.step_error,
                "cv_error": one.cv_error,
                "wait_error": one.wait_error if np.isfinite(one.wait_error) else None,
            }
            for one in compared
        ],
        "predicted_gain": dict(gains),
    }


def _plain(one: JobFigures) -> dict[str, float | None]:
    wait = one.wait if np.isfinite(one.wait) else None
    return {"step_ms": one.step_ms, "cv": one.cv, "wait_share": wait}


def text(found: Mapping[str, Any]) -> str:
    """The same as a page."""
    rows: list[Sequence[str]] = [("job", "", "step", "CV", "wait")]
    for job in found["jobs"]:
        for which in ("predicted", "measured"):
            one = job[which]
            wait = "" if one["wait_share"] is None else f"{100 * one['wait_share']:.1f} %"
            name = job["job"] if which == "predicted" else ""
            rows.append((name, which, f"{one['step_ms']:.2f} ms", f"{one['cv']:.3f}", wait))
        wait = "" if job["wait_error"] is None else f"{100 * job['wait_error']:+.1f} %"
        step = f"{100 * job['step_error']:+.1f} %"
        rows.append(("", "error", step, f"{job['cv_error']:+.3f}", wait))
    lines = [found["scenario"] or "a scenario without a name", "", *columns(rows)]
    for name, gains in found["predicted_gain"].items():
        if gains is None:
            lines += ["", f"{name}: only jobs on one link, with nothing wrong, are simulated paced"]
        else:
            each = ", ".join(f"{100 * gain:+.1f} %" for gain in gains)
            lines += ["", f"{name}, predicted gain of each job: {each}"]
    return "\n".join(lines)
