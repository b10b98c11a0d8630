"""Stretches of time on one line: united, subtracted, cut and nested; and when a device is done.

A host runs ahead of its devices, often by whole steps. A moment of its program has come on the
device once everything launched before it is done, and not before the host is there itself.
Communication counts where the device waited for it. Steps and phases are told in that time: so a
batch fetched behind the device's back costs nothing, a late launch does, and a kernel belongs to
the phase that launched it, whenever it runs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evenstep.trace.columns import Columns

Array = npt.NDArray[Any]


def united(start: Array, end: Array) -> tuple[Array, Array]:
    """What any of the stretches covers, as disjoint ones in order of time."""
    real = end > start
    start, end = start[real], end[real]
    if not len(start):
        return start, end
    order = np.argsort(start, kind="stable")
    start, reach = start[order], np.maximum.accumulate(end[order])
    new = np.append(True, start[1:] > reach[:-1])
    last = np.append(np.flatnonzero(new)[1:] - 1, len(start) - 1)
    return start[new], reach[last]


def without(start: Array, end: Array, off_start: Array, off_end: Array) -> tuple[Array, Array]:
    """What the first stretches cover and the second do not."""
    start, end = united(start, end)
    if not len(start):
        return start, end
    off_start, off_end = united(off_start, off_end)
    starts = np.unique(np.concatenate([start, off_end]))
    ends = np.unique(np.concatenate([end, off_start]))
    begin = _covered(starts, start, end, "right") & ~_covered(starts, off_start, off_end, "right")
    stop = _covered(ends, start, end, "left") & ~_covered(ends, off_start, off_end, "left")
    return starts[begin], ends[stop]


def _covered(times: Array, start: Array, end: Array, side: Any) -> Array:
    """Whether just after ("right") or just before ("left") each time lies in a stretch."""
    return np.asarray(
        np.searchsorted(start, times, side=side) > np.searchsorted(end, times, side=side)
    )


def at_once(times: Array, resolution: int) -> Array:
    """The times, each stretch of those that stamps of a resolution cannot tell apart as its first.

    Two stamps of one moment are off by up to one unit each.
    """
    order = np.argsort(times, kind="stable")
    line = times[order]
    opens = np.diff(line, prepend=line[:1] - 2 * resolution - 1) > 2 * resolution
    found = times.copy()
    found[order] = line[np.maximum.accumulate(np.where(opens, np.arange(len(line)), 0))]
    return found


def cut(start: Array, end: Array, edges: Array) -> tuple[Array, Array]:
    """Disjoint stretches, cut wherever one of the edges lies within one."""
    edges = np.unique(edges)
    inside = _covered(edges, start, end, "right") & _covered(edges, start, end, "left")
    return (
        np.sort(np.concatenate([start, edges[inside]])),
        np.sort(np.concatenate([end, edges[inside]])),
    )


def leaf_lengths(start: Array, end: Array) -> Array:
    """Length of each stretch without those nested in it. Starts ascend; longer ones come first
    where they are equal."""
    order = np.lexsort([-end, start])
    start, end = start[order], end[order]
    depth = np.arange(len(start)) - np.searchsorted(np.sort(end), start, side="right")
    leaf = (end - start).astype(np.int64)
    rest = leaf.copy()
    for level in range(1, int(depth.max(initial=0)) + 1):
        inner, outer = np.flatnonzero(depth == level), np.flatnonzero(depth == level - 1)
        if not len(outer):
            continue
        parent = outer[np.maximum(np.searchsorted(outer, inner) - 1, 0)]
        np.subtract.at(rest, parent, np.minimum(end[inner], end[parent]) - start[inner])
    result = np.empty_like(rest)
    result[order] = np.clip(rest, 0, leaf)
    return result


# -- when a device is done -------------------------------------------------------------------------

STAMP_NS = 2_000  # by which stamps of what follows at once may cross
_FIRST, _LAST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


class Completion(NamedTuple):
    """Kernels in order of their launch, without communication that compute hides."""

    launched_ns: Array
    done_ns: Array  # when all launched until then were done
    computed_ns: Array  # when those of them were that compute
    stream: Array  # in which the last of them ran

    def at(self, times_ns: Array) -> Array:
        """When these moments of the host had come on its devices too. Their order stays."""
        before = np.searchsorted(self.launched_ns, times_ns, side="left")
        return np.asarray(np.maximum(times_ns, np.append(_FIRST, self.done_ns)[before]))

    def entered(self, issued_ns: Array, began_ns: Array, stream: Array, received: Array) -> Array:
        """When the devices had come to calls: all before them done, or they had begun at last.

        What a call's own stream did before says nothing of when compute had come to the call. What
        is received may be asked for, and be there, long before compute comes to it: when it began
        does not tell whether compute had waited for what was sent.
        """
        before = np.searchsorted(self.launched_ns, issued_ns, side="left")
        behind = np.append(-1, self.stream)[before] == stream
        computed = self._replace(done_ns=self.computed_ns).at(issued_ns)
        came = np.where(behind | received, computed, self.at(issued_ns))
        return np.where((began_ns < came - STAMP_NS) & ~received, began_ns, came)


def completion(kernels: Columns, moving: Array) -> Completion:
    """Of kernels (launched_ns, start_ns, end_ns, stream), of which some move data between ranks.

    Where none computes, every moment of the host stays as it is.
    """
    counts = ~moving if moving.all() else ~moving | _awaited(kernels, moving)
    computed = np.where(moving, _FIRST, kernels.end_ns)
    kernels = kernels.with_column("computed_ns", computed).select(counts).sorted_by("launched_ns")
    done, computed = (np.maximum.accumulate(kernels[end]) for end in ("end_ns", "computed_ns"))
    last = np.maximum.accumulate(np.where(kernels.end_ns >= done, np.arange(len(done)), 0))
    return Completion(kernels.launched_ns, done, computed, kernels.stream[last])


def _awaited(kernels: Columns, moving: Array) -> Array:
    """Communication that ended before any compute began that was launched after it."""
    compute = kernels.select(~moving).sorted_by("launched_ns")
    first = np.minimum.accumulate(compute.start_ns[::-1])[::-1]
    after = np.searchsorted(compute.launched_ns, kernels.launched_ns, side="right")
    return np.asarray(moving & (kernels.end_ns - STAMP_NS <= np.append(first, _LAST)[after]))


def exposed(kernels: Columns, moving: Array) -> tuple[Array, Array]:
    """When a device communicated and none computed; nothing where none is seen to compute."""
    busy, moved = kernels.select(~moving), kernels.select(moving)
    if not len(busy):
        return busy.start_ns, busy.end_ns
    return without(moved.start_ns, moved.end_ns, busy.start_ns, busy.end_ns)
