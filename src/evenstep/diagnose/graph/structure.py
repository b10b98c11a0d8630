"""The graph of a run as arrays: rows of every rank, operations, and segments to replay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from evenstep.diagnose.graph.schedule import Links, Schedule, schedule
from evenstep.diagnose.levels import LOW
from evenstep.trace.columns import Array, Columns, begins, key_numbers, run_numbers, running_maximum


@dataclass(frozen=True)
class Batch:
    """Segments of one structure, which are replayed by one schedule."""

    first_row: Array  # (segments,) index into the graph's rows
    first_operation: Array  # (segments,)
    links: Links
    over_ns: Array  # ends of the rows and operations of the first segment
    ends: Array  # (step ends, 3): row within the segment, lane, step less the segment's number

    @cached_property
    def schedule(self) -> Schedule:
        """The order in which the events of a segment are computed."""
        return schedule(self.links, self.over_ns)


class Ahead(NamedTuple):
    """By how much times of hosts are ahead of the graph's, in which clocks drift: lines, by lane,
    with their values at the graph's time `base_ns`, or by up to `error_ns` less."""

    base_ns: float
    level_ns: Array
    slope: Array
    error_ns: Array

    @staticmethod
    def none(lanes: int) -> Ahead:
        """Hosts that have the graph's times."""
        return Ahead(0.0, *np.zeros((3, lanes)))

    def placed(self, lane: Array, host_ns: Array) -> Array:
        """The times in the graph of these times of lanes' hosts."""
        since = host_ns - self.level_ns[lane] - self.base_ns
        return np.asarray(host_ns - self.level_ns[lane] - self.slope[lane] * since, np.int64)


@dataclass(slots=True, frozen=True)
class Graph:
    """The dependency graph of a run.

    A row is the end of a stretch of own work of a lane. `rows`, in order of segment, lane and time:
    lane, step, index (of the step), at_ns, enter and wait (operations, -1 none), until_ns (the rank
    was seen to go on), ends (the lane's step ends here), hidden (a wait whose end is not seen),
    own_ns (work since the previous row and the end of its wait), slack_ns (of entries on devices,
    since their host issued them; -1 else), behind_ns (the same, also where records of hosts are in
    device time), inside (the record in which they were issued, by its seq; -1 else), after (an
    operation that the entered one begins after, -1 none), segment; where hosts issue what devices
    do, also the columns of `evenstep.diagnose.graph.segments`.
    `operations`: see `Entries`, with segment, last_ns (last entry), over_ns (end), took_ns (since
    it could begin) and queues (whether it begins after the one before it in its queue).
    """

    ranks: Array  # of the lanes
    steps: Array  # numbers, ascending
    rows: Columns
    operations: Columns
    batches: list[Batch]
    batch_of: Array  # of each segment
    place_in_batch: Array  # of each segment
    starts_ns: Array  # (stretches, lanes and queues): when each was free as the stretch began
    stretch_of: Array  # of each segment
    device: Array = field(default_factory=lambda: np.zeros(0, bool))  # (lanes,): device streams
    ahead: Ahead = field(default_factory=lambda: Ahead.none(0))  # of hosts' times
    between_ns: Array = field(default_factory=lambda: np.zeros(1))  # (steps,): idle before each

    @property
    def own_ns(self) -> Array:
        """Own work of each row."""
        return np.asarray(self.rows.own_ns)

    @property
    def host(self) -> Array:
        """The operation by which its host issues each row's entry, or the lane's next; -1 none."""
        return self.rows.host if "host" in self.rows else np.full(len(self.rows), -1)

    @property
    def took_ns(self) -> Array:
        """Duration of each operation since it could begin."""
        return np.asarray(self.operations.took_ns)


NEVER_NS = -(2**62)  # before all times, which may be negative: one that is not known
NO_HOST = -1  # slack of entries that a host makes itself
NO_ENTRY = -2  # of rows that a kernel's end is entered by
_ODD = np.uint64(0x9E3779B97F4A7C15)


def row_hash(columns: Sequence[Array]) -> Array:
    """A 64-bit hash per row of integers; not 0 for a row of zeros, so that sums tell sets apart."""
    code = np.full(len(columns[0]), _ODD)
    with np.errstate(over="ignore"):
        for column in columns:
            code ^= column.astype(np.int64, copy=False).view(np.uint64)
            code *= _ODD
            code ^= code >> np.uint64(29)
    return code


def row_numbers(*columns: Array) -> Array:
    """A number for each row of integer columns, the same for equal rows."""
    return np.asarray(np.unique(row_hash(columns), return_inverse=True)[1].reshape(-1))


