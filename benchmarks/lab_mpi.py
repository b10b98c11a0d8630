"""Pacing ranks that spin while they wait, more of them than cores; and blocking instead.

Whoever spins takes a core from whoever still computes. Held back by a sleep, the early leave it to
the late; a wait that blocks does so always, and the finding has to say so first.
"""

from __future__ import annotations

import argparse

from benchmarks.lab import SCENARIOS, measured, text
from benchmarks.measure import Row
from lab import scenario
from lab.mpi.finding import BLOCKING, findings
from lab.outcome import BASELINES, HARM, ArmOutcome, Interval

COMMAND = "python -m benchmarks lab_mpi"
NAMES = ("mpi-spinning", "mpi-balanced")
GAIN = 0.10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark."""
    parser.add_argument("--only", metavar="NAME,…", default=",".join(NAMES), help="of these")
    parser.add_argument(
        "--arms", default="slack,slack+sharing", help="beside baseline and blocking"
    )
    parser.add_argument("--set", action="append", default=[], help="change one field")


def run(args: argparse.Namespace) -> list[Row]:
    """A row for each scenario and arm, and one for what the finding says."""
    rows = []
    for name in args.only.split(","):
        arms = measured(name, [*args.arms.split(","), BLOCKING], args.set)
        rows += [_row(name, arm, arms) for arm in arms[BASELINES:]]
        if name == "mpi-spinning":
            rows.append(_advice(name, arms, args.set))
    return rows


def _row(name: str, arm: ArmOutcome, arms: list[ArmOutcome]) -> Row:
    bar, met = "none", None
    if name == "mpi-spinning" and arm.name != BLOCKING:
        bar, met = f"lower end ≥ {GAIN:+.0%}", reached(arm.gain, GAIN)
    elif arm.name != BLOCKING:
        bar, met = "≥ -.5 %", reached(arm.gain, HARM)
    note = "; not resolved" if met is None and bar != "none" else ""
    return Row(f"mpi tier, {name}: {arm.name}", bar, text(arm, arms) + note, met,
               f"{COMMAND} --only {name}")  # fmt: skip


def reached(gain: Interval, bar: float) -> bool | None:
    """Whether a gain is at least `bar`; None where its interval holds both answers."""
    if gain.low is None or gain.high is None or gain.low < bar <= gain.high:
        return None
    return gain.low >= bar


def _advice(name: str, arms: list[ArmOutcome], changes: list[str]) -> Row:
    found = findings(scenario.load(SCENARIOS / f"{name}.toml", changes), arms)
    first = found[0].options[0] if found else None
    known = first is not None and first.gain is not None
    said = f"{first.action}: {first.gain:.0%} of the step" if first and known else "nothing"
    return Row(f"mpi tier, {name}: the first remedy", "to block, with its measured gain", said,
               known and "block" in said, f"{COMMAND} --only {name}")  # fmt: skip
