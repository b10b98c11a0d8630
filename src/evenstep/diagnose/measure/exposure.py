"""Which part of a step its communication was exposed in: blocked, waiting, or hidden by compute.

On the host, a rank is blocked in waits that were seen and in calls that block. On a device, where
it is known when kernels computed, communication outside of them is exposed; where it is not, a
collective counts as exposed unless its rank enters another during it. So it does on a host where
collectives were issued without blocking and no wait for any was recorded; of reductions, which are
waited for together, only a step's last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evenstep.diagnose.measure.intervals import Intervals, by_cell, difference, union_length
from evenstep.diagnose.measure.received import device_clock_is_hosts, exchanged, received
from evenstep.trace.columns import Columns
from evenstep.trace.spool.layout import Flag, Kind, Op, Phase
from evenstep.trace.trace import Trace

if TYPE_CHECKING:
    from evenstep.diagnose.measure.grid import StepGrid

Array = npt.NDArray[Any]

COMPUTE = "compute"  # name of the spans in which a device computed
_REDUCTIONS = [int(Op.ALL_REDUCE), int(Op.REDUCE_SCATTER), int(Op.REDUCE)]
_NOT_BLOCKING = int(Flag.ASYNC | Flag.ON_DEVICE)


class _Flights(NamedTuple):
    """Communication of the grid's cells, in order of cell and arrival, since the cell's start."""

    cell: Array
    arrived: Array
    waited: Array  # end of the wait
    left: Array
    on_device: Array


def fill(grid: StepGrid, trace: Trace) -> None:
    """Blocked, waiting and hidden time of every cell, and its collectives."""
    cells = grid.start_ns.size
    messages = received(trace, grid.clocks)
    grid.messages = exchanged(trace, grid.clocks)
    flights = _all_flights(grid, trace, messages)
    compute, computing = _compute(grid, trace)
    device_ranks = np.unique(flights.cell[flights.on_device] % len(grid.ranks))
    grid.exposure_known = bool(np.isin(device_ranks, computing).all())
    grid.blocked = _blocked(grid, trace, messages, computing)
    if len(device_ranks):
        grid.blocked = grid.blocked + _on_device(grid, flights, compute, computing)
    waiting = Intervals(flights.cell, flights.arrived, flights.waited)
    moving = Intervals(flights.cell, flights.waited, flights.left)
    blocked_ns, transfer = union_length(grid.blocked, cells), union_length(moving, cells)
    both = union_length(waiting + grid.blocked, cells)
    grid.wait_ns = grid.shaped(union_length(waiting, cells) + blocked_ns - both)
    exposed = transfer + blocked_ns - union_length(moving + grid.blocked, cells)
    grid.hidden_ns = grid.shaped(np.maximum(transfer - exposed, 0))
    grid.blocked_ns = grid.shaped(blocked_ns)
    grid.device_ns = grid.shaped(union_length(compute, cells))
    cell, inside = grid.cell(grid.arrivals.rows)
    grid.collectives = grid.shaped(np.bincount(cell[inside], minlength=cells))


def blocked(grid: StepGrid, trace: Trace) -> Intervals:
    """When the ranks of a grid were blocked, of which all else is known."""
    messages = received(trace, grid.clocks)
    compute, computing = _compute(grid, trace)
    found = _blocked(grid, trace, messages, computing)
    flights = _all_flights(grid, trace, messages)
    if not flights.on_device.any():
        return found
    return found + _on_device(grid, flights, compute, computing)


def _all_flights(grid: StepGrid, trace: Trace, messages: Columns) -> _Flights:
    """Collectives, received messages, and what moved on devices without a known partner."""
    rows = grid.arrivals.rows
    took = np.where(rows.leave_ns > 0, rows.leave_ns - rows.arrival_ns, 0)
    parts = [_flights(grid, rows, took, _unseen(grid, trace))]
    for others in (messages, _unmatched(grid, trace, messages)):
        if len(others):
            took = np.where(others.leave_ns > 0, others.leave_ns - others.here_ns, 0)
            parts.append(_flights(grid, others, took))
    return _together(parts) if len(parts) > 1 else parts[0]


def _unseen(grid: StepGrid, trace: Trace) -> Array:
    """Collectives issued without blocking that may be waited for, where no wait was recorded."""
    rows = grid.arrivals.rows
    if not len(rows) or (trace.of_kind(Kind.PHASE).op == int(Phase.SYNC)).any():
        return np.zeros(len(rows), bool)
    cell, _ = grid.cell(rows)
    order = np.lexsort([rows.here_ns, cell])
    last = np.zeros(len(rows), bool)
    last[order[np.diff(cell[order], append=-1) != 0]] = True
    together = np.isin(rows.op, _REDUCTIONS) & ~last
    return np.asarray(((rows.flags & _NOT_BLOCKING) != 0) & ~together)


def _unmatched(grid: StepGrid, trace: Trace, messages: Columns) -> Columns:
    """Kernels that moved data of which no other rank tells: all of their time counts as transfer.

    A profile of one rank, or of ranks that were not profiled in the same steps, has only such.
    """
    known = device_clock_is_hosts(trace)
    if not known:
        return messages.select(np.zeros(len(messages), bool))
    rows = trace.of_kind(Kind.COLLECTIVE, Kind.POINT_TO_POINT)
    mine = ((rows.flags & int(Flag.ON_DEVICE)) != 0) & (rows.device_exit_ns > 0)
    mine &= np.isin(rows["rank"], known)
    for told in (grid.arrivals.rows, messages):
        mine &= ~np.isin(_identity(rows), _identity(told))
    rows = rows.select(mine)
    here = grid.clocks.common(rows["rank"], rows.device_enter_ns)
    leave = grid.clocks.common(rows["rank"], rows.device_exit_ns)
    rows = rows.with_column("here_ns", here).with_column("leave_ns", leave)
    return rows.with_column("wait_ns", np.zeros(len(rows), np.int64))


def _identity(rows: Columns) -> Array:
    """A number of its own for every record: its rank, and its place in the rank's ring."""
    return np.asarray((rows["rank"].astype(np.int64) << 40) + rows.seq.astype(np.int64))


