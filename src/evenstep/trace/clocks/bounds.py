"""The offset between two clocks, estimated from bounds on it and on their drift.

A bound at one moment bounds the offset at any other, looser by the drift in between. The tightest
of all these bounds give an interval at every moment: its middle is the offset, half its width the
error. The drift is assumed to be below `DRIFT` and, if the bounds allow it, constant within
`WANDER`. This is the convex-hull method (Duda et al. 1987) in linear time. Bounds that no such
drift reconciles show that a clock was set: the line breaks there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from evenstep.trace.columns import Array, Columns, begins, run_numbers
from evenstep.trace.spool.layout import FROM_ROOT, SYNCHRONIZING_OPS, TO_ROOT, Flag, Kind
from evenstep.trace.trace import Trace, match_messages

DRIFT = 250e-6  # two crystals of 100 ppm each, and a margin
WANDER = 2e-6  # change of the rate during a run, with temperature
NARROWINGS = 4  # iterations: tighter bounds at the ends narrow the drift, which tightens bounds
THINNED = 16  # one bound in so many is stored as a point of the line
ROUNDING_NS = 2.0  # stamps are whole nanoseconds
MOST_STEPS = 32  # times that a clock may be set during a run: the search for breaks ends there


class OffsetLine(NamedTuple):
    """A clock's offset to the reference in ns, linear between points at ascending times; beyond
    them at the drift there, with an error that grows by that drift's uncertainty."""

    at_ns: Array
    offset_ns: Array
    error_ns: Array
    breaks_ns: Array = np.zeros(0)  # times at which the clock was set
    rate: tuple[float, float] = (0.0, 0.0)  # drift before the first and after the last point
    slack: tuple[float, float] = (0.0, 0.0)  # uncertainty of these

    def offset_at(self, times_ns: Array) -> Array:
        """Offset at times of the clock."""
        return self._drawn(times_ns, self.offset_ns, *self.rate)

    def shift(self, times_ns: Array) -> Array:
        """Convert times of the clock to the reference."""
        return times_ns + np.rint(self.offset_at(times_ns)).astype(np.int64)

    def error_at(self, times_ns: Array) -> Array:
        """Bound on the offset's error at times of the clock."""
        return self._drawn(times_ns, self.error_ns, -self.slack[0], self.slack[1])

    def _drawn(self, times_ns: Array, values: Array, before: float, after: float) -> Array:
        """Values at times, beyond the points with these slopes."""
        early = np.minimum(times_ns - float(self.at_ns[0]), 0)
        late = np.maximum(times_ns - float(self.at_ns[-1]), 0)
        drawn = np.interp(times_ns, self.at_ns, values)
        return np.asarray(drawn + before * early + after * late)

    def moved(self, time_ns: int, by_ns: int) -> OffsetLine:
        """The line with `time_ns` added to its times and `by_ns` to its offsets."""
        return self._replace(
            at_ns=self.at_ns + time_ns,
            offset_ns=self.offset_ns + by_ns,
            breaks_ns=self.breaks_ns + time_ns,
        )


class _Stretch(NamedTuple):
    """The line of one stretch without a break."""

    at: Array
    offset: Array
    error: Array
    rate: float
    slack: float

    def beyond(self, time: float, place: int) -> tuple[float, float]:
        """Offset and error at a time beyond the first (place 0) or last (-1) point."""
        distance = time - float(self.at[place])
        return (
            float(self.offset[place]) + self.rate * distance,
            float(self.error[place]) + self.slack * abs(distance),
        )


def line(when: Array, at: Array, low: Array, high: Array) -> OffsetLine | None:
    """The offset from its bounds (infinite: none); None where it is not bounded on both sides.
    `when` is a time that is never set back, `at` the clock's own."""
    order = np.argsort(when, kind="stable")
    order = order[low[order] <= high[order] + ROUNDING_NS]  # else the stamps themselves are wrong
    if not len(order):
        return None
    when, at, low, high = when[order], at[order], low[order], high[order]
    stretches = []
    begins = _set_at(when, low, high)
    for first, last in zip(begins, [*begins[1:], len(when)], strict=True):
        part = slice(first, last)
        if np.isfinite(low[part]).any() and np.isfinite(high[part]).any():
            stretches.append(_stretch(when[part], at[part], low[part], high[part]))
    return _join(stretches) if stretches else None


def _set_at(when: Array, low: Array, high: Array) -> list[int]:
    """Where stretches begin: at bounds that contradict earlier ones whatever the drift."""
    begins = [0]
    while len(begins) <= MOST_STEPS:
        first = begins[-1]
        since = when[first:] - when[first]
        lows = np.maximum.accumulate(low[first:] + DRIFT * since) - DRIFT * since
        highs = np.minimum.accumulate(high[first:] - DRIFT * since) + DRIFT * since
        broken = np.flatnonzero(lows > highs + ROUNDING_NS)
        if not len(broken):
            break
        begins.append(first + int(broken[0]))
    return begins


