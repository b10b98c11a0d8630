"""The simulator's time and memory, whole processes with their imports.

W1 is a ring all-reduce simulated message by message; the others are a thousand and more ranks on an
oversubscribed fabric with noise and two neighbours, in the fast engine.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from benchmarks.measure import Row
from benchmarks.ranks import run_alone

COMMAND = "python -m benchmarks simulator"
JOB = "benchmarks.jobs.simulating"
SCENARIOS = Path(__file__).parents[1] / "examples" / "scenarios"
EXACT_BARS = {1024: (1.5, 500.0), 4096: (8.0, 500.0)}  # ranks: seconds, MB
LARGE_BAR = (30.0, 6000.0)
FLAT_BAR = 2.0
FLAT_RANKS = (256, 1024, 4096, 16384)
NODES_BESIDE = 128  # that the neighbours need


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark."""
    parser.add_argument("--steps", type=int, default=1000, help="of the scenario with 1,024 ranks")


def run(args: argparse.Namespace) -> list[Row]:
    """Exact rings, a long run with and without its trace, large runs."""
    rows = [_exact(ranks, *bars) for ranks, bars in EXACT_BARS.items()]
    rows += [_long(args.steps, traced=False), _long(args.steps, traced=True)]
    return rows + _large()


def _exact(ranks: int, seconds: float, megabytes: float) -> Row:
    found = run_alone(JOB, str(SCENARIOS / "ring.toml"), "--set", f"cluster.nodes={ranks}")
    closed_ns = 2 * (ranks - 1) * (2e3 + 1e8 / ranks / 12.5)
    error = abs(found["mean_ns"] / closed_ns - 1)
    return Row(
        f"ring all-reduce of {ranks:,} ranks, message by message",
        f"< {seconds:g} s, < {megabytes:.0f} MB, within 0.1 %",
        f"{_cost(found)}, off by {100 * error:.4f} %",
        found["seconds"] < seconds and found["megabytes"] < megabytes and error < 1e-3,
        COMMAND,
    )


def _long(steps: int, *, traced: bool) -> Row:
    bar = 40.0 if traced else 10.0
    extra = ["--trace"] if traced else []
    found = _oversubscribed(1024, steps, *extra)
    return Row(
        f"{steps:,} steps of 1,024 ranks, 25 buckets, two neighbours"
        + (", the whole trace written" if traced else ""),
        f"< {bar:.0f} s",
        _cost(found),
        found["seconds"] < bar,
        COMMAND,
    )


def _large() -> list[Row]:
    found = {ranks: _oversubscribed(ranks, 100) for ranks in FLAT_RANKS}
    largest = found[FLAT_RANKS[-1]]
    each = {ranks: 1e6 * one["seconds"] / one["rank_steps"] for ranks, one in found.items()}
    growth = each[FLAT_RANKS[-1]] / each[FLAT_RANKS[0]]
    return [
        Row(
            "100 steps of 16,384 ranks, the same",
            f"< {LARGE_BAR[0]:.0f} s, < {LARGE_BAR[1]:.0f} MB",
            _cost(largest),
            largest["seconds"] < LARGE_BAR[0] and largest["megabytes"] < LARGE_BAR[1],
            COMMAND,
        ),
        Row(
            "time per rank-step at 256, 1,024, 4,096, 16,384 ranks",
            f"at the largest at most {FLAT_BAR:g} × that at the smallest",
            ", ".join(f"{value:.2f}" for value in each.values()) + " µs, imports included",
            growth <= FLAT_BAR,
            COMMAND,
        ),
    ]


def _oversubscribed(ranks: int, steps: int, *extra: str) -> dict[str, Any]:
    return run_alone(
        JOB,
        str(SCENARIOS / "oversubscribed.toml"),
        *("--set", f"cluster.nodes={ranks + NODES_BESIDE}", "--set", f"job.ranks={ranks}"),
        *("--set", f"run.steps={steps}", *extra),
    )


def _cost(found: dict[str, Any]) -> str:
    return f"{found['seconds']:.2f} s, {found['megabytes']:.0f} MB"
