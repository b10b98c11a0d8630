"""The token on real processes that share links: gain, CV and harm, by 95 % intervals.

Arms take turns in blocks of one run; the baseline runs twice in each round, so that the interval of
no difference stands beside the others. A campaign may be cut into runs (`--runs`), each with its
own warm-up: rounds of all of them are put together. Scenarios of the tcp tier are on the kernel's
own TCP, under an unmodified torch, on hosts that are network namespaces: these need root.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.measure import Row
from benchmarks.ranks import JobError
from evenstep.errors import EvenstepError
from lab import scenario
from lab.outcome import BASELINES, HARM, ArmOutcome, Interval, Part, outcomes
from lab.page import percent
from lab.run import carry_out, folder_for, schedule_of
from lab.steps import job_steps

COMMAND = "python -m benchmarks lab"
SCENARIOS = Path(__file__).parent.parent / "examples" / "lab"
FAIR = ("two-jobs", "three-jobs", "four-jobs", "overload", "shared-start")
TCP = ("tcp-two-jobs", "tcp-three-jobs", "tcp-incast")
RESOLVED = 0.01  # half of the interval of a gain over TCP, whichever way it goes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark."""
    parser.add_argument("--only", metavar="NAME,…", default=",".join(FAIR + TCP), help="of these")
    parser.add_argument("--arms", default="token,token+unguarded", help="beside the baseline")
    parser.add_argument("--runs", type=int, default=1, help="of each scenario")
    parser.add_argument("--set", action="append", default=[], help="change one field")


def run(args: argparse.Namespace) -> list[Row]:
    """A row for each scenario and arm."""
    rows = []
    for name in args.only.split(","):
        arms = measured(name, args.arms.split(","), args.set, runs=args.runs)
        asked = "".join(f" --set {change}" for change in args.set)
        command = f"{COMMAND} --only {name} --arms {args.arms} --runs {args.runs}{asked}"
        rows += [_row(name, arm, arms, command) for arm in arms[BASELINES:]]
    return rows


def measured(name: str, arms: list[str], changes: list[str], *, runs: int = 1) -> list[ArmOutcome]:
    """All arms of a scenario over the rounds of all runs, the baseline first and once more.

    Raises `JobError`.
    """
    parts = []
    for seed in range(runs):
        try:
            asked = scenario.load(SCENARIOS / f"{name}.toml", [*changes, f"seed={seed}"])
            schedule = schedule_of(asked, arms)
            with folder_for(None) as folder:
                record = carry_out(asked, schedule, folder, _say)
                steps = job_steps(asked, schedule, record, folder)
                parts.append(Part(steps, schedule, record.whole))
        except EvenstepError as error:
            raise JobError(str(error)) from error
    return outcomes(parts)


def _row(name: str, arm: ArmOutcome, arms: list[ArmOutcome], command: str) -> Row:
    tier, bar, met = "fair", "interval above 0", above_zero(arm)
    if name in TCP:
        tier, bar, met = "tcp", f"resolved to ± {100 * RESOLVED:.0f} %", resolved(arm.gain)
    return Row(f"{tier} tier, {name}: {arm.name}", bar, text(arm, arms), met, command)


def above_zero(arm: ArmOutcome) -> bool | None:
    """Whether an arm surely gains; None where it or a job of it has no interval."""
    return None if arm.gain.low is None or arm.lowest is None else arm.gain.low > 0


def resolved(gain: Interval) -> bool | None:
    """Whether both ends of a gain are within `RESOLVED` of it; None without an interval."""
    if gain.low is None or gain.high is None:
        return None
    return max(gain.high - gain.value, gain.value - gain.low) <= RESOLVED


def text(arm: ArmOutcome, arms: list[ArmOutcome]) -> str:
    """What was measured of an arm, beside the baseline against itself."""
    held = max(job.held for job in arm.jobs)
    step_ms = max(job.step_ns for job in arms[0].jobs) / 1e6
    harm = "" if arm.lowest is not None and arm.lowest >= HARM else ", harm not excluded"
    gain, worst, again = (percent(each.to_json()) for each in (arm.gain, arm.worst, arms[1].gain))
    return (
        f"{gain}, worst job {worst}{harm}, CV {arms[0].cv.value:.3f} to {arm.cv.value:.3f}; held "
        f"{100 * held:.1f} % of the step; {arm.rounds} rounds, steps of {step_ms:.0f} ms; against "
        f"itself {again}"
    )


def _say(done: int, blocks: int) -> None:
    print(f"\r{done} of {blocks} blocks ", end="", file=sys.stderr, flush=True)
