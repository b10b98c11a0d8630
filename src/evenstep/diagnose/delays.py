"""Which rank was late in which step, why, and what it cost: each lost nanosecond attributed once.

A cell is a rank's step. Its *excess* is its own work above the median of the other ranks' in the
same step, whose recorded pauses do not count: most ranks may pause at once. Late cells are those of
chronically late ranks, and single ones far outside the noise.
What the job would have gained without their lateness comes from a replay of the step's collectives
with the late cells' excess taken out: overlapped ones share one wait, compute hides some of it, and
a rank held up in one group is late in the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evenstep.diagnose.grid import StepGrid
from evenstep.diagnose.patterns import FEWEST
from evenstep.diagnose.replay import Ahead, Program, Removed, by_layer, program, saved
from evenstep.trace.cores import each
from evenstep.trace.layout import Phase

Array = npt.NDArray[Any]

CHRONIC_SHARE = 0.02  # of a step: less persistent excess is left to chance
CHRONIC_STEPS = 0.7  # of the steps at least show a chronic rank's excess
EVENT_SHARE = 0.05  # of a step: a single delay below it is not worth a finding
EVENT_SIGMAS = 5.0
QUANTILE_SIGMA = 0.97  # (q25 - q05) of a normal distribution, in standard deviations
CHAINED = 4  # pieces of a large run replayed one after the other; chains run side by side
APPROACH = 16  # steps replayed before a chain: leads between ranks rarely last longer
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
    excess = above_others(work - grid.pause_ns) + grid.pause_ns
    steady = ~_unsteady(grid)
    if np.count_nonzero(steady) < FEWEST:
        steady[:] = True
    noise = _noise(work[steady])
    chronic = _chronic(excess[steady], grid, contended=contended)
    step = float(np.median(grid.step_ns)) if len(grid.steps) else 0.0
    late = excess > max(EVENT_SHARE * step, EVENT_SIGMAS * noise)
    late |= chronic[None, :] & (excess > CHRONIC_SHARE / 2 * step)
    # a pause on record is no noise, however much ranks vary
    late |= (grid.pause_ns > CHRONIC_SHARE / 2 * step) & (excess > grid.pause_ns / 2)
    cause, phase = _causes(grid, excess, late)
    usual = np.median(excess, axis=0) + max(EVENT_SHARE * step, EVENT_SIGMAS * noise)
    as_ever = late & chronic[None, :] & (excess <= usual[None, :])
    cause = np.where(as_ever & (cause == int(Cause.WORK)), _usually(grid, excess)[None, :], cause)
    late &= cause != int(Cause.NONE)
    loss, rest = _costs(grid, excess, late)
    return Delays(grid, excess, cause, phase, loss, rest, chronic, noise)


def _nothing(grid: StepGrid) -> Delays:
    cells = np.zeros(grid.shape)
    cause, phase = cells.astype(int), cells.astype(int)
    chronic = np.zeros(len(grid.ranks), bool)
    return Delays(grid, cells, cause, phase, cells, np.zeros(len(grid.steps)), chronic, 0.0)


def above_others(values: Array) -> Array:
    """Each rank's value minus the median of the other ranks', step by step.

    Of an even number of others the upper middle: most of all ranks are not late, the rest early.
    """
    ranks = values.shape[1]
    if ranks < 2:
        return np.zeros(values.shape)
    middle = (ranks - 1) // 2  # of the others, by index among them
    ordered = np.partition(values, [middle, middle + 1], axis=1)
    low, high = ordered[:, middle, None], ordered[:, middle + 1, None]
    # who is at or below the middle is not among the others
    result: Array = values - np.where(values <= low, high, low).astype(float)
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
    for named, values in _recorded(grid):
        more = values if named is Cause.COLLECTOR else above_others(values)
        cause[late & (more >= half) & (values > 0)] = int(named)
    return cause, phase


def _recorded(grid: StepGrid) -> list[tuple[Cause, Array]]:
    """What is recorded of each cause but a rank's own work."""
    return [
        (Cause.CONTENTION, grid.run_delay_ns),
        (Cause.INPUT, grid.phase_ns[Phase.INPUT]),
        (Cause.CHECKPOINT, grid.phase_ns[Phase.CHECKPOINT] + grid.phase_ns[Phase.EVALUATION]),
        (Cause.COLLECTOR, grid.pause_ns),
    ]


def _usually(grid: StepGrid, excess: Array) -> Array:
    """Per rank, the cause of its usual excess: of what is chronic single steps do not decide."""
    cause = np.full(grid.shape[1], int(Cause.WORK))
    half = np.median(excess, axis=0) / 2
    for named, values in _recorded(grid):
        usual = np.median(above_others(values), axis=0)
        cause[(usual >= half) & (usual > 0)] = int(named)
    return cause


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


def _costs(grid: StepGrid, excess: Array, late: Array) -> tuple[Array, Array]:
    """What every late cell cost, and the further loss of each step: a large run in chains."""
    chains = [grid.pieces[i : i + CHAINED] for i in range(0, len(grid.pieces), CHAINED)]
    parts = each(lambda chain: _chained(grid, excess, late, chain), chains)
    loss, rest = (np.concatenate(found) for found in zip(*parts, strict=True))
    return loss, rest


class _Reached(NamedTuple):
    """How far ranks are ahead when a stretch of steps begins, replayed with and without noise."""

    usual: Ahead
    to_median: Ahead


