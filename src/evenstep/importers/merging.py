"""Stretches of time on one line: united, subtracted, cut and nested."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

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


def cut(start: Array, end: Array, edges: Array) -> tuple[Array, Array]:
    """Disjoint stretches, cut wherever one of the edges lies within one."""
    edges = np.unique(edges)
    inside = _covered(edges, start, end, "right") & _covered(edges, start, end, "left")
    return (
        np.sort(np.concatenate([start, edges[inside]])),
        np.sort(np.concatenate([end, edges[inside]])),
    )


def overlap_ns(one: tuple[Array, Array], other: tuple[Array, Array]) -> int:
    """Length covered by both: |A| − |A without B|."""
    start, end = united(*one)
    alone = without(start, end, *other)
    return int((end - start).sum() - (alone[1] - alone[0]).sum())


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
