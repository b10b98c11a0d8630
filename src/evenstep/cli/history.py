"""`evenstep history`: step time and cost of the runs in a folder, over time."""

from __future__ import annotations

import argparse
from pathlib import Path

from evenstep.cli.arguments import add_json, price
from evenstep.cli.progress import counting
from evenstep.cli.terminal import show
from evenstep.errors import TraceError

HELP = """Report how step time and cost of the runs in a folder developed.

DIR holds run folders (or folders of them). For each run: attempts, step time and CV as `evenstep
diagnose` reports them, rank-hours per 1000 units of progress, and joules per unit where the
accelerators measure energy; below it, unless the run is healthy, the first finding and its share of
step time. A unit is a sample if the batch size is known, else a step; steps repeated after a
restart cost time but are no progress. Runs of one script with equally many ranks are compared as
re-runs: their spread and trend are reported with intervals."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="DIR", type=Path)
    add_json(parser, "the history")
    parser.add_argument(
        "--price-per-rank-hour", metavar="MONEY", type=price, help="also print costs in money"
    )


def main(args: argparse.Namespace) -> int:
    if not args.folder.is_dir():
        raise TraceError(f"there is no folder {args.folder}; give one that holds run folders")
    from evenstep.diagnose.compare.history import history
    from evenstep.report.terminal.comparison import render_history

    with counting("diagnosed {} of {} runs") as report:
        found = history(args.folder, price_per_rank_hour=args.price_per_rank_hour, progress=report)
    show(found.to_json(), lambda: render_history(found), as_json=args.json)
    return 0
