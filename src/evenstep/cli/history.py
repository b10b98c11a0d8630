"""`evenstep history`: how the runs in a folder have developed, and what they cost."""

from __future__ import annotations

import argparse
from pathlib import Path

from evenstep.cli.arguments import add_json, price
from evenstep.cli.progress import counting
from evenstep.cli.terminal import show
from evenstep.errors import TraceError

HELP = """Say how the runs in a folder have developed, and what they cost per unit of progress.

DIR holds runs' folders (or folders of them). For each: attempts, step time, CV, rank-hours per 1000
units of progress, and joules per unit where the accelerators counted them; below it what `evenstep
diagnose` names first, and the share of step time that costs, unless the run is healthy. A unit is a
sample where the batch is known, else a step; work done again after a restart costs time, but is no
progress. Runs of one script with as many ranks are re-runs: their spread and their trend are said
in words, with intervals."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `evenstep history`."""
    parser.add_argument("folder", metavar="DIR", type=Path)
    add_json(parser, "the history")
    parser.add_argument(
        "--price-per-rank-hour", metavar="MONEY", type=price, help="tell costs in this money too"
    )


def main(args: argparse.Namespace) -> int:
    """Read all runs and print them."""
    if not args.folder.is_dir():
        raise TraceError(f"there is no folder {args.folder}; give one that holds runs' folders")
    from evenstep.diagnose.compare.history import history
    from evenstep.report.terminal.comparison import render_history

    with counting("diagnosed {} of {} runs") as tell:
        found = history(args.folder, price_per_rank_hour=args.price_per_rank_hour, progress=tell)
    show(found.to_json(), lambda: render_history(found), as_json=args.json)
    return 0
