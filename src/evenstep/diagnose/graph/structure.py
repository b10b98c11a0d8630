"""The graph of a run as arrays: rows of every rank, operations, and segments to replay."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evenstep.diagnose.graph.schedule import Schedule
from evenstep.trace.columns import Columns

Array = npt.NDArray[Any]


class Batch(NamedTuple):
    """Segments of one structure. `segments` ascend; `rows` and `operations` are their slices:
    (segments, of each) indices into the graph's tables, in the schedule's order."""

    segments: Array
    first_row: Array  # (segments,)
    first_operation: Array
    schedule: Schedule
    ends: Array  # (step ends, 3): local row, lane, step less the segment's first


@dataclass(slots=True, frozen=True)
class Graph:
    """What waits for what.

    `rows`, in order of segment, lane and time: lane, step, index (of the step), at_ns, enter and
    wait (an operation, -1 none), until_ns (its rank was seen to go on), ends (a step of its lane),
    hidden (its end is not seen where it waits), own_ns (work since the row before and what that
    waited for), slack_ns (of entries on devices, since their host issued them; -1 else), segment.
    `operations`: see `Entries`, with segment, last_ns (last entry), over_ns,
    took_ns (from when it could begin) and queues (behind the one before it).
    """

    ranks: Array  # of the lanes
    steps: Array  # numbers, ascending
    rows: Columns
    operations: Columns
    batches: list[Batch]
    batch_of: Array  # of each segment
    place_in_batch: Array  # of each segment
    starts_ns: Array  # (stretches, lanes and queues): what was over when each stretch began
    stretch_of: Array  # of each segment
    device: Array = field(default_factory=lambda: np.zeros(0, bool))  # (lanes,): streams
    host_ahead_ns: Array = field(default_factory=lambda: np.zeros(0))  # (lanes,): of the graph

    @property
    def own_ns(self) -> Array:
        """Own work of each row."""
        return np.asarray(self.rows.own_ns)

    @property
    def took_ns(self) -> Array:
        """How long each operation took once it could begin."""
        return np.asarray(self.operations.took_ns)