class TimeLine(NamedTuple):
    """Values, ascending within each number; numbers ascend."""

    number: Array
    values: Array

    def before(self, number: Array, value: Array) -> Array:
        """How many values of smaller numbers, and of this number up to this value, there are."""
        low = int(min(self.values.min(), value.min(initial=2**62)))
        width = int(max(self.values.max(), value.max(initial=0))) - low + 2
        values, value = self.values - low, value - low
        if (int(max(self.number.max(), number.max(initial=0))) + 1) * width >= 2**63:
            both = np.unique(np.concatenate([values, value]), return_inverse=True)[1]
            values, value, width = both[: len(values)], both[len(values) :], len(both)
        line = self.number * width + values
        return np.asarray(np.searchsorted(line, number * width + value, side="right"))


def begun_ns(starts_ns: Array) -> float:
    """When half of the lanes had begun: by the first of two."""
    return float(np.quantile(starts_ns, 0.5, method="lower"))


class Times(NamedTuple):
    """(steps, lanes) in ns; `collectives` counts those with several members."""

    work_ns: Array
    blocked_ns: Array
    wait_ns: Array
    hidden_ns: Array
    collectives: Array


def _reach_and_resume(graph: Graph) -> tuple[Array, Array]:
    """When each row's lane reached it, and when its wait was over: two of (rows,), ns.

    Of successive waits none begins before the previous one is over.
    """
    rows = graph.rows
    over = np.append(graph.operations.over_ns, np.iinfo(np.int64).min)[rows.wait]
    over = running_maximum(np.maximum(rows.at_ns, over), run_numbers(rows.lane))
    reached = np.maximum(rows.at_ns, np.roll(over, 1))
    return np.where(begins(rows.lane), rows.at_ns, reached), over


def times(graph: Graph) -> Times:
    """Sums over the rows of each step and lane. A lane is blocked from reaching a wait until the
    operation is over; until the last member has entered it waits for others, also where that is in
    what the operation comes after, and the rest is exposed transfer."""
    rows, table = graph.rows, graph.operations
    at, over = _reach_and_resume(graph)
    never, shared = np.iinfo(np.int64).min // 2, ~table.message & (table.members > 1)
    last, chained = table.last_ns.copy(), (rows.after >= 0) & (rows.enter >= 0)
    np.maximum.at(last, rows.enter[chained], table.last_ns[rows.after[chained]])
    ended, entered = (np.append(each, never)[rows.wait] for each in (table.over_ns, last))
    blocked = np.maximum(ended - at, 0)
    after = seen_later(graph, over)
    exposed = by_step_and_lane(graph, blocked + after)
    waited = by_step_and_lane(graph, np.clip(entered - at, 0, blocked))
    moving = by_step_and_lane(graph, np.append(graph.took_ns, 0.0)[rows.enter])
    return Times(
        by_step_and_lane(graph, graph.own_ns - np.roll(after, 1)), exposed, waited,
        np.maximum(moving - (exposed - waited), 0),
        by_step_and_lane(graph, np.append(shared, False)[rows.enter]),
    )  # fmt: skip


def seen_later(graph: Graph, over_ns: Array) -> Array:
    """How much later than the end of its operation each row's lane was seen to go on: a host, or a
    device whose part of an uneven exchange ends later than another's.

    A replay counts it as the lane's own work, a measurement as time blocked.
    """
    rows, own_after = graph.rows, np.roll(graph.own_ns, -1)
    apart_ns = np.append(graph.operations.apart_ns, 0)[rows.wait]
    most = np.where(graph.device[rows.lane], np.minimum(apart_ns, own_after), own_after)
    follows = np.roll(~begins(rows.lane) & ~rows.hidden, -1) & (rows.wait >= 0)
    return np.where(follows, np.clip(rows.until_ns - over_ns, 0, most), 0.0)


def regularly_later(graph: Graph, kind: Array) -> Array:
    """How much of each row's own work, ns, is that its lane regularly goes on later than the first
    from the operation it waited for before: in a ring data reaches one member after another. All of
    it where the operation brings one more than another.

    `kind`: of each operation, among which the lane's is usual; -1 counts as 0.
    """
    at, over = _reach_and_resume(graph)
    later, wait = seen_later(graph, over), graph.rows.wait
    kind = np.append(kind, -1)[wait]
    rows = np.flatnonzero((kind >= 0) & (over > at))
    number = key_numbers(graph.rows.lane[rows], kind[rows])
    usual = quantiles(later[rows], number, LOW, int(number.max(initial=-1)) + 1)[number]
    usual[graph.operations.apart_ns[wait[rows]] > 0] = np.inf
    found = np.zeros(len(later) + 1)
    found[rows + 1] = np.minimum(later[rows], usual)
    return found[:-1]


