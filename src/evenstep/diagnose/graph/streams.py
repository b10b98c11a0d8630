"""Streams of devices: their clocks brought together, and what their compute waits for.

Nobody leaves a collective before the others do, so that its ends are one moment on all devices;
that places every device's clock on that of the first one. Which operations a stream of compute
waits for is nowhere recorded: it follows from how the next one is entered. Where it waited, what
comes between is the same whenever the operation ended; where it did not, whenever it began.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evenstep.trace.columns import Columns
from evenstep.trace.layout import Op

Array = npt.NDArray[Any]

STRETCH = 64  # ends that a wandering clock is followed by
TRIMMED = 0.1  # of the ends may be odd
TELLING = 0.02  # of the time between entries: operations that vary by less tell nothing
DEPENDS = 0.5  # of how the next entry moves with the end of the one before: 0 not at all, 1 wholly
_REDUCTIONS = (int(Op.ALL_REDUCE), int(Op.REDUCE_SCATTER), int(Op.REDUCE))


def together(rows: Columns, lanes: int) -> Columns:
    """The entries with times of devices on one clock: that of the lowest lane each can be met by.

    `rows` as in `Entries.rows`; all must be on devices.
    """
    shift = np.zeros(len(rows))
    ends = np.full(int(rows.operation.max(initial=-1)) + 1, np.inf)
    order = np.argsort(rows.lane, kind="stable")
    edges = np.searchsorted(rows.lane[order], np.arange(lanes + 1))
    mine = [order[a:b] for a, b in zip(edges[:-1], edges[1:], strict=True)]
    open_ = [lane for lane in range(lanes) if len(mine[lane])]
    while open_:
        met = [int(np.isfinite(ends[rows.operation[mine[lane]]]).sum()) for lane in open_]
        best = int(np.argmax(met))
        lane = open_.pop(best)
        at = mine[lane]
        leave = rows.leave_ns[at].astype(float)
        if met[best]:
            shift[at] = _offset(leave, ends[rows.operation[at]] - leave)
        np.minimum.at(ends, rows.operation[at], leave + shift[at])
    whole = np.rint(shift).astype(np.int64)
    return rows.with_column("enter_ns", rows.enter_ns + whole).with_column(
        "leave_ns", rows.leave_ns + whole
    )


def _offset(at: Array, apart: Array) -> Array:
    """What to add to times `at` of a clock: a line through the differences of its ends, followed
    where it wanders."""
    known = np.flatnonzero(np.isfinite(apart))
    base, x, y = at[known[0]], at[known], apart[known]
    if len(known) < 4 or np.ptp(x) == 0:
        return np.full(len(at), float(np.median(y)))
    kept = np.ones(len(x), bool)
    for _ in range(3):
        slope, level = np.polyfit(x[kept] - base, y[kept], 1)
        rest = y - (slope * (x - base) + level)
        kept = np.abs(rest) <= max(float(np.quantile(np.abs(rest), 1 - TRIMMED)), 1.0)
    drawn: Array = slope * (at - base) + level
    if len(known) >= 2 * STRETCH:
        order = np.argsort(x, kind="stable")
        parts = np.array_split(order, len(order) // STRETCH)
        middles = [float(x[part].mean()) for part in parts]
        drawn = drawn + np.interp(at, middles, [float(np.median(rest[part])) for part in parts])
    return drawn


class Between(NamedTuple):
    """Pairs of neighbouring entries of a lane, in order: indices of the rows, and their kind."""

    first: Array
    second: Array
    kind: Array


def waited(rows: Columns, operations: Columns, over_ns: Array) -> Array:
    """Whether each entry's lane waits for its operation before it goes on. Boolean.

    `rows` in order of lane and time; `over_ns` when each operation was over. Kinds of neighbours
    are judged together, since what depends on what is the program's.
    """
    pair = _pairs(rows, operations)
    gap = (rows.enter_ns[pair.second] - rows.enter_ns[pair.first]).astype(float)
    flight = np.maximum(over_ns[rows.operation[pair.first]] - rows.enter_ns[pair.first], 0.0)
    slope, spread = _slopes(gap, flight, pair.kind, rows.lane[pair.first])
    usual = _medians(gap, pair.kind)
    early = np.bincount(pair.kind, gap < flight) / np.maximum(np.bincount(pair.kind), 1)
    told = spread > TELLING * np.maximum(usual, 1.0)
    depends = np.where(told, slope > DEPENDS, _usually(rows, operations, pair))
    depends &= early <= TRIMMED
    found = np.zeros(len(rows), bool)
    found[pair.first] = depends[pair.kind]
    found[_finals(rows)] = True
    return found


def _pairs(rows: Columns, operations: Columns) -> Between:
    first = np.flatnonzero(rows.lane[1:] == rows.lane[:-1])
    second = first + 1
    crosses = rows.step[first] != rows.step[second]
    key = [crosses]
    for one in (first, second):
        number = rows.operation[one]
        key += [operations[name][number] for name in ("op", "size_bytes", "members", "message")]
        key.append(rows.decides[one])
    kind = np.unique(np.stack(key).astype(np.int64), axis=1, return_inverse=True)[1].reshape(-1)
    return Between(first, second, kind)


def _finals(rows: Columns) -> Array:
    """The last entry of each lane: nothing tells what comes after."""
    return np.flatnonzero(np.diff(rows.lane, append=-1) != 0)


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
