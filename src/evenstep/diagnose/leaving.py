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

from evenstep.diagnose.arrivals import numbered
from evenstep.trace.clocks import Clocks, Offset
from evenstep.trace.columns import Columns
from evenstep.trace.layout import SYNCHRONIZING_OPS, Flag, Kind
from evenstep.trace.trace import Trace

Array = npt.NDArray[Any]

STRETCH = 128  # collectives a median is taken over: short enough for the drift to be a line
LATE = np.iinfo(np.int64).max


def sharpened(trace: Trace, clocks: Clocks) -> Clocks:
    """The clocks with each host's offset moved, within its error, to where ranks leave together."""
    moved: dict[int, Offset] = {}  # by identity: the ranks of a host share one offset
    reference = [rank for rank, offset in clocks.by_rank.items() if _exact(offset)]
    if len(reference) == len(clocks.by_rank):
        return clocks
    rows = _usable(trace)
    count = int(rows.instance[-1]) + 1 if len(rows) else 0
    here = _first_exits(rows, reference, count)
    shortest = np.full(count, LATE)
    np.minimum.at(shortest, rows.instance, rows.exit_ns - rows.enter_ns)
    for offset in clocks.by_rank.values():
        if offset is None or _exact(offset) or id(offset) in moved:
            continue
        mine = [rank for rank, other in clocks.by_rank.items() if other is offset]
        there = _first_exits(rows, mine, count)
        both = np.flatnonzero((here < LATE) & (there < LATE))
        moved[id(offset)] = _moved(offset, there[both], here[both], shortest[both])
    by_rank = {rank: moved.get(id(offset), offset) for rank, offset in clocks.by_rank.items()}
    return Clocks(clocks.reference, by_rank)


def _usable(trace: Trace) -> Columns:
    """Finished synchronizing collectives on the host's clock, with their instance."""
    rows = trace.of_kind(Kind.COLLECTIVE)
    usable = np.isin(rows.op, [int(op) for op in SYNCHRONIZING_OPS]) & (rows.exit_ns > 0)
    usable &= ((rows.flags & int(Flag.ON_DEVICE)) == 0) & (rows.group >= 0)
    rows = rows.select(usable).sorted_by("group", "group_seq")
    return rows.with_column("instance", numbered(rows))


def _exact(offset: Offset | None) -> bool:
    return offset is not None and not offset.offset_ns.any() and not offset.error_ns.any()


def _first_exits(rows: Columns, ranks: list[int], count: int) -> Array:
    """Per instance, the first exit of these ranks."""
    mine = np.isin(rows["rank"], ranks)
    exits = np.full(count, LATE)
    np.minimum.at(exits, rows.instance[mine], rows.exit_ns[mine])
    return exits


def _moved(offset: Offset, there: Array, here: Array, floor: Array) -> Offset:
    """An offset per stretch of collectives: the median difference of the exits, within bounds."""
    if not len(there):
        return offset
    order = np.argsort(there)
    at, values, errors = [], [], []
    for first in range(0, len(order), STRETCH):
        part = order[first : first + STRETCH]
        apart = here[part] - offset.shift(there[part])
        low, middle, high = np.quantile(apart, [0.25, 0.5, 0.75])
        own = float(there[part].mean())
        bound = float(np.interp(own, offset.at_ns, offset.error_ns))
        known = float(np.interp(own, offset.at_ns, offset.offset_ns))
        at.append(own)
        values.append(known + float(np.clip(middle, -bound, bound)))
        errors.append(min(bound, (high - low) / 2 + float(floor[part].min())))
    return Offset(np.array(at), np.array(values), np.array(errors))
