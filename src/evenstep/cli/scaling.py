"""`evenstep scaling`: how far a job scales, what limits it, what a changed setting gains."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import Any

from evenstep.cli import progress
from evenstep.cli.syntax.predict import CONTROL
from evenstep.cli.terminal import say, show
from evenstep.errors import UsageError
from evenstep.report.terminal.scaling import page
from evenstep.scenario import scenario as scenarios
from evenstep.scenario import schema
from evenstep.scenario.scenario import Scenario
from evenstep.simulate.result import without_effect
from evenstep.simulate.simulation import set_up
from evenstep.simulate.study import scaling
from evenstep.simulate.study.scaling import Study, measured_row
from evenstep.simulate.study.scaling_sizes import default_sizes
from evenstep.simulate.study.sweep import SweepRun, expected_s, run_units
from evenstep.workers import usable_cores


def main(args: argparse.Namespace) -> int:
    for name in ("deadline", "price"):
        if getattr(args, name) is not None and args.target is None:
            raise UsageError(f"--{name} needs --target: the number of samples to process")
    document = _document(args)
    show(document, lambda: "\n".join(page(document)), as_json=args.json)
    return progress.INTERRUPTED if document["partial"] else 0


def _document(args: argparse.Namespace) -> dict[str, Any]:
    study = _study(args)
    with scenarios.named(args.scenario):
        units = study.units()
        largest = set_up(schema.read(Scenario, units[-1].scenario))
        for sentence in without_effect(largest.scenario, largest.flows):
            say(sentence)
        rows = _simulate(units, args.workers)
    points = scaling.curve(study, rows)
    hourly = args.price if args.price is not None else study.scenario.energy.price_per_hour
    outlay = None
    if args.target is not None and points:
        outlay = scaling.outlay(
            points, target=args.target, price_per_hour=hourly, deadline_hours=args.deadline
        )
    return {
        "schema": "evenstep.scaling/1",
        "name": study.scenario.name,
        "scaling": "strong" if study.strong else "weak",
        "partial": len(rows) < len(units),
        "repeats": study.repeats,
        "control": _control(args) if study.control else None,
        "points": points,
        "peak": scaling.peak(points, strong=study.strong) if points else None,
        "outlay": outlay,
        "limits": list(_limits(study, points)),
    }


def _study(args: argparse.Namespace) -> Study:
    base = scenarios.load(args.scenario, args.set)
    changes = _control(args)
    control = scenarios.load(args.scenario, [*args.set, *changes]) if changes else None
    if control == base:
        control = None
    with scenarios.named(args.scenario):
        given = default_sizes(base) if args.ranks is None else tuple(args.ranks)
    return Study(base, given, args.strong, control, args.repeats)


def _control(args: argparse.Namespace) -> list[str]:
    changes = args.control or [CONTROL]
    return [] if changes == ["none"] else changes


def _simulate(units: Sequence[SweepRun], workers: int | None) -> list[dict[str, Any]]:
    """Simulate and return all rows, or those finished before Ctrl-C."""
    rows: list[dict[str, Any]] = []
    workers = workers or usable_cores()
    progress.announce(f"{len(units)} simulations", expected_s(units) / workers)
    progress.keep_finished(run_units(units, workers, measured_row), len(units), rows)
    return sorted(rows, key=lambda row: int(row["number"]))


def _limits(study: Study, points: list[dict[str, Any]]) -> Iterator[str]:
    if study.strong:
        yield "gradients and optimizer are assumed to cost the same at every size"
    else:
        yield "the batch grows with the ranks; its effect on convergence is not modelled"
    if study.scenario.neighbours:
        yield "neighbours given by their number of nodes grow with the job"
    if not study.scenario.reliability.failures_per_1000_node_days:
        yield "failures are not modelled: reliability.failures_per_1000_node_days is 0"
    if study.repeats == 1 and points:
        yield "one seed: use --repeats for intervals"
