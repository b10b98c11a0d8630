"""Checkpoint intervals (Young, Daly), and the share of time that failures leave.

Symbols: C time a checkpoint holds the job up, M mean time between failures, R time from a failure
until training goes on, τ time of work between two checkpoints. Any one unit of time. Failures are
independent (exponential gaps), and may strike during a checkpoint or a restart.
"""

from __future__ import annotations

import math
from typing import NamedTuple


def young(write: float, mtbf: float) -> float:
    """τ = √(2CM) (Young 1974)."""
    return math.sqrt(2 * write * mtbf)


def daly(write: float, mtbf: float) -> float:
    """τ = √(2CM)(1 + ⅓√(C/2M) + C/(18M)) − C for C < 2M, else M (Daly 2006)."""
    if write >= 2 * mtbf:
        return mtbf
    ratio = write / (2 * mtbf)
    return math.sqrt(2 * write * mtbf) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - write


def waste(write: float, mtbf: float, *, interval: float, restart: float = 0.0) -> float:
    """Share of time lost, first order: C/τ + τ/(2M) + R/M; meaningful while it is small."""
    return write / interval + interval / (2 * mtbf) + restart / mtbf


class CheckpointShares(NamedTuple):
    """Shares of a job's time; they sum to 1."""

    useful: float
    writing: float  # completed checkpoints
    lost: float  # work and unfinished checkpoints thrown away by a failure
    down: float  # restarts


def shares(write: float, mtbf: float, *, interval: float, restart: float = 0.0) -> CheckpointShares:
    """Long-run shares, exact for exponential failures.

    A cycle of τ + C takes M e^(R/M) (e^((τ+C)/M) − 1) on average (Daly 2006). It has
    e^((τ+C)/M) − 1 failures during work, after each of which a restart takes M(e^(R/M) − 1).
    """
    if (interval + write + restart) / mtbf > 700:  # e^700: nothing ever completes
        lost = math.exp(-min(restart / mtbf, 700.0))
        return CheckpointShares(0.0, 0.0, lost, 1 - lost)
    failures = math.expm1((interval + write) / mtbf)
    total = mtbf * math.exp(restart / mtbf) * failures
    down = failures * mtbf * math.expm1(restart / mtbf)
    return CheckpointShares(
        interval / total, write / total, 1 - (interval + write + down) / total, down / total
    )


def best_interval(write: float, mtbf: float) -> float:
    """The interval with the largest useful share: τ/M = 1 − e^(−(τ+C)/M), by bisection.

    There the derivative of (e^((τ+C)/M) − 1)/τ is 0, whatever the restart takes.
    """
    low, high = 0.0, mtbf
    for _ in range(100):
        middle = (low + high) / 2
        if -math.expm1(-(middle + write) / mtbf) > middle / mtbf:
            low = middle
        else:
            high = middle
    return high


def longest_restart(write: float, mtbf: float, *, goal: float) -> float:
    """The longest restart that leaves the share `goal` of the time useful, at the best interval.

    0 where failures and checkpoints alone leave less.
    """
    interval = best_interval(write, mtbf)
    reachable = shares(write, mtbf, interval=interval).useful
    return max(0.0, mtbf * math.log(reachable / goal))
