"""`evenstep history`: step time and cost of the runs in a folder, over time."""

from __future__ import annotations

import argparse

from evenstep.cli.progress import counting
from evenstep.cli.terminal import show
from evenstep.diagnose.compare.history import history
from evenstep.errors import TraceError
from evenstep.report.terminal.comparison import render_history


def main(args: argparse.Namespace) -> int:
    if not args.folder.is_dir():
        raise TraceError(f"there is no folder {args.folder}; give one that holds run folders")
    with counting("diagnosed {} of {} runs") as report:
        found = history(args.folder, price_per_rank_hour=args.price_per_rank_hour, progress=report)
    show(found.to_json(), lambda: render_history(found), as_json=args.json)
    return 0
