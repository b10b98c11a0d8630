"""Align the clocks of all hosts, from the operations that their ranks share.

Ranks with one boot id share a clock. Every shared operation bounds the offset of another clock: no
rank leaves before those it depends on have entered, so with the offset added to its times,
exit >= enter in both directions (`crossings` collects these bounds, `bounds` combines them). The
clock that most ranks share is the reference. Clocks that share an operation with it are placed
first, then those that share one with a placed clock, and so on: a bound through another clock is
looser by that clock's own error. Last come those that messages bound around a circle only.

If a host is always late, these bounds hold but are one-sided: only the exits of the other hosts are
tight, and the middle is off by half the lateness. Exits of ranks that wait for the same collective
differ by less than a transfer plus a callback's delay, in either direction; so `sharpen` draws a
line through the differences of the exits, clipped to the bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from evenstep.trace.clocks.bounds import DRIFT, Crossings, OffsetLine, crossings, line
from evenstep.trace.columns import Array, Columns, key_numbers, rows_by_key
from evenstep.trace.trace import Trace


class Clocks(NamedTuple):
    """Every rank's offset to the reference clock; None for a rank that cannot be placed."""

    reference: str
    by_rank: dict[int, OffsetLine | None]

    @property
    def error_ns(self) -> float:
        """The largest error bar of any placed rank."""
        placed = (offset for offset in self.by_rank.values() if offset is not None)
        return max((float(offset.error_ns.max()) for offset in placed), default=0.0)

    def common(self, rank: Array, times_ns: Array) -> Array:
        """Convert times of these ranks to the reference; times of unplaced ranks stay."""
        return self._moved([times_ns], rank)[0]

    def placed(self, rows: Columns) -> tuple[Array, Array]:
        """Start and end of records on the reference; an open end stays 0."""
        start, end = self._moved([rows.enter_ns, rows.exit_ns], rows["rank"])
        return start, np.where(rows.exit_ns > 0, end, 0)

    def _moved(self, times_ns: Sequence[Array], rank: Array) -> list[Array]:
        moved = [times.copy() for times in times_ns]
        known = [(number, line) for number, line in self.by_rank.items() if line is not None]
        lines = {number: line for number, line in known if line.offset_ns.any()}
        for rows in rows_by_key(rank) if lines else []:
            if (line := lines.get(int(rank[rows[0]]))) is not None:
                for times in moved:
                    times[rows] = line.shift(times[rows])
        return moved

    @property
    def unplaced(self) -> tuple[int, ...]:
        """Ranks whose times cannot be compared with those of others."""
        return tuple(rank for rank, offset in self.by_rank.items() if offset is None)


_EXACT = OffsetLine(np.zeros(1), np.zeros(1), np.zeros(1))


def align(trace: Trace) -> Clocks:
    """Align all ranks to the clock that most of them share."""
    names = [info.clock for info in trace.ranks.values()]
    reference = max(dict.fromkeys(names), key=names.count)
    clock_of = _numbered(trace, reference)
    found: list[OffsetLine | None] = [_EXACT, *([None] * max(clock_of.values()))]
    if len(found) > 1:
        _place(crossings(trace, clock_of), found)
    return Clocks(reference, {rank: found[number] for rank, number in clock_of.items()})


def _numbered(trace: Trace, reference: str) -> dict[int, int]:
    """A number for the clock of each rank: 0 for the reference."""
    names = dict.fromkeys([reference, *(info.clock for info in trace.ranks.values())])
    numbers = {name: number for number, name in enumerate(names)}
    return {rank: numbers[info.clock] for rank, info in trace.ranks.items()}


