"""Which rank was late in which step, why, and what it cost: each lost nanosecond attributed once.

A cell is a rank's step. Its *excess* is its own work above the median of the other ranks' in the
same step, whose recorded pauses do not count: most ranks may pause at once. Late cells are those of
chronically late ranks, and single ones far outside the noise.
What the job would have gained without their lateness comes from a replay of its graph with the late
cells' excess taken out: overlapped ones share one wait, compute hides some of it, and a rank held
up in one group is late in the next.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.diagnose.lateness.cost import Costs
from evenstep.diagnose.lateness.others import above_others
from evenstep.diagnose.lateness.thresholds import (
    CHRONIC_SHARE,
    chronic_ranks,
    event_of,
    noise_of,
    unsteady,
    usual,
)
from evenstep.diagnose.measure.grid import StepGrid
from evenstep.diagnose.measure.patterns import FEWEST
from evenstep.trace.spool.layout import Phase

Array = npt.NDArray[Any]


class Cause(IntEnum):
    """Why a cell is late."""

    NONE = 0
    COLLECTOR = 1
    INPUT = 2
    CHECKPOINT = 3
    WORK = 4
    CONTENTION = 5


RECURRING = 0.1  # of the steps with a lateness of one recorded cause
#: Phases of a rank's own work, in the order in which a tie is decided.
WORK_PHASES = (Phase.BACKWARD, Phase.FORWARD, Phase.OPTIMIZER, Phase.OTHER)


@dataclass(slots=True)
class Delays:
    """Attribution of a grid; arrays are (steps, ranks)."""

    grid: StepGrid
    excess_ns: Array  # own work above the median of the others
    cause: Array  # of `Cause`; NONE where the cell is not late
    phase: Array  # of `Phase`: where the excess lies
    late_ns: Array  # what a cell is late by, noise left out; 0 where it is not late
    loss_ns: Array  # what the job lost to this cell's lateness
    rest_ns: Array  # (steps,): further loss to ranks not arriving together, nobody's in particular
    chronic: Array  # (ranks,) bool
    noise_ns: float  # standard deviation of a rank's own work

    @property
    def lasting(self) -> Array:
        """Cells that are late as their rank always is: by its own work, not by a single event."""
        return np.asarray(self.chronic[None, :] & (self.cause == int(Cause.WORK)))

    def cells(self, *causes: Cause) -> Array:
        """Mask of the cells that are late for one of these causes."""
        return np.isin(self.cause, [int(cause) for cause in causes])


def attribute(grid: StepGrid, costs: Costs | None, *, contended: bool) -> Delays:
    """Find late cells and what they cost. `contended`: ranks compete for cores on their hosts."""
    if costs is None or not grid.start_ns.size:
        return _nothing(grid)
    work = grid.work_ns
    excess = above_others(work - grid.pause_ns) + grid.pause_ns
    steady = ~unsteady(grid)
    if np.count_nonzero(steady) < FEWEST:
        steady[:] = True
    noise = noise_of(work[steady])
    chronic = chronic_ranks(excess[steady], grid, contended=contended)
    step = float(np.median(grid.step_ns)) if len(grid.steps) else 0.0
    event = event_of(excess[:, ~chronic], step, noise)
    late = excess > event
    late |= chronic[None, :] & (excess > CHRONIC_SHARE / 2 * step)
    # a pause on record is no noise, however much ranks vary
    late |= (grid.pause_ns > CHRONIC_SHARE / 2 * step) & (excess > grid.pause_ns / 2)
    cause, phase = _causes(grid, excess, late)
    as_ever = late & chronic[None, :] & (excess <= np.median(excess, axis=0) + event)
    cause = np.where(as_ever & (cause == int(Cause.WORK)), _usually(grid, excess)[None, :], cause)
    late &= cause != int(Cause.NONE)
    delay = np.where(late, _delay(grid, excess, chronic, event), 0.0)
    for named, values in _recorded(grid):
        mine = _whole(grid, cause, named)
        if mine.any():
            more = values if named is Cause.COLLECTOR else above_others(values)
            there = mine[None, :] & (more > 0) & np.isin(cause, (int(Cause.NONE), int(named)))
            cause, late = np.where(there, int(named), cause), late | there
            delay = np.where(there, np.minimum(more, grid.work_ns), delay)
    lasting = chronic[None, :] & (cause == int(Cause.WORK))
    loss, rest = _cost(grid, costs, delay, lasting)
    return Delays(grid, excess, cause, phase, delay, loss, rest, chronic, noise)


def _cost(grid: StepGrid, costs: Costs, delay: Array, lasting: Array) -> tuple[Array, Array]:
    """What each late cell cost, a step's loss shared in proportion; and what evening all work
    would save beyond that, per step."""
    relieved = costs.without(delay[grid.sampled], lasting[grid.sampled])
    saved = costs.saved([relieved, costs.even(relieved)])
    gain, even = np.zeros(len(grid.steps)), np.zeros(len(grid.steps))
    gain[grid.sampled], even[grid.sampled] = saved
    gain, even = grid.spread(gain), grid.spread(even)
    total = delay.sum(axis=1)
    carried = np.where(total > 0, total, 0.0)
    share = gain.sum() / carried.sum() if carried.sum() > 0 else 0.0
    return delay * share, even - gain


def _delay(grid: StepGrid, excess: Array, chronic: Array, event: float) -> Array:
    """What each cell is late by, noise left out: of chronic ranks what is usual around the step."""
    delay = np.maximum(excess, 0).astype(float)
    if chronic.any():
        more = usual(grid.work_ns, chronic)
        as_ever = chronic[None, :] & (excess <= more + event)
        delay[as_ever] = np.maximum(np.minimum(more, excess + event), 0)[as_ever]
    return delay


def _nothing(grid: StepGrid) -> Delays:
    cells = np.zeros(grid.shape)
    cause, phase = cells.astype(int), cells.astype(int)
    chronic = np.zeros(len(grid.ranks), bool)
    nothing = np.zeros(len(grid.steps))
    return Delays(grid, cells, cause, phase, cells, cells, nothing, chronic, 0.0)


def _whole(grid: StepGrid, cause: Array, named: Cause) -> Array:
    """Ranks that are late for a recorded reason time and again: all of it is theirs, whether or not
    a single step stands out."""
    hit = (cause == int(named)).sum(axis=0)
    return np.asarray(hit >= max(FEWEST, RECURRING * len(grid.steps)))


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
