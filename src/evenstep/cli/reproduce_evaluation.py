"""`evenstep reproduce evaluation`: the paper's clusters, with and without coordination."""

from __future__ import annotations

import argparse
import csv
import io
import os
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from evenstep import values
from evenstep.cli import files, progress
from evenstep.cli.arguments import (
    MOST_STEPS,
    add_files,
    add_json,
    add_repeats,
    add_workers,
    several,
    sizes,
    whole,
)
from evenstep.cli.terminal import show
from evenstep.pacing import CONTROLLERS

Row = dict[str, Any]

PLACEMENTS = ("packed", "scattered", "random")
MEASURES = ("throughput", "cv", "efficiency", "gain", "cv_change")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `evenstep reproduce evaluation`."""
    add = parser.add_argument
    add("--nodes", metavar="N,…", type=sizes, default="4,8,16,32,64")
    add("--oversubscription", metavar="R,…", type=several(values.number(1)), default="1,2,4")
    places, controllers = several(values.choice(PLACEMENTS)), several(values.choice(CONTROLLERS))
    add("--placement", metavar="NAME,…", type=places, default="packed,scattered")
    add("--coordination", metavar="NAME,…", type=controllers, default="slack,paper",
        help="controllers (slack,paper)")  # fmt: skip
    add_repeats(parser, 5)
    add("--steps", metavar="N", type=whole(MOST_STEPS), default=400, help="of each run (400)")
    add_workers(parser)
    add_files(parser, csv="write the rows")
    add_json(parser, "the rows")


def main(args: argparse.Namespace) -> int:
    """Run the matrix, show it, and write what was asked for."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # processes share the cores already
    files.check_free(args.csv, force=args.force)
    from evenstep.reproduce import evaluation
    from evenstep.simulate.study.sweep import carried
    from evenstep.workers.engines import usable_cores

    units = evaluation.planned(
        nodes=args.nodes,
        oversubscription=args.oversubscription,
        placements=args.placement,
        controllers=args.coordination,
        repeats=args.repeats,
        steps=args.steps,
    )
    rows = []
    with progress.counting() as tell:
        for row in carried(units, args.workers or usable_cores(), evaluation.outcome):
            rows.append(row)
            tell(len(rows), len(units))
    table = evaluation.table(rows)
    document = {"schema": evaluation.SCHEMA, "repeats": args.repeats, "steps": args.steps,
                "rows": table, "limits": list(evaluation.LIMITS)}  # fmt: skip
    show(document, lambda: "\n".join(_lines(document)), as_json=args.json)
    if args.csv is not None:
        files.write(args.csv, _csv(table))
    return 0


def _lines(document: dict[str, Any]) -> Iterator[str]:
    yield f"{document['repeats']} repeats of {document['steps']} steps; ± half a 95 % interval"
    yield ""
    yield (
        f"{'nodes':>5} {'oversub.':>8} {'placement':10}{'coordination':12}{'samples/s':>13}"
        f"{'CV':>14}{'gain':>15}"
    )
    for row in document["rows"]:
        gain = "" if row["gain"] is None else _amount(row["gain"], 100, "+.1f", " %")
        yield (
            f"{row['nodes']:5d} {row['oversubscription']:6g}:1 {row['placement']:10}"
            f"{row['coordination']:12}{_amount(row['throughput'], 1, '.0f', ''):>13}"
            f"{_amount(row['cv'], 1, '.3f', ''):>14}{gain:>15}"
        )
    yield ""
    for limit in document["limits"]:
        yield from textwrap.wrap(limit, 80, initial_indent="- ", subsequent_indent="  ")


def _amount(found: dict[str, float | None], scale: float, form: str, unit: str) -> str:
    """A mean and half its interval, where that is known."""
    value, high = found["value"] or 0.0, found["high"]
    if high is None:
        return f"{scale * value:{form}}{unit}"
    half = scale * (high - value)
    return f"{scale * value:{form}} ± {half:{form.lstrip('+')}}{unit}"


def _csv(table: Sequence[Row]) -> str:
    names = ("nodes", "oversubscription", "placement", "coordination", "repeats", "unit")
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*names, *(f"{m}{end}" for m in MEASURES for end in ("", "_low", "_high"))])
    for row in table:
        cells = [row[name] for name in names]
        for measure in MEASURES:
            found = row[measure] or {}
            cells += [found.get(part) for part in ("value", "low", "high")]
        writer.writerow(cells)
    return text.getvalue()
