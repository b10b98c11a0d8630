"""What ranks do between the moments at which all of them wait for one another.

A step is cut at its barriers: collectives of the widest groups in which the training thread was
blocked. What a rank spends between two of them, in narrower groups too, is its own; the step then
takes the sum over the segments of the longest own time, and a rest that is nobody's own.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evenstep.diagnose.lateness.replay import Program, by_layer, program
from evenstep.diagnose.measure.grid import StepGrid
from evenstep.trace.spool.layout import Phase

Array = npt.NDArray[Any]


class Segments(NamedTuple):
    """Own work between barriers, in steady steps."""

    own_ns: Array  # (steps, segments, ranks)
    step_ns: Array  # (steps,) from the last barrier of the step before to that of this one
    units: float  # ranks that vary independently of each other: narrower groups count as one
    unsteady: Array  # what steps with a checkpoint or evaluation took more than a steady one
    barriers: bool  # whether any was seen

    @property
    def rest_ns(self) -> Array:
        """Step time that is nobody's own work. Shape (steps,)."""
        return np.asarray(self.step_ns - self.own_ns.max(axis=2).sum(axis=1))


def segments(grid: StepGrid) -> Segments:
    """Cut the grid's steps at their barriers."""
    unsteady = _unsteady(grid)
    seen = _seen(grid)
    plan = program(grid)
    found = _cut(plan, grid) if plan.instances else None
    nothing = grid.work_ns[:, None, :].astype(float), 1, np.zeros(grid.shape)
    own, narrow, carried = found or nothing
    step = np.median(grid.duration_ns + carried, axis=1)
    steady = seen & ~unsteady
    usual = float(np.median(step[steady]))
    more = np.where(unsteady, step - usual, 0.0)[seen]
    units = len(grid.ranks) / narrow
    return Segments(own[steady], step[steady], units, more, found is not None)


def _seen(grid: StepGrid) -> Array:
    """Steps whose collectives, and those of the step before, are at hand: see `StepGrid.piece`."""
    if not grid.sampled.any():
        return np.ones(len(grid.steps), bool)
    return np.asarray(grid.sampled & np.concatenate([grid.sampled[:1], grid.sampled[:-1]]))


def _unsteady(grid: StepGrid) -> Array:
    """Steps with a checkpoint or an evaluation, and those right after; none if most have one."""
    writing = grid.phase_ns[Phase.CHECKPOINT] + grid.phase_ns[Phase.EVALUATION]
    found = np.asarray((writing > 0).any(axis=1))
    found[1:] |= found[:-1].copy()  # what follows a barrier counts with the next step
    return found if float(found.mean()) <= 0.5 else np.zeros(len(found), bool)


def _cut(plan: Program, grid: StepGrid) -> tuple[Array, int, Array] | None:
    """(steps, segments, ranks) of own work, how many ranks a narrower group has, and the work.

    The last is (steps, ranks): what lies after the last barrier of the step before, less what lies
    after this step's. None where nobody was seen to be blocked.
    """
    members = np.bincount(plan.rows.instance)[plan.rows.instance]
    widest = int(members.max())
    parts: list[Array] = []
    pending = np.zeros(grid.shape)
    for part, own in by_layer(plan, grid.shape):
        blocked = _scattered(plan, part, plan.rows.blocked_ns[part], grid)
        wide = _scattered(plan, part, (members[part] == widest).astype(float), grid) > 0
        pending = pending + np.nan_to_num(own)
        if (wide & (blocked > 0)).sum() >= 0.5 * np.isfinite(own).sum():
            parts.append(pending)
            pending = np.zeros(grid.shape)
        else:
            pending = pending + np.where(wide, 0.0, blocked)
    if not parts:
        return None
    after = pending + plan.tail_ns
    first = np.concatenate([after[:1], after[:-1]])  # it lies before the next step's barrier
    parts = [parts[0] + first, *parts[1:]]
    narrow = max(1, round(len(grid.ranks) / widest))
    return np.stack(parts, axis=1), narrow, first - after


def _scattered(plan: Program, part: slice, values: Array, grid: StepGrid) -> Array:
    cells = np.zeros(grid.start_ns.size)
    cells[plan.rows.cell[part]] = values
    return grid.shaped(cells)