def _chained(
    grid: StepGrid, excess: Array, late: Array, chain: Sequence[tuple[int, int]]
) -> tuple[Array, Array]:
    """Loss and rest of stretches that follow one another, each beginning as the one before ended.

    In the middle of a run, some steps before the first stretch tell how ranks come into it.
    """
    ranks = grid.shape[1]
    first = chain[0][0]
    nothing = Ahead(np.zeros(ranks), np.zeros(ranks))
    begin = max(first - APPROACH, 0)
    if begin > 0:
        tail = _removed(grid.piece(begin - 1, begin), excess, late, begin - 1)[1].tail_ns[0]
        nothing = nothing._replace(late_ns=tail)
    reached = _Reached(nothing, nothing)
    if begin < first:
        _, _, reached = _replayed(grid, excess, late, (begin, first), reached)
    losses, rests = [], []
    for piece in chain:
        loss, rest, reached = _replayed(grid, excess, late, piece, reached)
        losses.append(loss)
        rests.append(rest)
    return np.concatenate(losses), np.concatenate(rests)


def _replayed(
    grid: StepGrid, excess: Array, late: Array, piece: tuple[int, int], reached: _Reached
) -> tuple[Array, Array, _Reached]:
    """Loss and rest of some steps, and how ranks leave them.

    The step after has a part in what its predecessor cost.
    """
    first, last = piece
    number, beyond = last - first, min(last + 1, len(grid.steps))
    plan, removed = _removed(grid.piece(first, beyond), excess, late, first)
    lead, end = saved(plan, removed, ahead=reached.usual)
    gain = _gain(lead, end)
    loss = _shared_out(gain, lead, plan, removed, reached.usual.late_ns)
    free, free_end = saved(plan, removed, lead, to_median=True, ahead=reached.to_median)
    rest = _gain(free, free_end) - gain
    if beyond > last:
        tail = removed.tail_ns[number - 1]
        reached = _Reached(Ahead(lead[number], tail), Ahead(free[number], tail))
    return loss[:number], rest[:number], reached


def _removed(grid: StepGrid, excess: Array, late: Array, first: int) -> tuple[Program, Removed]:
    """The program of a piece that begins at step `first`, and what is taken out of it."""
    plan = program(grid)
    steps = slice(first, first + len(grid.steps))
    return plan, _taken_out(plan, excess[steps], late[steps])


def _taken_out(plan: Program, excess: Array, late: Array) -> Removed:
    """Late cells' excess, laid where their own work between collectives is above the others'."""
    rows = np.zeros(len(plan.rows))
    tail = np.where(late, np.maximum(above_others(plan.tail_ns), 0), 0.0)
    for part, own in by_layer(plan, late.shape):
        # who has no part in it does nothing then: the two ends of a message are not all ranks
        more = np.maximum(above_others(np.nan_to_num(own)), 0)
        rows[part] = np.where(late, more, 0.0).reshape(-1)[plan.rows.cell[part]]
    found = tail.reshape(-1) + np.bincount(plan.rows.cell, weights=rows, minlength=late.size)
    wanted = np.where(late, np.maximum(excess, 0), 0.0).reshape(-1)
    hidden = (wanted > 2 * found).reshape(late.shape)
    if hidden.any():
        rows, tail = _above_usual(plan, hidden, rows, tail)
        found = tail.reshape(-1) + np.bincount(plan.rows.cell, weights=rows, minlength=late.size)
    scale = wanted / np.where(found > 0, found, 1)
    return Removed(rows * scale[plan.rows.cell], tail * scale.reshape(late.shape))


def _above_usual(plan: Program, hidden: Array, rows: Array, tail: Array) -> tuple[Array, Array]:
    """Of cells whose excess others have at the same time, where they exceed what is usual."""
    rows, tail = rows.copy(), tail.copy()
    usual = np.median(plan.tail_ns, axis=0)
    tail[hidden] = np.maximum(plan.tail_ns - usual, 0)[hidden]
    for part, own in by_layer(plan, hidden.shape):
        cell = plan.rows.cell[part]
        mine = hidden.reshape(-1)[cell]
        if mine.any():
            known = own[:, ~np.isnan(own).all(axis=0)]
            more = np.maximum(own - np.nanmedian(known), 0).reshape(-1)[cell]
            rows[part] = np.where(mine, more, rows[part])
    return rows, tail


def _gain(lead: Array, end: Array) -> Array:
    """How much shorter the job's step is: what the median rank has saved in it. (steps,).

    Over several steps the leads cancel, so a step may well be negative.
    """
    return np.asarray(np.median(end, axis=1) - np.median(lead, axis=1))


def _shared_out(gain: Array, lead: Array, plan: Program, removed: Removed, late_ns: Array) -> Array:
    """Each step's gain among the cells whose work was taken out, in proportion.

    A lead that some ranks bring from the step before is the merit of that step's cells.
    """
    steps, ranks = removed.tail_ns.shape
    within = np.bincount(plan.rows.cell, weights=removed.rows_ns, minlength=steps * ranks)
    within = within.reshape(steps, ranks)
    taken = within + removed.tail_ns
    whole = taken.sum(axis=1, keepdims=True)
    before = lead.max(axis=1, initial=0)
    before[0] += late_ns.sum()
    before[1:] += removed.tail_ns[:-1].sum(axis=1)
    total = within.sum(axis=1) + before
    each = gain / np.where(total > 0, total, 1)
    loss = each[:, None] * within
    loss[:-1] += (each * before)[1:, None] * (taken / np.where(whole > 0, whole, 1))[:-1]
    return np.asarray(loss)
