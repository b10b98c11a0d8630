"""What seeing a collective of mpi4py costs its caller: two ranks, each on a core of its own."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.measure import Row, differences, spread
from benchmarks.ranks import JobError, environment, last_object

JOB = "benchmarks.jobs.mpi_calls"
COMMAND = "python -m benchmarks mpi_cost"
OWN_BAR_US = 2.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark."""
    parser.add_argument("--rounds", type=int, default=15)


def run(args: argparse.Namespace) -> list[Row]:
    """A blocking all-reduce of 32 bytes."""
    return rows(_measured("--rounds", str(args.rounds)))


def rows(figures: dict[str, Any]) -> list[Row]:
    """What a call costs more, our share of that, and the end of a step."""
    calls = {state: [ns / 1e3 for ns in values] for state, values in figures["calls"].items()}
    added = spread(differences(calls["evenstep"], calls["bare"]))
    wrapper = spread(differences(calls["wrapper"], calls["bare"]))
    own = spread(differences(calls["evenstep"], calls["wrapper"]))
    ends = [ns / 1e3 for ns in differences(figures["ends"]["evenstep"], figures["ends"]["bare"])]
    bare = spread(calls["bare"]).median
    return [
        Row(
            "added per blocking all-reduce, mpi4py on MPICH, 2 ranks",
            "none",
            f"{added.text('µs', 2)}; a wrapper in Python that does nothing "
            f"{wrapper.text('µs', 2)}; on a call of {bare:.2f} µs",
            None,
            COMMAND,
        ),
        Row(
            "evenstep's own share of it, mpi4py",
            f"< {OWN_BAR_US:.0f} µs",
            own.text("µs", 2),
            own.median < OWN_BAR_US,
            COMMAND,
        ),
        Row(
            "ending a step of 16 collectives, mpi4py",
            "none",
            f"{spread(ends).text('µs')}, the call that ends it included",
            None,
            COMMAND,
        ),
    ]


def _measured(*options: str) -> dict[str, Any]:
    """The figures of rank 0. Raises `JobError`."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    mpiexec = shutil.which("mpiexec", path=path)
    if mpiexec is None:
        raise JobError("there is no mpiexec")
    command = [mpiexec, "-n", "2", sys.executable, "-m", JOB, *options]
    environ = environment(PATH=path)
    done = subprocess.run(
        command, env=environ, capture_output=True, text=True, timeout=600, check=False
    )
    if done.returncode:
        raise JobError(f"the job ended with {done.returncode}: {done.stderr[-3000:]}")
    return last_object(done.stdout)