def overlap(graph: Graph, lane: Array, start: Array, end: Array) -> Array:
    """How much of each row's own work lies in intervals of its lane's host: (rows,), ns.

    What a device does after its host issued the entry, or the next one that it comes to, does not
    count. Intervals of a lane must not overlap; times are those of the graph.
    """
    at = graph.rows.at_ns
    begin, entry = at - graph.own_ns.astype(np.int64), _gap_entries(graph)[0]
    issued = np.where(entry >= 0, at[entry] - graph.rows.slack_ns[entry], at)
    issued = np.clip(issued, begin, at)
    covered = Intervals(lane, start, end)
    until = length_before(covered, graph.rows.lane, issued)
    return np.asarray(until - length_before(covered, graph.rows.lane, begin))


def overlap_of_entries(graph: Graph, lane: Array, start: Array, end: Array) -> Array:
    """How long what each entry of a host begins is in flight within intervals of that host, or that
    host took to issue an entry of its device: (rows,), ns. 0 where neither is known."""
    found, rows, table = np.zeros(len(graph.rows)), graph.rows, graph.operations
    device = graph.device[rows.lane]
    of = np.where(device, np.where(rows.slack_ns >= 0, graph.host, -1), rows.enter)
    entry = np.flatnonzero(of >= 0)
    of, device, covered = of[entry], device[entry], Intervals(lane, start, end)
    issued = table.last_ns[of] - np.maximum(graph.took_ns[of], 0.0).astype(np.int64)
    until = np.where(device, table.last_ns[of], table.over_ns[of])
    since = np.where(device, issued, rows.at_ns[entry])
    before = [length_before(covered, rows.lane[entry], each) for each in (since, until)]
    found[entry] = np.maximum(before[1] - before[0], 0)
    return found


def _gap_entries(graph: Graph) -> tuple[Array, Array]:
    """The entries of a device that end the gap of each row and that the gap follows; -1 and -1
    where either is missing. Two of (rows,)."""
    order = np.argsort(graph.rows.lane, kind="stable")
    rows = graph.rows.select(order)
    entries = np.flatnonzero(rows.slack_ns >= 0)
    following = np.searchsorted(entries, np.arange(len(rows)))
    pair = np.append(entries, -1)[following], np.append(-1, entries)[following]
    there = (rows.lane[pair[0]] == rows.lane) & (rows.lane[pair[1]] == rows.lane)
    there &= (pair[0] >= 0) & (pair[1] >= 0)
    found = np.full((2, len(rows)), -1)
    found[:, order[there]] = [order[one[there]] for one in pair]
    return found[0], found[1]


def issued_in(graph: Graph, entries: Array) -> Array:
    """Each row's own work that a device did between two of these entries (a mask) that its host
    issued in one record, as a stream keeps the order of issue: (rows,), ns."""
    entry, before = _gap_entries(graph)
    inside = (entry >= 0) & entries[entry]
    inside &= graph.rows.inside[entry] == graph.rows.inside[before]
    return np.where(inside, graph.own_ns, 0.0)


def issued_behind(graph: Graph, lane: Array, start: Array, end: Array) -> Array:
    """Each row's own work before an entry that its host issued later than the one before and such
    an interval (as `overlap` has them), as far as the step has more than the lane usually has in
    steps without: (rows,), ns."""
    rows, (entry, before) = graph.rows, _gap_entries(graph)
    covered, issued = Intervals(lane, start, end), rows.at_ns - rows.slack_ns
    until, since = (length_before(covered, rows.lane, issued[one]) for one in (entry, before))
    found = np.where((entry >= 0) & (until > since), graph.own_ns, 0.0)
    behind, work = (by_step_and_lane(graph, each) for each in (found, graph.own_ns))
    calm = ~behind.any(axis=1)
    more = np.clip(work - (np.median(work[calm], axis=0) if calm.any() else work), 0, behind)
    return np.asarray(found * (more / np.maximum(behind, 1))[rows["index"], rows.lane])


def quantiles(values: Array, group: Array, share: float, count: int) -> Array:
    """The lower quantile of the values of each of `count` groups; 0 for an empty group."""
    order = np.lexsort([values, group])
    size = np.bincount(group, minlength=count)
    place = np.cumsum(size) - size + (share * (size - 1)).astype(int)
    values = np.append(values[order], 0)
    return np.where(size > 0, values[np.clip(place, 0, len(order))], 0)


