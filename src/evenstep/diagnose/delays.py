"""Which rank was late in which step, why, and what it cost: each lost nanosecond attributed once.

A cell is a rank's step. Its *excess* is its own work above the median of the other ranks' in the
same step. Late cells are those of chronically late ranks, and single ones far outside the noise.
What the job would have gained without their lateness comes from a replay of the step's collectives
with the late cells' excess taken out: overlapped ones share one wait, compute hides some of it, and
a rank held up in one group is late in the next.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.diagnose.grid import StepGrid
from evenstep.diagnose.patterns import FEWEST
from evenstep.diagnose.replay import Program, Removed, by_layer, program, saved
from evenstep.trace.layout import Phase

Array = npt.NDArray[Any]

CHRONIC_SHARE = 0.02  # of a step: less persistent excess is left to chance
CHRONIC_STEPS = 0.7  # of the steps at least show a chronic rank's excess
EVENT_SHARE = 0.05  # of a step: a single delay below it is not worth a finding
EVENT_SIGMAS = 5.0
QUANTILE_SIGMA = 0.97  # (q25 - q05) of a normal distribution, in standard deviations
MAD_SIGMA = 1.4826  # standard deviation over median absolute deviation, normal distribution


class Cause(IntEnum):
    """Why a cell is late."""

    NONE = 0
    COLLECTOR = 1
    INPUT = 2
    CHECKPOINT = 3
    WORK = 4
    CONTENTION = 5


#: Phases of a rank's own work, in the order in which a tie is decided.
WORK_PHASES = (Phase.BACKWARD, Phase.FORWARD, Phase.OPTIMIZER, Phase.OTHER)


@dataclass(slots=True)
class Delays:
    """Attribution of a grid; arrays are (steps, ranks)."""

    grid: StepGrid
    excess_ns: Array  # own work above the median of the others
    cause: Array  # of `Cause`; NONE where the cell is not late
    phase: Array  # of `Phase`: where the excess lies
    loss_ns: Array  # what the job lost to this cell's lateness
    rest_ns: Array  # (steps,): further loss to ranks not arriving together, nobody's in particular
    chronic: Array  # (ranks,) bool
    noise_ns: float  # standard deviation of a rank's own work

    def cells(self, *causes: Cause) -> Array:
        """Mask of the cells that are late for one of these causes."""
        return np.isin(self.cause, [int(cause) for cause in causes])


def attribute(grid: StepGrid, *, contended: bool) -> Delays:
    """Find late cells and what they cost. `contended`: ranks compete for cores on their hosts."""
    if not grid.start_ns.size:
        return _nothing(grid)
    work = grid.work_ns
    excess = above_others(work)
    steady = ~_unsteady(grid)
    if np.count_nonzero(steady) < FEWEST:
        steady[:] = True
    noise = _noise(work[steady])
    chronic = _chronic(excess[steady], grid, contended=contended)
    step = float(np.median(grid.step_ns)) if len(grid.steps) else 0.0
    late = excess > max(EVENT_SHARE * step, EVENT_SIGMAS * noise)
    late |= chronic[None, :] & (excess > CHRONIC_SHARE / 2 * step)
    cause, phase = _causes(grid, excess, late)
    late &= cause != int(Cause.NONE)
    plan = program(grid)
    removed = _taken_out(plan, excess, late)
    lead, end = saved(plan, removed)
    gain = _gain(lead, end)
    loss = _shared_out(gain, lead, plan, removed)
    rest = _gain(*saved(plan, removed, lead, to_median=True)) - gain
    return Delays(grid, excess, cause, phase, loss, rest, chronic, noise)


def _nothing(grid: StepGrid) -> Delays:
    cells = np.zeros(grid.shape)
    cause, phase = cells.astype(int), cells.astype(int)
    chronic = np.zeros(len(grid.ranks), bool)
    return Delays(grid, cells, cause, phase, cells, np.zeros(len(grid.steps)), chronic, 0.0)


def above_others(values: Array) -> Array:
    """Each rank's value minus the median of the other ranks', step by step."""
    ranks = values.shape[1]
    if ranks < 2:
        return np.zeros(values.shape)
    ordered = np.sort(values, axis=1).astype(float)
    place = np.argsort(np.argsort(values, axis=1, kind="stable"), axis=1, kind="stable")
    low, high = (ranks - 2) // 2, (ranks - 1) // 2  # middle of the others, by index among them
    rows = np.arange(len(values))[:, None]
    below = ordered[rows, low + (place <= low)]
    above = ordered[rows, high + (place <= high)]
    result: Array = values - (below + above) / 2
    return result


def _noise(work: Array) -> float:
    """Spread of undisturbed work: from the lower quarter, where delays do not reach."""
    low, quarter = np.quantile(work, [0.05, 0.25], axis=0)
    return float(np.median((quarter - low) / QUANTILE_SIGMA))


def _unsteady(grid: StepGrid) -> Array:
    """Steps with a checkpoint or an evaluation on any rank."""
    if not len(grid.steps):
        return np.zeros(0, bool)
    extra = grid.phase_ns[Phase.CHECKPOINT] + grid.phase_ns[Phase.EVALUATION]
    return np.asarray((extra > 0).any(axis=1))


def _chronic(excess: Array, grid: StepGrid, *, contended: bool) -> Array:
    """Ranks whose usual excess is worth naming and stands out of its own noise."""
    if len(excess) < FEWEST:
        return np.zeros(grid.shape[1], bool)
    usual = np.quantile(excess, 1 - CHRONIC_STEPS, axis=0)
    noise = MAD_SIGMA * np.median(np.abs(excess - np.median(excess, axis=0)), axis=0)
    step = float(np.median(grid.step_ns))
    error = noise * np.sqrt(np.pi / 2 / len(excess))  # of a median, normal distribution
    floor = np.maximum(CHRONIC_SHARE * step, 4 * error)
    if contended:
        floor = np.maximum(floor, np.maximum(noise, 0.1 * step))
    result: Array = usual > floor
    return result


def _causes(grid: StepGrid, excess: Array, late: Array) -> tuple[Array, Array]:
    """The cause that explains at least half of a late cell's excess, and the phase it lies in."""
    phase = _phase_of(grid)
    cause = np.where(late, int(Cause.WORK), int(Cause.NONE))
    half = excess / 2
    for named, values in (
        (Cause.CONTENTION, grid.run_delay_ns),
        (Cause.INPUT, grid.phase_ns[Phase.INPUT]),
        (Cause.CHECKPOINT, grid.phase_ns[Phase.CHECKPOINT] + grid.phase_ns[Phase.EVALUATION]),
        (Cause.COLLECTOR, grid.pause_ns),
    ):
        cause[late & (above_others(values) >= half) & (values > 0)] = int(named)
    return cause, phase


