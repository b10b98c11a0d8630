"""Streams of devices: their clocks brought together, and what their compute waits for.

Nobody leaves a collective before the others do, so that its ends are one moment on all devices;
that places every device's clock on that of the first one. Which operations a stream of compute
waits for is nowhere recorded: it follows from how the next ones are entered. Where it waited, its
own work is what passes since the end of the operation; where it did not, since its last entry.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evenstep.diagnose.graph.structure import mixed
from evenstep.trace.columns import Columns
from evenstep.trace.spool.layout import Op
from evenstep.trace.trace import Trace

Array = npt.NDArray[Any]

FASTEST_DRIFT = 200e-6  # of a device's clock against its host's
STRETCH = 64  # ends that a wandering clock is followed by
TRIMMED = 0.1  # of the ends may be odd
TELLING = 0.02  # of the time between entries: operations that vary by less tell nothing
EARLY_NS = 20_000  # by which stamps of different devices may cross
FURTHEST = 3  # entries after which an operation may still be waited for
SURE = 0.15  # of the smaller variance: with less between them, two orders are alike
AT_ONCE_NS = 3_000  # between the end of an operation and what waited for nothing else
OFTEN, ALWAYS = 0.05, 0.98  # of the steps and lanes in which that is so; always: nothing is done
CLEARLY = 1.5  # times the variance between lanes, if it were not so: one of two that meet is slow
PACED = 0.8  # correlation with the pace of others, from which a lane goes by it
FAR = 4.0  # mean deviations, beyond which a value counts as so far
_REDUCTIONS = (int(Op.ALL_REDUCE), int(Op.REDUCE_SCATTER), int(Op.REDUCE))


def device_clock_is_hosts(trace: Trace) -> list[int]:
    """Ranks whose device stamps are on the clock of their host."""
    return [rank for rank, info in trace.ranks.items() if info.facts.get("device_clock") == "host"]


def together(rows: Columns, lanes: int) -> Columns:
    """The entries with times of devices on one clock: that of the lane that meets most others.

    `rows` as in `Entries.rows`; all must be on devices.
    """
    enter, leave = rows.enter_ns.astype(np.int64), rows.leave_ns.astype(np.int64)
    ends = np.full(int(rows.operation.max(initial=-1)) + 1, np.inf)
    order = np.argsort(rows.lane, kind="stable")
    edges = np.searchsorted(rows.lane[order], np.arange(lanes + 1))
    mine = [order[a:b] for a, b in pairwise(edges)]
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


class Awaited(NamedTuple):
    """How many entries later each entry's lane waits for its operation (0: never), and whether it
    has worked before it does (else it works after)."""

    ahead: Array
    worked: Array


def awaited(rows: Columns, operations: Columns, over_ns: Array) -> Awaited:
    """What is waited for, and when.

    `rows` in order of lane and time; `over_ns` when each operation was over. Whatever makes own
    work vary least is taken to be so; a lane that goes on in the moment in which an operation ends
    has worked before. Places of a program are judged over all lanes and steps.
    """
    place = _places(rows, operations)
    over = over_ns[rows.operation]
    found, worked = np.zeros(len(rows), np.int64), np.zeros(len(rows), bool)
    open_ = np.ones(len(rows), bool)  # nothing was waited for since
    for ahead in range(1, FURTHEST + 1):
        alike = rows.lane[ahead:] == rows.lane[:-ahead]
        first = np.flatnonzero(alike & open_[:-ahead] & (found[:-ahead] == 0))
        if not len(first):
            break
        ends = _goes_on(rows, (first, ahead), place)
        depends = _depends(rows, operations, over, (first, ahead), place) | ends
        after = rows.enter_ns[first + ahead] >= over[first] - EARLY_NS
        found[first[depends & after]] = ahead
        worked[first[ends & after]] = True
        open_[:-ahead] &= found[ahead:] != 1
    last = np.diff(rows.lane, append=-1) != 0  # nothing tells what comes after
    return Awaited(np.where(last & (found == 0), 1, found), worked)


def _goes_on(rows: Columns, pairs: tuple[Array, int], place: Array) -> Array:
    """Of each pair, whether later entries time and again come when the earlier's operation ends."""
    first, ahead = pairs
    kind = place[first]
    apart = rows.enter_ns[first + ahead] - rows.leave_ns[first]
    at_once = np.abs(apart) <= AT_ONCE_NS
    early = _means(apart < -EARLY_NS, kind)
    later = rows.enter_ns[first + ahead] - rows.enter_ns[first + ahead - 1]
    often = _means(at_once & (later > AT_ONCE_NS), kind)
    return np.asarray(((often >= OFTEN) & (often < ALWAYS) & (early <= TRIMMED))[kind])


