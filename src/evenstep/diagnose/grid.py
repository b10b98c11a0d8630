"""Steps × ranks: what each rank did in each step, as dense arrays that every finding reads.

Only steps that every traced rank finished are in the grid. Blocked time is what the training
thread spent waiting for communication; where that cannot be seen (a device's stream), a collective
counts as exposed unless its rank enters another during it, and `exposure_known` is False.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.diagnose.arrivals import Arrivals, arrivals
from evenstep.diagnose.intervals import Intervals, overlap_length, union_length
from evenstep.diagnose.leaving import sharpened
from evenstep.trace.clocks import Clocks, align
from evenstep.trace.columns import Columns
from evenstep.trace.layout import Flag, Kind, Phase
from evenstep.trace.trace import Trace

Array = npt.NDArray[Any]

WARM_UP_STEPS = 3  # left out where there are enough: allocation, autotuning, first touches
FEWEST_STEPS = 12


@dataclass(slots=True)
class StepGrid:
    """Arrays are (steps, ranks), ns, unless said otherwise; rows and columns ascend."""

    steps: Array  # (steps,) numbers
    ranks: Array  # (ranks,)
    start_ns: Array  # on the common time
    end_ns: Array
    phase_ns: dict[Phase, Array]  # leaf times
    held_ns: Array  # pacing delay
    blocked_ns: Array  # waiting for communication
    wait_ns: Array  # of it (or of the step), for other ranks
    hidden_ns: Array  # transfer behind compute
    pause_ns: Array  # garbage collection
    cpu_ns: Array  # of the process
    switches: Array  # involuntary context switches
    run_delay_ns: Array  # the training thread was ready but had no core
    samples: Array
    collectives: Array
    arrivals: Arrivals
    clocks: Clocks
    exposure_known: bool
    blocked: Intervals  # of cells (step index × ranks + rank index), relative to the cell's start
    limits: list[str] = field(default_factory=list)

    @property
    def duration_ns(self) -> Array:
        """Length of each step on each rank."""
        return self.end_ns - self.start_ns

    @property
    def work_ns(self) -> Array:
        """What a rank did itself: neither blocked nor held."""
        work: Array = np.maximum(self.duration_ns - self.blocked_ns - self.held_ns, 0)
        return work

    @property
    def step_ns(self) -> Array:
        """Length of each step of the job: the median over ranks. Shape (steps,)."""
        if not self.start_ns.size:
            return np.zeros(len(self.steps))
        step: Array = np.median(self.duration_ns, axis=1)
        return step

    @property
    def total_ns(self) -> float:
        """Time of all steps."""
        return float(self.step_ns.sum())

    def cell(self, rows: Columns) -> tuple[Array, Array]:
        """Cell of each row, by its step and rank, and which rows have one."""
        at_step = np.searchsorted(self.steps, rows.step)
        at_step = np.minimum(at_step, max(len(self.steps) - 1, 0))
        at_rank = np.minimum(np.searchsorted(self.ranks, rows["rank"]), len(self.ranks) - 1)
        if not len(self.steps):
            return at_step, np.zeros(len(rows), bool)
        inside = (self.steps[at_step] == rows.step) & (self.ranks[at_rank] == rows["rank"])
        return at_step * len(self.ranks) + at_rank, inside

    @property
    def shape(self) -> tuple[int, int]:
        """(steps, ranks)."""
        return len(self.steps), len(self.ranks)

    def shaped(self, cells: Array) -> Array:
        """A per-cell array as (steps, ranks)."""
        return cells.reshape(self.shape)


def step_grid(trace: Trace, clocks: Clocks | None = None) -> StepGrid:
    """Build the grid. A trace without a step that all ranks finished gives one of no steps."""
    clocks = clocks or sharpened(trace, align(trace))
    steps = trace.of_kind(Kind.STEP)
    numbers, ranks = _common_steps(steps, trace)
    shape = (len(numbers), len(ranks))
    grid = StepGrid(
        steps=numbers,
        ranks=ranks,
        start_ns=np.zeros(shape, np.int64),
        end_ns=np.zeros(shape, np.int64),
        phase_ns={phase: np.zeros(shape, np.int64) for phase in Phase},
        held_ns=np.zeros(shape, np.int64),
        blocked_ns=np.zeros(shape, np.int64),
        wait_ns=np.zeros(shape, np.int64),
        hidden_ns=np.zeros(shape, np.int64),
        pause_ns=np.zeros(shape, np.int64),
        cpu_ns=np.zeros(shape, np.int64),
        switches=np.zeros(shape, np.int64),
        run_delay_ns=np.zeros(shape, np.int64),
        samples=np.zeros(shape, np.int64),
        collectives=np.zeros(shape, np.int64),
        arrivals=arrivals(trace, clocks),
        clocks=clocks,
        exposure_known=True,
        blocked=Intervals(*(np.zeros(0, np.int64) for _ in range(3))),
    )
    if not len(numbers):
        return grid
    _fill_steps(grid, steps)
    _fill_phases(grid, trace)
    _fill_communication(grid, trace)
    return grid


def _common_steps(steps: Columns, trace: Trace) -> tuple[Array, Array]:
    """Steps that every rank with any step finished and still has whole; and those ranks.

    Without the warm-up, and without what a ring has begun to overwrite.
    """
    present = np.array(
        [rank for rank in sorted(trace.ranks) if (steps["rank"] == rank).any()], np.int64
    )
    numbers, counts = np.unique(steps.step, return_counts=True)
    numbers = numbers[counts >= max(len(present), 1)].astype(np.int64)
    if len(numbers) >= FEWEST_STEPS + WARM_UP_STEPS and numbers[0] < WARM_UP_STEPS:
        numbers = numbers[numbers >= WARM_UP_STEPS]
    for rank in present:
        if trace.ranks[int(rank)].dropped:
            oldest = trace.events.step[np.argmax(trace.events["rank"] == rank)]
            numbers = numbers[numbers > oldest]
    return numbers, present


def _fill_steps(grid: StepGrid, steps: Columns) -> None:
    cell, inside = grid.cell(steps)
    rows, cell = steps.select(inside), cell[inside]
    start, end = rows.enter_ns.copy(), rows.exit_ns.copy()
    for rank, offset in grid.clocks.by_rank.items():
        mine = rows["rank"] == rank
        if offset is not None and offset.offset_ns.any():
            start[mine], end[mine] = offset.shift(start[mine]), offset.shift(end[mine])
    columns = {
        "start_ns": start,
        "end_ns": end,
        "held_ns": rows.held_ns,
        "cpu_ns": rows.group_seq,
        "switches": rows.peer_or_root,
        "run_delay_ns": rows.parent.astype(np.int64) * 1000,
        "samples": rows.payload,
    }
    for name, values in columns.items():
        getattr(grid, name).reshape(-1)[cell] = values.astype(np.int64)


def _fill_phases(grid: StepGrid, trace: Trace) -> None:
    cells = grid.start_ns.size
    phases = trace.of_kind(Kind.PHASE)
    phases = phases.select((phases.exit_ns > 0) & ~_inside_evaluation(phases))
    cell, inside = grid.cell(phases)
    for phase in Phase:
        mine = inside & (phases.op == int(phase))
        leaf = np.bincount(cell[mine], weights=phases.group_seq[mine], minlength=cells)
        grid.phase_ns[phase] = grid.shaped(leaf.astype(np.int64))
    pauses = trace.of_kind(Kind.PAUSE)
    cell, inside = grid.cell(pauses)
    length = (pauses.exit_ns - pauses.enter_ns)[inside]
    summed = np.bincount(cell[inside], weights=length, minlength=cells).astype(np.int64)
    grid.pause_ns = grid.shaped(summed)


def _inside_evaluation(phases: Columns) -> Array:
    """Phases that lie within a longer evaluation of their rank: the evaluation counts them."""
    inside = np.zeros(len(phases), bool)
    for rank in np.unique(phases["rank"]):
        mine = np.flatnonzero(phases["rank"] == rank)
        outer = mine[phases.op[mine] == int(Phase.EVALUATION)]
        if not len(outer):
            continue
        order = np.argsort(phases.enter_ns[outer], kind="stable")
        starts, ends = phases.enter_ns[outer][order], phases.exit_ns[outer][order]
        reach = np.maximum.accumulate(ends)
        at = np.searchsorted(starts, phases.enter_ns[mine], side="right") - 1
        covered = (at >= 0) & (phases.exit_ns[mine] <= reach[np.maximum(at, 0)])
        itself = np.isin(mine, outer) & (
            phases.exit_ns[mine] - phases.enter_ns[mine] == (ends - starts)[np.maximum(at, 0)]
        )
        inside[mine] = covered & ~itself
    return inside


def _fill_communication(grid: StepGrid, trace: Trace) -> None:
    cells = grid.start_ns.size
    rows = grid.arrivals.rows
    cell, inside = grid.cell(rows)
    rows, cell = rows.select(inside), cell[inside]
    base = grid.start_ns.reshape(-1)[cell]
    arrived = rows.here_ns - base
    waiting = Intervals(cell, arrived, arrived + rows.wait_ns)
    left = np.where(rows.leave_ns > 0, arrived + rows.leave_ns - rows.arrival_ns, 0)
    left = np.maximum(left, arrived)
    moving = Intervals(cell, arrived + rows.wait_ns, left)
    on_device = (rows.flags & int(Flag.ON_DEVICE)) != 0
    grid.exposure_known = not bool(on_device.any())
    grid.blocked = _blocked(grid, trace)
    if not grid.exposure_known:
        grid.blocked = grid.blocked + _alone(cell, arrived, left).where(on_device)
    grid.wait_ns = grid.shaped(overlap_length(waiting, grid.blocked, cells))
    transfer = union_length(moving, cells)
    exposed = overlap_length(moving, grid.blocked, cells)
    grid.hidden_ns = grid.shaped(np.maximum(transfer - exposed, 0))
    grid.blocked_ns = grid.shaped(union_length(grid.blocked, cells))
    grid.collectives = grid.shaped(np.bincount(cell, minlength=cells))


def _alone(cell: Array, arrived: Array, left: Array) -> Intervals:
    """Stretches of the collectives during which their rank entered no other; the rest are empty."""
    order = np.lexsort([arrived, cell])
    following = np.roll(order, -1)
    last = np.diff(cell[order], append=-1) != 0
    free = np.zeros(len(cell), bool)
    free[order] = last | (arrived[following] >= left[order])
    return Intervals(cell, arrived, np.where(free, left, arrived))


def _blocked(grid: StepGrid, trace: Trace) -> Intervals:
    """When the training thread was blocked: waits seen as phases, and blocking collectives."""
    phases = trace.of_kind(Kind.PHASE)
    waits = phases.select((phases.op == int(Phase.SYNC)) & (phases.exit_ns > 0))
    collectives = trace.of_kind(Kind.COLLECTIVE)
    not_blocking = int(Flag.ASYNC | Flag.ON_DEVICE)
    blocking = ((collectives.flags & not_blocking) == 0) & (collectives.thread == 0)
    calls = collectives.select(blocking & (collectives.exit_ns > 0))
    parts = []
    started = _own_clock_start(grid, trace)
    for rows in (waits, calls):
        cell, inside = grid.cell(rows)
        rows, cell = rows.select(inside), cell[inside]
        own_start = started[cell]
        parts.append(Intervals(cell, rows.enter_ns - own_start, rows.exit_ns - own_start))
    return parts[0] + parts[1]


def _own_clock_start(grid: StepGrid, trace: Trace) -> Array:
    """Start of each cell on its rank's own clock."""
    steps = trace.of_kind(Kind.STEP)
    cell, inside = grid.cell(steps)
    start = np.zeros(grid.start_ns.size, np.int64)
    start[cell[inside]] = steps.enter_ns[inside]
    return start
