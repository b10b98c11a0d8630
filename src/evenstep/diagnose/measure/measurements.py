"""Sampled metrics (clocks, temperatures, energy) and logged numbers (loss, staleness)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evenstep.trace.spool.layout import Kind
from evenstep.trace.trace import Trace

Array = npt.NDArray[Any]


class Numbers(NamedTuple):
    """Values with the rank and step they belong to, and the rank's own time."""

    rank: Array
    step: Array
    at_ns: Array
    value: Array

    def __bool__(self) -> bool:
        """Whether there are any."""
        return len(self.value) > 0


_NOTHING = np.zeros(0, np.int64)
NONE = Numbers(_NOTHING, _NOTHING, _NOTHING, np.zeros(0))


def sampled(trace: Trace, metric: str) -> Numbers:
    """A metric of all ranks in order of time."""
    return _named(trace, Kind.SAMPLE, metric)


def marked(trace: Trace, name: str) -> Numbers:
    """What `evenstep.log(name=value)` recorded, in order of time."""
    return _named(trace, Kind.MARKER, name)


def _named(trace: Trace, kind: Kind, name: str) -> Numbers:
    if name not in trace.names:  # records need not be looked at
        return NONE
    rows = trace.of_kind(kind)
    rows = rows.select(rows.name == trace.names.index(name)).sorted_by("enter_ns")
    value = np.ascontiguousarray(rows.bytes_in, np.uint64).view(np.float64)
    return Numbers(rows["rank"].astype(np.int64), rows.step.astype(np.int64), rows.enter_ns, value)
