"""Where slices lie on a rank's tracks: those of a track nest, what overlaps needs another."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

MOST_LANES = 16  # beside each other; what lasts longer than so many others goes below all


def lanes(start: Array, end: Array) -> Array:
    """A lane for each interval, so that those of a lane do not overlap. Starts must ascend.

    With at most K intervals begun before any is over, lane i mod K is free for interval i.
    """
    count = len(start)
    if not count:
        return np.zeros(0, np.int64)
    index = np.arange(count)
    begun = np.maximum(np.searchsorted(start, end, side="left") - index, 1)
    long = begun > MOST_LANES
    if not long.any() or long.all():
        return np.asarray(index % int(begun.max()))
    found = np.empty(count, np.int64)
    found[~long] = lanes(start[~long], end[~long])
    found[long] = lanes(start[long], end[long]) + found[~long].max() + 1
    return found


def levels(start: Array, end: Array) -> Array:
    """Depth of each interval among those around it; -1 where it overlaps one without being inside.

    Sorted by start, the longer first.
    """
    found = np.full(len(start), -1, np.int64)
    pending, level = np.arange(len(start)), 0
    while len(pending):
        begins, ends = start[pending], end[pending]
        reach = np.maximum.accumulate(ends)
        outer = np.concatenate([[True], begins[1:] >= reach[:-1]])
        around = np.flatnonzero(outer)[np.cumsum(outer) - 1]
        found[pending[outer]] = level
        inside = ~outer & (ends <= ends[around]) & (begins < ends[around])
        pending, level = pending[inside], level + 1
    return found


def side_by_side(rank: Array, start: Array, end: Array) -> tuple[Array, Array]:
    """The intervals of all ranks on one line, those of a rank behind those of the one before."""
    low = int(start.min(initial=0))
    width = int(end.max(initial=0)) - low + 1
    place = np.unique(rank, return_inverse=True)[1].reshape(-1).astype(np.int64)
    return start - low + place * width, end - low + place * width
