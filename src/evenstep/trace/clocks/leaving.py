"""Clocks set finer than their bounds: who waits for the same collective leaves it together.

The bounds of `evenstep.trace.clocks` are safe but one-sided where a host is always late: then only
the other hosts' exits are tight, and the middle is off by half the lateness. Exits differ by less
than a transfer and by what a callback needs, on either side alike; so the median difference of the
exits is taken, and never outside the bounds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.trace.clocks.clocks import ClockOffset, Clocks
from evenstep.trace.clocks.crossings import Crossings, crossings
from evenstep.trace.trace import Trace

Array = npt.NDArray[Any]

STRETCH = 128  # collectives a median is taken over: short enough for the drift to be a line


def sharpened(trace: Trace, clocks: Clocks) -> Clocks:
    """The clocks with each host's offset moved, within its error, to where ranks leave together.

    Those that meet the reference in a collective first, then those that meet one of these.
    """
    names = {rank: info.clock for rank, info in trace.ranks.items()}
    if all(offset is None or _exact(offset) for offset in clocks.by_rank.values()):
        return clocks
    numbers = {name: i for i, name in enumerate(dict.fromkeys([clocks.reference, *names.values()]))}
    offsets: list[ClockOffset | None] = [None] * len(numbers)
    for rank, offset in clocks.by_rank.items():
        offsets[numbers[names[rank]]] = offset
    table = crossings(trace, {rank: numbers[name] for rank, name in names.items()}, together=True)
    moved = _all_moved(table, offsets)
    by_rank = {rank: moved[numbers[names[rank]]] for rank in clocks.by_rank}
    return Clocks(clocks.reference, by_rank)


def _all_moved(table: Crossings, offsets: list[ClockOffset | None]) -> list[ClockOffset | None]:
    """Every clock's offset, moved; one that meets no other stays where its bounds have it."""
    moved = list(offsets)
    settled = np.array([number == 0 for number in range(len(offsets))])
    open_ones = np.array([offset is not None for offset in offsets]) & ~settled
    if not len(table.operation):
        return moved
    first = np.flatnonzero(np.diff(table.operation, prepend=-1))
    which = np.cumsum(np.diff(table.operation, prepend=-1) != 0) - 1
    shortest = np.minimum.reduceat(table.shortest, first)[which]
    common = np.full(len(table.clock), np.inf)
    new = np.array([0])
    while len(new):
        for clock in new:
            mine = table.clock == clock
            common[mine] = _shifted(table, moved[clock], int(clock), table.exit[mine])
        settled[new] = True
        here = np.minimum.reduceat(common, first)[which]
        met = np.isfinite(here) & np.isfinite(table.exit) & open_ones[table.clock]
        new = np.unique(table.clock[met & ~settled[table.clock]])
        order = np.argsort(table.clock, kind="stable")
        edges = np.searchsorted(table.clock[order], np.arange(len(offsets) + 1))
        for clock in new:
            rows = order[edges[clock] : edges[clock + 1]]
            rows = rows[met[rows]]
            apart = here[rows] - _shifted(table, offsets[clock], int(clock), table.exit[rows])
            own = table.exit[rows] + table.base[clock]
            offset = offsets[clock]
            if offset is not None:
                moved[clock] = _moved(offset, own, apart, shortest[rows])
    return moved


def _exact(offset: ClockOffset) -> bool:
    return not offset.offset_ns.any() and not offset.error_ns.any()


def _shifted(table: Crossings, offset: ClockOffset | None, clock: int, times: Array) -> Array:
    """Times since a clock's base as times since the reference's."""
    if offset is None:
        return np.full(len(times), np.inf)
    base = int(table.base[clock])
    at = np.where(np.isfinite(times), times, 0.0)
    return np.asarray(times + offset.moved(-base, base - int(table.base[0])).offset_at(at))


def _moved(offset: ClockOffset, own: Array, apart: Array, floor: Array) -> ClockOffset:
    """An offset per stretch of collectives: the median difference of the exits, within bounds."""
    order = np.argsort(own)
    cuts = np.searchsorted(own[order], offset.breaks_ns)
    at, change, errors = [], [], []
    for part in np.split(order, cuts):
        for first in range(0, len(part), STRETCH):
            rows = part[first : first + STRETCH]
            low, middle, high = np.quantile(apart[rows], [0.25, 0.5, 0.75])
            centre = float(own[rows].mean())
            bound = float(np.interp(centre, offset.at_ns, offset.error_ns))
            at.append(centre)
            change.append(float(np.clip(middle, -bound, bound)))
            errors.append(min(bound, (high - low) / 2 + float(floor[rows].min())))
    return _redrawn(offset, np.array(at), np.array(change), np.array(errors))


def _redrawn(offset: ClockOffset, at: Array, change: Array, errors: Array) -> ClockOffset:
    """The line through the stretches' middles; at its ends and breaks, the old one moved along."""
    outside = (offset.at_ns < at[0]) | (offset.at_ns > at[-1])
    for jump in offset.breaks_ns:
        outside |= np.abs(offset.at_ns - jump) <= 1
    places = np.concatenate([at, offset.at_ns[outside]])
    stretch = np.searchsorted(offset.breaks_ns, at, side="left")
    nearest = np.array(
        [
            _nearest(at, stretch, place, int(np.searchsorted(offset.breaks_ns, place)))
            for place in places
        ]
    )
    old_error = np.interp(places, offset.at_ns, offset.error_ns)
    grown = np.maximum(old_error - np.interp(at[nearest], offset.at_ns, offset.error_ns), 0)
    order = np.argsort(places, kind="stable")
    value = np.interp(places, offset.at_ns, offset.offset_ns) + change[nearest]
    error = errors[nearest] + grown
    return offset._replace(at_ns=places[order], offset_ns=value[order], error_ns=error[order])


def _nearest(at: Array, stretch: Array, place: float, wanted: int) -> int:
    """The middle nearest to a place, of the same side of every break where there is one."""
    same = np.flatnonzero(stretch == wanted)
    among = same if len(same) else np.arange(len(at))
    return int(among[np.argmin(np.abs(at[among] - place))])
