"""A graph cut into segments, one per step, so that steps of one structure share a schedule.

An operation belongs to the latest step of its members, and so do the rows of each member that
follow its entry; so nothing in a segment depends on a later one.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from evenstep.diagnose.graph.awaited import entered_kinds, places_of
from evenstep.diagnose.graph.gaps import FURTHEST
from evenstep.diagnose.graph.lanes import NONE, STEP_END, WORKED, single_operations
from evenstep.diagnose.graph.schedule import Links
from evenstep.diagnose.graph.streams import CROSSING_NS
from evenstep.diagnose.graph.structure import (
    NEVER_NS,
    NO_ENTRY,
    NO_INTERVALS,
    Batch,
    Graph,
    Intervals,
    TimeLine,
    length_before,
    means,
    quantiles,
    row_hash,
    row_numbers,
)
from evenstep.diagnose.levels import MINOR, MOST, NEARLY_ALL
from evenstep.trace.columns import Array, Columns, begins, finishes, running_maximum

_LINKS = ("enter", "wait", "after", "host", "resumes")  # columns that name operations
ROUNDS = 64  # at most, until operations and rows agree on their segments


def segments(
    rows: Columns,
    operations: Columns,
    steps: Array,
    ranks: Array,
    lasted: tuple[Array, Array, Array],
    busy: Intervals = NO_INTERVALS,
) -> Graph:
    """Cut a graph. `rows` in order of lane and time: lane, step, at_ns, enter, wait, order.

    `lasted`, three of (steps, lanes), `NEVER_NS` unknown: when each step began and ended, and by
    when it surely had begun. Time in which no lane is in a step counts for none. `busy`, by lane:
    when hosts surely did not wait for devices.
    """
    begun_ns, ended_ns, latest_ns = lasted
    index = np.searchsorted(steps, rows.step)
    row_in, operation_in = _segment_numbers(rows, operations, index)
    gaps = np.flatnonzero(np.diff(steps) > 1) + 1  # steps left out: another stretch begins
    stretch = np.searchsorted(gaps, np.arange(len(steps)), side="right")
    between, between_ns = _between(begun_ns, ended_ns)
    own, start, resumed = _own(rows, operations, (begun_ns, latest_ns), stretch, index, between)
    ends, hidden = rows.order == STEP_END, rows.order == WORKED
    rows = rows.with_columns(own_ns=own, segment=row_in, ends=ends, index=index, hidden=hidden)
    operations = operations.with_columns(segment=operation_in, took_ns=_took(rows, operations))
    if "behind_ns" in rows and (rows.behind_ns >= 0).any():
        rows, operations = _with_issues(rows, operations, resumed, start, stretch[index], busy)
    rows, operations = _sort(rows, operations)
    made = _batch(rows, operations, steps, ranks, (stretch, start))
    between_ns[gaps] = 0
    return replace(made, between_ns=between_ns)


def _segment_numbers(rows: Columns, operations: Columns, index: Array) -> tuple[Array, Array]:
    own = index.astype(np.int64)
    found = own.copy()
    count = len(operations)
    for _ in range(ROUNDS):
        latest = np.zeros(count, np.int64)
        for name in ("enter", "wait"):
            mine = rows[name] >= 0
            np.maximum.at(latest, rows[name][mine], found[mine])
        known = np.append(latest, 0)  # -1, none, is in no segment
        links = known[rows.enter], known[rows.wait], known[rows.after]
        raised = running_maximum(np.maximum(found, np.maximum.reduce(links)), rows.lane)
        if np.array_equal(raised, found):
            return found, latest
        found = raised
    return np.zeros(len(rows), np.int64), np.zeros(count, np.int64)  # one segment holds all


def _between(begun_ns: Array, ended_ns: Array) -> tuple[tuple[Array, Array], Array]:
    """The intervals from the last end of a step to the first beginning of the next, where all are
    known; and how long that is before each step."""
    known = (begun_ns[1:] > NEVER_NS).all(axis=1) & (ended_ns[:-1] > NEVER_NS).all(axis=1)
    since = np.maximum.accumulate(ended_ns.max(axis=1, initial=NEVER_NS))[:-1]
    until = begun_ns.min(axis=1, initial=2**62)[1:]
    lasted = np.where(known, np.maximum(until - since, 0), 0)
    return (since[known], until[known]), np.append(0, lasted)


def _own(
    rows: Columns,
    operations: Columns,
    begun: tuple[Array, Array],
    stretch: Array,
    index: Array,
    between: tuple[Array, Array],
) -> tuple[Array, Array, Array]:
    """Own work of each row, when each lane was free as each stretch began, and when each row's lane
    went on.

    `begun`: when each step began, and by when it surely had (steps, lanes). Where a lane's
    beginning is not known, its first work is the usual first work of its steps, or at least that
    since it surely had begun.
    """
    over, lane = np.append(operations.over_ns, NEVER_NS), rows.lane  # -1, none, is long over
    # nobody goes on before it has gone on from what it waited for earlier
    resumed = running_maximum(np.maximum(rows.at_ns, over[rows.wait]), lane)
    before = np.roll(resumed, 1)
    opens = np.flatnonzero(begins(lane, stretch[index]))
    own = np.maximum(rows.at_ns - before, 0).astype(float)
    idle = Intervals(np.zeros(len(between[0]), np.int64), *between)
    ends = np.minimum(before, rows.at_ns), rows.at_ns
    own += np.subtract(*(length_before(idle, 0 * lane, at) for at in ends))
    exact, latest = (ns[index[opens], lane[opens]] for ns in begun)
    first = begins(index, lane)
    first[opens] = False
    usual = quantiles(own[first], lane[first], 0.5, int(lane.max(initial=0)) + 1)
    least = np.where(latest > NEVER_NS, rows.at_ns[opens] - latest, 0)
    least = np.maximum(least, usual[lane[opens]])
    own[opens] = np.where(exact > NEVER_NS, np.maximum(rows.at_ns[opens] - exact, 0), least)
    start = np.full((int(stretch.max(initial=0)) + 1, begun[0].shape[1]), NEVER_NS)
    start[stretch[index[opens]], lane[opens]] = rows.at_ns[opens] - own[opens].astype(np.int64)
    return own, start, resumed


def _took(rows: Columns, operations: Columns) -> Array:
    before = np.roll(operations.over_ns, 1)
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
        here = rows.select(np.arange(first_row[head], first_row[head + 1]))
        of = operations.select(np.arange(first_operation[head], first_operation[head + 1]))
        links = _links(here, of, int(first_operation[head]), len(ranks), queues, operations)
        over = np.concatenate([here.at_ns, of.over_ns])
        ended = np.flatnonzero(here.ends)
        ends = np.stack([ended, here.lane[ended], here["index"][ended] - head], axis=1)
        batches.append(Batch(first_row[mine], first_operation[mine], links, over, ends))
    carried = np.full((len(start), len(ranks) + queues), -np.inf)
    carried[:, : len(ranks)] = np.where(start > NEVER_NS, start, np.nan)
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
    base = first_operation[rows.segment]

    def local(column: Array) -> Array:
        return np.where(column >= 0, column - base, -1)

    here = np.arange(len(rows)) - first_row[rows.segment]
    index = rows["index"] - rows.segment
    links = [local(rows[name]) for name in _LINKS if name in rows]
    issued = [rows.behind_ns >= 0, operations.opens] if "host" in rows else []
    code = row_hash([here, rows.lane, *links, rows.ends, index, *issued[:1]])
    there = np.arange(len(operations)) - first_operation[operations.segment]
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
    opens = begins(rows.lane)
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
        issued = node(np.where(rows.behind_ns >= 0, rows.host, -1))
        opens, resumed = np.flatnonzero(operations.opens >= 0), np.flatnonzero(rows.resumes >= 0)
        lane = lane_node + operations.opens[opens]
        needed = np.concatenate([needed, resumed, wait[resumed], lane])
        entered = np.concatenate([entered, *[rows.resumes[resumed] - base] * 2, opens])
        alone = np.setdiff1d(np.arange(number), entered)  # after the issue before them
        needed, entered = np.append(needed, 0 * alone + never), np.append(entered, alone)
    order = np.argsort(entered, kind="stable")
    before = count + np.arange(number) - 1
    before = np.where(begins(operations.queue), queue_node + operations.queue, before)
    queued = np.where(operations.queues, before, never)
    lane_end, lane_awaited = lane_node + np.arange(lanes), np.full(lanes, never)
    last = np.flatnonzero(finishes(rows.lane))
    lane_end[rows.lane[last]] = last
    lane_awaited[rows.lane[last]] = wait[last]
    queue_end = queue_node + np.arange(queues)
    final = np.flatnonzero(finishes(operations.queue))
    queue_end[operations.queue[final]] = count + final
    ends = lane_end, lane_awaited, queue_end
    return Links(previous, awaited, entered[order], needed[order], queued, *ends, issued)


# -- hosts of devices ------------------------------------------------------------------------------
# No operation of a device begins before its host has issued it. A host issues one entry after the
# other and works in between: each issue is an operation of one member in a queue of the host. That
# a host waits for its device (to read a loss, or as its queue is full) is not recorded; but then
# the time between two issues grows with what the device does in it.


def _with_issues(
    rows: Columns,
    operations: Columns,
    resumed: Array,
    start: Array,
    stretch: Array,
    busy: Intervals,
) -> tuple[Columns, Columns]:
    """The rows of a graph in order of lane and time, with `host` (the operation by which the host
    issues the row's entry or its lane's next one) and `resumes` (that which the host goes on to
    once the stream goes on from here), -1 none; and the operations with these, and with `opens`:
    the lane whose state as the segment began they come after, -1 none.

    `resumed` is when each row's lane went on, `start` when each lane was free as each stretch
    began, `stretch` that of each row, `busy` when each lane's host worked on records of its own.
    """
    operations = operations.with_column("opens", np.full(len(operations), NONE))
    entry = np.flatnonzero(rows.behind_ns >= 0)
    lane, count = rows.lane[entry], len(operations)
    opens = begins(lane, stretch[entry])
    at = running_maximum(rows.at_ns[entry] - rows.behind_ns[entry], lane)
    some = rows.select(entry)
    number = np.where(some.enter >= 0, some.enter, some.wait)
    mine = {"lane": lane, "step": some.step, "operation": number}
    issued = Columns({**mine, "sends": operations.root[number] == lane})
    place = places_of(issued, entered_kinds(issued, operations))
    source = _resumption_rows(rows, resumed, entry, at, place, busy)
    source = np.where(some.unblocked_ns >= 0, _freed_after(rows, resumed, some, at), source)
    source = np.where(opens, NONE, source)
    inside = (source >= 0) & (rows.segment[source] == rows.segment[entry])
    crosses = (source >= 0) & ~inside | opens
    once = np.unique(source, return_index=True)[1]  # later issues come after the first
    inside &= np.isin(np.arange(len(entry)), once)
    home = np.flatnonzero(begins(rows.lane, rows.segment))
    home = home[np.searchsorted(home, entry, side="right") - 1]
    before, begun = np.roll(resumed, 1)[home], ~begins(rows.lane, stretch)[home]
    left = np.where(begun, before, start[stretch[entry], lane])
    begin = np.where(opens, NEVER_NS, np.roll(at, 1))
    begin = np.maximum(begin, np.where(inside, resumed[source], NEVER_NS))
    begin = np.maximum(begin, np.where(crosses, left, NEVER_NS))
    resumes = np.full(len(rows), NONE)
    resumes[source[inside]] = count + np.flatnonzero(inside)
    following = np.searchsorted(entry, np.arange(len(rows)))
    there = np.append(lane, NONE)[following] == rows.lane
    host = np.where(there, count + following, NONE)
    table = {"lane": lane, "step": rows.step[entry], "enter_ns": at, "leave_ns": at}
    issues = single_operations(Columns(table), operations)
    took, after = (at - begin).astype(float), np.where(crosses, lane, NONE)
    issues = issues.with_columns(segment=some.segment, queues=~opens, opens=after, took_ns=took)
    rows = rows.with_columns(host=host, resumes=resumes)
    return rows, Columns.concatenate([operations, issues])


def _freed_after(rows: Columns, resumed: Array, entries: Columns, at: Array) -> Array:
    """The row after which the device had gone on when the hosts of these entries, issued `at` these
    times, were last blocked, where that is recorded; -1 where they were not since the entry before.
    """
    freed = at - entries.unblocked_ns
    last = TimeLine(rows.lane, resumed).before(entries.lane, freed + CROSSING_NS) - 1
    blocked = (freed > np.roll(at, 1)) & (last >= 0) & (rows.lane[last] == entries.lane)
    return np.where(blocked, last, NONE)


def _resumption_rows(
    rows: Columns, resumed: Array, entry: Array, at: Array, place: Array, busy: Intervals
) -> Array:
    """The row after which the device had gone on before the host issued each of these entries, -1
    where the host does not wait for that.

    The time since the issue before, but for what the host was `busy` with, grows with a wait, by
    the wait, and else not at all: that it does is taken from the slope over all entries of the lane
    at the same place of a step, or, as ends of waits are known roughly, from the part of its
    variance. Of such rows it is the last; where entries of a lane tell when compute got to them,
    of those that are mostly there before the issue.
    """
    enters = (rows.enter >= 0) & (rows.slack_ns > NO_ENTRY)
    told = np.bincount(rows.lane, enters & (rows.slack_ns < 0)) > 0
    lane = rows.lane[entry]
    event = np.flatnonzero(enters | rows.ends)
    last = np.append(event[1:], len(rows)) - 1  # row before the next event
    time = resumed[last]
    own = np.searchsorted(event, entry)
    lead = own + 1 - TimeLine(rows.lane[last], time).before(lane, at)
    lead = quantiles(np.maximum(lead, 1), place, NEARLY_ALL, int(place.max()) + 1)[place]
    cell = row_numbers(place, lane)  # lanes differ, in what they wait and work
    at = at - length_before(busy, lane, at)
    time = time - length_before(busy, rows.lane[last], time)
    since = np.roll(at, 1)
    source = np.full(len(entry), NONE)
    for turn in (0, *range(FURTHEST, 0, -1)):  # entries before, the usual number and one by one
        event = own - (np.minimum(turn, lead) if turn else lead)
        known = (event >= 0) & (rows.lane[last[event]] == lane) & ~begins(lane)
        before = means(time[event] <= at + CROSSING_NS, place)[place] > MOST
        known &= before | ~told[lane]
        lasted, waited = at - since, np.maximum(time[event] - since, 0)
        count = np.maximum(np.bincount(cell, known), 1)
        lasted, apart = (
            (each - (np.bincount(cell, each * known) / count)[cell]) * known
            for each in (lasted, waited)
        )
        both, own_part, lasting = (
            np.bincount(place, a * b)
            for a, b in ((lasted, apart), (apart, apart), (lasted, lasted))
        )
        grows = (both >= MOST * own_part) | (both * np.abs(both) > MINOR * own_part * lasting)
        waits = known & (grows & (np.bincount(place, waited * known) > 0))[place]
        source = np.where(waits, event, source)
    return np.where(source >= 0, last[source], NONE)
