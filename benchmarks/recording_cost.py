"""What recording costs the training thread, in thread time: compiled kernels and Python's own."""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable
from typing import Any

from benchmarks.measure import Row, ratio_of_means, spread, within
from benchmarks.ranks import JobError, run_alone
from evenstep.hooks.torch import library
from evenstep.statistics.interval import half_width

JOB = "benchmarks.jobs.recording"
COMMAND = "python -m benchmarks recording_cost"
STATES = ("compiled", "python")
BACKENDS = ("fake", "gloo")
ADDED = ("cold", "hot")
NAMES = {"python": "Python's own kernels", "compiled": "compiled kernels"}
MOVED = {"fake": "", "gloo": ", on gloo"}
BARS_US = {"cold": 5.0, "hot": 2.0}
WHAT = {
    "cold": "thread time added to an asynchronous all-reduce after 5 ms of sleep",
    "hot": "the same, hot",
}
STEP_NS, END_SHARE = 60e6, 0.001
SAID_LOW, SAID_HIGH = 0.8, 1.25
LOOPS = {
    "cold": "ten collectives in a step of 38 ms",
    "dense": "64 collectives in a step of 38 ms",
    "hot": "64 collectives without a pause",
}

Figures = list[dict[str, Any]]  # of each process


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark."""
    parser.add_argument("--rounds", type=int, default=3, help="of a process for each state")
    parser.add_argument("--steps", type=int, default=150, help="recorded, of a loop in a process")
    parser.add_argument("--states", nargs="+", choices=STATES, default=STATES)
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=BACKENDS)


def run(args: argparse.Namespace) -> list[Row]:
    """Every state in turn, round by round."""
    torch = library.installed_folder()
    built = library.build_recorder(torch) if torch else None
    if built is None or built.path is None:
        raise JobError(built.reason if built else "there is no torch")
    kinds = [(state, backend) for state in args.states for backend in args.backends]
    figures: dict[tuple[str, str], Figures] = {kind: [] for kind in kinds}
    for _ in range(args.rounds):
        for state, backend in kinds:
            options = ["--state", state, "--backend", backend, "--steps", str(args.steps)]
            figures[state, backend].append(run_alone(JOB, *options))
    return [row for kind in kinds for row in _rows(figures[kind], *kind)]


def _rows(figures: Figures, state: str, backend: str) -> list[Row]:
    barred, name = state == "compiled", NAMES[state] + MOVED[backend]
    row = _maker(barred)
    added = [_added(figures, which, name, row) for which in ADDED]
    ends = spread([ns / 1e3 for one in figures for ns in one["end_ns"]])
    end = row(
        f"ending a step of 64 collectives, on the training thread, {name}",
        f"≤ {END_SHARE:.1%} of a step of 60 ms",
        f"{ends.text('µs')}, {ends.median * 1e3 / STEP_NS:.3%}",
        ends.median * 1e3 <= END_SHARE * STEP_NS,
    )
    return [*added, end, *(_said(figures, name, loop) for loop in LOOPS)]


def _added(figures: Figures, which: str, name: str, row: Callable[..., Row]) -> Row:
    more, null = ([ns / 1e3 for ns in _blocks(figures, which, part)] for part in ("more", "null"))
    mean, half, bar = statistics.fmean(more), half_width(more), BARS_US[which]
    return row(
        f"{WHAT[which]}, {name}", f"≤ {bar:.0f} µs", f"{_mean(more, 1)} µs; {_null(null, 1)}",
        within(mean - half, mean + half, -math.inf, bar),
    )  # fmt: skip


def _said(figures: Figures, name: str, loop: str) -> Row:
    """What a step of a loop is said to have cost, and did, with the 95 % interval of the ratio."""
    told = [one["loops"][loop] for one in figures]
    said, paid, null = (
        [ns / 1e3 for one in told for ns in one[part]] for part in ("said", "paid", "null")
    )
    ratio = ratio_of_means(said, paid)
    met = within(ratio.low, ratio.high, SAID_LOW, SAID_HIGH)
    return Row(
        f"what evenstep says it cost the training thread ÷ what that paid, {name}, {LOOPS[loop]}",
        f"{SAID_LOW} to {SAID_HIGH}",
        f"{ratio.value:.2f} ({ratio.low:.2f} to {ratio.high:.2f}"
        f"{'; not resolved' if met is None else ''}): {statistics.fmean(said):.0f} µs said, "
        f"{_mean(paid, 0)} µs paid a step; {_null(null, 0)}",
        met,
        COMMAND,
    )


def _mean(values: list[float], digits: int) -> str:
    """A mean with half of its 95 % interval."""
    return f"{statistics.fmean(values):.{digits}f} ± {half_width(values):.{digits}f}"


def _null(values: list[float], digits: int) -> str:
    return f"nothing against nothing {_mean(values, digits)}"


def _blocks(figures: Figures, which: str, part: str) -> list[float]:
    return [ns for one in figures for ns in one[which][part]]


def _maker(barred: bool) -> Callable[..., Row]:
    def row(what: str, bar: str, measured: str, met: bool | None) -> Row:
        return Row(
            what, bar if barred else "none: stated", measured, met if barred else None, COMMAND
        )

    return row
