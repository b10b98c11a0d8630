"""Which rank was late in which step, why, and what it cost: each lost nanosecond attributed once.

A cell is a rank's step. Its *excess* is its own work above the median of the other ranks' in the
same step. Late cells are those of chronically late ranks, and single ones far outside the noise.
What the job would have gained without their lateness is measured on the arrivals: the time between
the arrival of the last rank that is not late and that of the late one, as far as the others were
blocked in it. Overlapped collectives share one wait, so their stretches are joined, not added.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.diagnose.grid import StepGrid
from evenstep.diagnose.intervals import Intervals, overlap_length
from evenstep.trace.columns import Columns
from evenstep.trace.layout import SYNCHRONIZING_OPS, Phase

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
    work = grid.work_ns
    excess = above_others(work)
    steady = ~_unsteady(grid)
    noise = _noise(work[steady]) if steady.any() else 0.0
    chronic = _chronic(excess[steady], grid, contended=contended)
    step = float(np.median(grid.step_ns)) if len(grid.steps) else 0.0
    late = excess > max(EVENT_SHARE * step, EVENT_SIGMAS * noise)
    late |= chronic[None, :] & (excess > CHRONIC_SHARE / 2 * step)
    cause, phase = _causes(grid, excess, late)
    late &= cause != int(Cause.NONE)
    arrived = _synchronizing(grid)
    gain = recoverable(grid, arrived, late)
    weight = np.where(late, np.maximum(excess, 0), 0).astype(float)
    total = weight.sum(axis=1, keepdims=True)
    loss = np.where(total > 0, gain[:, None] * weight / np.where(total > 0, total, 1), 0.0)
    rest = np.maximum(_to_the_median(grid, arrived) - gain, 0)
    return Delays(grid, excess, cause, phase, loss, rest, chronic, noise)


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
    if not len(excess):
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


def _synchronizing(grid: StepGrid) -> Columns:
    """Rows of the grid's synchronizing collectives, with their cell and start-relative arrival."""
    rows = grid.arrivals.rows
    cell, inside = grid.cell(rows)
    wanted = inside & np.isin(rows.op, [int(op) for op in SYNCHRONIZING_OPS])
    rows, cell = rows.select(wanted), cell[wanted]
    base = grid.start_ns.reshape(-1)[cell]
    order = np.unique(rows.instance, return_inverse=True)[1] if len(rows) else rows.instance
    return Columns(
        {
            "cell": cell,
            "arrival_ns": rows.arrival_ns,
            "base_ns": base,
            "instance": order.astype(np.int64),
        }
    )


def recoverable(grid: StepGrid, rows: Columns, late: Array) -> Array:
    """Time each step would have gained had its late ranks arrived with the others. (steps,) ns."""
    if not len(rows):
        return np.zeros(len(grid.steps))
    is_late = late.reshape(-1)[rows.cell]
    count = int(rows.instance[-1]) + 1
    last = np.full(count, np.iinfo(np.int64).min)
    np.maximum.at(last, rows.instance, rows.arrival_ns)
    others = np.full(count, np.iinfo(np.int64).min)
    np.maximum.at(others, rows.instance[~is_late], rows.arrival_ns[~is_late])
    return _exposed(grid, rows, others, last, victims=~is_late)


def _to_the_median(grid: StepGrid, rows: Columns) -> Array:
    """The same had everybody arrived with the median rank."""
    if not len(rows):
        return np.zeros(len(grid.steps))
    ordered = rows.sorted_by("instance", "arrival_ns")
    edges = np.searchsorted(ordered.instance, np.arange(int(ordered.instance[-1]) + 2))
    size = np.diff(edges)
    lower = ordered.arrival_ns[edges[:-1] + (size - 1) // 2]
    upper = ordered.arrival_ns[edges[:-1] + size // 2]
    median = lower + (upper - lower) // 2
    last = ordered.arrival_ns[edges[1:] - 1]
    victims = rows.arrival_ns <= median[rows.instance]
    return _exposed(grid, rows, median, last, victims=victims)


def _exposed(grid: StepGrid, rows: Columns, since: Array, until: Array, *, victims: Array) -> Array:
    """Median over the victims of the time between `since` and `until` they were blocked in."""
    mine = rows.select(victims & (until > since)[rows.instance])
    steps, ranks = grid.shape
    start = np.maximum(mine.arrival_ns, since[mine.instance]) - mine.base_ns
    end = until[mine.instance] - mine.base_ns
    lost = overlap_length(Intervals(mine.cell, start, end), grid.blocked, steps * ranks)
    took_part = np.zeros(steps * ranks, bool)
    took_part[rows.cell[victims]] = True
    table = np.where(took_part, lost, np.nan).reshape(steps, ranks)
    result = np.zeros(steps)
    known = took_part.reshape(steps, ranks).any(axis=1)
    result[known] = np.nanmedian(table[known], axis=1)
    return result
