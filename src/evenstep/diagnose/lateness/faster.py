"""What shorter transfers would give back: a few ranks' steps replayed with them.

Of a collective that is k ns shorter a step gains only what its ranks were blocked for: behind
compute nothing, in a queue what is left when the ones before it have ended earlier too. All members
of a group gain alike, so a few ranks stand for all; and since groups wait for one another in every
step, what the slowest of them gains the job gains.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evenstep.diagnose.measure.grid import StepGrid
from evenstep.diagnose.measure.intervals import Intervals, length_before
from evenstep.diagnose.measure.transfer import Transfers

Array = npt.NDArray[Any]

GROUPS = 8  # of those that gain most, each with a rank that stands for it
SPREAD = 4  # further ranks, evenly


class Path(NamedTuple):
    """Collectives of the stand-ins in order of time. Row arrays, and the rows by their place.

    `places[p]` are the rows that are p-th of their cell; cells are steps × stand-ins.
    """

    transfer: Array  # row of the transfers
    cell: Array
    before: Array  # row of the same rank's previous collective in the group; -1 none in this step
    last_ns: Array
    queued_ns: Array  # end of that one
    blocked_ns: Array  # until the next of the cell is entered, or the step ends
    places: list[Array]
    shape: tuple[int, int]


def stand_ins(grid: StepGrid, measured: Transfers, shorter_ns: Array) -> Array:
    """Columns of the grid: a rank of each group that would gain most, and a few others."""
    evenly = np.linspace(0, len(grid.ranks) - 1, SPREAD).round().astype(int)
    weight = np.bincount(measured.rows.group, shorter_ns)
    most = np.argsort(-weight, kind="stable")[:GROUPS]
    rows = grid.arrivals.rows
    groups, first = np.unique(rows.group, return_index=True)
    member = rows["rank"][first[np.isin(groups, most[weight[most] > 0])]]
    return np.unique(np.concatenate([evenly, np.searchsorted(grid.ranks, member)]))


def path(grid: StepGrid, measured: Transfers, columns: Array) -> Path:
    """Lay out the stand-ins' steps."""
    rows = grid.arrivals.rows
    rows = rows.select(np.isin(rows["rank"], grid.ranks[columns]))
    number = np.full(len(grid.arrivals.last_ns), -1, np.int64)
    number[measured.rows.instance] = np.arange(len(measured.rows))
    rows = rows.select(number[rows.instance] >= 0)
    full, _ = grid.cell(rows)
    order = np.lexsort([rows.here_ns, full])
    rows, full = rows.select(order), full[order]
    transfer = number[rows.instance]
    shape = (len(grid.steps), len(columns))
    cell = full // len(grid.ranks) * len(columns) + np.searchsorted(columns, full % len(grid.ranks))
    before = _before(cell, rows.group)
    table = measured.rows
    return Path(
        transfer=transfer,
        cell=cell,
        before=before,
        last_ns=table.last_ns[transfer],
        queued_ns=np.where(before >= 0, table.end_ns[transfer[before]], table.last_ns[transfer]),
        blocked_ns=_blocked(grid, full, rows.here_ns),
        places=_places(cell),
        shape=shape,
    )


def _before(cell: Array, group: Array) -> Array:
    """Row of the one before in the same cell and group, -1 where there is none."""
    order = np.lexsort([np.arange(len(cell)), group, cell])
    before = np.full(len(cell), -1)
    same = (np.diff(cell[order]) == 0) & (np.diff(group[order]) == 0)
    before[order[1:][same]] = order[:-1][same]
    return before


def _places(cell: Array) -> list[Array]:
    first = np.flatnonzero(np.diff(cell, prepend=-1))
    place = np.arange(len(cell)) - np.repeat(first, np.diff(np.append(first, len(cell))))
    order = np.argsort(place, kind="stable")
    edges = np.flatnonzero(np.diff(place[order], prepend=-1))
    return [order[a:b] for a, b in zip(edges, np.append(edges[1:], len(order)), strict=True)]


def _blocked(grid: StepGrid, full: Array, here_ns: Array) -> Array:
    """Time blocked between each row's entry and the next of its cell, or the end of the step."""
    kept: Intervals = grid.blocked.where(np.isin(grid.blocked.cell, np.unique(full)))
    at = np.maximum(here_ns - grid.start_ns.reshape(-1)[full], 0)
    until = length_before(kept, full, at)
    final = np.diff(full, append=-1) != 0
    total = grid.blocked_ns.reshape(-1)[full]
    return np.asarray(np.maximum(np.where(final, total, np.roll(until, -1)) - until, 0))


def gained(way: Path, shorter_ns: Array) -> Array:
    """How much shorter each step gets when each transfer is that much shorter. (steps,)."""
    less = shorter_ns[way.transfer]
    ahead = np.zeros(way.shape[0] * way.shape[1])
    moved = np.zeros(len(way.cell))  # how much earlier each row's collective ends
    for rows in way.places:
        cell, before = way.cell[rows], way.before[rows]
        late = np.maximum(way.queued_ns[rows] - way.last_ns[rows], 0)
        queue_moved = np.where(before >= 0, moved[before], 0.0)
        queued = (way.queued_ns[rows] - way.last_ns[rows]) - queue_moved
        began = np.where(before >= 0, np.maximum(-ahead[cell], queued), -ahead[cell])
        moved[rows] = late - began + less[rows]
        blocked = way.blocked_ns[rows]
        held = np.minimum(moved[rows], ahead[cell] + blocked)
        ahead[cell] = np.where(blocked > 0, np.maximum(held, 0), ahead[cell])
    return np.asarray(ahead.reshape(way.shape).max(axis=1, initial=0))
