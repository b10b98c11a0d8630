"""Device streams: their clocks aligned, and what the order within a stream tells.

No member leaves a collective before the others do, so its end is one moment on all devices; that
places every device's clock on that of the first one.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from evenstep.diagnose.graph.structure import Intervals, means, quantiles, row_hash, row_numbers
from evenstep.diagnose.levels import LOW, MINOR, MOST, NEARLY_ALL, SURE
from evenstep.trace.clocks.bounds import OffsetLine, largest_bound
from evenstep.trace.columns import Array, Columns, begins, finishes, run_numbers, running_maximum

FASTEST_DRIFT = 200e-6  # of a device's clock against its host's
STRETCH = 64  # ends in each piece of the curve that follows a wandering clock
CROSSING_NS = 20_000  # by which stamps of dependent events on different streams may cross
LAUNCH_NS = 50_000  # from the host's launch: an idle device begins sooner
TELLING = 0.02  # of the time between two entries: shorter differences tell nothing
AT_ONCE_NS = 3_000  # from an operation's end to compute that waited for it: 66 of 66 on two H100s


def with_kernels(rows: Columns, operations: Columns) -> Columns:
    """The rows with `kernel`, a number for each, the same for messages of a lane that one kernel
    carries: issued one after the other, they begin and end together, but for what stamps cross.

    Where messages of a group often begin together and end apart, no kernel carries several of them,
    whatever ends by chance with another.
    """
    order = np.lexsort([rows.seq, rows.lane])
    number = rows.operation[order]
    message = operations.message[number]
    message &= np.append(False, message[:-1])[: len(order)] & ~begins(rows.lane[order])
    times = rows.enter_ns + rows.held_ns, rows.leave_ns
    began, ended = (np.abs(np.diff(each[order], prepend=0)) <= CROSSING_NS for each in times)
    began &= message
    group = operations.group[number] + 1
    several = means(~ended[began], group[began]) > MINOR
    alone = np.append(several, np.zeros(int(group.max(initial=0)) + 1, bool))[group]
    kernel = np.empty(len(rows), np.int64)
    kernel[order] = np.cumsum(~(began & ended) | alone) - 1
    return rows.with_column("kernel", kernel)


def on_one_clock(rows: Columns, lanes: int, uneven: Array | tuple[()] = ()) -> Columns:
    """The entries of devices with their times on the clock of the first lane that has any.

    `rows` as in `Entries.rows`, all on devices. Members of `uneven` operations (numbers) may end
    one after another, and a kernel that carries several messages ends with the last of them, so
    their ends are used only where a lane has no other; and what else is known of an operation,
    where it has none at all: members that need not wait for all, or need not be waited for, end it
    on their own. Lanes that share no operation with those aligned so far keep a clock of their own.
    """
    known, enter = rows.leave_ns != 0, rows.enter_ns.astype(np.int64)
    operation, kernel = rows.operation, rows.kernel
    seen = known & (np.bincount(operation, ~(rows.decides & rows.waits)) == 0)[operation]
    leave, every = np.where(known, rows.leave_ns, enter), operation >= 0
    single, even = seen & (np.bincount(kernel)[kernel] == 1), ~np.isin(operation, uneven)
    # entries of a lane, and those of others that tell when they ended: the best come first
    tries = (single & even, seen), (single, seen), (seen, seen), (every, every)
    ends = np.full((len(tries), int(operation.max(initial=-1)) + 1), np.inf)
    order, members = (np.argsort(number, kind="stable") for number in (rows.lane, operation))
    edges = np.searchsorted(rows.lane[order], np.arange(lanes + 1))
    first = np.searchsorted(operation[members], np.arange(ends.shape[1] + 1))
    mine = [order[a:b] for a, b in pairwise(edges)]
    waiting, told = np.diff(edges) > 0, np.zeros((len(tries), lanes), bool)
    while waiting.any():
        best = int((told & waiting).any(axis=1).argmax())
        found = np.flatnonzero(told[best] & waiting)
        found = found if best == 0 else found[:1]
        for lane in found if len(found) else np.flatnonzero(waiting)[:1]:
            at = mine[lane]
            shared = at[np.isfinite(ends[best, operation[at]]) & tries[best][0][at]]
            if len(shared):
                own = leave[shared].astype(float)
                offset = _offset(own, ends[best, operation[shared]] - own)
                enter[at], leave[at] = offset.shift(enter[at]), offset.shift(leave[at])
            for each, (usable, telling) in enumerate(tries):
                own = at[telling[at]]
                new = np.unique(operation[own[np.isinf(ends[each, operation[own]])]])
                np.minimum.at(ends[each], operation[own], leave[own])
                sizes = first[new + 1] - first[new]
                starts = np.repeat(first[new] - np.cumsum(sizes) + sizes, sizes)
                others = members[starts + np.arange(len(starts))]
                told[each, rows.lane[others[usable[others]]]] = True
            waiting[lane] = False
    return rows.with_column("enter_ns", enter).with_column("leave_ns", np.where(known, leave, 0))


def idle_until_over(computes: Intervals, lane: Array, enter_ns: Array, leave_ns: Array) -> Array:
    """How long the compute of a lane was idle until each of these operations was over, since it
    was entered, where it went on at once then; else 0. ns."""
    found = np.zeros(len(lane), np.int64)
    if not len(computes.cell) or not len(lane):
        return found
    order = np.lexsort([computes.start, computes.cell])
    low = min(int(computes.start.min()), int(enter_ns.min()))
    width = max(int(computes.end.max()), int(leave_ns.max())) - low + 2 * CROSSING_NS
    cell = computes.cell[order] * width - low
    start = computes.start[order] + cell
    done = np.append(-1, np.maximum.accumulate(computes.end[order] + cell))
    own = lane * width - low
    following = np.searchsorted(start, leave_ns + own - AT_ONCE_NS)
    began = np.append(start, 2**62)[following]
    length = leave_ns + own - np.maximum(done[following], enter_ns + own)
    return np.where((began <= leave_ns + own + CROSSING_NS) & (length > 0), length, found)


def idle_before(slack_ns: Array, lasted_ns: Array, place: Array) -> Array:
    """Whether the device had nothing else to do before each entry, which it came to so long after
    its host had issued it. It then comes to it once its last kernel is done: soon beside the time
    since the entry before, and at each `place`, of one lane, equally soon, however long that is."""
    name, place = np.unique(place, return_inverse=True)
    soonest = quantiles(slack_ns, place, LOW, len(name))[place]
    lag = np.minimum(soonest + LAUNCH_NS, MINOR * lasted_ns)
    return np.asarray((slack_ns >= 0) & (slack_ns <= np.maximum(lag, LAUNCH_NS)))


def with_stream_order(rows: Columns, operations: Columns) -> Columns:
    """The entries with `after`: the operation of the same lane that each begins after in its
    stream, -1 none; as where scattered gradients are then reduced between replicas.

    It is the operation before it in the same stream where streams are recorded; else the one whose
    end a kind of collective mostly begins at while neither its compute nor its queue holds it up.
    Such a collective's entry is moved to when compute reached what was issued before it.
    """
    after, busy = np.full(len(rows), -1, np.int32), np.zeros(len(rows), bool)
    stream = _stream_numbers(rows, operations)
    if stream.any():
        after, busy = _on_streams(rows.with_column("stream", stream))
    queue = operations.queue[~operations.message]
    if (queue[1:] == queue[:-1]).all():  # in order anyway
        return rows.with_column("after", after)
    mine = np.flatnonzero(~rows.calls & ~operations.message[rows.operation])
    mine = mine[np.lexsort([rows.seq[mine], rows.lane[mine]])]
    enter = rows.enter_ns.copy()
    number, lane, turn = rows.operation[mine], rows.lane[mine], np.arange(len(mine))
    low = int(enter[mine].min(initial=2**62))
    width = int(rows.leave_ns[mine].max(initial=low)) - low + 2 * CROSSING_NS
    began, left = (time[mine] - low + lane * width for time in (enter, rows.leave_ns))
    reached = np.minimum.accumulate(began[::-1])[::-1]  # by compute: in the order of issue
    held, began = rows.held_ns[mine] + began - reached, began + rows.held_ns[mine]
    order = np.argsort(left, kind="stable")
    last = np.searchsorted(left[order], began + CROSSING_NS, side="right") - 1
    last = np.append(order, 0)[last]
    queue = operations.queue[number]
    tells = (held > CROSSING_NS) & (last < turn) & (left[last] >= began - CROSSING_NS)
    tells &= (queue[last] != queue) & ~busy[mine]
    kind = row_hash([operations[name][number] for name in ("op", "size_bytes", "members")])
    for one in np.unique(kind[tells]):
        votes = np.bincount((turn - last)[tells & (kind == one)])
        if votes.max() <= MOST * votes.sum() or votes.sum() < MINOR * np.sum(kind == one):
            continue
        held_up = np.flatnonzero((kind == one) & (turn >= votes.argmax()))
        before = held_up - votes.argmax()
        same = (lane[before] == lane[held_up]) & (
            rows.step[mine[before]] == rows.step[mine[held_up]]
        )
        at = mine[held_up[same]]
        after[at] = number[before[same]]
        enter[at] = np.minimum(enter[at], enter[mine[held_up[same] - 1]])
    return rows.with_column("enter_ns", enter).with_column("after", after)


def in_order(rows: Columns, operations: Columns) -> Columns:
    """The entries by lane and time, sends first; collectives that compute seems to reach at once,
    on different streams, in the order of issue, so that all steps of a program have one order."""
    rows = rows.select(np.lexsort([rows.seq, ~rows.sends, rows.enter_ns, rows.lane]))
    message = operations.message[rows.operation]
    crossing = np.where(message | np.append(True, message[:-1]), 0, CROSSING_NS)
    apart = begins(rows.lane) | (np.diff(rows.enter_ns, prepend=0) > crossing)
    rows = rows.select(np.lexsort([rows.seq, ~rows.sends, np.cumsum(apart)]))
    return rows.with_column("enter_ns", running_maximum(rows.enter_ns, rows.lane))


def with_rising_steps(rows: Columns) -> Columns:
    """The rows, in order of lane, with those that come before others of an earlier step in that."""
    first = -running_maximum(-rows.step[::-1].astype(np.int64), rows.lane[::-1])[::-1]
    return rows.with_column("step", first)


def move_sooner(rows: Columns, which: Array | slice, sooner: Array) -> Columns:
    """The rows, with some entries (indices) so many ns sooner, none before its host issued it."""
    enter, slack = rows.enter_ns.copy(), rows.slack_ns.copy()
    sooner = np.minimum(sooner, slack[which])
    enter[which] -= sooner
    slack[which] -= sooner
    return rows.with_column("enter_ns", enter).with_column("slack_ns", slack)


def _stream_numbers(rows: Columns, operations: Columns) -> Array:
    """A number for each entry's stream, 0 not known: the recorded one; that of messages is their
    group's, as of batches, or else their pair's, where no end ever comes out of order of issue, and
    no two lanes issue the same two kernels in different orders: each would wait for the other."""
    stream, message = rows.stream.astype(np.int64), operations.message[rows.operation]
    mine = np.flatnonzero(message & rows.on_device & (stream == 0))
    if not len(mine):
        return stream
    mine = mine[np.lexsort([rows.seq[mine], rows.lane[mine]])]
    lowest, highest = np.full(len(operations), 2**62), np.full(len(operations), -1)
    for of, ends in ((np.minimum, lowest), (np.maximum, highest)):
        of.at(ends, rows.operation, rows.lane)
    crossed = _crossed(rows.select(mine), lowest, highest)
    group = operations.group
    for key in (row_numbers(group), row_numbers(group, lowest, highest)):
        number = key[rows.operation[mine]]
        order = np.lexsort([np.arange(len(mine)), rows.lane[mine], number])
        leave = rows.leave_ns[mine[order]]
        latest = running_maximum(leave, run_numbers(number[order], rows.lane[mine[order]]))
        wrong = np.bincount(number[order], (leave > 0) & (leave < latest - CROSSING_NS)) > 0
        wrong[key[crossed]] = True
        right = mine[~wrong[number]]
        stream[right] = stream.max() + 1 + key[rows.operation[right]]
        mine = mine[wrong[number]]
    return stream


def _crossed(rows: Columns, lowest: Array, highest: Array) -> Array:
    """Messages (numbers) whose kernels their two lanes, the `lowest` and the `highest` of each,
    issue in different orders. `rows` by lane, in the order of issue."""
    _, first, of = np.unique(rows.kernel, return_index=True, return_inverse=True)
    turns = np.full((2, len(lowest)), -1)
    for lane, turn in zip((lowest, highest), turns, strict=True):
        mine = lane[rows.operation] == rows.lane
        turn[rows.operation[mine]] = first[of[mine]]
    both = np.flatnonzero((turns >= 0).all(axis=0) & (lowest < highest))
    both = both[np.lexsort([*turns[::-1, both], highest[both], lowest[both]])]
    same = ~begins(lowest[both], highest[both])
    return np.asarray(both[same & (np.diff(turns[1, both], prepend=0) < 0)])


def kernels_before(rows: Columns) -> Array:
    """The kernel that each entry comes `after`, -1 none."""
    width = int(rows.operation.max(initial=0)) + 1
    key = rows.lane * width + rows.operation
    order = np.argsort(key)
    before = order[np.searchsorted(key[order], rows.lane * width + rows.after) - len(order)]
    return np.where(rows.after >= 0, rows.kernel[before], -1)


def _on_streams(rows: Columns) -> tuple[Array, Array]:
    """An operation of the kernel that each entry's stream carried out before it in the step, -1
    none or not known, and whether that kept the stream busy until the entry began."""
    order = np.lexsort([rows.seq, rows.step, rows.stream, rows.lane])
    rows = rows.select(order)
    runs = run_numbers(rows.lane, rows.stream, rows.step)
    kernel = run_numbers(rows.kernel)
    first = np.flatnonzero(begins(rows.kernel))
    last = first[kernel] - 1
    there = (rows.stream > 0) & (last >= 0) & (runs[last] == runs)
    began = rows.enter_ns + rows.held_ns
    after, busy = np.full(len(rows), -1, np.int32), np.zeros(len(rows), bool)
    after[order] = np.where(there, rows.operation[last], -1)
    busy[order] = there & (rows.leave_ns[last] >= began - CROSSING_NS)
    return after, busy


def issue_line(rows: Columns) -> OffsetLine:
    """What to add to the common time of devices to get their hosts', which read one clock: the
    least by which nothing begins before it is issued, and that drifts no faster than a clock does;
    and, as hosts may always be far ahead, as much more as they surely see all ends later: that is
    the error, as only looks that came at any time tell it."""
    order = np.argsort(rows.enter_ns, kind="stable")
    time, behind = (one[order].astype(float) for one in (rows.enter_ns, rows.issued_ns))
    least = largest_bound(time - time[:1], behind - time, FASTEST_DRIFT)
    later = _surely_later(rows, OffsetLine(time, least, np.zeros(len(time))))
    return OffsetLine(time, least + later, np.full(len(time), later))


def _surely_later(rows: Columns, line: OffsetLine) -> float:
    """By how much hosts saw all ends later than `line` has them, less what the soonest look came
    after an end: of n looks at times that have nothing to do with the ends most surely within the
    first ln(1/p) n-ths of the time since an end; and looks for several that keep step with them,
    and leave out as large a part of that time elsewhere, may have left out this."""
    rows = rows.select(rows.leave_ns != 0).sorted_by("lane", "leave_ns")
    rows = rows.select(begins(rows.lane, rows.leave_ns))
    looks = rows.select(finishes(rows.lane, rows.seen_ns))
    since, apart = (
        np.diff(time)[~begins(of.lane)[1:]]
        for of, time in ((rows, rows.leave_ns), (looks, looks.seen_ns))
    )
    if not len(apart) or not since.any():
        return 0.0
    since = np.append(0, np.sort(np.minimum(since, np.median(apart))))
    part = (np.cumsum(since) + since * np.arange(len(since))[::-1]) / since.sum()
    late = looks.seen_ns - looks.leave_ns - line.offset_at(looks.leave_ns)
    at = np.sort(np.interp(late - late.min(), since, part))
    left_out = np.diff(at, append=1).max() if len(looks) < len(rows) else 0.0
    left_out = max(left_out, np.log(1 / SURE) / len(late))
    return float(max(late.min() - np.interp(left_out, part, since), 0.0))


def _offset(x: Array, y: Array) -> OffsetLine:
    """The offset fitted to differences `y` at times `x`: a line, and where ends suffice the median
    residual of each piece, at its middle."""
    if len(x) < 4 or np.ptp(x) == 0:
        return OffsetLine(x[:1], np.array([np.median(y)]), np.zeros(1))
    at, off = x[:1], np.zeros(1)
    kept = np.ones(len(x), bool)
    for _ in range(3):
        slope, level = np.polyfit(x[kept] - x[0], y[kept], 1)
        rest = y - (slope * (x - x[0]) + level)
        kept = np.abs(rest) <= max(float(np.quantile(np.abs(rest), NEARLY_ALL)), 1.0)
    if len(x) >= 2 * STRETCH:
        parts = np.array_split(np.argsort(x, kind="stable"), len(x) // STRETCH)
        at = np.array([x[part].mean() for part in parts])
        off = np.array([np.median(rest[part]) for part in parts])
    drift = float(slope)
    return OffsetLine(at, drift * (at - x[0]) + level + off, np.zeros(len(at)), rate=(drift, drift))
