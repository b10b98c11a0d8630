"""Does a failure of our own reach the training? Every function of what lives in a rank is made to
fail once, at its 1st, 2nd and 100th call, on one of two gloo ranks that share a real store. A first
scene counts the calls: what is not called so often cannot fail.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from benchmarks.measure import Row
from benchmarks.ranks import JobError, run_ranks

JOB = "benchmarks.jobs.failing"
COMMAND = "python -m benchmarks seams"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark."""
    parser.add_argument("--every", type=int, default=1, help="only every n-th case …")
    parser.add_argument("--first", type=int, default=0, help="none before this one")
    parser.add_argument("--at", nargs="*", default=["1", "2", "100"], help="calls that fail")
    parser.add_argument("--only", default="", help="functions whose name has this in it")
    parser.add_argument("--timeout", type=float, default=3600.0)


def run(args: argparse.Namespace) -> list[Row]:
    """One row: what reached the training."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as progress:
        options = ["--every", str(args.every), "--first", str(args.first)]
        options += ["--at", *args.at, "--only", args.only]
        try:
            found = run_ranks(JOB, progress, *options, world=2, timeout_s=args.timeout)
        except JobError as error:
            where = [file.read_text() for file in sorted(Path(progress).iterdir())]
            raise JobError(f"{error}; the ranks were at {where}") from error
    for line in found["different"]:
        print(f"changed a loss: {line}", file=sys.stderr)
    bad = len(found["different"])
    measured = (
        f"none reached it, {bad} changed a loss, in {found['scenes']} of {found['cases']} scenes "
        f"({found['reached']} in which the call came); {found['called']} of {found['seams']} "
        "functions are called at all in such a job"
    )
    what = "a function of ours fails at one of its calls: reaches training, hangs, changes a loss"
    return [Row(what, "0", measured, not bad and found["scenes"] > 0, COMMAND)]
