"""A million collectives, ten thousand groups, children, a fork: memory flat, the job unharmed?"""

from __future__ import annotations

import argparse

from benchmarks.measure import Row
from benchmarks.ranks import run_alone
from evenstep.hooks.torch import library

JOB = "benchmarks.jobs.enduring"
COMMAND = "python -m benchmarks endurance"
MOST_MB = 8.0  # the ring and the summaries are mapped whole from the start


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark."""
    parser.add_argument("--collectives", type=int, default=1_000_000)
    parser.add_argument("--groups", type=int, default=10_000)


def run(args: argparse.Namespace) -> list[Row]:
    """One row a way to record."""
    torch = library.installed_folder()
    if torch is not None:
        library.build_recorder(torch)
    rows = []
    for way in ("compiled", "python"):
        options = ["--collectives", str(args.collectives), "--groups", str(args.groups)]
        found = run_alone(JOB, way, *options)
        grown = found["grown_mb"]
        right = not found["failure"] and found["children"]
        text = (
            f"{grown:+.1f} MB between a tenth of the collectives and all of them; "
            f"{found['groups_mb'] * 1e6 / args.groups:.0f} bytes a group; "
            f"{found['children_well']} of 8 children and a fork ended well, "
            f"{found['recorded']} collectives counted by the last identity"
        )
        what = (
            f"{args.collectives:,} collectives, {args.groups:,} groups, 8 spawned children, a fork"
        )
        row = Row(
            f"{what}, {way}", f"≤ {MOST_MB:g} MB more", text, right and grown <= MOST_MB, COMMAND
        )
        rows.append(row)
    return rows
