"""What `import evenstep; evenstep.attach()` costs on top of `import torch`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable

from benchmarks.measure import Row, spread
from benchmarks.ranks import free_port, place, run_alone

JOB = "benchmarks.jobs.starting"
BAR_MS = 50.0
COMMAND = "python -m benchmarks import_cost"
OURS = ("evenstep", "torch")  # torch: parts of it that it imports when first used


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark."""
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--python", default=sys.executable, help="interpreter with another torch")


def run(args: argparse.Namespace) -> list[Row]:
    """Pairs of processes, with and without; the first pair only fills the bytecode cache.

    The rank's place is in the environment, so that attaching opens the spool at once.
    """
    where = place(0, 1, free_port())
    pairs = [
        [run_alone(JOB, *form, python=args.python, added=where) for form in (["--attach"], [])]
        for _ in range(args.pairs + 1)
    ][1:]
    attach, everything = (
        spread([(watched[key] - plain[key]) / 1e6 for watched, plain in pairs])
        for key in ("attach_ns", "all_ns")
    )
    foreign = foreign_modules(pairs[-1][0]["modules"])
    return [
        Row(
            "processor time of import and attach on top of `import torch`",
            f"< {BAR_MS:.0f} ms",
            f"{attach.text('ms')}; with half a second of the background thread and detaching "
            f"{everything.text('ms')}",
            everything.median < BAR_MS,
            COMMAND,
        ),
        Row(
            "modules outside the standard library that came with it",
            "none",
            ", ".join(foreign) or "none",
            not foreign,
            COMMAND,
        ),
    ]


def foreign_modules(names: Iterable[str]) -> list[str]:
    """Top-level names that belong neither to the standard library nor to us or torch."""
    tops = {name.partition(".")[0] for name in names}
    return sorted(tops - set(sys.stdlib_module_names) - set(OURS))
