"""One time for all hosts, from the collectives themselves.

Ranks with one boot id read the same clock. For any other host the offset is bounded by every
synchronizing collective: nobody leaves before the last has entered, so with `o` added to the other
host's times, exit >= enter in both directions. A bound holds for its neighbours too, looser by what
the clocks can drift apart in between. The tightest of all these bounds give an interval at every
collective; its middle is the offset there, half its width the error.

Nothing is assumed of transfers, only of the drift: below `DRIFT`, and, where the bounds allow it, a
constant rate within `WANDER`. This is the convex-hull method (Duda et al. 1987) in linear time.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evenstep.trace.columns import Columns
from evenstep.trace.layout import SYNCHRONIZING_OPS, Kind
from evenstep.trace.trace import Trace

Array = npt.NDArray[Any]

DRIFT = 250e-6  # two crystals of 100 ppm each, and a margin
WANDER = 2e-6  # of the rate during a run: temperature
THINNED = 16  # collectives between two stored offsets


class Offset(NamedTuple):
    """Offset of one clock against the reference at some of its own times, all in ns."""

    at_ns: Array
    offset_ns: Array
    error_ns: Array

    def shift(self, times_ns: Array) -> Array:
        """These times of the clock, on the reference."""
        return times_ns + np.interp(times_ns, self.at_ns, self.offset_ns).astype(np.int64)


class Clocks(NamedTuple):
    """Every rank's way to the common time; None for a rank that cannot be placed."""

    reference: str
    by_rank: dict[int, Offset | None]

    @property
    def error_ns(self) -> float:
        """The largest error bar of any rank that could be placed."""
        errors = [float(o.error_ns.max()) for o in self.by_rank.values() if o is not None]
        return max(errors, default=0.0)

    @property
    def unplaced(self) -> tuple[int, ...]:
        """Ranks whose times cannot be compared with the others'."""
        return tuple(rank for rank, offset in self.by_rank.items() if offset is None)


_EXACT = Offset(np.zeros(1), np.zeros(1), np.zeros(1))


def align(trace: Trace) -> Clocks:
    """Offsets of all ranks against the clock that most of them share."""
    clocks = {rank: info.clock for rank, info in trace.ranks.items()}
    names = list(clocks.values())
    reference = max(dict.fromkeys(names), key=names.count)
    offsets: dict[str, Offset | None] = {reference: _EXACT}
    others = [name for name in dict.fromkeys(names) if name != reference]
    if others:
        table = _crossings(trace)
        clock_of = np.array([clocks.get(rank, "") for rank in range(trace.world)], object)
        for name in others:
            offsets[name] = _offset(table, clock_of[table.rank], reference, name)
    return Clocks(reference, {rank: offsets[name] for rank, name in clocks.items()})


def _crossings(trace: Trace) -> Columns:
    """Finished synchronizing collectives on the host's clock, instance by instance."""
    events = trace.of_kind(Kind.COLLECTIVE)
    usable = np.isin(events.op, [int(op) for op in SYNCHRONIZING_OPS]) & (events.exit_ns > 0)
    return events.select(usable).sorted_by("group", "group_seq")


def _offset(table: Columns, clock: Array, reference: str, name: str) -> Offset | None:
    """Bounds from the instances both clocks took part in."""
    if not len(table):
        return None
    same = (np.diff(table.group) == 0) & (np.diff(table.group_seq.astype(np.int64)) == 0)
    instance = np.cumsum(np.concatenate([[0], ~same]))
    here, there = clock == reference, clock == name
    low = _latest(table.enter_ns, instance, here) - _earliest(table.exit_ns, instance, there)
    high = _earliest(table.exit_ns, instance, here) - _latest(table.enter_ns, instance, there)
    known = np.isfinite(low) & np.isfinite(high)
    if not known.any():
        return None
    at = _latest(table.enter_ns, instance, there)[known]
    order = np.argsort(at)
    return _bounded(at[order], low[known][order], high[known][order])


def _latest(times: Array, instance: Array, mask: Array) -> Array:
    """Maximum of `times` per instance over the masked rows; nan where there is none."""
    found = np.full(int(instance[-1]) + 1, -np.inf)
    np.maximum.at(found, instance[mask], times[mask].astype(np.float64))
    return np.where(np.isfinite(found), found, np.nan)


def _earliest(times: Array, instance: Array, mask: Array) -> Array:
    """Minimum of `times` per instance over the masked rows; nan where there is none."""
    return -_latest(-times, instance, mask)


def _bounded(at: Array, low: Array, high: Array) -> Offset:
    """The offset at the collectives, from their bounds on it."""
    lows, highs = _envelope(at, low, high, 0.0, DRIFT)
    span = at[-1] - at[0]
    if span > 0:
        slowest, fastest = (lows[-1] - highs[0]) / span, (highs[-1] - lows[0]) / span
        rate, slack = (slowest + fastest) / 2, (fastest - slowest) / 2 + WANDER
        steady = _envelope(at, low, high, rate, slack)
        if slack < DRIFT and (steady[0] <= steady[1]).all():
            lows, highs = steady
    kept = np.unique(np.append(np.arange(0, len(at), THINNED), len(at) - 1))
    return Offset(at[kept], ((lows + highs) / 2)[kept], (np.abs(highs - lows) / 2)[kept])


def _envelope(at: Array, low: Array, high: Array, rate: float, slack: float) -> tuple[Array, Array]:
    """Tightest bounds at every time where the offset changes by `rate` ± `slack`."""
    since = at - at[0]
    return (
        rate * since + _upper(since, low - rate * since, slack),
        rate * since - _upper(since, rate * since - high, slack),
    )


def _upper(since: Array, bound: Array, slack: float) -> Array:
    """The largest of all lower bounds at each time, each weakened by `slack` times the distance."""
    before = np.maximum.accumulate(bound + slack * since) - slack * since
    after = np.maximum.accumulate((bound - slack * since)[::-1])[::-1] + slack * since
    found: Array = np.maximum(before, after)
    return found
