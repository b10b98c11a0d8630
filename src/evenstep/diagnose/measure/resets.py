"""What a checkpoint or a restart does to a run's steadiness: reset, unchanged or amplified.

The CV of the step time, the slow ranks and the floor of the exposed transfer in the steps before
are compared with those after.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evenstep.diagnose.measure.grid import StepGrid
from evenstep.trace.spool.layout import Phase

Array = npt.NDArray[Any]

WINDOW = 32  # steps at most on either side
FEWEST = 8  # steps on either side
SLOW = 0.05  # of a step above the median of the ranks
CHANGED = 1.25  # ratio of CVs that is worth a word
CERTAIN = 3.0  # standard errors of the logarithm of that ratio
FLOOR = 0.05  # quantile
LISTED = 8
KINDS = ("reset", "unchanged", "amplified")


class Side(NamedTuple):
    """Steps before or after an event."""

    step_ns: Array
    cv: float
    slow: list[int]
    floor_ns: float | None


def side(grid: StepGrid, rows: Array) -> Side:
    """Measure some rows of the grid."""
    step = grid.step_ns[rows]
    work = np.median(grid.work_ns[rows], axis=0)
    slow = grid.ranks[work - np.median(work) > SLOW * float(np.median(step))]
    exposed = np.maximum(grid.blocked_ns[rows] - grid.wait_ns[rows], 0).mean(axis=1)
    return Side(step, cv_of(step), [int(rank) for rank in slow], float(np.quantile(exposed, FLOOR)))


def cv_of(step_ns: Array) -> float:
    """Coefficient of variation without the odd step: from the middle 90 %."""
    low, high = np.quantile(step_ns, [0.05, 0.95])
    kept = step_ns[(step_ns >= low) & (step_ns <= high)]
    return float(kept.std() / kept.mean()) if kept.mean() > 0 else 0.0


def judged(before: Side, after: Side) -> str:
    """Whether unsteadiness fell, stayed or rose beyond chance.

    The logarithm of a standard deviation has a standard error of 1/√(2n) (normal distribution).
    """
    if min(before.cv, after.cv) <= 0:
        return "unchanged"
    change = float(np.log(after.cv / before.cv))
    error = np.sqrt(0.5 / len(before.step_ns) + 0.5 / len(after.step_ns))
    if len(after.slow) != len(before.slow):
        return "amplified" if len(after.slow) > len(before.slow) else "reset"
    if abs(change) < max(np.log(CHANGED), CERTAIN * error):
        return "unchanged"
    return "amplified" if change > 0 else "reset"


def events(grid: StepGrid) -> list[tuple[int, Side, Side]]:
    """(row, before, after) of every checkpoint with enough steps around it."""
    if not len(grid.steps):
        return []
    writing = np.asarray((grid.phase_ns[Phase.CHECKPOINT] > 0).any(axis=1))
    rows = np.flatnonzero(writing)
    found = []
    for index, row in enumerate(rows):
        start = rows[index - 1] + 1 if index else 0
        end = rows[index + 1] if index + 1 < len(rows) else len(writing)
        before = np.arange(max(start, row - WINDOW), row)
        after = np.arange(row + 1, min(end, row + 1 + WINDOW))
        if min(len(before), len(after)) >= FEWEST:
            found.append((int(row), side(grid, before), side(grid, after)))
    return found


def entry(step: int, kind: str, before: Side, after: Side) -> dict[str, Any]:
    """One event as plain values: pairs are before and after."""
    return {
        "step": step,
        "kind": kind,
        "cv": [before.cv, after.cv],
        "slow_ranks": [before.slow, after.slow],
        "floor_ns": [before.floor_ns, after.floor_ns],
        "verdict": judged(before, after),
    }


def summary(grid: StepGrid, restarts: Sequence[dict[str, Any]] = ()) -> dict[str, Any] | None:
    """How often checkpoints reset, leave or amplify unsteadiness; the latest few. None: no such.

    `restarts`: entries of the same form, for the restarts before this attempt.
    """
    entries = [entry(int(grid.steps[row]), "checkpoint", *sides) for row, *sides in events(grid)]
    entries = [*restarts, *entries]
    if not entries:
        return None
    return {
        **{kind: sum(one["verdict"] == kind for one in entries) for kind in KINDS},
        "events": entries[-LISTED:],
    }
