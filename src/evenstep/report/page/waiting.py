"""Who waits for whom, and who bounds each step, small enough to draw."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.diagnose.lateness.blame import Blame
from evenstep.diagnose.lateness.case import Case
from evenstep.diagnose.lateness.dynamics import critical_path
from evenstep.trace.columns import Columns

Array = npt.NDArray[Any]

MOST_CELLS_A_SIDE = 128
BOUNDS = 20_000  # steps drawn one by one; of more, every n-th
NOBODY = -1


@dataclass(slots=True, frozen=True)
class Waiting:
    """Tables for the page.

    `matrix`: lost_us, rows are those who wait, columns those they wait for, `ranks_per_bin` ranks
    each. `path`: step, rank (-1: nobody bounds it) and phase.
    """

    matrix: Columns
    path: Columns
    ranks: list[int]  # first rank of every row and column
    ranks_per_bin: int


def waiting(case: Case) -> Waiting | None:
    """Lost time by pair, and the bound of every step; None where nobody was seen to wait."""
    found, ranks = case.blame, case.grid.shape[1]
    if ranks < 2 or not case.waits_known or found.lost_ns.sum() <= 0:
        return None
    width = -(-ranks // MOST_CELLS_A_SIDE)
    matrix = Columns({"lost_us": (binned(found, width) / 1e3).astype(np.float32).reshape(-1)})
    firsts = [int(rank) for rank in case.grid.ranks[::width]]
    return Waiting(matrix, _bounds(case), firsts, width)


def binned(found: Blame, width: int) -> Array:
    """(rows, columns) of rank-nanoseconds lost, `width` neighbouring ranks to a cell."""
    side = -(-found.shape[1] // width)
    place = (found.victim // width) * side + found.culprit // width
    total = np.bincount(place, weights=found.lost_ns, minlength=side * side)
    return total.reshape(side, side)


def _bounds(case: Case) -> Columns:
    path = critical_path(case)
    every = -(-len(path.step) // BOUNDS)
    kept = np.flatnonzero(case.grid.sampled)[::every]
    column = path.column[kept]
    rank = np.where(column >= 0, case.grid.ranks[np.maximum(column, 0)], NOBODY)
    return Columns(
        {
            "step": path.step[kept].astype(np.int32),
            "rank": rank.astype(np.int32),
            "phase": path.phase[kept].astype(np.uint8),
        }
    )
