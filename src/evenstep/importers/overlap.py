"""How much of a device's communication is hidden behind its compute, rank by rank.

Both as the union over streams, so that nothing counts twice; the same share as
Holistic Trace Analysis gives: |communication ∩ compute| ÷ |communication|.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evenstep.importers.merging import overlap_ns, united
from evenstep.trace.spool.layout import Flag, Kind
from evenstep.trace.trace import Trace

Array = npt.NDArray[Any]


class Overlap(NamedTuple):
    """Device time of one rank, all devices together, in ns."""

    communication_ns: int
    compute_ns: int
    hidden_ns: int  # communication while there was compute

    @property
    def share(self) -> float | None:
        """Of the communication, what was hidden; None where there was none."""
        return self.hidden_ns / self.communication_ns if self.communication_ns else None


def overlaps(trace: Trace) -> dict[int, Overlap]:
    """What each rank's devices did, whichever step it was launched in."""
    events = trace.of_kind(Kind.COLLECTIVE, Kind.POINT_TO_POINT, Kind.SPAN)
    timed = ((events.flags & int(Flag.ON_DEVICE)) != 0) & (events.device_exit_ns > 0)
    events = events.select(timed)
    found = {}
    for rank in trace.ranks:
        parts = []
        mine = events["rank"] == rank
        for device in np.unique(events.device[mine]):
            rows = events.select(mine & (events.device == device))
            times = rows.device_enter_ns, rows.device_exit_ns
            compute = rows.kind == int(Kind.SPAN)
            moving = united(*(time[~compute] for time in times))
            busy = united(*(time[compute] for time in times))
            parts.append((_length(*moving), _length(*busy), overlap_ns(moving, busy)))
        found[rank] = Overlap(*(sum(column) for column in zip((0, 0, 0), *parts, strict=True)))
    return found


def _length(start: Array, end: Array) -> int:
    return int((end - start).sum())
