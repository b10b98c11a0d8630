"""Blame: rank-seconds that one rank lost to another's lateness, per window of steps.

The rank that enters a collective last is to blame for what its members wait in it; the root, where
members wait for the root alone. Waits are scaled to the time a rank was really blocked, so that all
blame adds up to the wait of the grid.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evenstep.diagnose.graph.entries import TO_ROOT
from evenstep.diagnose.graph.structure import last_lanes
from evenstep.diagnose.levels import LISTED
from evenstep.diagnose.measure.grid import StepGrid
from evenstep.statistics.interval import BLOCK_STEPS

Array = npt.NDArray[Any]


class Blame(NamedTuple):
    """Waits by step, victim and culprit: parallel columns over cells × collectives."""

    step: Array  # row of the grid
    victim: Array  # column of the grid
    culprit: Array
    lost_ns: Array
    shape: tuple[int, int]  # (steps, ranks)

    def cells(self) -> Array:
        """(steps, ranks) of nanoseconds that all the others waited for each rank."""
        place = self.step * self.shape[1] + self.culprit
        size = self.shape[0] * self.shape[1]
        return np.bincount(place, weights=self.lost_ns, minlength=size).reshape(self.shape)

    def matrix(self, first: int = 0, last: int | None = None) -> Array:
        """(victims, culprits) of rank-nanoseconds lost in rows first to last (exclusive)."""
        ranks = self.shape[1]
        end = self.shape[0] if last is None else last
        inside = (self.step >= first) & (self.step < end)
        place = self.victim[inside] * ranks + self.culprit[inside]
        total = np.bincount(place, weights=self.lost_ns[inside], minlength=ranks * ranks)
        return total.reshape(ranks, ranks)

    @property
    def windows(self) -> list[tuple[int, int]]:
        """Rows of windows of about equal length, as half-open ranges: at most `LISTED`, of at least
        `BLOCK_STEPS` steps where there are so many."""
        number = max(min(LISTED, self.shape[0] // BLOCK_STEPS), 1)
        edges = np.linspace(0, self.shape[0], number + 1).astype(int)
        return [(int(first), int(last)) for first, last in pairwise(edges)]

    def by_window(self) -> Array:
        """(windows, culprits) of rank-nanoseconds lost to each rank."""
        cells = self.cells()
        return np.stack([cells[first:last].sum(axis=0) for first, last in self.windows])


def blame(grid: StepGrid) -> Blame:
    """Trace every wait back to the rank it was for; of a large run, in the sampled steps."""
    graph = grid.graph
    if graph is None:
        nothing = np.zeros(0, np.int64)
        return Blame(nothing, nothing, nothing, np.zeros(0), grid.shape)
    table = graph.operations
    shared = np.append(table.whole & (table.members > 1) & ~table.message, False)
    rows = graph.rows.select(shared[graph.rows.enter])
    mine = table.select(rows.enter)
    sends = np.isin(mine.op, TO_ROOT) & (graph.ranks[rows.lane] != mine.root)
    wait = np.where(sends, 0, np.maximum(mine.last_ns - rows.at_ns, 0)).astype(float)
    step = np.searchsorted(grid.steps, graph.steps[rows["index"]])
    seen = np.zeros(grid.shape)
    np.add.at(seen, (step, rows.lane), wait)
    real = grid.wait_ns / np.where(seen > 0, seen, 1)
    culprit = last_lanes(graph)[rows.enter]
    kept = (wait > 0) & (culprit >= 0)
    lost = (wait * real[step, rows.lane])[kept]
    return Blame(step[kept], rows.lane[kept], culprit[kept], lost, grid.shape)


def by_node(matrix: Array, nodes: Array) -> Array:
    """A rank × rank matrix as node × node; `nodes` is each rank's number of its node."""
    count = int(nodes.max()) + 1 if len(nodes) else 0
    table = np.zeros((count, count))
    np.add.at(table, (nodes[:, None], nodes[None, :]), matrix)
    return table


def drift(found: Blame) -> float | None:
    """How far blame moves from the first window to the last: 0 not at all, 1 to other ranks.

    Total variation: half the sum of absolute differences of the culprits' shares.
    """
    windows = found.by_window()
    first, last = windows[0], windows[-1]
    if len(windows) < 2 or first.sum() <= 0 or last.sum() <= 0:
        return None
    return float(np.abs(first / first.sum() - last / last.sum()).sum() / 2)