def _stretch(when: Array, at: Array, low: Array, high: Array) -> _Stretch:
    """The line of a stretch, at one in `THINNED` of its times."""
    lows, highs = _envelope(when, low, high, 0.0, DRIFT)
    rate, slack, span = 0.0, DRIFT, when[-1] - when[0]
    for _ in range(NARROWINGS if span > 0 else 0):
        slowest = max((lows[-1] - highs[0]) / span - WANDER, rate - slack)
        fastest = min((highs[-1] - lows[0]) / span + WANDER, rate + slack)
        middle, narrow = (slowest + fastest) / 2, (fastest - slowest) / 2
        steady = _envelope(when, low, high, middle, narrow)
        if narrow >= slack or not (steady[0] <= steady[1]).all():
            break
        (lows, highs), rate, slack = steady, middle, narrow
    kept = np.unique(np.append(np.arange(0, len(at), THINNED), len(at) - 1))
    kept = kept[np.concatenate([[True], np.diff(at[kept]) > 0])]
    offset, error = (lows + highs) / 2, np.abs(highs - lows) / 2
    return _Stretch(at[kept], offset[kept], error[kept], rate, slack)


def _envelope(
    when: Array, low: Array, high: Array, rate: float, slack: float
) -> tuple[Array, Array]:
    """The tightest bounds at every time if the offset drifts at `rate` ± `slack`."""
    since = when - when[0]
    return (
        rate * since + largest_bound(since, low - rate * since, slack),
        rate * since - largest_bound(since, rate * since - high, slack),
    )


def largest_bound(since: Array, bound: Array, slack: float) -> Array:
    """The largest of all lower bounds at each time, each weakened by `slack` times the distance."""
    before = np.maximum.accumulate(bound + slack * since) - slack * since
    after = np.maximum.accumulate((bound - slack * since)[::-1])[::-1] + slack * since
    return np.asarray(np.maximum(before, after))


def _join(stretches: list[_Stretch]) -> OffsetLine:
    """One line of all stretches, with a jump at each break."""
    points: list[tuple[float, float, float]] = []
    breaks = []
    for number, part in enumerate(stretches):
        following = stretches[number + 1] if number + 1 < len(stretches) else None
        jump = np.inf
        if following is not None:  # when the clock was set: one set back shows some times twice
            end, begin = float(part.at[-1]), float(following.at[0])
            jump = (end + begin) / 2 if begin > end else begin - 1
        kept = part.at < jump
        points += list(zip(part.at[kept], part.offset[kept], part.error[kept], strict=True))
        if following is not None:
            before, after = part.beyond(jump, -1), following.beyond(jump, 0)
            unsure = max(before[1], after[1]) + abs(after[0] - before[0])
            points += [(jump, before[0], unsure), (jump + 1, after[0], unsure)]
            breaks.append(jump)
    at, offset, error = (np.array(column) for column in zip(*points, strict=True))
    order = np.argsort(at, kind="stable")
    ends = stretches[0], stretches[-1]
    return OffsetLine(
        at[order], offset[order], error[order], np.array(breaks),
        (ends[0].rate, ends[1].rate), (ends[0].slack, ends[1].slack),
    )  # fmt: skip


# -- operations that bound offsets -----------------------------------------------------------------
# No rank leaves an all-reduce before all have entered, nor a broadcast before its root has; the
# root of a reduce leaves after all have entered; a message is received after it was sent. Of each
# operation and clock, only the latest entry that others depend on and the earliest exit that
# depends on others matter, however many ranks share the clock.

MOST_ROWS = 3_000_000  # of a larger trace, one in so many collectives of each group is used


class Crossings(NamedTuple):
    """Per operation and clock, in order of operation; times in ns on the clock itself.

    `entry` is the latest one that others depend on (-inf: none), `exit` the earliest that depended
    on others' entries (inf: none), `shortest` the shortest time in flight. Times count from `base`
    of their clock, so that doubles hold them exactly.
    """

    operation: Array
    clock: Array  # number of the clock
    entry: Array
    exit: Array
    shortest: Array
    base: Array  # (clocks,) int64

    def of_operation(self, reduce: np.ufunc, values: Array) -> Array:
        """Reduce values over the rows of each operation; the result stands in each of them."""
        first = np.flatnonzero(begins(self.operation))
        return np.asarray(reduce.reduceat(values, first)[run_numbers(self.operation)])

    def rows_by_clock(self) -> list[Array]:
        order = np.argsort(self.clock, kind="stable")
        return np.split(order, np.searchsorted(self.clock[order], np.arange(1, len(self.base))))


class _Rows(NamedTuple):
    """Records of single ranks; `sends` and `waits` say whether entry and exit bound clocks."""

    operation: Array
    rank: Array
    enter: Array
    exit: Array
    sends: Array  # others depend on its entry
    waits: Array  # its exit depends on others


