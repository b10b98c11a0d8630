"""One time for all hosts, from the collectives themselves.

Ranks with one boot id read the same clock. For any other host the offset is bounded by every
synchronizing collective: nobody leaves before the last has entered, so with `o` added to the other
host's times, exit >= enter in both directions. The bounds of a stretch of collectives give an
interval; its middle is the offset there, half its width the error. Stretches follow the drift.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evenstep.trace.columns import Columns
from evenstep.trace.layout import SYNCHRONIZING_OPS, Kind
from evenstep.trace.trace import Trace

Array = npt.NDArray[Any]

STRETCH = 128  # collectives an offset is taken from


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
    """Bounds from the instances both clocks took part in, stretch by stretch."""
    instance = (
        np.cumsum(
            np.concatenate(
                [
                    [0],
                    (np.diff(table.group) != 0) | (np.diff(table.group_seq.astype(np.int64)) != 0),
                ]
            )
        )
        if len(table)
        else np.zeros(0, np.int64)
    )
    count = int(instance[-1]) + 1 if len(table) else 0
    low = np.full(count, -np.inf)
    high = np.full(count, np.inf)
    here, there = clock == reference, clock == name
    latest = {
        side: _extreme(np.maximum, table.enter_ns, instance, mask, count)
        for side, mask in (("here", here), ("there", there))
    }
    earliest = {
        side: _extreme(np.minimum, table.exit_ns, instance, mask, count)
        for side, mask in (("here", here), ("there", there))
    }
    low = latest["here"] - earliest["there"]
    high = earliest["here"] - latest["there"]
    known = np.isfinite(low) & np.isfinite(high)
    if not known.any():
        return None
    at = latest["there"][known]
    order = np.argsort(at)
    return _stretches(at[order], low[known][order], high[known][order])


def _extreme(how: Any, times: Array, instance: Array, mask: Array, count: int) -> Array:
    """Maximum or minimum of `times` per instance over the masked rows; nan where there is none."""
    start = -np.inf if how is np.maximum else np.inf
    found = np.full(count, start)
    how.at(found, instance[mask], times[mask].astype(np.float64))
    return np.where(np.isfinite(found), found, np.nan)


def _stretches(at: Array, low: Array, high: Array) -> Offset:
    edges = np.arange(0, len(at), STRETCH)
    lows = np.maximum.reduceat(low, edges)
    highs = np.minimum.reduceat(high, edges)
    middles = np.add.reduceat(at, edges) / np.diff(np.append(edges, len(at)))
    return Offset(middles, (lows + highs) / 2, np.abs(highs - lows) / 2)
