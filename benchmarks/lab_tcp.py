"""The token over the kernel's own TCP, under an unmodified torch: no harm, and what is gained.

Hosts are network namespaces, so this needs root. Jobs interleave on a first-in first-out queue by
themselves within a few steps, so little is to be gained; the bar is that nothing is lost.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.measure import Row
from benchmarks.ranks import JobError
from evenstep.errors import UsageError
from lab import scenario
from lab.outcome import HARM, ArmOutcome, Interval, compared
from lab.run import folder_for

COMMAND = "python -m benchmarks lab_tcp"
SCENARIOS = Path(__file__).parent.parent / "examples" / "lab"
NAMES = ("tcp-two-jobs", "tcp-three-jobs", "tcp-incast")
ARMS = "token,token+unguarded"
RESOLVED = 0.01  # half of the interval


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark."""
    parser.add_argument("--only", metavar="NAME,…", default=",".join(NAMES), help="of these")
    parser.add_argument("--arms", default=ARMS, help="beside the baseline")
    parser.add_argument("--set", action="append", default=[], help="change one field")


def run(args: argparse.Namespace) -> list[Row]:
    """A row for each scenario and arm."""
    rows = []
    for name in args.only.split(","):
        arms = measured(name, args.arms.split(","), args.set)
        rows += [_row(name, arm, arms) for arm in arms[2:]]
    return rows


def measured(name: str, arms: list[str], changes: list[str]) -> list[ArmOutcome]:
    """All arms of a scenario, the baseline first and once more. Raises `JobError`."""
    asked = scenario.load(SCENARIOS / f"{name}.toml", changes)
    try:
        with folder_for(None) as folder:
            return compared(asked, arms, folder, _say)[1]
    except UsageError as error:
        raise JobError(str(error)) from error


def _row(name: str, arm: ArmOutcome, arms: list[ArmOutcome]) -> Row:
    met = reached(arm.worst, HARM)
    low, high = arm.gain.low, arm.gain.high
    resolved = low is not None and high is not None and high - low <= 2 * RESOLVED
    note = "" if resolved else "; not resolved"
    bar = "worst job ≥ -.5 %, resolved to ± 1 %"
    return Row(f"tcp tier, {name}: {arm.name}", bar, text(arm, arms) + note,
               None if met is None else met and resolved, f"{COMMAND} --only {name}")  # fmt: skip


def reached(interval: Interval, bar: float) -> bool | None:
    """Whether a gain is at least `bar`; None where its interval holds both answers."""
    if interval.low is None or interval.high is None or interval.low < bar <= interval.high:
        return None
    return interval.low >= bar


def text(arm: ArmOutcome, arms: list[ArmOutcome]) -> str:
    """What was measured of an arm, beside the baseline against itself."""
    held = max(job.held for job in arm.jobs)
    step_ms = max(job.step_ns for job in arms[0].jobs) / 1e6
    return (
        f"{percent(arm.gain)}, worst job {percent(arm.worst)}; held {100 * held:.1f} % of the "
        f"step; {arm.rounds} rounds, steps of {step_ms:.0f} ms; against itself "
        f"{percent(arms[1].gain)}"
    )


def percent(interval: Interval) -> str:
    """A gain with its interval."""
    if interval.low is None or interval.high is None:
        return f"{interval.value:+.1%}"
    return f"{interval.value:+.1%} ({100 * interval.low:+.1f} to {100 * interval.high:+.1f})"


def _say(done: int, blocks: int, left_s: float) -> None:
    print(f"\r{done} of {blocks} blocks, {left_s:.0f} s left ", end="", file=sys.stderr, flush=True)
