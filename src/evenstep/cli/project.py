"""`evenstep project`: throughput, CV and p99 of a measured run at other numbers of ranks."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from evenstep.cli import progress, traces
from evenstep.cli.arguments import add_json, sizes
from evenstep.cli.terminal import show

if TYPE_CHECKING:
    from evenstep.diagnose.predict.project import ProjectedSize, ProjectionDocument

HELP = """Predict throughput, CV and p99 of a measured run at other numbers of ranks.

TRACE is any input of `evenstep diagnose`: a run folder, an attempt or a single trace. A model
fitted to it predicts each value with an interval and lists what the trace cannot tell. Of several
runs of one workload the largest is projected; the others show how contention grows with ranks."""

ROWS = ("ranks", "throughput", "step time", "CV", "p99", "efficiency")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("traces", metavar="TRACE", nargs="+", type=Path)
    add("--ranks", metavar="N,N…", type=sizes, required=True, help="sizes to predict: 8,16,64")
    add(
        "--scaling", choices=("weak", "strong"), default="weak",
        help="weak: every rank keeps its batch (default); strong: the same work for more ranks",
    )  # fmt: skip
    add_json(parser, "the projection")


def main(args: argparse.Namespace) -> int:
    from evenstep.diagnose.predict.project import projection

    *others, largest = sorted(map(traces.read, args.traces), key=lambda trace: trace.world)
    with progress.ticking(f"projecting {largest.world:,} ranks"):
        found = projection(largest, args.ranks, strong=args.scaling == "strong", others=others)
    show(found, lambda: "\n".join(_page(found)), as_json=args.json)
    return 0


# -- as text ---------------------------------------------------------------------------------------


def _page(document: ProjectionDocument) -> Iterator[str]:
    from evenstep.report.terminal.style import Style, table

    style = Style.of(min(shutil.get_terminal_size((80, 24)).columns, 80), None)
    yield from style.wrap(_headline(document), code="1")
    yield ""
    head, *body = table([ROWS, *map(_row, document["projected"])])
    yield from (style.paint(head, "1"), *body)
    yield ""
    yield "What this cannot tell"
    yield from style.items(document["limits"])


def _headline(document: ProjectionDocument) -> str:
    from evenstep.words import duration, number, percent

    measured = document["measured"]
    step, rate = measured["step_time"], measured["throughput"]
    return (
        f"Measured with {measured['ranks']:,} ranks over {measured['steps']:,} steps: "
        f"{number(rate['value'], rate['unit'])}, step {duration(step['mean_ns'])}, CV "
        f"{percent(step['cv'])}; noise: {measured['noise']['family'].replace('_', ' ')}. "
        f"Projected ({document['scaling']} scaling), with 98 % intervals:"
    )


def _row(point: ProjectedSize) -> tuple[str, ...]:
    from evenstep.words import duration, interval, number, percent

    rate, efficiency, cv = point["throughput"], point["efficiency"], point["cv"]
    ends = interval(efficiency["low"], efficiency["high"])
    return (
        f"{point['ranks']:,}",
        number(rate["value"], rate["unit"]),
        duration(point["step_time_ns"]["value"]),
        percent(cv["value"]),
        duration(point["p99_ns"]["value"]),
        f"{percent(efficiency['value'])} {ends}".rstrip(),
    )
