"""What recording costs the training thread, in thread time: compiled kernels and Python's own."""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable
from typing import Any

from benchmarks.measure import Row, spread
from benchmarks.ranks import JobError, run_alone
from evenstep.hooks.torch import library

JOB = "benchmarks.jobs.recording"
COMMAND = "python -m benchmarks recording_cost"
STATES = ("python", "compiled")
ADDED = ("cold_ns", "hot_ns")
NAMES = {"python": "Python's own kernels", "compiled": "compiled kernels"}
COLD_BAR_US, HOT_BAR_US = 5.0, 2.0
STEP_NS, END_SHARE = 60e6, 0.001
SAID_LOW, SAID_HIGH = 0.8, 1.25
LOOPS = {
    "cold": "ten collectives in a step of 38 ms",
    "dense": "64 collectives in a step of 38 ms",
    "hot": "64 collectives without a pause",
}

Figures = dict[str, list[dict[str, Any]]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark."""
    parser.add_argument("--rounds", type=int, default=6, help="of one process for each state")


def run(args: argparse.Namespace) -> list[Row]:
    """Every state in turn, round by round."""
    torch = library.installed_folder()
    built = library.build_recorder(torch) if torch else None
    if built is None or built.path is None:
        raise JobError(built.reason if built else "there is no torch")
    figures: Figures = {state: [] for state in STATES}
    for _ in range(args.rounds):
        for state in STATES:
            figures[state].append(run_alone(JOB, "--state", state))
    return [row for state in ("compiled", "python") for row in _rows(figures, state)]


def _rows(figures: Figures, state: str) -> list[Row]:
    barred, name = state == "compiled", NAMES[state]
    cold, hot = (spread([ns / 1e3 for ns in _column(figures, state, name)]) for name in ADDED)
    ends = spread([ns / 1e3 for one in figures[state] for ns in one["end_ns"]])
    row = _maker(barred)
    return [
        row(
            f"thread time added to an asynchronous all-reduce after 5 ms of sleep, {name}",
            f"≤ {COLD_BAR_US:.0f} µs", cold.text("µs"), cold.median <= COLD_BAR_US,
        ),
        row(
            f"the same, hot, {name}",
            f"≤ {HOT_BAR_US:.0f} µs", hot.text("µs"), hot.median <= HOT_BAR_US,
        ),
        row(
            f"ending a step of 64 collectives, on the training thread, {name}",
            f"≤ {END_SHARE:.1%} of a step of 60 ms",
            f"{ends.text('µs')}, {ends.median * 1e3 / STEP_NS:.3%}",
            ends.median * 1e3 <= END_SHARE * STEP_NS,
        ),
        *(_said(figures, state, loop) for loop in LOOPS),
    ]  # fmt: skip


def _said(figures: Figures, state: str, loop: str) -> Row:
    """What a step of a loop is said to have cost, and did, with the 95 % interval of what it did: a
    difference between steps that scatter."""
    told = [one["loops"][loop] for one in figures[state]]
    said, paid = (statistics.fmean(one[name] for one in told) for name in ("said_ns", "paid_ns"))
    error = 1.96 * math.hypot(*(one["error_ns"] for one in told)) / len(told)
    return Row(
        f"what evenstep says it cost the training thread ÷ what that paid, {NAMES[state]}, "
        f"{LOOPS[loop]}",
        f"{SAID_LOW} to {SAID_HIGH}",
        f"{said / paid:.2f}: {said / 1e3:.0f} µs said, {paid / 1e3:.0f} ± {error / 1e3:.0f} µs "
        "paid a step",
        SAID_LOW <= said / paid <= SAID_HIGH,
        COMMAND,
    )


def _maker(barred: bool) -> Callable[..., Row]:
    def row(what: str, bar: str, measured: str, met: bool) -> Row:
        return Row(
            what, bar if barred else "none: stated", measured, met if barred else None, COMMAND
        )

    return row


def _column(figures: Figures, state: str, name: str) -> list[float]:
    return [float(one[name]) for one in figures[state]]