def _flights(grid: StepGrid, rows: Columns, took: Array, unseen: Array | None = None) -> _Flights:
    """Rows with here_ns and wait_ns that lie in the grid; `took` from entry to end, 0 unknown.

    `unseen` ones go on behind the host's back like those on a device.
    """
    cell, inside = grid.cell(rows)
    arrived = (rows.here_ns - grid.start_ns.reshape(-1)[np.where(inside, cell, 0)])[inside]
    order = by_cell(cell[inside], arrived)
    picked, arrived = np.flatnonzero(inside)[order], arrived[order]
    cell = cell[picked]
    left = arrived + np.maximum(took[picked], 0)
    on_device = (rows.flags[picked] & int(Flag.ON_DEVICE)) != 0
    if unseen is not None:
        on_device |= unseen[picked]
    return _Flights(cell, arrived, arrived + rows.wait_ns[picked], left, on_device)


def _together(parts: list[_Flights]) -> _Flights:
    joined = _Flights(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
    order = by_cell(joined.cell, joined.arrived)
    return _Flights(*(column[order] for column in joined))


# -- devices ---------------------------------------------------------------------------------------


def _on_device(
    grid: StepGrid, flights: _Flights, compute: Intervals, computing: Array
) -> Intervals:
    """What was exposed of the communication on devices."""
    intervals = Intervals(flights.cell, flights.arrived, flights.left)
    known = np.isin(flights.cell % len(grid.ranks), computing)
    exposed = difference(intervals.where(flights.on_device & known), compute)
    if known.all():
        return exposed
    return exposed + _alone(flights).where(flights.on_device & ~known)


def _alone(flights: _Flights) -> Intervals:
    """Stretches of operations during which their rank entered no other; the rest are empty."""
    cell, arrived, left = flights.cell, flights.arrived, flights.left
    last = np.diff(cell, append=-1) != 0
    free = last | (np.roll(arrived, -1) >= left)
    return Intervals(cell, arrived, np.where(free, left, arrived))


def _compute(grid: StepGrid, trace: Trace) -> tuple[Intervals, Array]:
    """When the ranks' devices computed, in their cells; and the ranks it is known of, by index."""
    nothing = Intervals(*(np.zeros(0, np.int64) for _ in range(3)))
    if COMPUTE not in trace.names:
        return nothing, np.zeros(0, np.int64)
    spans = trace.of_kind(Kind.SPAN)
    mine = (spans.name == trace.names.index(COMPUTE)) & (spans.device >= 0)
    mine &= ((spans.flags & int(Flag.ON_DEVICE)) != 0) & (spans.exit_ns > spans.enter_ns)
    mine &= np.isin(spans["rank"], device_clock_is_hosts(trace))
    spans = spans.select(mine)
    cell, inside = grid.cell(spans)
    spans, cell = spans.select(inside), cell[inside]
    base = grid.start_ns.reshape(-1)[cell]
    start = grid.clocks.common(spans["rank"], spans.enter_ns) - base
    end = grid.clocks.common(spans["rank"], spans.exit_ns) - base
    return Intervals(cell, start, end), np.unique(cell % len(grid.ranks))


# -- the host --------------------------------------------------------------------------------------


def _blocked(grid: StepGrid, trace: Trace, messages: Columns, computing: Array) -> Intervals:
    """When the training thread was blocked: waits seen as phases, and calls that block.

    A host that waits for its device is not blocked by communication as long as the device computes:
    where that is known, it alone tells.
    """
    phases = trace.of_kind(Kind.PHASE)
    waits = phases.select((phases.op == int(Phase.SYNC)) & (phases.exit_ns > 0))
    waits = waits.select(~np.isin(waits["rank"], grid.ranks[computing]))
    found = [waits, _calls(trace.of_kind(Kind.COLLECTIVE))]
    if len(messages):
        sending = messages.op == int(Op.SEND)
        found += [_calls(messages.select(~sending)), messages.select(sending)]
    started = _own_clock_start(grid, trace)
    blocked = Intervals(*(np.zeros(0, np.int64) for _ in range(3)))
    for rows in found:
        cell, inside = grid.cell(rows)
        cell, own_start = cell[inside], started[cell[inside]]
        enter, leave = rows.enter_ns[inside], rows.exit_ns[inside]
        blocked = blocked + Intervals(cell, enter - own_start, leave - own_start)
    return blocked


def _calls(rows: Columns) -> Columns:
    """Those that blocked the training thread until they ended."""
    blocking = ((rows.flags & _NOT_BLOCKING) == 0) & (rows.thread == 0) & (rows.exit_ns > 0)
    return rows.select(blocking)


def _own_clock_start(grid: StepGrid, trace: Trace) -> Array:
    """Start of each cell on its rank's own clock."""
    steps = trace.of_kind(Kind.STEP)
    cell, inside = grid.cell(steps)
    start = np.zeros(grid.start_ns.size, np.int64)
    start[cell[inside]] = steps.enter_ns[inside]
    return start
