"""Actions on real ranks: four of gloo that allocate, with the collector as it is and held together.

The same job twice, once without and once with `act = gc`. Steps from the second quarter on count;
within the acting job the trial compares blocks in random order, so its interval is undisturbed by
what else the machine does.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import Row
from benchmarks.ranks import run_ranks

COMMAND = "python -m benchmarks acting"
WORLD = 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark."""
    parser.add_argument("--steps", type=int, default=3000)


def run(args: argparse.Namespace) -> list[Row]:
    """Three rows: tail, throughput, and what stays the same."""
    free, acting = (_job(act, args.steps) for act in ("off", "gc"))
    first = args.steps // 4
    before, after = (np.array(found["times_ns"])[first:] / 1e6 for found in (free, acting))
    tails = [float(np.percentile(times, 99)) for times in (before, after)]
    (told,) = acting["told"]
    low, high = told["low"], told["high"]
    ends = "no interval" if low is None else f"{100 * low:+.2f} to {100 * high:+.2f}"
    same = free["losses"] == acting["losses"]
    what = f"gc on {WORLD} gloo ranks that allocate, {args.steps} steps"
    return [
        Row(f"{what}: p99 of the step", "halved",
            f"{tails[0]:.1f} ms, {tails[1]:.1f} ms with it (times {tails[1] / tails[0]:.2f}; p50 "
            f"{np.median(before):.1f} and {np.median(after):.1f} ms)",
            tails[1] <= 0.5 * tails[0], COMMAND),
        Row(f"{what}: its own trial", "interval above 0",
            f"{told['word']}, a step is shorter by {100 * told['gain']:.2f} % ({ends}), "
            f"{told['pairs']} pairs, acted in {told['acted_steps']} steps; {told['reason']}",
            low is not None and low > 0, COMMAND),
        Row(f"{what}: losses, and memory from a quarter of the run on", "bit-identical, <= 5 %",
            f"{'the same' if same else 'DIFFERENT'}; {100 * acting['grown']:+.1f} % "
            f"({100 * free['grown']:+.1f} % without)", same and acting["grown"] <= 0.05, COMMAND),
    ]  # fmt: skip


def _job(act: str, steps: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="acting-") as folder:
        return run_ranks(
            "benchmarks.jobs.acting",
            *("--out", str(Path(folder) / "run"), "--act", act, "--steps", str(steps)),
            world=WORLD,
        )
