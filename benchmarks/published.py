"""Published measurements beside the closed forms: the error of every row that was not fitted.

Nothing is timed. The table of all rows goes to standard error (`evenstep explain published` prints
the same); the rows of the page are one a system.
"""

from __future__ import annotations

import argparse
import sys

from benchmarks.measure import Row
from evenstep.explain import shown, text
from evenstep.reproduce.published.rows import System
from evenstep.reproduce.published.table import systems

BAR = 0.08
COMMAND = "python -m benchmarks published"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """There are none."""
    del parser


def run(args: argparse.Namespace) -> list[Row]:
    """One row for each system, and one for the claims with a preset."""
    del args
    data = shown.published()
    print("\n".join(text.published(data)), file=sys.stderr)
    worst = max(data["claims"], key=lambda claim: abs(claim["error"]))
    claims = Row(
        "published claims that `evenstep explain` has presets for",
        "none",
        f"{len(data['claims'])} claims, furthest {worst['name']} {100 * worst['error']:+.1f} %",
        None,
        COMMAND,
    )
    return [*map(_row, systems()), claims]


def _row(system: System) -> Row:
    furthest = max(system.predicted, key=lambda row: abs(row.error))
    measured = (
        f"{100 * system.mean_error:.1f} % over {len(system.predicted)} predicted rows, furthest "
        f"{100 * furthest.error:+.1f} % ({furthest.what}); {len(system.fitted)} numbers fitted"
    )
    what = f"{system.name}: mean error of predicted rows"
    return Row(what, f"< {100 * BAR:.0f} %", measured, system.mean_error < BAR, COMMAND)
