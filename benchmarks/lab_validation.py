"""The simulator against real processes: every shipped scenario of the fair tier that it knows.

Each is predicted, then run for real on emulated links; the rows say how far apart they are. Nothing
is fitted: what asking for a transfer costs on this machine is measured in a run of its own.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.measure import Row
from lab import scenario
from lab.run import folder_for
from lab.validation import Compared, validated

COMMAND = "python -m benchmarks lab_validation"
SCENARIOS = Path(__file__).parent.parent / "examples" / "lab"
NAMES = (
    "two-jobs", "three-jobs", "four-jobs", "overload", "far-apart", "bursts", "leaf-spine",
    "neighbour-job", "slow-rank", "rotating-rank", "collector", "input-stall", "throttled-link",
    "sixteen-ranks", "shared-start",
)  # fmt: skip
STEP_BAR, CV_BAR = 0.05, 0.03


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark."""
    parser.add_argument("--seconds", type=float, default=40.0, help="of each scenario that count")
    parser.add_argument("--only", metavar="NAME,…", default="", help="of these scenarios")


def run(args: argparse.Namespace) -> list[Row]:
    """One row for each scenario, and one for all."""
    names = args.only.split(",") if args.only else NAMES
    found = {name: _measured(name, args.seconds) for name in names}
    rows = [_row(name, jobs) for name, jobs in found.items()]
    met = sum(row.met is True for row in rows)
    worst = max(abs(job.step_error) for jobs in found.values() for job in jobs)
    cv = max(abs(job.cv_error) for jobs in found.values() for job in jobs)
    summary = f"{met} of {len(rows)}; worst step {worst:.1%}, worst CV {cv:.3f}"
    return [
        *rows,
        Row("simulator against the laboratory, all scenarios", "≥ 10 within 5 % and .03", summary,
            met >= min(10, len(rows)), COMMAND),
    ]  # fmt: skip


def _measured(name: str, seconds: float) -> list[Compared]:
    run_of = ["rounds=1", "warm_up_rounds=0", f"block_s={seconds + 2}", "settle_s=2"]
    settings = [f"run.{one}" for one in run_of]
    asked = scenario.load(SCENARIOS / f"{name}.toml", settings)
    with folder_for(None) as folder:
        return validated(asked, folder)[1]


def _row(name: str, jobs: list[Compared]) -> Row:
    worst = max(jobs, key=lambda job: abs(job.step_error))
    seen, said = worst.measured, worst.predicted
    met = all(abs(job.step_error) <= STEP_BAR and abs(job.cv_error) <= CV_BAR for job in jobs)
    waits = [job.wait_error for job in jobs]
    text = (
        f"step {said.step_ms:.2f} for {seen.step_ms:.2f} ms ({worst.step_error:+.1%}), CV "
        f"{said.cv:.3f} for {seen.cv:.3f} (of {len(jobs)} jobs, worst "
        f"{max((job.cv_error for job in jobs), key=abs):+.3f}), wait "
        f"{100 * said.wait:.1f} for {100 * seen.wait:.1f} % (worst "
        f"{100 * max(waits, key=abs):+.1f})"
    )
    return Row(f"simulator for {name}", "step within 5 %, CV within .03", text, met, COMMAND)
