"""The order in which the events of a segment are computed: level by level, many at a time.

A row comes after the previous row of its lane and after the operation that row waited for. An
operation comes after the entries it needs and after the one before it in its queue. The state that
the previous segment left stands at the end of the buffer: the lanes, then the queues.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from evenstep.trace.columns import Array


class Links(NamedTuple):
    """Dependencies of a segment. Nodes are its rows, then its operations, then lanes and queues as
    the previous segment left them, then `never`."""

    previous: Array  # (rows,) node before each row
    awaited: Array  # (rows,) operation that the previous row waited for
    entry_operation: Array  # (entries,) index of the operation, ascending
    entry_row: Array  # (entries,) node that it needs: a row, or another operation
    queued: Array  # (operations,) node before each operation in its queue
    lane_end: Array  # (lanes,) last row of each lane, or the lane as it was left
    lane_awaited: Array  # (lanes,) what that row waits for
    queue_end: Array  # (queues,) last operation of each queue, or the queue as it was left
    issued: Array | None = None  # (rows,) operation before whose end none is over, by the host

    @property
    def never(self) -> int:
        """The node that stands for no dependency: it is over at -inf."""
        return len(self.previous) + len(self.queued) + len(self.lane_end) + len(self.queue_end)


class Level(NamedTuple):
    """Rows and operations that depend on earlier levels only; indices are places in the buffer."""

    rows: slice
    previous: Array
    awaited: Array | None
    operations: slice
    sources: Array
    first: Array  # of each operation, in `sources`
    members: int  # entries of every operation; 0 where they differ
    queued: Array | None
    issued: Array | None


class Schedule(NamedTuple):
    """The levels of a segment, and its rows and operations in their order."""

    rows: Array
    operations: Array
    levels: list[Level]
    place: Array  # of every node, in the buffer
    links: Links


def schedule(links: Links, time_ns: Array) -> Schedule:
    """Sort a segment into levels; `time_ns` is when its rows and operations were over.

    Contradictory records may close a cycle of dependencies: it is cut before its earliest node.
    """
    rows, operations = len(links.previous), len(links.queued)
    count = rows + operations
    depth = _depths(links, count, time_ns)
    links = _forward(links, depth, count)
    order = np.lexsort([np.arange(count) >= rows, depth])
    place = np.arange(links.never + 1)
    place[order] = np.arange(count)
    edges = np.searchsorted(depth[order], np.arange(int(depth.max(initial=-1)) + 2))
    entries = np.searchsorted(links.entry_operation, np.arange(operations + 1))
    levels = []
    for first, last in pairwise(edges.tolist()):
        nodes = order[first:last]
        middle = first + int(np.searchsorted(nodes >= rows, True))
        levels.append(_level(links, place, nodes, (first, middle, last), entries))
    return Schedule(order[order < rows], order[order >= rows] - rows, levels, place, links)


def _level(
    links: Links, place: Array, nodes: Array, bounds: tuple[int, int, int], entries: Array
) -> Level:
    first, middle, last = bounds
    mine, never = nodes[: middle - first], links.never
    awaited = links.awaited[mine]
    chosen = nodes[middle - first :] - len(links.previous)
    sizes = entries[chosen + 1] - entries[chosen]
    starts = np.cumsum(sizes) - sizes
    offsets = np.repeat(entries[chosen] - starts, sizes) + np.arange(int(sizes.sum()))
    queued = links.queued[chosen]
    alike = len(sizes) > 0 and bool((sizes == sizes[0]).all())
    return Level(
        slice(first, middle), place[links.previous[mine]],
        place[awaited] if (awaited != never).any() else None, slice(middle, last),
        place[links.entry_row[offsets]], starts, int(sizes[0]) if alike else 0,
        place[queued] if (queued != never).any() else None,
        None if links.issued is None else place[links.issued[mine]],
    )  # fmt: skip


def _forward(links: Links, depth: Array, count: int) -> Links:
    """The dependencies without those on a later or equal level."""
    rows = len(links.previous)
    level = np.append(depth, np.full(links.never + 1 - count, -1))
    own, operations = depth[:rows], depth[rows:]

    def earlier(source: Array, target: Array) -> Array:
        return np.where(level[source] < target, source, links.never)

    return links._replace(
        previous=earlier(links.previous, own), awaited=earlier(links.awaited, own),
        entry_row=earlier(links.entry_row, operations[links.entry_operation]),
        queued=earlier(links.queued, operations),
        issued=None if links.issued is None else earlier(links.issued, own),
    )  # fmt: skip


def _depths(links: Links, count: int, time_ns: Array) -> Array:
    """The longest path to each node."""
    rows = len(links.previous)
    own = np.arange(rows)
    queue = rows + np.arange(len(links.queued))
    pairs = [(links.previous, own), (links.awaited, own), (links.queued, queue)]
    pairs.append((links.entry_row, links.entry_operation + rows))
    if links.issued is not None:
        pairs.append((links.issued, own))
    source, target = (np.concatenate(ends) for ends in zip(*pairs, strict=True))
    inside = source < count
    return depths(source[inside], target[inside], count, time_ns)


def depths(source: Array, target: Array, count: int, time_ns: Array) -> Array:
    """Length of the longest path to each of `count` nodes; cycles are entered at the earliest."""
    order = np.argsort(source, kind="stable")
    begins, ends = source[order], target[order]
    first = np.searchsorted(begins, np.arange(count + 1))
    waiting = np.bincount(ends, minlength=count)
    depth = np.full(count, -1)
    ready, level = np.flatnonzero(waiting == 0), 0
    while True:
        if not len(ready):
            left = np.flatnonzero(depth < 0)
            if not len(left):
                return depth
            ready = left[np.argmin(time_ns[left])][None]
        depth[ready] = level
        sizes = first[ready + 1] - first[ready]
        offsets = np.repeat(first[ready] - np.cumsum(sizes) + sizes, sizes)
        reached = ends[offsets + np.arange(len(offsets))]
        np.subtract.at(waiting, reached, 1)
        reached = np.unique(reached)
        ready, level = reached[(waiting[reached] == 0) & (depth[reached] < 0)], level + 1


def evaluate(plan: Schedule, work: Array, took: Array, carried: Array) -> Array:
    """When every node of a segment is over: (nodes, columns), nodes by `plan.place`.

    `work` (rows, columns) and `took` (operations, columns) are in the plan's order, `carried`
    (lanes and queues, columns) is the state that the previous segment left. A column is one segment
    under one scenario.
    """
    buffer = np.empty((plan.links.never + 1, work.shape[1]))
    count = len(plan.rows) + len(plan.operations)
    buffer[count:-1] = carried
    buffer[-1] = -np.inf
    row = operation = 0
    for level in plan.levels:
        here = level.rows.stop - level.rows.start
        if here:
            begin = buffer[level.previous]
            if level.awaited is not None:
                np.maximum(begin, buffer[level.awaited], out=begin)
            over = np.add(begin, work[row : row + here], out=buffer[level.rows])
            if level.issued is not None:
                np.maximum(over, buffer[level.issued], out=over)
            row += here
        here = level.operations.stop - level.operations.start
        if here:
            begin = _latest(buffer, level)
            if level.queued is not None:
                np.maximum(begin, buffer[level.queued], out=begin)
            np.add(begin, took[operation : operation + here], out=buffer[level.operations])
            operation += here
    return buffer


def _latest(buffer: Array, level: Level) -> Array:
    """The last entry into each operation."""
    entered = buffer[level.sources]
    if level.members:
        return np.asarray(entered.reshape(len(level.first), level.members, -1).max(axis=1))
    return np.asarray(np.maximum.reduceat(entered, level.first, axis=0))


def carried_over(plan: Schedule, buffer: Array) -> Array:
    """The state that a segment leaves to the next: (lanes and queues, columns)."""
    links, place = plan.links, plan.place
    lanes = np.maximum(buffer[place[links.lane_end]], buffer[place[links.lane_awaited]])
    return np.concatenate([lanes, buffer[place[links.queue_end]]])
