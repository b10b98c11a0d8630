"""`evenstep sweep`: simulate a scenario with every combination of some values."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from evenstep.cli import files, progress
from evenstep.cli.arguments import engine_of
from evenstep.cli.terminal import say, show, tell_written
from evenstep.errors import UsageError
from evenstep.report.page import sheet
from evenstep.report.terminal.style import exact, precise, table
from evenstep.scenario import scenario
from evenstep.simulate.study import sweep
from evenstep.simulate.study.sweep import SweepDocument, SweepPlan, expected_s, run_units
from evenstep.simulate.study.sweep_folder import SweepFolder
from evenstep.words import duration, number, percent
from evenstep.workers import Engine, usable_cores


def main(args: argparse.Namespace) -> int:
    if not args.vary:
        raise UsageError("give at least one --vary, as in --vary nodes=4,8,16")
    files.check_free(args.html, force=args.force)
    engine = engine_of(args)
    axes = [sweep.axis(text) for text in args.vary]
    data = scenario.read(args.scenario)
    with scenario.named(args.scenario):
        plan = sweep.plan(data, axes, repeats=args.repeats, assignments=args.set)
    if args.out is not None:
        files.check_folder(args.out)
    folder = None if args.out is None else SweepFolder(args.out)
    rows = folder.begin(plan, force=args.force) if folder else []
    written: Path | None = None
    try:
        with scenario.named(args.scenario):
            _simulate(plan, rows, folder, engine, args.workers)
    finally:
        if folder is not None and rows:
            written = folder.write_results(rows)
    for sentence in sweep.without_effect(rows, [axis.field for axis in axes]):
        say(sentence)
    document: SweepDocument = {
        "schema": "evenstep.sweep/1",
        "vary": {axis.field: list(axis.values) for axis in plan.axes},
        "repeats": plan.repeats,
        "simulations": len(plan.units),
        "finished": len(rows),
        "partial": len(rows) < len(plan.units),
        "combinations": sweep.summed_up(rows, [axis.field for axis in axes]),
    }
    show(document, lambda: _page(document), as_json=args.json)
    if args.html is not None:
        from evenstep.report.page import sheet

        sheet.write(args.html, render(document, data.get("name") or args.scenario.stem))
    for path in filter(None, (args.html, written)):
        tell_written(path)
    return progress.INTERRUPTED if document["partial"] else 0


def _simulate(
    plan: SweepPlan,
    rows: list[dict[str, Any]],
    folder: SweepFolder | None,
    engine: Engine,
    workers: int | None,
) -> None:
    known = {row["number"] for row in rows}
    left = [unit for unit in plan.units if unit.number not in known]
    if known:
        print(f"{len(known)} of {len(plan.units)} already finished", file=sys.stderr)
    progress.announce(f"{len(left)} simulations", expected_s(left) / (workers or usable_cores()))
    keep = folder.add if folder is not None else lambda _: None
    progress.keep_finished(run_units(left, engine), len(plan.units), rows, keep)


# -- as text ---------------------------------------------------------------------------------------


def _page(document: SweepDocument) -> str:
    """Render a table of at most 80 columns if the names of varied fields allow."""
    entries = document["combinations"]
    if not entries:
        return "no simulation finished"
    names = [name.rpartition(".")[2] for name in entries[0]["varied"]]
    heads = [*names, "ranks", entries[0]["unit"], "step", "CV", "p99", "eff."]
    lines = table([heads, *map(_cells, entries)])
    if document["repeats"] > 1:
        lines.append(f"± is a 95 % interval of the mean over {document['repeats']} seeds")
    return "\n".join(lines)


def _cells(entry: Mapping[str, Any]) -> list[str]:
    rate, cv = entry["throughput"], entry["step_cv"]
    spread = "" if rate["low"] is None else f" ±{rate['high'] - rate['value']:.2g}"
    return [
        *(str(value) for value in entry["varied"].values()),
        f"{entry['ranks']:,}",
        f"{rate['value']:.4g}{spread}",
        precise(entry["step_mean_ns"]["value"]),
        f"{cv['value']:.3f}",
        precise(entry["step_p99_ns"]["value"]),
        exact(entry["efficiency"]["value"]),
    ]


# -- as a page: matrices, curves and a table -------------------------------------------------------

SCRIPTS = (
    *("quantities.js", "canvas.js", "cells.js", "sortable.js"),
    *("sweep_view.js", "sweep_cells.js", "sweep_lines.js", "sweep.js"),
)

Document = Mapping[str, Any]


class Measure(NamedTuple):
    """A measure of a combination; `more` is 1 if more is better, -1 if worse, 0 if neither."""

    name: str
    label: str
    kind: str  # number, duration or share
    more: int


MEASURES = (
    Measure("throughput", "throughput", "number", 1),
    Measure("efficiency", "efficiency", "share", 1),
    Measure("step_mean_ns", "step time, mean", "duration", -1),
    Measure("step_p50_ns", "step time, p50", "duration", -1),
    Measure("step_p99_ns", "step time, p99", "duration", -1),
    Measure("step_cv", "variation (CV)", "share", -1),
    Measure("share_compute", "compute", "share", 0),
    Measure("share_exposed_communication", "communication", "share", -1),
    Measure("share_wait", "wait", "share", -1),
    Measure("share_input", "input", "share", -1),
    Measure("share_held", "pacing delays", "share", 0),
    Measure("joules_per_unit", "energy per unit, J", "number", -1),
    Measure("cost_per_unit", "cost per unit", "number", -1),
    Measure("goodput", "goodput over weeks", "share", 1),
)
THROUGHPUT = MEASURES[0].name
#: Measures whose best combination is named at the top.
NAMED = ("throughput", "efficiency", "step_cv", "cost_per_unit")


def render(document: Document, name: str) -> str:
    """Render the JSON document of a sweep as a page. Raises `MissingExtra` without jinja2."""
    combinations = document["combinations"]
    known = [one for one in MEASURES if any(row[one.name] for row in combinations)]
    template = sheet.template(
        "sweep.html.j2", "the page of a sweep", SCRIPTS, said=format_measure, short=short
    )
    text: str = template.render(
        name=name,
        document=document,
        measures=known,
        unit=combinations[0]["unit"] if combinations else "",
        verdict=_verdict(combinations, name),
        swings={field: swing(combinations, field) for field in document["vary"]},
        best=[(one, row) for one in known if one.name in NAMED for row in _best(one, combinations)],
        sweep=sheet.embed(document),
        facts=sheet.embed([one._asdict() for one in known]),
    )
    return text


def format_measure(measure: Measure, value: float | None) -> str:
    if measure.kind == "duration":
        return duration(value)
    return percent(value) if measure.kind == "share" else number(value)


def short(field: str) -> str:
    """Return the last part of a field's name: nodes of cluster.nodes."""
    return field.rpartition(".")[2]


