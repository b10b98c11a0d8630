"""What every rank waits in every collective, and for whom: for those who draw or list them.

Nobody's wait is its time in flight less a floor, but the time until the last has entered, which
needs no exit at all: an exit seen by a callback is only an upper bound. Where clocks cannot be
compared (devices, hosts that could not be placed) everybody is taken to leave together, and
lateness follows from the times in flight.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.diagnose.graph.entries import collectives
from evenstep.diagnose.graph.streams import device_clock_is_hosts
from evenstep.trace.clocks.clocks import Clocks
from evenstep.trace.columns import Columns
from evenstep.trace.trace import Trace

Array = npt.NDArray[Any]


def arrivals(trace: Trace, clocks: Clocks) -> Columns:
    """A row for each rank in each collective that all traced members of its group took part in.

    rank, seq (of the record), step, group, operation (a number), here_ns (entry, on the line of
    time that the rank's steps are on), took_ns, wait_ns (until the last of those it depends on has
    entered), awaited (it is that last one) and relative (only times in flight compare).
    """
    ranks = np.array(sorted(trace.ranks), np.int64)
    rows, operations = collectives(trace, clocks, ranks)
    rows = rows.select((operations.whole & (operations.members > 1))[rows.operation])
    number, took = rows.operation, np.maximum(rows.leave_ns - rows.enter_ns, 0)
    apart = np.isin(ranks, list(clocks.unplaced))[rows.lane] | rows.on_device
    relative = (np.bincount(number, apart, len(operations)) > 0)[number]
    entered = np.where(relative, -took, rows.enter_ns)
    last = np.full(len(operations), np.iinfo(np.int64).min)
    np.maximum.at(last, number[rows.decides], entered[rows.decides])
    wait = np.where(rows.waits, np.clip(last[number] - entered, 0, took), 0)
    return Columns(
        {
            "rank": ranks[rows.lane],
            "seq": rows.seq,
            "step": rows.step,
            "group": operations.group[number],
            "operation": number,
            "here_ns": _here(rows, clocks, ranks, device_clock_is_hosts(trace)),
            "took_ns": took,
            "wait_ns": wait,
            "awaited": rows.decides & (entered == last[number]),
            "relative": relative,
        }
    )


def _here(rows: Columns, clocks: Clocks, ranks: Array, one_clock: list[int]) -> Array:
    """Entries on the host's time: those of a device as early as nothing of a step runs before it is
    issued, unless its stamps are on the host's clock.

    The two clocks have no common zero and drift, so each step of a rank is placed by itself.
    """
    if not rows.on_device.any():
        return np.asarray(rows.enter_ns)
    step = np.unique(np.stack([rows.lane, rows.step]), axis=1, return_inverse=True)[1].reshape(-1)
    shift = np.full(int(step.max()) + 1, np.iinfo(np.int64).min)
    np.maximum.at(shift, step, np.where(rows.on_device, rows.issued_ns - rows.enter_ns, shift[0]))
    rank = ranks[rows.lane]
    issued = rows.enter_ns + shift[step]
    on_hosts = clocks.common(rank, rows.enter_ns)
    there = np.where(np.isin(rank, one_clock), on_hosts, issued)
    return np.where(rows.on_device, there, rows.enter_ns)