def _phase_of(grid: StepGrid) -> Array:
    """Where each cell exceeds the others most."""
    phases = {phase: above_others(grid.phase_ns[phase]) for phase in WORK_PHASES[:-1]}
    known = sum(value for phase, value in grid.phase_ns.items() if phase is not Phase.OTHER)
    known = known - grid.phase_ns[Phase.SYNC] + grid.blocked_ns
    unclaimed = np.maximum(grid.duration_ns - known - grid.held_ns, 0)
    phases[Phase.OTHER] = above_others(unclaimed)
    phases[Phase.INPUT] = above_others(grid.phase_ns[Phase.INPUT])
    names = np.array([int(phase) for phase in phases])
    largest = np.argmax(np.stack(list(phases.values())), axis=0)
    return np.asarray(names[largest])


# -- what lateness cost ----------------------------------------------------------------------------


def _taken_out(plan: Program, excess: Array, late: Array) -> Removed:
    """Late cells' excess, laid where their own work between collectives is above the others'."""
    rows = np.zeros(len(plan.rows))
    tail = np.where(late, np.maximum(above_others(plan.tail_ns), 0), 0.0)
    for part, own in by_layer(plan, late.shape):
        more = np.maximum(above_others(own), 0)
        rows[part] = np.where(late & np.isfinite(more), more, 0.0).reshape(-1)[plan.rows.cell[part]]
    found = tail.reshape(-1) + np.bincount(plan.rows.cell, weights=rows, minlength=late.size)
    wanted = np.where(late, np.maximum(excess, 0), 0.0).reshape(-1)
    scale = wanted / np.where(found > 0, found, 1)
    return Removed(rows * scale[plan.rows.cell], tail * scale.reshape(late.shape))


def _gain(lead: Array, end: Array) -> Array:
    """How much shorter the job's step is: what the median rank has saved in it. (steps,).

    Over several steps the leads cancel, so a step may well be negative.
    """
    return np.asarray(np.median(end, axis=1) - np.median(lead, axis=1))


def _shared_out(gain: Array, lead: Array, plan: Program, removed: Removed) -> Array:
    """Each step's gain among the cells whose work was taken out, in proportion.

    A lead that some ranks bring from the step before is the merit of that step's cells.
    """
    steps, ranks = removed.tail_ns.shape
    within = np.bincount(plan.rows.cell, weights=removed.rows_ns, minlength=steps * ranks)
    within = within.reshape(steps, ranks)
    taken = within + removed.tail_ns
    whole = taken.sum(axis=1, keepdims=True)
    before = lead.max(axis=1, initial=0)
    before[1:] += removed.tail_ns[:-1].sum(axis=1)
    total = within.sum(axis=1) + before
    each = gain / np.where(total > 0, total, 1)
    loss = each[:, None] * within
    loss[:-1] += (each * before)[1:, None] * (taken / np.where(whole > 0, whole, 1))[:-1]
    return np.asarray(loss)
