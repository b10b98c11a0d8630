"""`evenstep sweep`: simulate a scenario with every combination of some values."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evenstep.cli import files, progress
from evenstep.cli.arguments import engine_of
from evenstep.cli.terminal import say, show, tell_written
from evenstep.errors import UsageError
from evenstep.report.terminal.style import exact, precise, table
from evenstep.scenario import scenario
from evenstep.simulate.study import sweep
from evenstep.simulate.study.sweep import SweepDocument, SweepPlan, expected_s, run_units
from evenstep.simulate.study.sweep_folder import SweepFolder
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
        from evenstep.report.page import sheet, sweep_page

        sheet.write(args.html, sweep_page.render(document, data.get("name") or args.scenario.stem))
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