def means(values: Array, kind: Array) -> Array:
    """Mean of each kind's values; 0 for kinds without any."""
    return np.asarray(np.bincount(kind, values) / np.maximum(np.bincount(kind), 1))


def grouped_order(group: Array, *keys: Array) -> Array:
    """The order by group and then by keys, as `np.lexsort` gives it; quicker where the rows of each
    group are nearly sorted by the keys."""
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


def by_step_and_lane(graph: Graph, values: Array) -> Array:
    """Sums of the values of rows over each step and lane: (steps, lanes), rounded."""
    shape = len(graph.steps), len(graph.ranks)
    cell = graph.rows["index"] * shape[1] + graph.rows.lane
    total = np.bincount(cell, values, minlength=shape[0] * shape[1])
    return np.rint(total).astype(np.int64).reshape(shape)


def last_lanes(graph: Graph) -> Array:
    """Lane of the last entry into each operation; -1 where it has none. (operations,)."""
    entering = np.flatnonzero(graph.rows.enter >= 0)
    number = graph.rows.enter[entering]
    last = entering[graph.rows.at_ns[entering] == graph.operations.last_ns[number]]
    found = np.full(len(graph.operations), -1)
    found[graph.rows.enter[last][::-1]] = graph.rows.lane[last][::-1]
    return found


# -- intervals -------------------------------------------------------------------------------------
# Unions and intersections within cells; a cell is what intervals are grouped by, such as a rank's
# step. Times are integers and relative to something near, so that all cells fit side by side on one
# line and are handled in one sweep.


class Intervals(NamedTuple):
    """Half-open intervals [start, end) of cells 0, 1, 2 …; reversed ones count as empty."""

    cell: Array
    start: Array
    end: Array

    def where(self, mask: Array) -> Intervals:
        return self if mask.all() else Intervals(*(column[mask] for column in self))

    def __add__(self, other: Intervals) -> Intervals:  # type: ignore[override]
        """The intervals of both."""
        return Intervals(*(np.concatenate(pair) for pair in zip(self, other, strict=True)))


NO_INTERVALS = Intervals(*np.zeros((3, 0), np.int64))


def union_length(intervals: Intervals, cells: int) -> Array:
    """Length covered in each of `cells` cells, overlaps counted once. Shape (cells,), int64."""
    kept = intervals.where(intervals.end > intervals.start)
    if not len(kept.cell):
        return np.zeros(cells, np.int64)
    low = int(kept.start.min())
    width = int(kept.end.max()) - low + 1
    cell, *_, pieces = _swept(kept, low, width)
    return np.bincount(cell, weights=pieces, minlength=cells).astype(np.int64)


def _swept(kept: Intervals, low: int, width: int) -> tuple[Array, ...]:
    """Cells, starts, latest ends so far and what each interval adds to them, in order of start,
    with cells side by side, `width` apart."""
    shift = kept.cell.astype(np.int64) * width - low
    cell, start, end = kept.cell, kept.start + shift, kept.end + shift
    order = np.argsort(start, kind="stable")
    cell, start, end = cell[order], start[order], end[order]
    reach = np.maximum.accumulate(end)
    before = np.concatenate([start[:1], reach[:-1]])
    return cell, start, reach, np.maximum(reach - np.maximum(start, before), 0)


def overlap_length(one: Intervals, other: Intervals, cells: int) -> Array:
    """Length that both cover: |A ∩ B| = |A| + |B| − |A ∪ B|. Shape (cells,), int64."""
    both = union_length(one + other, cells)
    return union_length(one, cells) + union_length(other, cells) - both


def length_before(intervals: Intervals, cell: Array, time: Array) -> Array:
    """Length covered in each given cell before the given time."""
    kept = intervals.where(intervals.end > intervals.start)
    if not len(kept.cell) or not len(cell):
        return np.zeros(len(cell), np.int64)
    low = min(int(kept.start.min()), int(time.min()))
    width = max(int(kept.end.max()), int(time.max())) - low + 1
    owner, start, reach, pieces = _swept(kept, low, width)
    covered = np.cumsum(pieces)
    place = cell.astype(np.int64) * width + (time - low)
    at = np.searchsorted(start, place) - 1
    until = np.where(at >= 0, covered[at] - np.maximum(reach[at] - place, 0), 0)
    earlier = np.zeros(int(max(cell.max(), owner[-1])) + 2, np.int64)  # covered in cells before
    np.add.at(earlier, owner + 1, pieces)
    return np.asarray(until - np.cumsum(earlier)[cell], np.int64)
