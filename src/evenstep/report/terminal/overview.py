"""Rank × step made small enough to draw: the step-time curve, the heat map, means per rank.

All of it is computed from the table of `diagnose.measure.step_table`: one row per rank and
step with `start_ns`, `end_ns`, `wait_ns` (NaN unknown), `lateness_ns` and `phase_…_ns`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.trace.columns import Columns

Array = npt.NDArray[Any]

CURVE_POINTS = 2000
RANK_BINS = 128
STEP_BINS = 1000


@dataclass(slots=True, frozen=True)
class Bins:
    """Steps and ranks per cell, and the first of each."""

    first_step: int
    last_step: int
    steps_per_bin: int
    ranks: int
    ranks_per_bin: int

    @property
    def rows(self) -> int:
        """Cells along the ranks."""
        return -(-self.ranks // self.ranks_per_bin)

    @property
    def columns(self) -> int:
        """Cells along the steps."""
        return -(-(self.last_step - self.first_step + 1) // self.steps_per_bin)


def bins(
    steps: Columns, world: int, *, rows: int = RANK_BINS, columns: int = STEP_BINS
) -> Bins | None:
    """The finest grid within the limits that holds every step; None without steps."""
    if not len(steps):
        return None
    first, last = int(steps.step.min()), int(steps.step.max())
    ranks = max(world, int(steps.rank.max()) + 1)
    return Bins(first, last, -(-(last - first + 1) // columns), ranks, -(-ranks // rows))


def curve(steps: Columns, *, points: int = CURVE_POINTS) -> Columns:
    """Shortest, median and longest step of any rank, per step or per bin of adjacent steps."""
    if not len(steps):
        return Columns({name: np.empty(0, np.float32) for name in CURVE_COLUMNS})
    first = int(steps.step.min())
    width = -(-(int(steps.step.max()) - first + 1) // points)
    time_us = (steps.end_ns - steps.start_ns) / 1e3
    key = (steps.step.astype(np.int64) - first) // width
    order = np.lexsort([time_us, key])
    numbers, begins, counts = np.unique(key[order], return_index=True, return_counts=True)
    ordered = time_us[order]
    middle = (ordered[begins + (counts - 1) // 2] + ordered[begins + counts // 2]) / 2
    return Columns(
        {
            "step": (first + numbers * width).astype(np.int32),
            "shortest_us": ordered[begins].astype(np.float32),
            "median_us": middle.astype(np.float32),
            "longest_us": ordered[begins + counts - 1].astype(np.float32),
        }
    )


CURVE_COLUMNS = ("step", "shortest_us", "median_us", "longest_us")


def grid(steps: Columns, shape: Bins) -> Columns:
    """Every cell's least wait, greatest lateness and longest step (µs); NaN where none is known.

    Extremes, not means: one late rank among many in a cell must not vanish. Waits are means over
    the steps of a cell, of which the rank that waited least counts: the awaited one.
    """
    column = (steps.step.astype(np.int64) - shape.first_step) // shape.steps_per_bin
    own = steps.rank.astype(np.int64) * shape.columns + column
    waits = _cell_means(steps.wait_ns, own, shape.ranks * shape.columns)
    row = steps.rank.astype(np.int64) // shape.ranks_per_bin
    cell, size = row * shape.columns + column, shape.rows * shape.columns
    return Columns(
        {
            "wait_us": _least_of_ranks(waits.reshape(shape.ranks, shape.columns), shape),
            "lateness_us": _cell_most(steps.lateness_ns, cell, size),
            "step_us": _cell_most(steps.end_ns - steps.start_ns, cell, size),
        }
    )


def _least_of_ranks(values: Array, shape: Bins) -> Array:
    """(ranks, columns) to (rows × columns,): the least of the ranks of a row."""
    empty = np.full((shape.rows * shape.ranks_per_bin - shape.ranks, shape.columns), np.nan)
    parted = np.concatenate([values, empty]).reshape(shape.rows, shape.ranks_per_bin, -1)
    return np.asarray(np.fmin.reduce(parted, axis=1), np.float32).reshape(-1)


def _cell_most(values_ns: Array, cell: Array, size: int) -> Array:
    most = np.full(size, np.nan)
    np.fmax.at(most, cell, np.asarray(values_ns, np.float64))
    return (most / 1e3).astype(np.float32)


def _cell_means(values_ns: Array, cell: Array, size: int) -> Array:
    values = np.asarray(values_ns, np.float64)
    known = np.isfinite(values)
    total = np.bincount(cell[known], weights=values[known], minlength=size)
    count = np.bincount(cell[known], minlength=size)
    with np.errstate(invalid="ignore"):
        mean: Array = (total / count / 1e3).astype(np.float32)
    return mean


def per_rank(steps: Columns) -> list[dict[str, float | None]]:
    """Means over the steps of each rank, in ns, with every phase; None where none is known."""
    phases = [name for name in steps if name.startswith("phase_")]
    ranks, place = np.unique(steps.rank, return_inverse=True)
    means = {
        "step_ns": _rank_means(steps.end_ns - steps.start_ns, place, ranks.size),
        "wait_ns": _rank_means(steps.wait_ns, place, ranks.size),
        "lateness_ns": _rank_means(steps.lateness_ns, place, ranks.size),
        **{name: _rank_means(steps[name], place, ranks.size) for name in phases},
    }
    return [
        {"rank": int(rank), **{name: _known(column[index]) for name, column in means.items()}}
        for index, rank in enumerate(ranks)
    ]


def _rank_means(values_ns: Array, place: Array, size: int) -> Array:
    return _cell_means(values_ns, place, size).astype(np.float64) * 1e3


def _known(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None
