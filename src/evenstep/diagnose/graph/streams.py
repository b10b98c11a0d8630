"""Streams of devices: their clocks brought together.

Nobody leaves a collective before the others do, so that its ends are one moment on all devices;
that places every device's clock on that of the first one.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evenstep.diagnose.graph.structure import Intervals, mixed
from evenstep.diagnose.levels import MINOR, MOST, NEARLY_ALL
from evenstep.trace.columns import Columns

Array = npt.NDArray[Any]

COMPUTE = "compute"  # name of the spans in which a device computed
FASTEST_DRIFT = 200e-6  # of a device's clock against its host's
STRETCH = 64  # ends that a wandering clock is followed by
CROSSING_NS = 20_000  # by which stamps of different streams may cross
AT_ONCE_NS = 3_000  # between the end of an operation and what waited for nothing else


def batches(rows: Columns) -> Array:
    """A number for each row, the same for messages of a lane that one kernel carries."""
    kernel = mixed([rows.lane, rows.enter_ns + rows.held_ns, rows.leave_ns])
    return np.asarray(np.unique(kernel, return_inverse=True)[1].reshape(-1))


def together(rows: Columns, lanes: int) -> Columns:
    """The entries with times of devices on one clock: that of the lane that meets most others.

    `rows` as in `Entries.rows`; all must be on devices. A kernel that carries several messages ends
    with the last of them: it tells only where nothing else does.
    """
    enter, leave = rows.enter_ns.astype(np.int64), rows.leave_ns.astype(np.int64)
    ends = np.full(int(rows.operation.max(initial=-1)) + 1, np.inf)
    order = np.argsort(rows.lane, kind="stable")
    edges = np.searchsorted(rows.lane[order], np.arange(lanes + 1))
    mine = [order[a:b] for a, b in pairwise(edges)]
    batch = batches(rows)
    alone = np.bincount(batch)[batch] == 1
    waiting = [lane for lane in range(lanes) if len(mine[lane])]

    def met(lane: int, whole: Array) -> Array:
        at = mine[lane]
        return np.asarray(at[np.isfinite(ends[rows.operation[at]]) & whole[at]])

    while waiting:
        found = [lane for lane in waiting if len(met(lane, alone))]
        found = found or [lane for lane in waiting if len(met(lane, np.ones_like(alone)))][:1]
        for lane in found or waiting[:1]:  # whoever meets nobody begins a clock of its own
            at, known = mine[lane], met(lane, alone)
            known = known if len(known) else met(lane, np.ones_like(alone))
            if len(known):
                own = leave[known].astype(float)
                offset = _offset(own, ends[rows.operation[known]] - own)
                enter[at] += np.rint(offset.at(enter[at])).astype(np.int64)
                leave[at] += np.rint(offset.at(leave[at])).astype(np.int64)
            np.minimum.at(ends, rows.operation[at], leave[at])
            waiting.remove(lane)
    return rows.with_column("enter_ns", enter).with_column("leave_ns", leave)


def idled(computes: Intervals, lane: Array, enter_ns: Array, leave_ns: Array) -> Array:
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


def behind(rows: Columns, operations: Columns) -> Columns:
    """The entries with `after`, the operation of its lane that the own stream of each waits for
    before it begins, -1 none: as where gradients that were scattered are reduced between replicas.

    That is what the same stream had been given before; else a collective tells it by beginning as
    that one ends, mostly, where neither its compute nor its queue holds it up. Compute had come to
    it when it came to what was issued before it, not when it began.
    """
    after, busy = np.full(len(rows), -1, np.int32), np.zeros(len(rows), bool)
    if rows.stream.any():
        after, busy = _on_streams(rows)
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
    came = np.minimum.accumulate(began[::-1])[::-1]  # no later than to what was issued later
    held, began = rows.held_ns[mine] + began - came, began + rows.held_ns[mine]
    order = np.argsort(left, kind="stable")
    last = np.searchsorted(left[order], began + CROSSING_NS, side="right") - 1
    last = np.append(order, 0)[last]
    queue = operations.queue[number]
    tells = (held > CROSSING_NS) & (last < turn) & (left[last] >= began - CROSSING_NS)
    tells &= (queue[last] != queue) & ~busy[mine]
    kind = mixed([operations[name][number] for name in ("op", "size_bytes", "members")])
    for one in np.unique(kind[tells]):
        cast = np.bincount((turn - last)[tells & (kind == one)])
        if cast.max() <= MOST * cast.sum() or cast.sum() < MINOR * np.count_nonzero(kind == one):
            continue
        of = np.flatnonzero((kind == one) & (turn >= cast.argmax()))
        to = of - cast.argmax()
        alike = (lane[to] == lane[of]) & (rows.step[mine[to]] == rows.step[mine[of]])
        after[mine[of[alike]]] = number[to[alike]]
        enter[mine[of[alike]]] = np.minimum(enter[mine[of]], enter[mine[of - 1]])[alike]
    return rows.with_column("enter_ns", enter).with_column("after", after)


def _on_streams(rows: Columns) -> tuple[Array, Array]:
    """The operation that the stream of each entry carried out before it in the step, -1 none or not
    known, and whether that had kept the stream busy until it began.

    Of a kernel that carried several messages, what was received before something is sent, and the
    other way round: the channel keeps messages in order.
    """
    order = np.lexsort([rows.seq, rows.step, rows.stream, rows.lane])
    told = rows.select(order)
    runs = _numbered(mixed([told.lane, told.stream, told.step]))
    kernel = _numbered(batches(told))
    first = np.flatnonzero(np.diff(kernel, prepend=-1))
    last = first[kernel] - 1
    there = (told.stream > 0) & (last >= 0) & (runs[last] == runs)
    head = first[kernel[last]]
    before = np.where(told.sends[last] == told.sends, head, last)
    began = told.enter_ns + told.held_ns
    after, busy = np.full(len(rows), -1, np.int32), np.zeros(len(rows), bool)
    after[order] = np.where(there, told.operation[before], -1)
    busy[order] = there & (told.leave_ns[before] >= began - CROSSING_NS)
    return after, busy


def _numbered(keys: Array) -> Array:
    """Number of each run of equal keys."""
    return np.cumsum(np.append(0, keys[1:] != keys[:-1])) if len(keys) else np.zeros(0, np.int64)


WINDOWS = 16  # of a run, in each of which something may have begun as soon as it was issued


class Issue(NamedTuple):
    """What brings a device's common time to its host's: a line, for nothing begins before it is
    issued. Where a host is always far ahead it may be more; as much as keeps the order is taken."""

    base: float
    slope: float
    level: float

    def at(self, times: Array) -> Array:
        """What is to be added to these times of the device."""
        return np.asarray(self.slope * (times - self.base) + self.level)


def issued(enter: Array, issued_ns: Array) -> Issue:
    """The line for entries of devices whose hosts read one clock."""
    behind = (issued_ns - enter).astype(float)
    order = np.argsort(enter, kind="stable")
    parts = [part for part in np.array_split(order, WINDOWS) if len(part)]
    middles = np.array([float(enter[part].mean()) for part in parts])
    most = np.array([float(behind[part].max()) for part in parts])
    slope = 0.0
    if len(parts) > 2:
        rate = float(np.median(np.diff(most) / np.maximum(np.diff(middles), 1.0)))
        slope = rate if abs(rate) < FASTEST_DRIFT else 0.0
    base = float(middles[0])
    return Issue(base, slope, float((behind - slope * (enter - base)).max()))


class Offset(NamedTuple):
    """What to add to a clock's times: a line, and what its middles are off by."""

    base: float
    slope: float
    level: float
    middles: Array
    rest: Array

    def at(self, times: Array) -> Array:
        """At these times of the clock."""
        line = self.slope * (times - self.base) + self.level
        return np.asarray(line + np.interp(times, self.middles, self.rest))


def _offset(x: Array, y: Array) -> Offset:
    """The line through the differences of a clock's ends, followed where it wanders."""
    base = float(x[0])
    still = np.array([base]), np.zeros(1)
    if len(x) < 4 or np.ptp(x) == 0:
        return Offset(base, 0.0, float(np.median(y)), *still)
    kept = np.ones(len(x), bool)
    for _ in range(3):
        slope, level = np.polyfit(x[kept] - base, y[kept], 1)
        rest = y - (slope * (x - base) + level)
        kept = np.abs(rest) <= max(float(np.quantile(np.abs(rest), NEARLY_ALL)), 1.0)
    if len(x) < 2 * STRETCH:
        return Offset(base, float(slope), float(level), *still)
    parts = np.array_split(np.argsort(x, kind="stable"), len(x) // STRETCH)
    middles = np.array([float(x[part].mean()) for part in parts])
    off = np.array([float(np.median(rest[part])) for part in parts])
    return Offset(base, float(slope), float(level), middles, off)
