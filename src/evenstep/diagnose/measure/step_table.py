"""The step table, one row per rank and step: for reports and for people with own questions."""

from __future__ import annotations

import numpy as np

from evenstep.diagnose.measure.grid import Array, StepGrid, step_grid
from evenstep.trace.columns import Columns
from evenstep.trace.spool.layout import Phase
from evenstep.trace.trace import Trace


def step_table(trace: Trace, grid: StepGrid | None = None) -> Columns:
    """Columns rank, step, start_ns, end_ns (common time), wait_ns, lateness_ns, phase_*_ns.

    `lateness_ns` is how much later than the earliest rank the step's first collective was entered;
    nan where the step has none. `phase_other_ns` is what no phase claims; with `phase_sync_ns` the
    blocked time they add up to the step.
    """
    grid = grid or step_grid(trace)
    steps, ranks = grid.shape
    phases = {phase: grid.phase_ns[phase] for phase in Phase if phase in grid.phase_ns}
    columns = {
        "rank": np.tile(grid.ranks, steps),
        "step": np.repeat(grid.steps, ranks),
        "start_ns": grid.start_ns.reshape(-1),
        "end_ns": grid.end_ns.reshape(-1),
        "wait_ns": grid.wait_ns.reshape(-1).astype(float),
        "lateness_ns": lateness(grid).reshape(-1),
    }
    if phases:
        phases[Phase.SYNC] = grid.blocked_ns
        claimed = sum(value for phase, value in phases.items() if phase is not Phase.OTHER)
        phases[Phase.OTHER] = np.maximum(grid.duration_ns - claimed, 0)
    for phase, value in phases.items():
        columns[f"phase_{phase.name.lower()}_ns"] = value.reshape(-1)
    return Columns(columns)


def lateness(grid: StepGrid) -> Array:
    """Arrival at the step's first shared collective after the earliest rank's. (steps, ranks)."""
    rows = grid.arrivals.rows
    cell, inside = grid.cell(rows)
    arrival = np.full(grid.start_ns.size, np.inf)
    np.minimum.at(arrival, cell[inside], rows.arrival_ns[inside].astype(float))
    arrival = grid.shaped(arrival)
    arrival[~np.isfinite(arrival)] = np.nan
    if not arrival.size:
        return arrival
    known = np.isfinite(arrival).any(axis=1)
    first = np.full(len(arrival), np.nan)
    first[known] = np.nanmin(arrival[known], axis=1)
    return np.asarray(arrival - first[:, None])