def crossings(trace: Trace, clock_of: Mapping[int, int], *, together: bool = False) -> Crossings:
    """All bounds of a trace; with `together`, of operations that all ranks leave together only."""
    rows = _collectives(trace, together=together)
    if not together:
        messages = _messages(trace, after=len(rows.operation))
        rows = _Rows(*(np.concatenate(pair) for pair in zip(rows, messages, strict=True)))
    number = np.full(int(max(clock_of, default=0)) + 1, -1)
    number[list(clock_of)] = list(clock_of.values())
    clock = own = number[rows.rank]
    clocks = int(number.max()) + 1
    base = np.zeros(clocks, np.int64)
    for one in range(clocks):
        mine = rows.enter[clock == one]
        base[one] = mine.min() if len(mine) else 0
    order = np.lexsort([clock, rows.operation])
    operation, clock = rows.operation[order], clock[order]
    first = np.flatnonzero(begins(operation, clock))
    entry = np.where(rows.sends, rows.enter - base[own], -np.inf)[order]
    leave = np.where(rows.waits, rows.exit - base[own], np.inf)[order]
    latest, earliest = np.maximum.reduceat(entry, first), np.minimum.reduceat(leave, first)
    shortest = np.minimum.reduceat((rows.exit - rows.enter)[order].astype(float), first)
    return Crossings(operation[first], clock[first], latest, earliest, shortest, base)


def _collectives(trace: Trace, *, together: bool) -> _Rows:
    """Collectives that have ended and whose stamps are those of their entry and end."""
    events = trace.of_kind(Kind.COLLECTIVE)
    ops = SYNCHRONIZING_OPS if together else SYNCHRONIZING_OPS + FROM_ROOT + TO_ROOT
    usable = np.isin(events.op, ops) & (events.group >= 0)
    if len(events) > MOST_ROWS:
        usable &= events.group_seq % np.uint64(-(-len(events) // MOST_ROWS)) == 0
    events = _select_stamped(trace, events.select(usable), loosely=not together)
    events = events.sorted_by("group", "group_seq")
    is_root = events["rank"] == events.peer_or_root
    from_root, to_root = np.isin(events.op, FROM_ROOT), np.isin(events.op, TO_ROOT)
    operation, rank = run_numbers(events.group, events.group_seq), events["rank"].astype(np.int64)
    sends, waits = ~from_root | is_root, np.where(from_root, ~is_root, ~to_root | is_root)
    return _Rows(operation, rank, events.enter_ns, events.exit_ns, sends, waits)


def _messages(trace: Trace, *, after: int) -> _Rows:
    """Received messages, numbered from `after`: an exit depends on the sender's entry."""
    events = trace.of_kind(Kind.POINT_TO_POINT)
    if len(events) > MOST_ROWS:
        every = np.uint64(-(-len(events) // MOST_ROWS))
        events = events.select(events.group_seq % every == 0)
    pairs = match_messages(events)
    events = events.select(np.concatenate([pairs.send, pairs.receive]))
    operation = np.tile(np.arange(len(pairs.send)), 2) + after
    receiving = np.repeat([False, True], len(pairs.send))
    events = events.with_columns(operation=operation, receiving=receiving)
    events = _select_stamped(trace, events, ended=receiving)
    rank, received = events["rank"].astype(np.int64), events.receiving
    return _Rows(events.operation, rank, events.enter_ns, events.exit_ns, ~received, received)


def _select_stamped(
    trace: Trace, events: Columns, ended: Array | None = None, *, loosely: bool = True
) -> Columns:
    """Select events with entry and end on the host's clock.

    Host stamps of an operation on a device are those of issuing it: usable are an end that a
    callback saw later (`loosely`; then it took no less than on the device), and the device's stamps
    where they are on the host's clock. Rows of the mask `ended` (None: all) must have an end.
    """
    flags = events.flags
    on_device = (flags & int(Flag.ON_DEVICE)) != 0
    must_end = np.ones(len(events), bool) if ended is None else ended
    if on_device.any():
        there_ns = events.device_exit_ns - events.device_enter_ns
        issued = must_end & (events.exit_ns - events.enter_ns < there_ns)
        one_clock = np.isin(events["rank"], trace.host_clock_ranks)
        own = on_device & one_clock & (events.device_exit_ns > 0)
        for name in ("enter_ns", "exit_ns"):
            stamps = np.where(own, events[f"device_{name}"], events[name])
            events = events.with_column(name, stamps)
        seen = (flags & int(Flag.EXIT_UPPER_BOUND | Flag.HOST_BLOCKED)) != 0
        on_device &= ~own & ~(seen & loosely & ~issued)
    usable = ~on_device & ((flags & int(Flag.FAILED)) == 0)
    usable &= np.isin(events["rank"], list(trace.ranks))
    return events.select(usable & ((events.exit_ns > 0) | ~must_end))
