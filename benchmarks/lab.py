"""Pacing on real processes that share emulated links: gain, CV and harm, by 95 % intervals.

Arms take turns in blocks of one run; the baseline runs twice in each round, so that the interval of
no difference stands beside the others. A campaign may be cut into runs (`--runs`), each with its
own warm-up: rounds of all of them are put together.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.measure import Row
from lab import scenario
from lab.outcome import HARM, ArmOutcome, Interval, Part, outcomes
from lab.run import carry_out, folder_for, schedule_of
from lab.steps import job_steps

COMMAND = "python -m benchmarks lab"
SCENARIOS = Path(__file__).parent.parent / "examples" / "lab"
#: Loads below and above 1; what has to be gained on average.
NAMES = ("two-jobs", "three-jobs", "four-jobs", "overload")
GAIN, SHARED_START = 0.08, 0.035


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark."""
    parser.add_argument("--only", metavar="NAME,…", default="", help="of these scenarios")
    parser.add_argument("--arms", default="token,token+unguarded", help="beside the baseline")
    parser.add_argument("--runs", type=int, default=1, help="of each scenario")
    parser.add_argument("--set", action="append", default=[], help="change one field")


def run(args: argparse.Namespace) -> list[Row]:
    """A row for each scenario and arm."""
    rows = []
    names = args.only.split(",") if args.only else [*NAMES, "shared-start"]
    for name in names:
        arms = measured(name, args.arms.split(","), runs=args.runs, changes=args.set)
        again, others = arms[1], arms[2:]
        rows += [_row(name, arm, again) for arm in others]
    return rows


def measured(name: str, arms: list[str], *, runs: int, changes: list[str]) -> list[ArmOutcome]:
    """All arms of a scenario, over the rounds of all runs."""
    parts = []
    for seed in range(runs):
        asked = scenario.load(SCENARIOS / f"{name}.toml", [*changes, f"seed={seed}"])
        schedule = schedule_of(asked, arms)
        with folder_for(None) as folder:
            record = carry_out(asked, schedule, folder)
            steps = job_steps(asked, schedule, record, folder)
            parts.append(Part(steps, schedule, record.whole))
    return outcomes(parts)


def _row(name: str, arm: ArmOutcome, again: ArmOutcome) -> Row:
    needed = SHARED_START if name == "shared-start" else GAIN
    bar = f"≥ {needed:+.1%}, interval above 0; worst ≥ -.5 %"
    met = arm.gain.value >= needed and (arm.gain.low or 0.0) > 0
    met = met and arm.lowest is not None and arm.lowest >= HARM
    if name != "shared-start":
        bar += "; CV halved"
        met = met and arm.cv_ratio.value <= 0.5
    text = (
        f"{_percent(arm.gain)}, worst job {_percent(arm.worst)}, CV times "
        f"{arm.cv_ratio.value:.2f}; {arm.rounds} rounds, against itself {_percent(again.gain)}"
    )
    return Row(f"fair tier, {name}: {arm.name}", bar, text, met, COMMAND)


def _percent(interval: Interval) -> str:
    if interval.low is None or interval.high is None:
        return f"{interval.value:+.1%}"
    return f"{interval.value:+.1%} ({100 * interval.low:+.1f} to {100 * interval.high:+.1f})"
