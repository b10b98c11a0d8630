"""What devices did with their time: computed, communicated, copied, or nothing.

Each as the union over a device's streams, so that nothing counts twice; of its communication, what
was hidden is |communication ∩ compute| ÷ |communication|, as Holistic Trace Analysis has it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evenstep.diagnose.graph.streams import device_clock_is_hosts
from evenstep.diagnose.measure.intervals import Intervals, overlap_length, union_length
from evenstep.trace.columns import Columns
from evenstep.trace.spool.layout import Flag, Kind
from evenstep.trace.trace import Trace

Array = npt.NDArray[Any]

COMPUTE = "compute"  # name of the spans in which a device computed
COPY = "copy"  # name of the spans in which a device copied or set memory


class DeviceTime(NamedTuple):
    """Time of one rank's devices, all together, in ns."""

    elapsed_ns: int  # steps, and what devices did outside of them
    compute_ns: int
    communication_ns: int
    hidden_ns: int  # communication while there was compute
    busy_ns: int  # anything at all, copies as well


def device_times(trace: Trace) -> dict[int, DeviceTime]:
    """What the devices of each rank did, whichever step it was launched in.

    Of ranks whose devices' stamps are on the clock of the host, which steps are on.
    """
    known = device_clock_is_hosts(trace)
    if not known:
        return {}
    events = trace.of_kind(Kind.COLLECTIVE, Kind.POINT_TO_POINT, Kind.SPAN)
    timed = ((events.flags & int(Flag.ON_DEVICE)) != 0) & (events.device_exit_ns > 0)
    events = events.select(timed & np.isin(events["rank"], known))
    if not len(events):
        return {}
    pairs = np.stack([events["rank"].astype(np.int64), events.device.astype(np.int64)])
    devices, cell = np.unique(pairs, axis=1, return_inverse=True)
    lengths = _lengths(trace, events, cell.reshape(-1), devices[0])
    return {
        int(rank): DeviceTime(*(int(of[devices[0] == rank].sum()) for of in lengths))
        for rank in np.unique(devices[0])
    }


def _lengths(trace: Trace, events: Columns, cell: Array, rank_of: Array) -> tuple[Array, ...]:
    """The fields of `DeviceTime`, device by device."""
    names = [*trace.names, ""]
    span = events.kind == int(Kind.SPAN)
    computes = span & (events.name == (names.index(COMPUTE) if COMPUTE in names else -1))
    done = Intervals(cell, events.device_enter_ns, events.device_exit_ns)
    compute, communication = done.where(computes), done.where(~span)
    cells = len(rank_of)
    return (
        union_length(done + _steps(trace, rank_of), cells),
        union_length(compute, cells),
        union_length(communication, cells),
        overlap_length(compute, communication, cells),
        union_length(done, cells),
    )


def _steps(trace: Trace, rank_of: Array) -> Intervals:
    """The steps of each device's rank."""
    steps = trace.of_kind(Kind.STEP)
    steps = steps.select(steps.exit_ns > 0)
    parts = [np.flatnonzero(steps["rank"] == rank) for rank in rank_of]
    rows = np.concatenate(parts)
    cell = np.repeat(np.arange(len(rank_of)), [len(part) for part in parts])
    return Intervals(cell, steps.enter_ns[rows], steps.exit_ns[rows])


def shares(found: dict[int, DeviceTime]) -> dict[str, float | None] | None:
    """All ranks together, of the time elapsed; `hidden` of the communication. None: no device."""
    elapsed = sum(each.elapsed_ns for each in found.values())
    if not elapsed:
        return None
    _, compute, moving, hidden, busy = (sum(column) for column in zip(*found.values(), strict=True))
    return {
        "busy": round(busy / elapsed, 6),
        "compute": round(compute / elapsed, 6),
        "communication": round(moving / elapsed, 6),
        "copy": round((busy - (compute + moving - hidden)) / elapsed, 6),
        "idle": round(1.0 - busy / elapsed, 6),
        "hidden": round(hidden / moving, 6) if moving else None,
    }
