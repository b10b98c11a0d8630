"""The graph of a run as arrays: rows of every rank, operations, and segments to replay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evenstep.diagnose.graph.schedule import Links, Schedule, schedule
from evenstep.trace.columns import Columns

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Batch:
    """Segments of one structure. `segments` ascend; `rows` and `operations` are their slices:
    (segments, of each) indices into the graph's tables, in the schedule's order."""

    segments: Array
    first_row: Array  # (segments,)
    first_operation: Array
    links: Links
    over_ns: Array  # when the rows and operations of one of them were over
    ends: Array  # (step ends, 3): local row, lane, step less the segment's first

    @cached_property
    def schedule(self) -> Schedule:
        """The order in which its events are worked out, once anybody replays it."""
        return schedule(self.links, self.over_ns)


@dataclass(slots=True, frozen=True)
class Graph:
    """What waits for what.

    `rows`, in order of segment, lane and time: lane, step, index (of the step), at_ns, enter and
    wait (an operation, -1 none), until_ns (its rank was seen to go on), ends (a step of its lane),
    hidden (its end is not seen where it waits), own_ns (work since the row before and what that
    waited for), slack_ns (of entries on devices, since their host issued them; -1 else), after (an
    operation that what is entered waits for, -1 none), segment.
    `operations`: see `Entries`, with segment, last_ns (last entry), over_ns,
    took_ns (from when it could begin) and queues (behind the one before it).
    """

    ranks: Array  # of the lanes
    steps: Array  # numbers, ascending
    rows: Columns
    operations: Columns
    batches: list[Batch]
    batch_of: Array  # of each segment
    place_in_batch: Array  # of each segment
    starts_ns: Array  # (stretches, lanes and queues): what was over when each stretch began
    stretch_of: Array  # of each segment
    device: Array = field(default_factory=lambda: np.zeros(0, bool))  # (lanes,): streams
    host_ahead_ns: Array = field(default_factory=lambda: np.zeros(0))  # (lanes,): of the graph
    between_ns: Array = field(default_factory=lambda: np.zeros(1))  # (steps,): nobody in any before

    @property
    def own_ns(self) -> Array:
        """Own work of each row."""
        return np.asarray(self.rows.own_ns)

    @property
    def took_ns(self) -> Array:
        """How long each operation took once it could begin."""
        return np.asarray(self.operations.took_ns)


_ODD = np.uint64(0x9E3779B97F4A7C15)


def mixed(columns: Sequence[Array]) -> Array:
    """Per row, a hash of integer columns (multiplied and folded, 64 bits). That of zeros is none
    either: it counts in a sum over a set."""
    code = np.full(len(columns[0]), _ODD)
    with np.errstate(over="ignore"):
        for column in columns:
            code = (code ^ column.astype(np.int64).astype(np.uint64)) * _ODD
            code ^= code >> np.uint64(29)
    return code


class _Waits(NamedTuple):
    """Rows that waited: indices, time blocked, and how much of it was for others. ns."""

    rows: Array
    blocked_ns: Array
    others_ns: Array


class Times(NamedTuple):
    """(steps, lanes) in ns; `collectives` counts operations taken part in."""

    work_ns: Array
    blocked_ns: Array
    wait_ns: Array
    hidden_ns: Array
    collectives: Array


def _waits(graph: Graph, reached_ns: Array) -> _Waits:
    """Everything that was waited for: blocked from when it was reached until it is over; of that,
    for others until the last member has entered, the rest being exposed transfer."""
    rows = np.flatnonzero(graph.rows.wait >= 0)
    awaited, at = graph.rows.wait[rows], reached_ns[rows]
    blocked = np.maximum(graph.operations.over_ns[awaited] - at, 0)
    others = np.clip(graph.operations.last_ns[awaited] - at, 0, blocked)
    seen = blocked > 0
    return _Waits(rows[seen], blocked[seen], others[seen])


def _reached(graph: Graph) -> tuple[Array, Array]:
    """When each row's lane has come to it, and when what it waits for is over then: (2, rows), ns.

    Of several waits one after the other none begins before the one before it is over.
    """
    rows = graph.rows
    over = np.append(graph.operations.over_ns, np.iinfo(np.int64).min)[rows.wait]
    over = np.maximum(rows.at_ns, over)
    if not len(over):
        return over, over
    same = rows.lane[1:] == rows.lane[:-1]
    first = np.append(0, np.flatnonzero(~same) + 1)
    run = np.append(0, np.cumsum(~same))  # rows of a lane that follow each other
    since = over - rows.at_ns[first][run]
    apart = run * (since.max() - since.min() + 1) - rows.at_ns[first][run]
    over = np.maximum.accumulate(over + apart) - apart
    at = rows.at_ns.copy()
    at[1:][same] = np.maximum(at[1:], over[:-1])[same]
    return at, over


def times(graph: Graph) -> Times:
    """Sums over the rows of each step and lane."""
    at, over = _reached(graph)
    found = _waits(graph, at)
    enters = graph.rows.enter >= 0
    took = np.append(graph.took_ns, 0.0)  # -1, none, takes nothing
    moving = summed(graph, took[graph.rows.enter])
    blocked, wait = np.zeros(len(graph.rows)), np.zeros(len(graph.rows))
    blocked[found.rows], wait[found.rows] = found.blocked_ns, found.others_ns
    seen_later = _seen_later(graph, over)
    exposed, waited = summed(graph, blocked + seen_later), summed(graph, wait)
    return Times(
        summed(graph, graph.own_ns - np.append(0.0, seen_later[:-1])),
        exposed,
        waited,
        np.maximum(moving - (exposed - waited), 0),
        summed(graph, enters & np.append(_shared(graph), False)[graph.rows.enter]),
    )


def _seen_later(graph: Graph, over_ns: Array) -> Array:
    """How much later than the first of its operation each host that waited was seen to go on.

    In a replay that is the rank's own; of what was measured it is time blocked.
    """
    rows = graph.rows
    follows = np.append((rows.lane[1:] == rows.lane[:-1]) & ~rows.hidden[1:], False)
    follows &= (rows.wait >= 0) & ~graph.device[rows.lane]
    own_after = np.append(graph.own_ns[1:], 0.0)
    return np.where(follows, np.clip(rows.until_ns - over_ns, 0, own_after), 0.0)


def _shared(graph: Graph) -> Array:
    """Collectives that several ranks take part in."""
    return np.asarray(~graph.operations.message & (graph.operations.members > 1))


def overlap(graph: Graph, lane: Array, start: Array, end: Array) -> Array:
    """How much of each row's own work lies in intervals of its lane's host: (rows,), ns. What a
    device does after its host had issued it all is work, whatever the host does.

    Intervals of a lane must not overlap; times are those of the graph.
    """
    begin = graph.rows.at_ns - graph.own_ns.astype(np.int64)
    issued = np.maximum(graph.rows.at_ns - np.maximum(graph.rows.slack_ns, 0), begin)
    covered = Intervals(lane, start, end)
    until = length_before(covered, graph.rows.lane, issued)
    since = length_before(covered, graph.rows.lane, begin)
    return np.asarray(until - since)


def quantiles(values: Array, group: Array, share: float, count: int) -> Array:
    """The lower quantile of the values of each of `count` groups; 0 where it has none."""
    order = np.lexsort([values, group])
    size = np.bincount(group, minlength=count)
    place = np.cumsum(size) - size + (share * (size - 1)).astype(int)
    values = np.append(values[order], 0)
    return np.where(size > 0, values[np.clip(place, 0, len(order))], 0)


def in_order(group: Array, *keys: Array) -> Array:
    """Places by group and then by keys: what `np.lexsort` gives, sooner where there are few groups
    in each of which the keys hardly need to be sorted."""
    if group.max(initial=0) < 2**16 and group.min(initial=0) >= 0:
        group = group.astype(np.uint16)  # of these numpy sorts by radix
    order = np.argsort(group, kind="stable")
    group, keys = group[order], tuple(key[order] for key in keys)
    sorted_ = np.ones(max(len(order) - 1, 0), bool)
    for key in reversed(keys):
        sorted_ = (key[1:] > key[:-1]) | ((key[1:] == key[:-1]) & sorted_)
    if (sorted_ | (group[1:] != group[:-1])).all():
        return np.asarray(order)
    return np.asarray(order[np.lexsort([*reversed(keys), group])])


def summed(graph: Graph, values: Array) -> Array:
    """Values of rows by step and lane."""
    shape = len(graph.steps), len(graph.ranks)
    cell = graph.rows["index"] * shape[1] + graph.rows.lane
    total = np.bincount(cell, values, minlength=shape[0] * shape[1])
    return np.rint(total).astype(np.int64).reshape(shape)


def last_lanes(graph: Graph) -> Array:
    """Lane of the last entry that each operation needs; -1 where it has none. (operations,)."""
    entering = np.flatnonzero(graph.rows.enter >= 0)
    number = graph.rows.enter[entering]
    last = entering[graph.rows.at_ns[entering] == graph.operations.last_ns[number]]
    found = np.full(len(graph.operations), -1)
    found[graph.rows.enter[last][::-1]] = graph.rows.lane[last][::-1]
    return found


# -- intervals -------------------------------------------------------------------------------------
# Unions and intersections, cell by cell. A cell is whatever they are grouped by (a rank's step).
# Times are integers, relative to something near, so that cells can be laid side by side on one line
# and handled in one sweep.


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
