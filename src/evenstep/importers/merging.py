"""Tables of two windows; operations on intervals of time (union, difference, cutting, nesting), and
device time.

A host runs ahead of its devices, often by whole steps. The device time of a host moment is when
everything launched before it is done, but no earlier than the moment itself; communication counts
only if compute waited for it. Steps and phases are reported in device time: fetching a batch while
the device works costs nothing, a late launch costs its lateness, and a kernel belongs to the phase
that launched it, whenever it runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from evenstep.trace.columns import Array, Columns


def append_window(rows: Columns, later: Columns, more: Mapping[str, int]) -> Columns:
    """The rows of both tables, with these numbers added to columns of the later one; -1 stays."""
    known = {name: later[name] for name in more.keys() & set(later)}
    added = {name: np.where(one >= 0, one + more[name], -1) for name, one in known.items()}
    return Columns.concatenate([rows, later.with_columns(**added)])


def unite(start: Array, end: Array) -> tuple[Array, Array]:
    """The union of intervals, as disjoint intervals in order of time."""
    real = end > start
    start, end = start[real], end[real]
    if not len(start):
        return start, end
    order = np.argsort(start, kind="stable")
    start, reach = start[order], np.maximum.accumulate(end[order])
    new = np.append(True, start[1:] > reach[:-1])
    return start[new], reach[np.append(np.flatnonzero(new)[1:] - 1, len(start) - 1)]


def subtract(start: Array, end: Array, off_start: Array, off_end: Array) -> tuple[Array, Array]:
    """The union of the first intervals minus the second ones."""
    start, end = unite(start, end)
    off_start, off_end = unite(off_start, off_end)
    starts = np.unique(np.concatenate([start, off_end]))
    ends = np.unique(np.concatenate([end, off_start]))
    begin = _is_covered(starts, start, end, "right") & ~_is_covered(
        starts, off_start, off_end, "right"
    )
    stop = _is_covered(ends, start, end, "left") & ~_is_covered(ends, off_start, off_end, "left")
    return starts[begin], ends[stop]


def _is_covered(times: Array, start: Array, end: Array, side: Any) -> Array:
    """Whether the moment just after ("right") or before ("left") each time lies in an interval."""
    return np.asarray(
        np.searchsorted(start, times, side=side) > np.searchsorted(end, times, side=side)
    )


def cut(start: Array, end: Array, edges: Array) -> tuple[Array, Array]:
    """Cut disjoint intervals at the edges that lie within them."""
    edges = np.unique(edges)
    inside = _is_covered(edges, start, end, "right") & _is_covered(edges, start, end, "left")
    return (
        np.sort(np.concatenate([start, edges[inside]])),
        np.sort(np.concatenate([end, edges[inside]])),
    )


def leaf_lengths(start: Array, end: Array) -> Array:
    """Length of each interval without the intervals nested in it."""
    order = np.lexsort([-end, start])
    start, end = start[order], end[order]
    depth = np.arange(len(start)) - np.searchsorted(np.sort(end), start, side="right")
    leaf = (end - start).astype(np.int64)
    rest = leaf.copy()
    for level in range(1, int(depth.max(initial=0)) + 1):
        inner, outer = np.flatnonzero(depth == level), np.flatnonzero(depth == level - 1)
        parent = outer[np.searchsorted(outer, inner) - 1]  # depth grows by one from row to row
        np.subtract.at(rest, parent, np.minimum(end[inner], end[parent]) - start[inner])
    result = np.empty_like(rest)
    result[order] = np.clip(rest, 0, leaf)
    return result


# -- device time -----------------------------------------------------------------------------------

STAMP_NS = 2_000  # stamps of consecutive events may overlap by so much
_FIRST, _LAST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


class Completion(NamedTuple):
    """Kernels in order of launch, without communication that compute hides."""

    launched_ns: Array
    done_ns: Array  # when all kernels launched so far were done
    computed_ns: Array  # when all compute kernels launched so far were done
    began_ns: int = _FIRST  # when the device came to its first compute,
    lag_ns: int = 0  # and for how long that had then waited

    def at(self, times_ns: Array) -> Array:
        """Device times of these host moments; their order stays. In a lag, and for as long before,
        a device is taken to have been busy; what came earlier is late by the lag at most."""
        before = np.searchsorted(self.launched_ns, times_ns, side="left")
        near = times_ns >= self.began_ns - 2 * self.lag_ns
        came = np.maximum(times_ns + self.lag_ns * ~near, np.where(near, self.began_ns, _FIRST))
        return np.asarray(np.maximum(came, np.append(_FIRST, self.done_ns)[before]))

    def entered(self, issued_ns: Array, began_ns: Array, free: Array, received: Array) -> Array:
        """When devices reached calls, which are in order of issue.

        A kernel whose stream was `free`, and whose host was ahead, begins as its device reaches it.
        Else it was reached at the earliest when all compute launched before it was done, and when
        the calls issued before it were reached. A receive may begin and end long before its device
        reaches it.
        """
        came = self._replace(done_ns=self.computed_ns).at(issued_ns)
        came = np.where(free & (came > issued_ns), np.maximum(came, began_ns), came)
        came = np.where((began_ns < came - STAMP_NS) & ~received, began_ns, came)
        before = np.maximum.accumulate(came)
        return np.where((before - STAMP_NS <= began_ns) | received, before, came)


def completion(kernels: Columns, moving: Array) -> Completion:
    """The completion of kernels (launched_ns, start_ns, end_ns, stream); `moving` is the mask of
    those that communicate. Without compute kernels, device times are host times.
    """
    counts = ~moving if moving.all() else ~moving | _is_awaited(kernels, moving)
    computed = np.where(moving, _FIRST, kernels.end_ns)
    kernels = kernels.with_column("computed_ns", computed).select(counts).sorted_by("launched_ns")
    done, computed = (np.maximum.accumulate(kernels[end]) for end in ("end_ns", "computed_ns"))
    return Completion(kernels.launched_ns, done, computed)


def _is_awaited(kernels: Columns, moving: Array) -> Array:
    """Mask of communication that ended before any compute kernel launched after it began."""
    compute = kernels.select(~moving).sorted_by("launched_ns")
    first = np.minimum.accumulate(compute.start_ns[::-1])[::-1]
    after = np.searchsorted(compute.launched_ns, kernels.launched_ns, side="right")
    return np.asarray(moving & (kernels.end_ns - STAMP_NS <= np.append(first, _LAST)[after]))


def exposed_intervals(kernels: Columns, moving: Array) -> tuple[Array, Array]:
    """Intervals of communication without compute; none if there are no compute kernels."""
    busy, moved = kernels.select(~moving), kernels.select(moving)
    if not len(busy):
        return busy.start_ns, busy.end_ns
    return subtract(moved.start_ns, moved.end_ns, busy.start_ns, busy.end_ns)
