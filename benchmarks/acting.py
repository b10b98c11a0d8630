"""Actions on real ranks: gloo ranks that allocate, or share cores, with an action and without.

The same job twice. Steps of the second half count, in most of which an action that pays acts;
within the acting job the trial compares blocks in random order, so its interval is undisturbed by
what else the machine does, as are the steps acted in beside those left out.
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
FEWEST = 128  # steps in which nothing is tried yet, and the first that are
#: Which action, in what loop, on how many ranks of so many threads.
JOBS = {
    "gc": ("gc", "own loop", 4, 1),
    "gc-trainer": ("gc", "Trainer", 2, 1),
    "gc-lightning": ("gc", "Lightning", 2, 1),
    "gc-free": ("gc", "own loop", 2, 1),
    "cores": ("cores", "own loop", 4, 2),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark."""
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--only", choices=JOBS, nargs="+", default=list(JOBS))


def run(args: argparse.Namespace) -> list[Row]:
    """Four rows of each job: tails, throughput, and what stays the same."""
    return [row for name in args.only for row in _rows(name, args.steps)]


def _rows(name: str, steps: int) -> list[Row]:
    act, loop, world, threads = JOBS[name]
    free, acting = (_job(each, loop, world, threads, steps) for each in ("off", act))
    before, after = (np.array(found["times_ns"])[steps // 2 :] / 1e6 for found in (free, acting))
    pays = np.array(acting["pays"])
    since = np.array(acting["times_ns"])[pays] / 1e6
    since_p99 = float(np.percentile(since, 99)) if since.size else np.nan
    tails = [float(np.percentile(times, 99)) for times in (before, after)]
    every, acted = np.array(acting["times_ns"])[FEWEST:] / 1e6, np.array(acting["acted"])[FEWEST:]
    inside, outside = every[acted], every[~acted]
    within = [float(np.percentile(each, 99)) if each.size else np.nan for each in (outside, inside)]
    (told,) = acting["told"]
    low, high = told["low"], told["high"]
    ends = "no interval" if low is None else f"{100 * low:+.2f} to {100 * high:+.2f}"
    same = free["losses"] == acting["losses"] != []
    what = f"{act} on {world} gloo ranks of {threads} threads, {loop}, {steps} steps"
    command = f"{COMMAND} --only {name} --steps {steps}"
    halved = act == "gc"
    return [
        Row(f"{what}: p99 of the step", "halved" if halved else "none",
            f"{tails[0]:.1f} ms, {tails[1]:.1f} ms with it (times {tails[1] / tails[0]:.2f}; p50 "
            f"{np.median(before):.1f} and {np.median(after):.1f} ms); {since_p99:.1f} ms (times "
            f"{since_p99 / tails[0]:.2f}) in the {since.size} steps since it was found to pay",
            tails[1] <= 0.5 * tails[0] if halved else None, command),
        Row(f"{what}: p99 of steps acted in, beside those left out", "halved" if halved else "none",
            f"{within[1]:.1f} ms in {inside.size} steps, {within[0]:.1f} ms in {outside.size} "
            f"(times {within[1] / within[0]:.2f}); mean {inside.mean():.1f} and "
            f"{outside.mean():.1f} ms", within[1] <= 0.5 * within[0] if halved else None, command),
        Row(f"{what}: its own trial", "interval above 0",
            f"{told['word']}, a step is shorter by {100 * told['gain']:.2f} % ({ends}), "
            f"{told['pairs']} pairs, acted in {told['acted_steps']} steps; "
            f"{told['reason'] or 'nothing to gain here'}{told['note'] and ', ' + told['note']}",
            low is not None and low > 0, command),
        Row(f"{what}: losses, and memory from a quarter of the run on", "bit-identical, <= 5 %",
            f"{'the same' if same else 'DIFFERENT'}; {100 * acting['grown']:+.1f} % "
            f"({100 * free['grown']:+.1f} % without)", same and acting["grown"] <= 0.05, command),
    ]  # fmt: skip


def _job(act: str, loop: str, world: int, threads: int, steps: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="acting-") as folder:
        return run_ranks(
            "benchmarks.jobs.acting",
            *("--out", str(Path(folder) / "run"), "--act", act, "--steps", str(steps)),
            *("--loop", loop, "--threads", str(threads)),
            world=world,
        )
