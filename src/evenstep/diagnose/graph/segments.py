"""A graph cut into segments, one per step, so that steps of one structure share a schedule.

An operation belongs to the latest step of its members, and so do the rows of each member that
follow its entry; so nothing in a segment depends on a later one.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from evenstep.diagnose.graph.issue import with_issues
from evenstep.diagnose.graph.lanes import STEP_END, WORKED
from evenstep.diagnose.graph.schedule import Links
from evenstep.diagnose.graph.structure import (
    NO_INTERVALS,
    Batch,
    Graph,
    Intervals,
    length_before,
    quantiles,
    row_hash,
)
from evenstep.trace.columns import Array, Columns

_LINKS = ("enter", "wait", "after", "host", "resumes")  # columns that name operations
ROUNDS = 64  # at most, until operations and rows agree on their segments


def segments(
    rows: Columns,
    operations: Columns,
    steps: Array,
    ranks: Array,
    lasted: tuple[Array, Array],
    busy: Intervals = NO_INTERVALS,
) -> Graph:
    """Cut a graph. `rows` in order of lane and time: lane, step, at_ns, enter, wait, order.

    `lasted`, two of (steps, lanes): when each step began and ended, -1 unknown. Time in which no
    lane is in a step counts for none. `busy`, by lane: when hosts surely did not wait for devices.
    """
    begun_ns, ended_ns = lasted
    index = np.searchsorted(steps, rows.step)
    row_in, operation_in = _segment_numbers(rows, operations, index)
    gaps = np.flatnonzero(np.diff(steps) > 1) + 1  # steps left out: another stretch begins
    stretch = np.searchsorted(gaps, np.arange(len(steps)), side="right")
    between, between_ns = _between(begun_ns, ended_ns)
    own, start, resumed = _own(rows, operations, begun_ns, stretch, index, between)
    rows = rows.with_column("own_ns", own).with_column("segment", row_in)
    rows = rows.with_column("ends", rows.order == STEP_END).with_column("index", index)
    rows = rows.with_column("hidden", rows.order == WORKED)
    operations = operations.with_column("segment", operation_in)
    operations = operations.with_column("took_ns", _took(rows, operations))
    if "slack_ns" in rows and (rows.slack_ns >= 0).any():
        rows, operations = with_issues(rows, operations, resumed, start, stretch[index], busy)
    rows, operations = _sort(rows, operations)
    made = _batch(rows, operations, steps, ranks, (stretch, start))
    between_ns[gaps] = 0
    return replace(made, between_ns=between_ns)


def _segment_numbers(rows: Columns, operations: Columns, index: Array) -> tuple[Array, Array]:
    own = index.astype(np.int64)
    found = own.copy()
    count = len(operations)
    new_lane = np.diff(rows.lane, prepend=-1) != 0
    line = np.cumsum(new_lane) * (int(index.max(initial=0)) + 1)
    for _ in range(ROUNDS):
        latest = np.zeros(count, np.int64)
        for name in ("enter", "wait"):
            mine = rows[name] >= 0
            np.maximum.at(latest, rows[name][mine], found[mine])
        known = np.append(latest, 0)  # -1, none, is in no segment
        links = known[rows.enter], known[rows.wait], known[rows.after]
        raised = np.maximum(found, np.maximum.reduce(links))
        raised = np.maximum.accumulate(raised + line) - line
        if np.array_equal(raised, found):
            return found, latest
        found = raised
    return np.zeros(len(rows), np.int64), np.zeros(count, np.int64)  # one segment holds all


def _between(begun_ns: Array, ended_ns: Array) -> tuple[tuple[Array, Array], Array]:
    """The intervals from the last end of a step to the first beginning of the next, where all are
    known; and how long that is before each step."""
    known = (begun_ns[1:] >= 0).all(axis=1) & (ended_ns[:-1] >= 0).all(axis=1)
    since = np.maximum.accumulate(ended_ns.max(axis=1, initial=0))[:-1]
    until = begun_ns.min(axis=1, initial=2**62)[1:]
    idle = known & (until > since)
    return (since[idle], until[idle]), np.append(0, np.where(idle, until - since, 0))


def _own(
    rows: Columns,
    operations: Columns,
    begun_ns: Array,
    stretch: Array,
    index: Array,
    between: tuple[Array, Array],
) -> tuple[Array, Array, Array]:
    """Own work of each row, when each lane was free as each stretch began, and when each row's lane
    went on.

    Where a lane's beginning is not known, its first work is the usual first work of its steps.
    """
    over, lane = np.append(operations.over_ns, -(2**62)), rows.lane  # -1, none, is long over
    resumed = np.maximum(rows.at_ns, over[rows.wait])
    span = int(resumed.max(initial=0) - min(int(resumed.min(initial=0)), 0)) + 1
    line = lane * span  # nobody goes on before it has gone on from what it waited for earlier
    resumed = np.maximum.accumulate(resumed + line) - line
    before = np.concatenate([[0], resumed[:-1]])
    opens = np.flatnonzero(
        (np.diff(lane, prepend=-1) != 0) | (np.diff(stretch[index], prepend=-1) != 0)
    )
    own = np.maximum(rows.at_ns - before, 0).astype(float)
    idle = Intervals(np.zeros(len(between[0]), np.int64), *between)
    nobody = np.zeros(len(rows), np.int64)
    own -= length_before(idle, nobody, rows.at_ns) - length_before(
        idle, nobody, np.minimum(before, rows.at_ns)
    )
    begun = begun_ns[index[opens], lane[opens]]
    usual = _usual_beginnings(own, lane, index, opens)
    own[opens] = np.where(begun >= 0, np.maximum(rows.at_ns[opens] - begun, 0), usual[lane[opens]])
    start = np.full((int(stretch.max(initial=0)) + 1, begun_ns.shape[1]), -(2**62), np.int64)
    start[stretch[index[opens]], lane[opens]] = rows.at_ns[opens] - own[opens].astype(np.int64)
    return own, start, resumed


def _usual_beginnings(own: Array, lane: Array, index: Array, opens: Array) -> Array:
    """Per lane, the median work before the first row of a step."""
    first = (np.diff(index, prepend=-1) != 0) | (np.diff(lane, prepend=-1) != 0)
    first[opens] = False
    rows = np.flatnonzero(first)
    return quantiles(own[rows], lane[rows], 0.5, int(lane.max(initial=0)) + 1)


def _took(rows: Columns, operations: Columns) -> Array:
    before = np.concatenate([[0], operations.over_ns[:-1]])
    begin = np.where(operations.queues, np.maximum(operations.last_ns, before), operations.last_ns)
    held = np.flatnonzero(rows.after >= 0)
    np.maximum.at(begin, rows.enter[held], operations.over_ns[rows.after[held]])
    return np.asarray(np.maximum(operations.over_ns - begin, 0).astype(float))


def _sort(rows: Columns, operations: Columns) -> tuple[Columns, Columns]:
    """Both tables in order of segment, operations renumbered."""
    order = np.argsort(operations.segment, kind="stable")
    if not (np.diff(order) == 1).all():
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        operations = operations.select(order)
        for name in _LINKS[: 3 if "host" not in rows else None]:
            column = rows[name]
            rows = rows.with_column(name, np.where(column >= 0, place[column], -1))
    order = np.argsort(rows.segment, kind="stable")
    return rows.select(order), operations


def _batch(
    rows: Columns, operations: Columns, steps: Array, ranks: Array, stretches: tuple[Array, Array]
) -> Graph:
    stretch, start = stretches
    count = int(max(rows.segment.max(initial=0), operations.segment.max(initial=0))) + 1
    first_row = np.searchsorted(rows.segment, np.arange(count + 1))
    first_operation = np.searchsorted(operations.segment, np.arange(count + 1))
    queues = int(operations.queue.max(initial=-1)) + 1
    key = _structure(rows, operations, first_row, first_operation)
    batch_of = np.unique(key, return_inverse=True)[1].reshape(-1)
    place = np.zeros(count, np.int64)
    batches = []
    for number in range(int(batch_of.max(initial=-1)) + 1):
        mine = np.flatnonzero(batch_of == number)
        place[mine] = np.arange(len(mine))
        head = int(mine[0])
        here = rows.select(slice(first_row[head], first_row[head + 1]))
        of = operations.select(slice(first_operation[head], first_operation[head + 1]))
        links = _links(here, of, int(first_operation[head]), len(ranks), queues, operations)
        over = np.concatenate([here.at_ns, of.over_ns])
        ended = np.flatnonzero(here.ends)
        ends = np.stack([ended, here.lane[ended], here["index"][ended] - head], axis=1)
        batches.append(Batch(first_row[mine], first_operation[mine], links, over, ends))
    carried = np.full((len(start), len(ranks) + queues), -np.inf)
    carried[:, : len(ranks)] = np.where(start > -(2**62), start, np.nan)
    started = _start_state(carried)
    return Graph(ranks, steps, rows, operations, batches, batch_of, place, started, stretch)


def _start_state(carried: Array) -> Array:
    """The state with lanes of unknown beginning free as early as any other."""
    lowest = np.where(np.isfinite(carried), carried, np.inf)
    lowest = lowest.min(axis=1, keepdims=True, initial=np.inf)  # of no lanes, too
    return np.asarray(np.where(np.isnan(carried), np.where(lowest < np.inf, lowest, 0), carried))


def _structure(
    rows: Columns, operations: Columns, first_row: Array, first_operation: Array
) -> Array:
    """A number per segment, the same for segments with the same links."""
    base = first_operation[:-1]

    def local(column: Array) -> Array:
        return np.where(column >= 0, column - base[rows.segment], -1).astype(np.uint64)

    here = (np.arange(len(rows)) - first_row[rows.segment]).astype(np.uint64)
    index = rows["index"] - rows.segment
    links = [local(rows[name]) for name in _LINKS if name in rows]
    issued = [rows.slack_ns >= 0, operations.opens] if "host" in rows else []
    code = row_hash([here, rows.lane, *links, rows.ends, index, *issued[:1]])
    there = (np.arange(len(operations)) - first_operation[operations.segment]).astype(np.uint64)
    other = row_hash([there, operations.queue, operations.queues, operations.op, *issued[1:]])
    return _slice_sums(code, first_row) + _slice_sums(other, first_operation) * np.uint64(3)


def _slice_sums(code: Array, first: Array) -> Array:
    total = np.concatenate([np.zeros(1, np.uint64), np.cumsum(code, dtype=np.uint64)])
    return np.asarray(total[first[1:]] - total[first[:-1]])


def _links(
    rows: Columns, operations: Columns, base: int, lanes: int, queues: int, whole: Columns
) -> Links:
    """Dependencies of one segment, in its own numbering."""
    count, number = len(rows), len(operations)
    never = count + number + lanes + queues
    lane_node, queue_node = count + number, count + number + lanes
    opens = np.diff(rows.lane, prepend=-1) != 0
    previous = np.where(opens, lane_node + rows.lane, np.arange(count) - 1)

    earlier = queue_node + np.append(whole.queue, 0)  # of earlier segments: as its queue was left

    def node(operation: Array) -> Array:
        here = np.where(operation < base, earlier[operation], operation - base + count)
        return np.where(operation < 0, never, here)

    wait = node(rows.wait)
    awaited = np.full(count, never)
    awaited[1:] = np.where(opens[1:], never, wait[:-1])
    enters, held = np.flatnonzero(rows.enter >= 0), np.flatnonzero(rows.after >= 0)
    needed = np.append(enters, node(rows.after[held].astype(np.int64)))
    entered = np.append(rows.enter[enters], rows.enter[held]) - base
    issued = None
    if "host" in rows:
        issued = node(np.where(rows.slack_ns >= 0, rows.host, -1))
        opens, resumed = np.flatnonzero(operations.opens >= 0), np.flatnonzero(rows.resumes >= 0)
        lane = lane_node + operations.opens[opens]
        needed = np.concatenate([needed, resumed, wait[resumed], lane])
        entered = np.concatenate([entered, *[rows.resumes[resumed] - base] * 2, opens])
        alone = np.setdiff1d(np.arange(number), entered)  # after the issue before them
        needed, entered = np.append(needed, 0 * alone + never), np.append(entered, alone)
    order = np.argsort(entered, kind="stable")
    new_queue = np.diff(operations.queue, prepend=-1) != 0
    before = np.where(new_queue, queue_node + operations.queue, count + np.arange(number) - 1)
    queued = np.where(operations.queues, before, never)
    lane_end, lane_awaited = lane_node + np.arange(lanes), np.full(lanes, never)
    last = np.flatnonzero(np.diff(rows.lane, append=-1) != 0)
    lane_end[rows.lane[last]] = last
    lane_awaited[rows.lane[last]] = wait[last]
    queue_end = queue_node + np.arange(queues)
    final = np.flatnonzero(np.diff(operations.queue, append=-1) != 0)
    queue_end[operations.queue[final]] = count + final
    ends = lane_end, lane_awaited, queue_end
    return Links(previous, awaited, entered[order], needed[order], queued, *ends, issued)
