"""What seeing a collective costs its caller on the `fake` backend, which moves nothing."""

from __future__ import annotations

import argparse
import statistics
import sys
from typing import Any

from benchmarks.measure import Row, differences, spread
from benchmarks.ranks import run_alone

JOB = "benchmarks.jobs.collectives"
MECHANISM, BAR_US = "dispatcher", 10.0
OWN_BAR_US = 2.0
WORKED_THROUGH = 8  # steps at a time, where nothing is paced


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark."""
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--python", default=sys.executable, help="interpreter with another torch")


def run(args: argparse.Namespace) -> list[Row]:
    """Both ways to issue a collective: as DDP does, and waiting for it."""
    rows = []
    for blocking in (False, True):
        form = ["--blocking"] if blocking else []
        options = ["--backend", "fake", "--rounds", str(args.rounds), *form]
        figures = run_alone(JOB, *options, python=args.python)
        rows += _rows(figures, blocking=blocking, command=_command(args))
    return rows


def _command(args: argparse.Namespace) -> str:
    other = "" if args.python == sys.executable else " --python PATH"
    return f"python -m benchmarks collective_cost{other}"


def _rows(figures: dict[str, Any], *, blocking: bool, command: str) -> list[Row]:
    form = "blocking" if blocking else "asynchronous, as DDP issues it"
    bare = spread([ns / 1e3 for ns in figures["bare"]])
    added = spread(_us(figures["evenstep"], figures["bare"]))
    price = spread(_us(figures["mechanism"], figures["bare"]))
    own = spread(_us(figures["evenstep"], figures["reading"]))
    asked = spread(_us(figures["reading"], figures["mechanism"]))
    rows = [
        Row(
            f"added per collective, fake backend, {MECHANISM}, {form}",
            f"< {BAR_US:.0f} µs",
            f"{added.text('µs', 2)}; the mechanism alone {price.text('µs', 2)}, asking torch what "
            f"was called {asked.median:.2f} µs more; on a call of {bare.median:.2f} µs",
            added.median < BAR_US,
            command,
        ),
        Row(
            f"evenstep's own share of it, {MECHANISM}, {form}",
            f"< {OWN_BAR_US:.0f} µs",
            own.text("µs", 2),
            own.median < OWN_BAR_US,
            command,
        ),
    ]
    if not blocking:
        ended = spread(_means([ns / 1e3 for ns in figures["step"]], WORKED_THROUGH))
        rows.append(
            Row(
                f"ending a step of 64 collectives, {MECHANISM}",
                "none: beside a step of 60 ms",
                f"{ended.text('µs')}, {ended.median / 60_000:.3%} of it",
                None,
                command,
            )
        )
    return rows


def _means(values: list[float], size: int) -> list[float]:
    """Means of `size` neighbours each: steps are worked through so many at a time."""
    return [statistics.fmean(values[at : at + size]) for at in range(0, len(values), size)]


def _us(left: list[float], right: list[float]) -> list[float]:
    return [ns / 1e3 for ns in differences(left, right)]
