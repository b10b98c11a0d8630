"""Lengths of unions and intersections of many intervals, cell by cell.

A cell is whatever the intervals are grouped by (a rank's step). Times are integers, relative to
something near, so that cells can be laid side by side on one line and handled in one sweep.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class Intervals(NamedTuple):
    """Half-open intervals [start, end) of cells 0, 1, 2 …; empty and reversed ones are nothing."""

    cell: Array
    start: Array
    end: Array

    def where(self, mask: Array) -> Intervals:
        """Those picked by a mask."""
        if mask.all():
            return self
        return Intervals(self.cell[mask], self.start[mask], self.end[mask])

    def __add__(self, other: object) -> Intervals:
        """All of both."""
        if not isinstance(other, Intervals):
            return NotImplemented
        return Intervals(*(np.concatenate(pair) for pair in zip(self, other, strict=True)))


def union_length(intervals: Intervals, cells: int) -> Array:
    """Length covered in each of `cells` cells, overlaps counted once. Shape (cells,), int64."""
    kept = intervals.where(intervals.end > intervals.start)
    if not len(kept.cell):
        return np.zeros(cells, np.int64)
    low = int(kept.start.min())
    width = int(kept.end.max()) - low + 1
    start, end, cell = _laid_out(kept, low, width)
    reach = np.maximum.accumulate(end)
    covered = np.maximum(reach - np.maximum(start, _before(start, reach)), 0)
    return np.bincount(cell, weights=covered, minlength=cells).astype(np.int64)


def _laid_out(kept: Intervals, low: int, width: int) -> tuple[Array, Array, Array]:
    """All cells side by side on one line, `width` apart, in order of their starts."""
    shift = kept.cell.astype(np.int64) * width - low
    start, end = kept.start + shift, kept.end + shift
    if (start[1:] >= start[:-1]).all():
        return start, end, kept.cell
    order = np.argsort(start, kind="stable")
    return start[order], end[order], kept.cell[order]


def _before(start: Array, reach: Array) -> Array:
    """How far everything before each interval has reached."""
    return np.concatenate([start[:1], reach[:-1]])


def overlap_length(one: Intervals, other: Intervals, cells: int) -> Array:
    """Length covered by both: |A ∩ B| = |A| + |B| − |A ∪ B|. Shape (cells,), int64."""
    both = union_length(one + other, cells)
    return union_length(one, cells) + union_length(other, cells) - both


def length_before(intervals: Intervals, cell: Array, time: Array) -> Array:
    """Length covered in a cell before a time, for many (cell, time) at once."""
    kept = intervals.where(intervals.end > intervals.start)
    if not len(kept.cell) or not len(cell):
        return np.zeros(len(cell), np.int64)
    low = min(int(kept.start.min()), int(time.min()))
    width = max(int(kept.end.max()), int(time.max())) - low + 1
    start, end, owner = _laid_out(kept, low, width)
    reach = np.maximum.accumulate(end)
    pieces = np.maximum(reach - np.maximum(start, _before(start, reach)), 0)
    covered = np.cumsum(pieces)
    place = cell.astype(np.int64) * width + (time - low)
    at = np.searchsorted(start, place) - 1
    until = np.where(at >= 0, covered[at] - np.maximum(reach[at] - place, 0), 0)
    earlier = np.zeros(int(max(cell.max(), owner[-1])) + 2, np.int64)  # covered in cells before
    np.add.at(earlier, owner + 1, pieces)
    return np.asarray(until - np.cumsum(earlier)[cell], np.int64)
