"""Actions on real ranks: gloo ranks that allocate, or share cores, with an action and without.

The same job twice: all steps count, those included in which the trial is not sure yet; and those
since rank 0's trial was. Within the acting job the trial compares blocks in random order, so its
interval is undisturbed by what else the machine does, as are the steps acted in beside those left
out.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import Row
from benchmarks.ranks import run_ranks
from evenstep.cli.progress import ticking

COMMAND = "python -m benchmarks acting"
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
    before, after = (np.array(found["times_ns"])[1:] / 1e6 for found in (free, acting))
    pays, acted = (np.array(acting[each])[1:] for each in ("pays", "acted"))
    tails = [_p99(times) for times in (before, after)]
    since = [_p99(times[pays]) for times in (before, after)]
    inside, outside = after[acted & pays], after[~acted & pays]
    left_out = (
        f"{_p99(outside):.1f} ms in {outside.size} left out" if outside.size else "none left out"
    )
    (told,) = acting["told"]
    low, high = told["low"], told["high"]
    ends = "no interval" if low is None else f"{100 * low:+.2f} to {100 * high:+.2f}"
    same = free["losses"] == acting["losses"] != []
    what = f"{act} on {world} gloo ranks of {threads} threads, {loop}, {steps} steps"
    command = f"{COMMAND} --only {name} --steps {steps}"
    halved = act == "gc"
    return [
        Row(f"{what}: p99 of all steps", "halved" if halved else "none",
            f"{tails[0]:.1f} ms, {tails[1]:.1f} ms with it (times {tails[1] / tails[0]:.2f}; p50 "
            f"{np.median(before):.1f} and {np.median(after):.1f} ms, mean {before.mean():.1f} and "
            f"{after.mean():.1f} ms)", tails[1] <= 0.5 * tails[0] if halved else None, command),
        Row(f"{what}: p99 of steps since it was found to pay", "halved" if halved else "none",
            f"{since[0]:.1f} ms, {since[1]:.1f} ms with it (times {since[1] / since[0]:.2f}) in "
            f"{pays.sum()} steps; p99 {_p99(inside):.1f} ms in those acted in, {left_out}",
            since[1] <= 0.5 * since[0] if halved else None, command),
        Row(f"{what}: its own trial", "interval above 0",
            f"{told['word']}, a step is shorter by {100 * told['gain']:.2f} % ({ends}), "
            f"{told['pairs']} pairs, acted in {told['acted_steps']} steps; "
            f"{told['reason'] or 'nothing to gain here'}{told['note'] and ', ' + told['note']}",
            low is not None and low > 0, command),
        Row(f"{what}: losses, and memory from a quarter of the run on", "bit-identical, <= 5 %",
            f"{'the same' if same else 'DIFFERENT'}; {100 * acting['grown']:+.1f} % "
            f"({100 * free['grown']:+.1f} % without)", same and acting["grown"] <= 0.05, command),
    ]  # fmt: skip


def _p99(times: np.ndarray) -> float:
    return float(np.percentile(times, 99)) if times.size else np.nan


def _job(act: str, loop: str, world: int, threads: int, steps: int) -> dict[str, Any]:
    what = f"{steps} steps of {world} ranks, {loop}, --act {act}"
    with tempfile.TemporaryDirectory(prefix="acting-") as folder, ticking(what):
        return run_ranks(
            "benchmarks.jobs.acting",
            *("--out", str(Path(folder) / "run"), "--act", act, "--steps", str(steps)),
            *("--loop", loop, "--threads", str(threads)),
            world=world,
        )
