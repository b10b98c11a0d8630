"""Layout of slices in a Perfetto trace: lanes, nesting, and arrows.

Overlapping slices need several lanes. An arrow leads from the awaited rank to each waiting rank.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evenstep.trace.columns import Array, Columns

MOST_LANES = 16  # slices that overlap more others go to lanes below
SEEN_NS = 1_000  # shorter waits get no arrow


def lanes(start: Array, end: Array) -> Array:
    """Assign lanes so that intervals of a lane do not overlap; starts must ascend. If at most K
    start before any of them ends, lane i mod K is free for interval i."""
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
    """Return the nesting depth of each interval (-1: overlaps another without nesting). They must
    be sorted by start, longer ones first."""
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
    """Shift the intervals of all ranks onto one time axis, rank after rank."""
    low = int(start.min(initial=0))
    width = int(end.max(initial=0)) - low + 1
    place = np.unique(rank, return_inverse=True)[1].reshape(-1).astype(np.int64)
    return start - low + place * width, end - low + place * width


@dataclass(slots=True, frozen=True)
class Flows:
    """Arrows of rows: masks of rows with equally many outgoing arrows, and these arrows. `into`,
    (n,), is the incoming arrow of each row, 0 if none."""

    groups: list[Array]
    out: list[Array | None]
    into: Array


def arrows(rows: Columns) -> Flows:
    """Return arrows from the awaited rank to every rank that waited for it."""
    order = np.lexsort([~rows.awaited, rows.instance])
    instance, source_row = rows.instance[order], rows.awaited[order]
    head = np.flatnonzero(source_row & (instance >= 0) & (np.diff(instance, prepend=-2) != 0))
    source = np.full(int(instance.max(initial=-1)) + 2, -1, np.int64)
    source[instance[head]] = order[head]
    of = source[rows.instance]
    waited = (rows.wait_ns >= SEEN_NS) & (rows.instance >= 0) & (of >= 0) & ~rows.awaited
    begins = rows.start_ns + rows.wait_ns
    waited &= (begins >= rows.start_ns[of]) & ((rows.end_ns == 0) | (begins < rows.end_ns))
    into = np.zeros(len(rows), np.int64)
    into[waited] = 1 + np.arange(np.count_nonzero(waited))
    count = np.bincount(of[waited], minlength=len(rows))
    targets = np.flatnonzero(waited)[np.argsort(of[waited], kind="stable")]
    first = np.cumsum(count) - count
    groups, out = [], []
    for size in np.unique(count):
        mask = count == size
        groups.append(mask)
        begun = first[mask][:, None] + np.arange(size)
        out.append(into[targets[begun]] if size else None)
    return Flows(groups, out, into)
