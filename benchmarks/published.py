"""Published measurements beside what is predicted: the error of every row that was not fitted.

MLPerf rows are simulated from the smallest size of a system, where their table is at hand
(`--mlperf`); whole training steps that have a preset are simulated too. Nothing is timed. The table
of the closed forms goes to standard error (`evenstep explain published` prints the same); the rows
of the page are one a system.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import mlperf
from benchmarks.measure import Row
from evenstep.cli import explain
from evenstep.reproduce.published import training
from evenstep.reproduce.published.rows import PublishedRow, System
from evenstep.reproduce.published.table import systems

BAR = 0.08
COMMAND = "python -m benchmarks published"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark."""
    parser.add_argument(
        "--mlperf", metavar="CSV", type=Path, default=Path("../shared/data/mlperf/v4.1-steps.csv"),
        help="step times of MLPerf training v4.1",
    )  # fmt: skip


def run(args: argparse.Namespace) -> list[Row]:
    """One row for each system, and one for the claims with a preset."""
    data = explain.published_comparison()
    print("\n".join(explain.published_lines(data)), file=sys.stderr)
    worst = max(data["claims"], key=lambda claim: abs(claim["error"]))
    claims = Row(
        "published claims that `evenstep explain` has presets for",
        "none",
        f"{len(data['claims'])} claims, furthest {worst['name']} {100 * worst['error']:+.1f} %",
        None,
        COMMAND,
    )
    simulated = [_presets()]
    if args.mlperf.exists():
        simulated += _mlperf(mlperf.systems(args.mlperf))
    return [*map(_row, systems()), *simulated, claims]


def _mlperf(found: list[System]) -> list[Row]:
    """One row for each system, and one for all that was not fitted."""
    errors = [row.error for system in found for row in system.predicted]
    mean, worst = sum(map(abs, errors)) / len(errors), max(errors, key=abs)
    return [
        *map(_row, found),
        Row(
            "MLPerf v4.1, simulated from each system's smallest size", "mean <= 4 %, worst <= 12 %",
            f"{100 * mean:.1f} % over {len(errors)} rows, furthest {100 * worst:+.1f} %",
            mean <= 0.04 and abs(worst) <= 0.12, COMMAND,
        ),
    ]  # fmt: skip


def _presets() -> Row:
    """Whole training steps of published systems, simulated from their presets."""
    rows = [row for row in training.simulated_rows() if not row.fitted]
    worst = max(rows, key=lambda row: abs(row.error))
    mean = sum(abs(row.error) for row in rows) / len(rows)
    return Row(
        "published training steps, simulated from their presets", "mean <= 4 %, worst <= 12 %",
        f"{100 * mean:.1f} % over {len(rows)} rows that are predictions, furthest "
        f"{100 * worst.error:+.1f} % ({worst.what})",
        mean <= 0.04 and abs(worst.error) <= 0.12, COMMAND,
    )  # fmt: skip


def _row(system: System) -> Row:
    predicted, others = system.predicted, [row for row in system.rows if not row.modelled]
    told = "; ".join(_errors(kind, rows) for kind, rows in
                     [("predicted rows", predicted), ("rows of what is not modelled", others)]
                     if rows)  # fmt: skip
    return Row(
        f"{system.name}: mean error of predicted rows",
        f"< {100 * BAR:.0f} %" if predicted else "none: no row is a prediction",
        f"{told}; {len(system.fitted)} numbers fitted",
        system.mean_error < BAR if predicted else None, COMMAND,
    )  # fmt: skip


def _errors(kind: str, rows: Sequence[PublishedRow]) -> str:
    left = [row for row in rows if not row.fitted]
    mean = sum(abs(row.error) for row in left) / len(left)
    furthest = max(left, key=lambda row: abs(row.error))
    return (f"{100 * mean:.1f} % over {len(left)} {kind}, furthest {100 * furthest.error:+.1f} % "
            f"({furthest.what})")  # fmt: skip
