"""Streams of devices: their clocks brought together, and what their compute waits for.

Nobody leaves a collective before the others do, so that its ends are one moment on all devices;
that places every device's clock on that of the first one. Which operations a stream of compute
waits for is nowhere recorded: it follows from how the next one is entered. Where it waited, what
comes between is the same whenever the operation ended; where it did not, whenever it began.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evenstep.diagnose.graph.hashing import mixed
from evenstep.trace.columns import Columns
from evenstep.trace.spool.layout import Op

Array = npt.NDArray[Any]

STRETCH = 64  # ends that a wandering clock is followed by
TRIMMED = 0.1  # of the ends may be odd
TELLING = 0.02  # of the time between entries: operations that vary by less tell nothing
EARLY_NS = 20_000  # by which stamps of different devices may cross
FURTHEST = 3  # entries after which an operation may still be waited for
DEPENDS = 0.5  # of how the next entry moves with the end of the one before: 0 not at all, 1 wholly
_REDUCTIONS = (int(Op.ALL_REDUCE), int(Op.REDUCE_SCATTER), int(Op.REDUCE))


def together(rows: Columns, lanes: int) -> Columns:
    """The entries with times of devices on one clock: that of the lane that meets most others.

    `rows` as in `Entries.rows`; all must be on devices.
    """
    enter, leave = rows.enter_ns.astype(np.int64), rows.leave_ns.astype(np.int64)
    ends = np.full(int(rows.operation.max(initial=-1)) + 1, np.inf)
    order = np.argsort(rows.lane, kind="stable")
    edges = np.searchsorted(rows.lane[order], np.arange(lanes + 1))
    mine = [order[a:b] for a, b in itertools.pairwise(edges)]
    waiting = [lane for lane in range(lanes) if len(mine[lane])]
    while waiting:
        met = [lane for lane in waiting if np.isfinite(ends[rows.operation[mine[lane]]]).any()]
        for lane in met or waiting[:1]:  # whoever meets nobody begins a clock of its own
            at = mine[lane]
            own, number = leave[at].astype(float), rows.operation[at]
            if np.isfinite(ends[number]).any():
                offset = _offset(own, ends[number] - own)
                enter[at] += np.rint(offset.at(enter[at])).astype(np.int64)
                leave[at] += np.rint(offset.at(own)).astype(np.int64)
            np.minimum.at(ends, number, leave[at])
            waiting.remove(lane)
    return rows.with_column("enter_ns", enter).with_column("leave_ns", leave)


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


def _offset(at: Array, apart: Array) -> Offset:
    """The line through the differences of a clock's ends, followed where it wanders."""
    known = np.flatnonzero(np.isfinite(apart))
    base, x, y = float(at[known[0]]), at[known], apart[known]
    still = np.array([base]), np.zeros(1)
    if len(known) < 4 or np.ptp(x) == 0:
        return Offset(base, 0.0, float(np.median(y)), *still)
    kept = np.ones(len(x), bool)
    for _ in range(3):
        slope, level = np.polyfit(x[kept] - base, y[kept], 1)
        rest = y - (slope * (x - base) + level)
        kept = np.abs(rest) <= max(float(np.quantile(np.abs(rest), 1 - TRIMMED)), 1.0)
    if len(known) < 2 * STRETCH:
        return Offset(base, float(slope), float(level), *still)
    parts = np.array_split(np.argsort(x, kind="stable"), len(x) // STRETCH)
    middles = np.array([float(x[part].mean()) for part in parts])
    off = np.array([float(np.median(rest[part])) for part in parts])
    return Offset(base, float(slope), float(level), middles, off)


class Between(NamedTuple):
    """Pairs of neighbouring entries of a lane, in order: indices of the rows, and their kind."""

    first: Array
    second: Array
    kind: Array


def awaited(rows: Columns, operations: Columns, over_ns: Array) -> Array:
    """How many entries later each entry's lane waits for its operation; 0 where it never does.

    `rows` in order of lane and time; `over_ns` when each operation was over. Kinds of pairs are
    judged together, since what depends on what is the program's.
    """
    found = np.zeros(len(rows), np.int64)
    open_ = np.ones(len(rows), bool)  # nothing was waited for since
    for ahead in range(1, FURTHEST + 1):
        pair = _pairs(rows, operations, ahead, open_ & (found == 0))
        if not len(pair.first):
            break
        over = over_ns[rows.operation[pair.first]]
        after = rows.enter_ns[pair.second] >= over - EARLY_NS
        depends = _depends(rows, operations, over_ns, pair, usual=ahead == 1)
        found[pair.first[depends[pair.kind] & after]] = ahead
        open_[:-ahead] &= found[ahead:] != 1
    last = np.diff(rows.lane, append=-1) != 0  # nothing tells what comes after
    return np.where(last & (found == 0), 1, found)


def _depends(
    rows: Columns, operations: Columns, over_ns: Array, pair: Between, *, usual: bool
) -> Array:
    """Per kind of pair, whether the second entry comes after the first one's operation."""
    gap = (rows.enter_ns[pair.second] - rows.enter_ns[pair.first]).astype(float)
    flight = np.maximum(over_ns[rows.operation[pair.first]] - rows.enter_ns[pair.first], 0.0)
    slope, spread = _slopes(gap, flight, pair.kind, rows.lane[pair.first])
    told = spread > TELLING * np.maximum(_medians(gap, pair.kind), 1.0)
    early = np.bincount(pair.kind, gap < flight) / np.maximum(np.bincount(pair.kind), 1)
    untold = _usually(rows, operations, pair) if usual else np.zeros(len(told), bool)
    return np.where(told, slope > DEPENDS, untold) & (early <= TRIMMED)


def _pairs(rows: Columns, operations: Columns, ahead: int, wanted: Array) -> Between:
    first = np.flatnonzero((rows.lane[ahead:] == rows.lane[:-ahead]) & wanted[:-ahead])
    second = first + ahead
    key = [rows.step[first] != rows.step[second]]
    for one in (first, second):
        number = rows.operation[one]
        key += [operations[name][number] for name in ("op", "size_bytes", "members", "message")]
        away = np.where(operations.message[number], operations.root[number] - rows.lane[one], 0)
        key += [rows.decides[one], rows.sends[one], away]
    kind = np.unique(mixed(key), return_inverse=True)[1].reshape(-1)
    return Between(first, second, kind)


def _slopes(gap: Array, flight: Array, kind: Array, lane: Array) -> tuple[Array, Array]:
    """Per kind, how much a gap grows with the flight before it, and how far flights vary."""
    kinds = int(kind.max(initial=-1)) + 1
    cell = kind * (int(lane.max(initial=0)) + 1) + lane
    cell = np.unique(cell, return_inverse=True)[1].reshape(-1)
    count = np.maximum(np.bincount(cell), 1)

    def centred(values: Array) -> Array:
        return np.asarray(values - (np.bincount(cell, values) / count)[cell])

    x, y = centred(flight), centred(gap)
    limit = 4 * np.sqrt(np.bincount(kind, x * x, kinds) / np.maximum(np.bincount(kind), 1))[kind]
    inside = np.abs(x) <= limit
    x, y, kind = x[inside], y[inside], kind[inside]
    varying = np.bincount(kind, x * x, kinds)
    number = np.maximum(np.bincount(kind, minlength=kinds), 1)
    slope = np.bincount(kind, x * y, kinds) / np.where(varying > 0, varying, 1.0)
    return slope, np.sqrt(varying / number)


def _medians(values: Array, kind: Array) -> Array:
    order = np.lexsort([values, kind])
    count = np.bincount(kind)
    return np.asarray(values[order[np.cumsum(count) - count + count // 2]])


def _usually(rows: Columns, operations: Columns, pair: Between) -> Array:
    """Per kind, whether programs usually wait: reductions together at the end, the rest at once."""
    number, following = rows.operation[pair.first], rows.operation[pair.second]
    reduces = np.isin(operations.op[number], _REDUCTIONS)
    more = np.isin(operations.op[following], _REDUCTIONS)
    more &= rows.step[pair.first] == rows.step[pair.second]
    waits = ~(reduces & more) & ~rows.sends[pair.first]
    votes = np.bincount(pair.kind, waits) / np.maximum(np.bincount(pair.kind), 1)
    return np.asarray(votes > DEPENDS)
