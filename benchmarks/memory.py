"""Memory and disk a rank takes, however long it runs.

A day of 1,000 collectives a second is 86 million records. The ring and the summaries have fixed
sizes, so a day takes what they take: computed from the layout, and checked on a spool of 64 kB
through which more steps go than its coarsest summaries are long.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from typing import Any

from benchmarks.measure import Row
from benchmarks.ranks import run_alone
from evenstep.agent.settings.config import Config
from evenstep.trace.spool.spool import Regions

BAR_MB = 80.0
STEPS_TO_WRAP = 17_000  # ten collectives each: more than the ring holds, and the single steps too
DAY_RECORDS = 86_400_000
COMMAND = "python -m benchmarks memory"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark."""
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=1_200_000, help="through the shortened spool")
    parser.add_argument("--python", default=sys.executable, help="interpreter with another torch")


def run(args: argparse.Namespace) -> list[Row]:
    """Resident memory with and without, and the shortened day."""
    return [_resident(args), _disk(run_alone("benchmarks.jobs.day", "--steps", str(args.steps)))]


def _resident(args: argparse.Namespace) -> Row:
    job, steps = "benchmarks.jobs.resident", ["--steps", str(STEPS_TO_WRAP)]
    added, worst = [], []
    whole = default_regions().total
    for _ in range(args.pairs):
        plain = run_alone(job, *steps, python=args.python)
        watched = run_alone(job, *steps, "--attach", python=args.python)
        more = watched["resident"] - plain["resident"]
        added.append(more / 1e6)
        worst.append((more - watched["mapped"] + whole) / 1e6)
    measured, bound = statistics.median(added), max(worst)
    return Row(
        "resident memory a rank adds, ring and single-step summaries wrapped",
        f"≤ {BAR_MB:.0f} MB",
        f"{measured:.1f} MB; {bound:.1f} MB once every page of the spool has been touched",
        bound <= BAR_MB,
        COMMAND,
    )


def _disk(day: dict[str, Any]) -> Row:
    regions = default_regions()
    constant = day["disk_before"] == day["disk_after"]
    covered = day["steps_covered"] == day["last_step"] + 1 - day["first_step"]
    return Row(
        "disk a rank takes in 24 h at 1,000 collectives a second",
        "bounded by configuration",
        f"{regions.total / 1e6:.1f} MB, {DAY_RECORDS / regions.ring_capacity:,.0f} times round the "
        f"ring; checked at {day['disk_after'] / 1e6:.1f} MB: {day['records_written']:,} records, "
        f"{day['wraps']:,} times round, disk {'the same' if constant else 'grew'}, "
        f"{day['levels_reached']} of 6 summary levels reached, "
        f"steps {day['first_step']:,} to {day['last_step']:,} "
        f"{'all' if covered else 'not all'} covered",
        constant and covered,
        COMMAND,
    )


def default_regions() -> Regions:
    """The parts of a spool as configured when nothing is."""
    config = Config()
    return Regions(ring_bytes=config.ring_bytes, summary_bytes=config.summary_bytes)
