"""A run of 4,096 ranks as a store: bytes per collective, one question, the diagnosis.

The spools are the simulator's (13 GB) and go to a temporary folder. Everything that is timed is a
process of its own, imports included. A second, smaller run has clocks and noise of its own on every
host: it is less alike, and so takes more room.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.measure import Row
from benchmarks.ranks import JobError, environment, run_alone

COMMAND = "python -m benchmarks store"
SCENARIO = Path(__file__).parents[1] / "examples" / "scenarios" / "oversubscribed.toml"
BUCKETS, RANKS_PER_NODE, NODES_BESIDE = 20, 8, 128
RECORDS = BUCKETS + 5  # of a rank and step
OTHER = (256, 200)  # ranks and steps of the run with clocks of its own
BYTES, QUERY_S, SECONDS, PEAK_GB = 12.0, 1.0, 300.0, 4.0  # bars
QUERIES = 5
QUERY = (
    "select rank, max(in_flight_ns) as longest from collectives where step = {step} "
    "group by rank order by longest desc limit 3"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark."""
    parser.add_argument("--ranks", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--folder", type=Path, help="where to write (default: a new one)")


def run(args: argparse.Namespace) -> list[Row]:
    """Simulate, store, ask, diagnose."""
    with tempfile.TemporaryDirectory(dir=args.folder, prefix="store-") as name:
        folder = Path(name)
        needed = args.ranks * args.steps * RECORDS * 130
        if shutil.disk_usage(folder).free < needed:
            raise JobError(f"{folder} needs {needed / 1e9:.0f} GB of free disk; see --folder")
        _simulated(folder / "run", args.ranks, args.steps)
        size = f"{args.ranks:,} simulated ranks × {args.steps:,} steps × {BUCKETS} collectives"
        rows = _stored(size, folder / "run", folder / "store")
        shutil.rmtree(folder / "run")
        rows += [_asked(size, folder / "store", args.steps), _diagnosed(size, folder / "store")]
        return rows + _with_own_clocks(folder)


def _simulated(run: Path, ranks: int, steps: int) -> None:
    nodes = -(-ranks // RANKS_PER_NODE) + NODES_BESIDE
    changes = {
        "cluster.nodes": nodes,
        "cluster.gpus_per_node": RANKS_PER_NODE,
        "job.ranks": ranks,
        "run.steps": steps,
        "work.buckets": BUCKETS,
    }
    settings = [text for key, value in changes.items() for text in ("--set", f"{key}={value}")]
    _evenstep("simulate", str(SCENARIO), *settings, "--out", str(run))


def _stored(size: str, run: Path, store: Path) -> list[Row]:
    told = run_alone("benchmarks.jobs.storing", str(run), str(store))
    each = told["size_bytes"] / told["collectives"]
    return [
        Row(
            f"{size} in Parquet, bytes per collective",
            f"≤ {BYTES:.0f}",
            f"{each:.2f}, steps, phases and summaries included; {told['size_bytes'] / 1e6:.0f} MB "
            f"for {told['rows'] / 1e6:.3g} M records, written in {told['seconds']:.0f} s, "
            f"{told['peak_bytes'] / 1e9:.2f} GB",
            each <= BYTES,
            COMMAND,
        )
    ]


def _asked(size: str, store: Path, steps: int) -> Row:
    taken = []
    for index in range(QUERIES):
        query = QUERY.format(step=steps * (index + 1) // (QUERIES + 1))
        started = time.perf_counter()
        _evenstep("sql", query, str(store), "--json")
        taken.append(time.perf_counter() - started)
    middle = statistics.median(taken)
    return Row(
        f"a question about one step of {size}",
        f"< {QUERY_S:.0f} s",
        f"{middle:.2f} s ({min(taken):.2f} to {max(taken):.2f}), the whole command",
        middle < QUERY_S,
        COMMAND,
    )


def _diagnosed(size: str, store: Path) -> Row:
    told: dict[str, Any] = run_alone("benchmarks.jobs.diagnosing", str(store))
    seconds, peak = float(told["seconds"]), int(told["peak_bytes"])
    return Row(
        f"{size} diagnosed from its store",
        f"< {SECONDS / 60:.0f} min, < {PEAK_GB:.0f} GB",
        f"{seconds:.0f} s, {peak / 1e9:.2f} GB",
        seconds < SECONDS and peak < PEAK_GB * 1e9,
        COMMAND,
    )


def _with_own_clocks(folder: Path) -> list[Row]:
    ranks, steps = OTHER
    size = ["--ranks", str(ranks), "--steps", str(steps), "--collectives", str(BUCKETS)]
    run_alone("benchmarks.jobs.large_run", "--folder", str(folder / "own" / "attempt-000"), *size)
    name = f"{ranks} ranks × {steps} steps × {BUCKETS} collectives, clocks and noise per host,"
    return _stored(name, folder / "own", folder / "own-store")


def _evenstep(*arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "evenstep", *arguments],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise JobError(f"evenstep {arguments[0]} ended with {done.returncode}: {done.stderr}")