def swing(rows: Sequence[Mapping[str, Any]], field: str) -> float | None:
    """Return the largest relative difference of throughput between combinations that differ in
    this field only; None if there are no such combinations."""
    alike: dict[str, list[float]] = {}
    for row in rows:
        if row[THROUGHPUT] is not None:
            others = {name: value for name, value in row["varied"].items() if name != field}
            alike.setdefault(repr(others), []).append(float(row[THROUGHPUT]["value"]))
    pairs = [max(each) / min(each) - 1 for each in alike.values() if len(each) > 1 and min(each)]
    return max(pairs, default=None)


def _verdict(rows: Sequence[Mapping[str, Any]], name: str) -> str:
    """Name the combination of highest throughput; the name of the sweep if there is only one."""
    for row in _best(MEASURES[0], rows):
        value = number(row[THROUGHPUT]["value"], row["unit"])
        with_ = ", ".join(f"{short(field)} {at}" for field, at in row["varied"].items())
        return f"Throughput is highest with {with_}: {value}"
    return name


def _best(measure: Measure, rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the best combination of a measure, if at least two have it."""
    known = [row for row in rows if row[measure.name] is not None]
    if len(known) < 2:
        return []
    return [max(known, key=lambda row: measure.more * float(row[measure.name]["value"]))]
