"""`evenstep project`: throughput, CV and p99 of a measured run at other numbers of ranks."""

from __future__ import annotations

import argparse
import json
import shutil
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from evenstep.cli.arguments import sizes
from evenstep.errors import TraceError

HELP = """Say what a measured run would reach with other numbers of ranks.

TRACE is what `evenstep diagnose` takes: a run's folder, an attempt or a single trace. The model is
fitted to it and says with an interval what it expects, and what the trace cannot tell. Of several
runs of one workload the largest is projected; the others show how contention grows with ranks."""

WIDEST = 80
ROWS = ("ranks", "throughput", "step time", "CV", "p99", "efficiency")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `evenstep project`."""
    parser.add_argument("traces", metavar="TRACE", nargs="+", type=Path)
    parser.add_argument(
        "--ranks", metavar="N,N…", type=sizes, required=True, help="sizes to predict: 8,16,64"
    )
    parser.add_argument(
        "--scaling", choices=("weak", "strong"), default="weak",
        help="weak: every rank keeps its batch (default); strong: the same work for more ranks",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print the projection as JSON")


def main(args: argparse.Namespace) -> int:
    """Project and print."""
    for path in args.traces:
        if not path.exists():
            raise TraceError(f"there is no {path}; give a run's folder, an attempt or a spool")
    document = _projected(args)
    if args.json:
        print(json.dumps(document, indent=2, allow_nan=False))
    else:
        print("\n".join(_page(document)))
    return 0


def _projected(args: argparse.Namespace) -> dict[str, Any]:
    from evenstep.diagnose.sizes.project import projection
    from evenstep.importers.opening import load

    traces = sorted((load(path) for path in args.traces), key=lambda trace: trace.world)
    *others, largest = traces
    return projection(largest, args.ranks, strong=args.scaling == "strong", others=others)


# -- as text ---------------------------------------------------------------------------------------


def _page(document: dict[str, Any]) -> Iterator[str]:
    """The table, then what it cannot know; at most 80 columns."""
    from evenstep.report.terminal.style import wants_color

    bold = ("\x1b[1m", "\x1b[0m") if wants_color() else ("", "")
    width = min(shutil.get_terminal_size((WIDEST, 24)).columns, WIDEST)
    for line in textwrap.wrap(_headline(document), width):
        yield f"{bold[0]}{line}{bold[1]}"
    yield ""
    rows = [ROWS, *(_row(point) for point in document["projected"])]
    widths = [max(len(row[column]) for row in rows) for column in range(len(ROWS))]
    for index, row in enumerate(rows):
        line = "  ".join(cell.rjust(size) for cell, size in zip(row, widths, strict=True))
        yield f"{bold[0]}{line}{bold[1]}" if index == 0 else line
    yield ""
    yield "What this cannot tell"
    for limit in document["limits"]:
        yield from textwrap.wrap(limit, width, initial_indent=" - ", subsequent_indent="   ")


def _headline(document: dict[str, Any]) -> str:
    from evenstep.words import duration, number, percent

    measured = document["measured"]
    step, rate = measured["step_time"], measured["throughput"]
    return (
        f"Measured with {measured['ranks']:,} ranks over {measured['steps']:,} steps: "
        f"{number(rate['value'], rate['unit'])}, step {duration(step['mean_ns'])}, CV "
        f"{percent(step['cv'])}; noise: {measured['noise']['family'].replace('_', ' ')}. "
        f"Projected ({document['scaling']} scaling), with what 98 % of such runs would show:"
    )


def _row(point: dict[str, Any]) -> tuple[str, ...]:
    from evenstep.words import duration, interval, number, percent

    rate, efficiency, cv = point["throughput"], point["efficiency"], point["cv"]
    return (
        f"{point['ranks']:,}",
        number(rate["value"], rate["unit"]),
        duration(point["step_time_ns"]["value"]),
        percent(cv["value"]),
        duration(point["p99_ns"]["value"]),
        f"{percent(efficiency['value'])} {interval(efficiency['low'], efficiency['high'])}",
    )
