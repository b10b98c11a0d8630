"""What seeing a blocking all-reduce costs two real ranks on gloo, and the mechanism without us."""

from __future__ import annotations

import argparse
import sys

from benchmarks.measure import Row, differences, spread
from benchmarks.ranks import run_ranks

JOB = "benchmarks.jobs.collectives"
BAR_US = 40.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark."""
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--python", default=sys.executable, help="interpreter with another torch")


def run(args: argparse.Namespace) -> list[Row]:
    """Two ranks, one element, with and without, in turns."""
    options = ["--backend", "gloo", "--blocking", "--rounds", str(args.rounds)]
    figures = run_ranks(JOB, *options, world=2, python=args.python)
    bare = spread([ns / 1e3 for ns in figures["bare"]])
    added = spread([ns / 1e3 for ns in differences(figures["evenstep"], figures["bare"])])
    price = spread([ns / 1e3 for ns in differences(figures["mechanism"], figures["bare"])])
    other = "" if args.python == sys.executable else " --python PATH"
    return [
        Row(
            "added per blocking all-reduce, gloo, 2 ranks, dispatcher",
            f"< {BAR_US:.0f} µs",
            f"{added.text('µs')}; the mechanism alone {price.text('µs')}, "
            f"on a call of {bare.text('µs')}",
            added.median < BAR_US,
            f"python -m benchmarks gloo_cost{other}",
        )
    ]
