"""Diagnosis from a million to forty-one million collectives: seconds, memory, time per record.

The spools are those of a closed-form job (`benchmarks.jobs.large_run`), written to a temporary
folder: 9 GB for the largest. Only loading and diagnosing is timed, in a process of its own.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.measure import Row
from benchmarks.ranks import JobError, run_alone

#: Ranks, steps, and collectives of a step.
SIZES = ((128, 400, 20), (64, 2000, 30), (256, 800, 20), (1024, 2000, 20))
OFTEN = SIZES[1]  # many small collectives of few ranks
OFTEN_CPU_S, OFTEN_GB = 10.0, 1.0  # bars of that
SECONDS, PEAK_GB = 60.0, 4.0  # bars, of the largest
GROWTH = 1.0  # of the time per record, from the smallest to the largest
BYTES_A_RECORD = 170  # on disk, with steps, phases and summaries
COMMAND = "python -m benchmarks diagnose_scale"


class Outcome(NamedTuple):
    """One size, diagnosed."""

    size: tuple[int, int, int]
    records: int
    seconds: float
    cpu_seconds: float
    peak_bytes: int
    named: bool  # the slow rank, first and alone

    @property
    def ns_per_record(self) -> float:
        """Time for each record of any kind."""
        return self.seconds * 1e9 / self.records


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark."""
    parser.add_argument(
        "--folder", type=Path, help="where to write the spools (default: a new one)"
    )
    parser.add_argument("--most-ranks", type=int, default=1024, help="leave larger runs out")
    parser.add_argument("--repeats", type=int, default=3, help="of each size; the median counts")
    parser.add_argument("--python", default=sys.executable, help="interpreter with another torch")


def run(args: argparse.Namespace) -> list[Row]:
    """All sizes."""
    found = []
    for size in SIZES:
        ranks, steps, collectives = size
        if ranks > args.most_ranks:
            continue
        with tempfile.TemporaryDirectory(dir=args.folder, prefix="large-") as folder:
            needed = ranks * steps * collectives * BYTES_A_RECORD * 1.3
            if shutil.disk_usage(folder).free < needed:
                raise JobError(f"{folder} needs {needed / 1e9:.0f} GB of free disk; see --folder")
            found.append(measured(size, Path(folder) / "run", args))
    return [_row(outcome, found[0]) for outcome in found]


def measured(size: tuple[int, int, int], folder: Path, args: argparse.Namespace) -> Outcome:
    """Write a run of this size, and diagnose it."""
    names = ("--ranks", "--steps", "--collectives")
    asked = [text for name, number in zip(names, size, strict=True) for text in (name, str(number))]
    made = run_alone("benchmarks.jobs.large_run", "--folder", str(folder / "attempt-000"), *asked)
    told: list[dict[str, Any]] = [
        run_alone("benchmarks.jobs.diagnosing", str(folder), python=args.python)
        for _ in range(args.repeats)
    ]
    middle = sorted(told, key=lambda each: float(each["seconds"]))[len(told) // 2]
    named = all(each["mode"] == "straggler" and each["ranks"] == [made["slow"]] for each in told)
    peak = max(int(each["peak_bytes"]) for each in told)
    seconds, cpu_seconds = float(middle["seconds"]), float(middle["cpu_seconds"])
    return Outcome(size, made["records"], seconds, cpu_seconds, peak, named)


def _row(outcome: Outcome, smallest: Outcome) -> Row:
    largest, (ranks, steps, collectives) = outcome.size == SIZES[-1], outcome.size
    growth = outcome.ns_per_record / smallest.ns_per_record
    bar, met = "the slow rank named", True
    if largest:
        met = outcome.seconds < SECONDS and outcome.peak_bytes < PEAK_GB * 1e9 and growth <= GROWTH
        bar = f"< {SECONDS:.0f} s, < {PEAK_GB:.0f} GB, per record no more than at the smallest size"
    elif outcome.size == OFTEN:
        met = outcome.cpu_seconds <= OFTEN_CPU_S and outcome.peak_bytes <= OFTEN_GB * 1e9
        bar = f"≤ {OFTEN_CPU_S:.0f} s of processor time, ≤ {OFTEN_GB:.0f} GB"
    right = "the slow rank named" if outcome.named else "the slow rank not named"
    return Row(
        f"{ranks:,} ranks × {steps:,} steps × {collectives} collectives "
        f"({outcome.records / 1e6:.3g} M records) diagnosed",
        bar,
        f"{outcome.seconds:.1f} s ({outcome.cpu_seconds:.1f} s of processor time), "
        f"{outcome.peak_bytes / 1e9:.2f} GB, "
        f"{outcome.ns_per_record:.0f} ns a record ({growth:.2f} × the smallest); {right}",
        outcome.named and met,
        COMMAND,
    )