def _places(rows: Columns, operations: Columns) -> Array:
    """A number per entry that is the same at the same place of steps of the same program."""
    number = rows.operation
    away = np.where(operations.message[number], operations.root[number] - rows.lane, 0)
    kinds = [operations.op[number], operations.members[number], np.sign(away), rows.sends]
    opens = (np.diff(rows.lane, prepend=-1) != 0) | (np.diff(rows.step, prepend=-1) != 0)
    step = np.cumsum(opens) - 1
    first = np.flatnonzero(opens)
    place = np.arange(len(rows)) - first[step]
    code = np.cumsum(mixed([place, *kinds]), dtype=np.uint64)
    ends = np.append(first[1:], len(rows)) - 1
    whole = code[ends] - np.where(first > 0, code[first - 1], np.uint64(0))
    return np.unique(mixed([whole[step], place]), return_inverse=True)[1].reshape(-1)


def _depends(
    rows: Columns, operations: Columns, over: Array, pairs: tuple[Array, int], place: Array
) -> Array:
    """Of each pair, whether the later entry comes after the earlier one's operation.

    `pairs`: indices of the earlier entries, and how many entries later the others are.
    """
    first, ahead = pairs
    second, kind = first + ahead, place[first]
    before = rows.enter_ns[second - 1]
    apart = (rows.enter_ns[second] - before).astype(float)
    after = rows.enter_ns[second] - np.maximum(before, over[first]).astype(float)
    lane = rows.lane[first]
    plain, bound = _spread(apart, kind, lane), _spread(after, kind, lane)
    alike = _unlike(after, kind, lane) < _unlike(apart, kind, lane) / CLEARLY
    floor = (TELLING * np.maximum(_means(apart, kind), 1.0)) ** 2
    told = np.abs(plain - bound) > np.maximum(floor, SURE * np.minimum(plain, bound))
    early = _means(after < -EARLY_NS, kind)
    untold = np.zeros(len(first), bool)
    if ahead == 1:
        untold = _usually(rows, operations, first) | _in_pace(rows, over, first, kind)
        untold |= (alike & (_unlike(apart, kind, lane) > floor))[kind]
    return np.where(told[kind], (bound < plain)[kind], untold) & (early <= TRIMMED)[kind]


def _unlike(values: Array, kind: Array, lane: Array) -> Array:
    """Variance of each kind's lanes' means."""
    cells, cell = np.unique(kind * (int(lane.max(initial=0)) + 1) + lane, return_inverse=True)
    mean = _means(values, cell.reshape(-1))
    of = cells // (int(lane.max(initial=0)) + 1)
    return _means((mean - _means(mean, of)[of]) ** 2, of)


def _in_pace(rows: Columns, over: Array, first: Array, kind: Array) -> Array:
    """Whether lanes that do not come last go on in the pace of the operations' ends: they wait,
    even where all of a lane's work varies together."""
    second = first + 1
    apart = (rows.enter_ns[second] - rows.enter_ns[first]).astype(float)
    pace = (over[second] - over[first]).astype(float)
    flight = (over[first] - rows.enter_ns[first]).astype(float)
    lane = rows.lane[first]
    with_pace = _correlation(apart, pace, kind, lane)
    without = _correlation(apart - flight, pace, kind, lane)
    return np.asarray(((with_pace > PACED) & (without < with_pace - PACED / 2))[kind])


def _correlation(one: Array, other: Array, kind: Array, lane: Array) -> Array:
    """Of each kind, around the means of its lanes (Pearson)."""
    cell = np.unique(kind * (int(lane.max(initial=0)) + 1) + lane, return_inverse=True)[1]
    cell = cell.reshape(-1)
    x, y = one - _means(one, cell)[cell], other - _means(other, cell)[cell]
    scale = np.sqrt(_means(x * x, kind) * _means(y * y, kind))
    return np.asarray(_means(x * y, kind) / np.where(scale > 0, scale, 1.0))


def _means(values: Array, kind: Array) -> Array:
    return np.asarray(np.bincount(kind, values) / np.maximum(np.bincount(kind), 1))


def _spread(values: Array, kind: Array, lane: Array) -> Array:
    """Variance of each kind around its lanes' means, what is far out cut off."""
    cell = np.unique(kind * (int(lane.max(initial=0)) + 1) + lane, return_inverse=True)[1]
    cell = cell.reshape(-1)
    rest = np.abs(values - _means(values, cell)[cell])
    limit = (FAR * _means(rest, kind))[kind]
    return _means(np.minimum(rest, limit) ** 2, kind)


def _usually(rows: Columns, operations: Columns, first: Array) -> Array:
    """Whether programs usually wait there: for reductions together at the end, for the rest at
    once, for what is sent never."""
    number, following = rows.operation[first], rows.operation[first + 1]
    reduces = np.isin(operations.op[number], _REDUCTIONS)
    more = np.isin(operations.op[following], _REDUCTIONS)
    more &= rows.step[first] == rows.step[first + 1]
    return np.asarray(~(reduces & more) & ~rows.sends[first])
