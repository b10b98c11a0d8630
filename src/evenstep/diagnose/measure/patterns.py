"""When something happens: how late cells recur over the steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.diagnose.finding import When
from evenstep.diagnose.levels import MOST

Array = npt.NDArray[Any]

DOMINANT = 0.8  # of the cells: from here on it is one rank's matter
RUN_LENGTH = 3.0  # steps in a row, on average: from here on it comes in bursts
FEWEST_STEPS = 5  # steps, below which nothing can be said to recur
RANGES = 20  # listed at most


def pattern_of(late: Array) -> str | None:
    """Pattern of a (steps, ranks) mask; None where nothing is late, or there are too few steps.

    chronic: the same ranks in most steps; rotating: most steps, but another rank each time;
    bursty: stretches of steps; transient: single steps.
    """
    per_rank = late.sum(axis=0)
    any_late = np.asarray(late.any(axis=1))
    if not any_late.any() or len(late) < FEWEST_STEPS:
        return None
    share = float(any_late.mean())
    usual = per_rank >= MOST * len(late)
    at_once = late[:, usual].sum(axis=1)
    in_turns = usual.sum() > 1 and (at_once == 1).sum() >= DOMINANT * (at_once > 0).sum()
    if per_rank[usual].sum() >= DOMINANT * per_rank.sum() and not in_turns:
        return "chronic"
    if share >= MOST and per_rank.max() < DOMINANT * per_rank.sum():
        return "rotating"
    return "bursty" if _mean_run(any_late) >= RUN_LENGTH else "transient"


def _mean_run(flags: Array) -> float:
    """Mean length of the runs of True."""
    starts = np.count_nonzero(flags[1:] & ~flags[:-1]) + bool(flags[0])
    return float(np.count_nonzero(flags)) / starts if starts else 0.0


def when(late: Array, steps: Array) -> When:
    """The steps in which anything is late, as ranges, and the pattern.

    A chronic or rotating state is one range; of single steps at most `RANGES` ranges are listed,
    the longest ones, in order.
    """
    pattern = pattern_of(late)
    concerned = steps[late.any(axis=1)]
    if not len(concerned):
        return When()
    if pattern in ("chronic", "rotating"):
        return When([(int(concerned[0]), int(concerned[-1]))], pattern)
    breaks = np.flatnonzero(np.diff(concerned) > 1)
    first = concerned[np.concatenate([[0], breaks + 1])]
    last = concerned[np.concatenate([breaks, [len(concerned) - 1]])]
    longest = np.sort(np.argsort(first - last, kind="stable")[:RANGES])
    return When([(int(first[i]), int(last[i])) for i in longest], pattern)


def throughout(steps: Array, pattern: str = "chronic") -> When:
    """All steps that were seen."""
    return When([(int(steps[0]), int(steps[-1]))], pattern)
