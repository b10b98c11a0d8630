"""Hosts of devices: no operation of a device begins before its host has issued it.

A host issues one entry after the other and works in between: each issue is an operation of one
member in a queue of the host. That a host waits for its device (to read a loss, or as its queue is
full) is not recorded; but then the time between two issues grows with what the device does in it.
"""

from __future__ import annotations

import numpy as np

from evenstep.diagnose.graph.lanes import NONE, single_operations
from evenstep.diagnose.graph.structure import Intervals, length_before, quantiles, row_hash
from evenstep.diagnose.levels import MINOR, MOST, NEARLY_ALL
from evenstep.trace.columns import Array, Columns

NEVER_NS = -(2**62)
FURTHEST = 6  # entries before an entry after which a stream goes on, that are asked one by one


def with_issues(
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
    entry = np.flatnonzero(rows.slack_ns >= 0)
    lane, count = rows.lane[entry], len(operations)
    opens = (np.diff(lane, prepend=-1) != 0) | (np.diff(stretch[entry], prepend=-1) != 0)
    span = int(rows.at_ns.max() - rows.at_ns.min()) + int(rows.slack_ns.max()) + 1
    at = np.maximum.accumulate(rows.at_ns[entry] - rows.slack_ns[entry] + lane * span) - lane * span
    before, same = np.append(0, resumed[:-1]), np.append(False, np.diff(rows.lane) == 0)
    source = np.where(opens, NONE, _resumption_rows(rows, resumed, entry, at, busy))
    inside = (source >= 0) & (rows.segment[source] == rows.segment[entry])
    crosses = (source >= 0) & ~inside | opens
    once = np.unique(source, return_index=True)[1]  # later issues come after the first
    inside &= np.isin(np.arange(len(entry)), once)
    first = np.flatnonzero((np.diff(rows.segment, prepend=-1) != 0) | ~same)
    home = first[np.searchsorted(first, entry, side="right") - 1]
    begun = np.append(False, same[1:] & (np.diff(stretch) == 0))[home]
    left = np.where(begun, before[home], start[stretch[entry], lane])
    begin = np.where(opens, NEVER_NS, np.append(0, at[:-1]))
    begin = np.maximum(begin, np.where(inside, resumed[source], NEVER_NS))
    begin = np.maximum(begin, np.where(crosses, left, NEVER_NS))
    resumes = np.full(len(rows), NONE)
    resumes[source[inside]] = count + np.flatnonzero(inside)
    rows = rows.with_column("resumes", resumes)
    following = np.searchsorted(entry, np.arange(len(rows)))
    there = np.append(lane, NONE)[following] == rows.lane
    host = np.where(there, count + following, NONE)
    issues = single_operations(
        Columns({"lane": lane, "step": rows.step[entry], "enter_ns": at, "leave_ns": at}),
        operations,
    )
    issues = issues.with_column("segment", rows.segment[entry]).with_column("queues", ~opens)
    issues = issues.with_column("opens", np.where(crosses, lane, NONE))
    issues = issues.with_column("took_ns", (at - begin).astype(float))
    return rows.with_column("host", host), Columns.concatenate([operations, issues])


def _resumption_rows(
    rows: Columns, resumed: Array, entry: Array, at: Array, busy: Intervals
) -> Array:
    """The row after which the device had gone on before the host issued each of these entries, -1
    where the host does not wait for that.

    The time since the issue before, but for what the host was `busy` with, grows with a wait, by
    the wait, and else not at all: that it does is taken from the slope over all entries of the lane
    at the same place of a step, or, as ends of waits are known roughly, from the part of its
    variance. Of such rows it is the last.
    """
    lane, step = rows.lane[entry], rows.step[entry]
    begins = (np.diff(lane, prepend=-1) != 0) | (np.diff(step, prepend=-1) != 0)
    home = np.flatnonzero(begins)
    size = np.diff(np.append(home, len(entry)))
    turn = np.arange(len(entry)) - np.repeat(home, size)
    place = row_hash([turn, np.repeat(size, size)])
    place = np.unique(place, return_inverse=True)[1].reshape(-1)
    event = np.flatnonzero((rows.enter >= 0) | rows.ends)
    last = np.append(event[1:], len(rows)) - 1  # row before the next event
    time = resumed[last]
    low = int(min(time.min(), at.min()))
    width = int(max(time.max(), at.max())) - low + 1
    line = time - low + rows.lane[last] * width
    own = np.searchsorted(event, entry)
    lead = own + 1 - np.searchsorted(line, at - low + lane * width, side="right")
    lead = quantiles(np.maximum(lead, 1), place, NEARLY_ALL, int(place.max()) + 1)[place]
    cell = place * (int(lane.max()) + 1) + lane  # lanes differ, in what they wait and work
    cell = np.unique(cell, return_inverse=True)[1].reshape(-1)
    at = at - length_before(busy, lane, at)
    time = time - length_before(busy, rows.lane[last], time)
    before = np.append(0, at[:-1])
    source = np.full(len(entry), NONE)
    for turn in (0, *range(FURTHEST, 0, -1)):
        event = own - (np.minimum(turn, lead) if turn else lead)
        known = (event >= 0) & (rows.lane[last[event]] == lane) & (np.diff(lane, prepend=-1) == 0)
        lasted, waited = at - before, np.maximum(time[event] - before, 0)
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
