"""`evenstep project`: throughput, CV and p99 of a measured run at other numbers of ranks."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Iterator

from evenstep.cli import progress, traces
from evenstep.cli.terminal import show
from evenstep.diagnose.predict.project import ProjectedSize, ProjectionDocument, projection
from evenstep.report.terminal.style import Style, table
from evenstep.words import duration, interval, number, percent

ROWS = ("ranks", "throughput", "step time", "CV", "p99", "efficiency")


def main(args: argparse.Namespace) -> int:
    *others, largest = sorted(map(traces.read, args.traces), key=lambda trace: trace.world)
    strong = args.scaling == "strong"
    with progress.counting("projected {} of {} resamples") as report:
        found = projection(largest, args.ranks, strong=strong, others=others, progress=report)
    show(found, lambda: "\n".join(_page(found)), as_json=args.json)
    return 0


# -- as text ---------------------------------------------------------------------------------------


def _page(document: ProjectionDocument) -> Iterator[str]:
    style = Style.of(min(shutil.get_terminal_size((80, 24)).columns, 80), None)
    yield from style.wrap(_headline(document), code="1")
    yield ""
    head, *body = table([ROWS, *map(_row, document["projected"])])
    yield from (style.paint(head, "1"), *body)
    yield ""
    yield "What this cannot tell"
    yield from style.items(document["limits"])


def _headline(document: ProjectionDocument) -> str:
    measured = document["measured"]
    step, rate = measured["step_time"], measured["throughput"]
    return (
        f"Measured with {measured['ranks']:,} ranks over {measured['steps']:,} steps: "
        f"{number(rate['value'], rate['unit'])}, step {duration(step['mean_ns'])}, CV "
        f"{percent(step['cv'])}; noise: {measured['noise']['family'].replace('_', ' ')}. "
        f"Projected ({document['scaling']} scaling), with 98 % intervals:"
    )


def _row(point: ProjectedSize) -> tuple[str, ...]:
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
