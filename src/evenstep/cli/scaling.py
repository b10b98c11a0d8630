"""`evenstep scaling`: how far a job scales, what limits it, what a changed setting gains."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evenstep import values
from evenstep.cli import arguments, progress
from evenstep.cli.terminal import show
from evenstep.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from evenstep.simulate.study.scaling import Study

HELP = """Simulate a scenario at several sizes and report where its throughput peaks, and why.

With weak scaling every rank keeps its batch; with strong scaling one batch is divided. Each size is
also simulated with the changes of --control, shown as ratios to the first simulation. `bandwidth`
is the prediction from bytes and link speeds alone.

  evenstep scaling job.toml --ranks 64,256,1024 --control strategy.kind=paced
  evenstep scaling job.toml --strong --target 1e9 --deadline 72"""

CONTROL = "strategy.kind=paced"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("scenario", metavar="SCENARIO", type=Path)
    add("--ranks", metavar="N,N…", type=arguments.sizes,
        help="numbers of ranks (default: the scenario's, halved and doubled)")  # fmt: skip
    add("--strong", action="store_true", help="strong scaling: one batch for all sizes")
    arguments.add_set(parser, "change one field in all simulations")
    add("--control", metavar="NAME=VALUE", action="append", default=[],
        help=f"change of the second simulation, or none ({CONTROL})")  # fmt: skip
    amount = arguments.argument(values.number(0, above=True))
    add("--target", metavar="N", type=amount,
        help="print hours and cost to process N samples (or steps)")  # fmt: skip
    add("--deadline", metavar="HOURS", type=amount,
        help="find the cheapest size that reaches --target in time")  # fmt: skip
    add("--price", metavar="P", type=arguments.price, help="price of one GPU for an hour")
    arguments.add_repeats(parser, 1)
    arguments.add_workers(parser)
    arguments.add_json(parser, "the curve")


def main(args: argparse.Namespace) -> int:
    if args.deadline is not None and args.target is None:
        raise UsageError("--deadline needs --target: the number of samples to process by then")
    document = _document(args)
    from evenstep.report.terminal.scaling import page

    show(document, lambda: "\n".join(page(document)), as_json=args.json)
    return progress.INTERRUPTED if document["partial"] else 0


def _document(args: argparse.Namespace) -> dict[str, Any]:
    from evenstep.simulate.study import scaling

    study = _study(args)
    units = study.units()
    rows = _simulated(study, args.workers)
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
    from evenstep.scenario import scenario as scenarios
    from evenstep.simulate.study.scaling import Study
    from evenstep.simulate.study.scaling_sizes import default_sizes

    base = scenarios.load(args.scenario, args.set)
    changes = _control(args)
    control = scenarios.load(args.scenario, [*args.set, *changes]) if changes else None
    if control == base:
        control = None
    given = default_sizes(base) if args.ranks is None else tuple(args.ranks)
    try:
        study = Study(base, given, args.strong, control, args.repeats)
        study.units()
    except ConfigError as error:
        raise ConfigError(f"{args.scenario}: {error}") from error
    return study


def _control(args: argparse.Namespace) -> list[str]:
    changes = args.control or [CONTROL]
    return [] if changes == ["none"] else changes


def _simulated(study: Study, workers: int | None) -> list[dict[str, Any]]:
    """Simulate and return all rows, or those finished before Ctrl-C."""
    from evenstep.simulate.study.scaling import measured
    from evenstep.simulate.study.sweep import carried, expected_s
    from evenstep.workers.engines import usable_cores

    units = study.units()
    rows: list[dict[str, Any]] = []
    workers = workers or usable_cores()
    progress.announce(f"{len(units)} simulations", expected_s(units) / workers)
    progress.finished(carried(units, workers, measured), len(units), rows)
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