def _place(table: Crossings, found: list[OffsetLine | None]) -> None:
    """Fill in the offsets, from the reference outwards along shared operations."""
    if not len(table.operation):
        return
    tried: set[int] = set()
    while True:
        placed = np.array([offset is not None for offset in found])
        entry, leave = _on_common_time(table, found)
        latest = table.of_operation(np.maximum, entry)
        earliest = table.of_operation(np.minimum, leave)
        low, high = latest - table.exit, earliest - table.entry  # bounds of each row's clock
        when = np.where(np.isfinite(latest), latest, earliest)
        lows, highs = (np.bincount(table.clock[np.isfinite(each)], minlength=len(found))
                       for each in (low, high))  # fmt: skip
        two_sided = (np.isfinite(low) | np.isfinite(high)) & ((lows > 0) & (highs > 0))[table.clock]
        reached = np.unique(table.clock[two_sided & ~placed[table.clock]])
        new = [int(clock) for clock in reached if int(clock) not in tried]
        for clock in new:
            tried.add(clock)
            mine = np.flatnonzero((table.clock == clock) & two_sided)
            own = np.where(np.isfinite(table.entry[mine]), table.entry[mine], table.exit[mine])
            drawn, base = line(when[mine], own, low[mine], high[mine]), int(table.base[clock])
            found[clock] = drawn and drawn.moved(base, int(table.base[0]) - base)
        if not (new := new or _place_in_circles(table, found)):
            return
        tried = tried if all(found[clock] is None for clock in new) else set()


PARTS = 64  # of a run, at most, in each of which bounds are added up
HALVINGS = 12  # until the delay that all messages may have is known


def _place_in_circles(table: Crossings, found: list[OffsetLine | None]) -> list[int]:
    """Place clocks that messages bound on one side through some clocks and on the other through
    others, as those of a ring in which all go one way: by the tightest bounds along any path, in
    each part of the run with messages. As which message takes how long does not show, the quickest
    ones between any two clocks are taken to need the same time. Returns the clocks placed."""
    first = np.flatnonzero(np.diff(table.operation) == 0)
    sent, received = np.hstack([(first, first + 1), (first + 1, first)])
    known = np.isfinite(table.entry[sent]) & np.isfinite(table.exit[received])
    sent, received = sent[known], received[known]
    lost = [clock for clock, offset in enumerate(found) if offset is None]
    if not np.isin(lost, table.clock[sent]).any():
        return []
    ends, time = table.clock[[sent, received]], np.maximum(table.exit[received], 0.0)
    edge = key_numbers(*ends)
    edges = ends[:, np.unique(edge, return_index=True)[1]]
    width = float(time.max() + 1) / np.clip(np.bincount(edge).min() // 2, 1, PARTS)
    parts, part = np.unique((time / width).astype(int), return_inverse=True)
    within = np.full((len(parts), len(edges.T)), np.inf)
    np.minimum.at(within, (part, edge), table.exit[received] - table.entry[sent])
    reach, even = np.full((2, len(within), 2, len(found)), np.inf)
    for number, delay in enumerate(within):
        bounds, least = _along_paths(delay, edges, len(found)), 0.0
        circle = np.inf if bounds is None else bounds.sum(axis=0)[1:].min()
        if circle == np.inf:
            continue
        reach[number] = bounds
        for step in circle / 2.0 ** np.arange(1, HALVINGS):
            closer = _along_paths(delay - least - step, edges, len(found))
            if closer is not None:
                bounds, least = closer, least + step
        even[number] = bounds
    at = (parts + 0.5) * width
    for clock in lost:
        seen = np.isfinite(reach[..., clock]).all(axis=1)
        middle = even[seen, :, clock] @ (0.5, -0.5)
        wide = reach[seen, :, clock].mean(axis=1) + DRIFT * width
        if seen.any() and (drawn := line(at[seen], at[seen], middle - wide, middle + wide)):
            base = int(table.base[clock])
            found[clock] = drawn.moved(base, int(table.base[0]) - base)
    return [clock for clock in lost if found[clock] is not None]


def _along_paths(delay_ns: Array, edges: Array, clocks: int) -> Array | None:
    """By how much at most every clock is ahead of the reference, and behind it, if messages from
    clock to clock (two of (edges,)) took at least nothing and seemed to take so long (inf: none
    seen): (2, clocks), by Bellman and Ford; None where the delays around a circle are negative."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import NegativeCycleError, bellman_ford

    there = np.isfinite(delay_ns)
    graph = csr_array((delay_ns[there], edges[:, there]), shape=(clocks, clocks))
    try:
        return np.array([bellman_ford(one, indices=0) for one in (graph.T.tocsr(), graph)])
    except NegativeCycleError:
        return None


def _on_common_time(table: Crossings, found: list[OffsetLine | None]) -> tuple[Array, Array]:
    """Lower bounds of entries and upper bounds of exits on the reference, since its base; -inf and
    inf where the clock is not placed yet."""
    entry, leave = np.full(len(table.clock), -np.inf), np.full(len(table.clock), np.inf)
    for clock, (offset, rows) in enumerate(zip(found, table.rows_by_clock(), strict=True)):
        if offset is None:
            continue
        for times, column, sign in ((table.entry, entry, -1), (table.exit, leave, 1)):
            column[rows] = _shift(table, offset, clock, times[rows], sign)
    return entry, leave


# -- finer than the bounds -------------------------------------------------------------------------

STRETCH = 128  # collectives per line: few enough for the drift to be linear


def sharpen(trace: Trace, clocks: Clocks) -> Clocks:
    """The clocks with each host's offset moved, within its error, to where ranks leave together.

    Clocks that share a collective with the reference come first, then those that share one with
    these, and so on. Clocks that share none are placed again, by messages from all of these.
    """
    lines = [offset for offset in clocks.by_rank.values() if offset is not None]
    if not any(offset.offset_ns.any() or offset.error_ns.any() for offset in lines):
        return clocks
    clock_of = _numbered(trace, clocks.reference)
    offsets: list[OffsetLine | None] = [None] * (max(clock_of.values()) + 1)
    for rank, offset in clocks.by_rank.items():
        offsets[clock_of[rank]] = offset
    moved, settled = _all_moved(crossings(trace, clock_of, together=True), offsets)
    again = [one if settled[number] else None for number, one in enumerate(moved)]
    if settled.sum() > 1 and None in again:
        _place(crossings(trace, clock_of), again)
        moved = [_surer(*pair) for pair in zip(moved, again, strict=True)]
    return Clocks(clocks.reference, {rank: moved[clock_of[rank]] for rank in clocks.by_rank})


def _surer(one: OffsetLine | None, other: OffsetLine | None) -> OffsetLine | None:
    if one is None or other is None:
        return one or other
    return other if np.median(other.error_ns) < np.median(one.error_ns) else one


def _all_moved(
    table: Crossings, offsets: list[OffsetLine | None]
) -> tuple[list[OffsetLine | None], Array]:
    """Every clock's offset, moved, and a mask of these; one that shares no collective keeps its."""
    moved = list(offsets)
    settled = np.array([number == 0 for number in range(len(offsets))])
    movable = np.array([offset is not None for offset in offsets]) & ~settled
    if not len(table.operation):
        return moved, settled
    by_clock = table.rows_by_clock()
    shortest = table.of_operation(np.minimum, table.shortest)
    common = np.full(len(table.clock), np.inf)
    new = np.array([0])
    while len(new):
        for clock in new.tolist():
            if (placed := moved[clock]) is not None:
                rows = by_clock[clock]
                common[rows] = _shift(table, placed, clock, table.exit[rows])
        settled[new] = True
        here = table.of_operation(np.minimum, common)
        met = np.isfinite(here) & np.isfinite(table.exit) & movable[table.clock]
        new = np.unique(table.clock[met & ~settled[table.clock]])
        for clock in new.tolist():
            rows = by_clock[clock][met[by_clock[clock]]]
            if (offset := offsets[clock]) is not None:
                apart = here[rows] - _shift(table, offset, clock, table.exit[rows])
                own = table.exit[rows] + table.base[clock]
                moved[clock] = _move(offset, own, apart, shortest[rows])
    return moved, settled


def _shift(
    table: Crossings, offset: OffsetLine, clock: int, times: Array, errors: int = 0
) -> Array:
    """Convert times since a clock's base to times since the reference's, plus so many `errors`."""
    base = int(table.base[clock])
    drawn = offset.moved(-base, base - int(table.base[0]))
    at = np.where(np.isfinite(times), times, 0.0)
    return np.asarray(times + drawn.offset_at(at) + errors * drawn.error_at(at))


def _move(offset: OffsetLine, own: Array, apart: Array, floor: Array) -> OffsetLine:
    """An offset on a line per stretch of collectives: through the differences of the exits, as far
    as bounds allow. A line of bounds has the wrong drift where these are one-sided for a part."""
    order = np.argsort(own)
    cuts = np.searchsorted(own[order], offset.breaks_ns)
    at, change, errors = [], [], []
    for part in np.split(order, cuts):
        count = -(-len(part) // STRETCH)
        for rows in np.array_split(part, count) if count else ():
            ends = own[rows[[0, -1]]].astype(float)
            offsets = apart[rows] + offset.offset_at(own[rows])
            before = offset.offset_at(ends)
            drawn, scatter = _resistant_line(own[rows].astype(float), offsets, before)
            bounds = np.interp(ends, offset.at_ns, offset.error_ns)
            at.append(ends)
            change.append(np.clip(drawn - before, -bounds, bounds))
            errors.append(np.minimum(bounds, scatter + float(floor[rows].min())))
    return _redrawn(offset, *(np.concatenate(each) for each in (at, change, errors)))


def _resistant_line(x: Array, y: Array, before: Array) -> tuple[Array, float]:
    """A line's values at the first and the last x, with the slope between the medians of the outer
    thirds (Tukey 1977, Exploratory Data Analysis, chapter 10), or of a line with the values
    `before` where thirds have less than three points, of which a median resists one; and the
    quartiles' distance to it."""
    outer = len(x) // 3
    rise, run = before[-1] - before[0], x[-1] - x[0]
    if outer >= 3:
        rise, run = (np.median(each[-outer:]) - np.median(each[:outer]) for each in (y, x))
    along = rise / max(run, 1.0) * (x - x[0])
    low, level, high = np.quantile(y - along, [0.25, 0.5, 0.75])
    return level + along[[0, -1]], float(high - low) / 2


def _redrawn(offset: OffsetLine, at: Array, change: Array, errors: Array) -> OffsetLine:
    """The line through the ends of the stretches; outside and at breaks the old line, moved."""
    outside = (offset.at_ns < at[0]) | (offset.at_ns > at[-1])
    for jump in offset.breaks_ns:
        outside |= np.abs(offset.at_ns - jump) <= 1
    places = np.concatenate([at, offset.at_ns[outside]])
    stretch = np.searchsorted(offset.breaks_ns, at, side="left")
    nearest = np.array([_nearest(at, stretch, place, offset.breaks_ns) for place in places])
    old_error = np.interp(places, offset.at_ns, offset.error_ns)
    grown = np.maximum(old_error - np.interp(at[nearest], offset.at_ns, offset.error_ns), 0)
    order = np.argsort(places, kind="stable")
    value = np.interp(places, offset.at_ns, offset.offset_ns) + change[nearest]
    error = errors[nearest] + grown
    return offset._replace(at_ns=places[order], offset_ns=value[order], error_ns=error[order])


def _nearest(at: Array, stretch: Array, place: float, breaks_ns: Array) -> int:
    """Index of the middle nearest to a place, on the same side of every break if there is one."""
    same = np.flatnonzero(stretch == np.searchsorted(breaks_ns, place))
    among = same if len(same) else np.arange(len(at))
    return int(among[np.argmin(np.abs(at[among] - place))])
