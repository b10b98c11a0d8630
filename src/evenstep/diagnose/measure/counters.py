"""Counters that the agents sampled: by how much they grew, where and when."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.diagnose.measure.grid import StepGrid
from evenstep.trace.columns import Columns
from evenstep.trace.spool.layout import Kind
from evenstep.trace.trace import Trace

Array = npt.NDArray[Any]

#: What a network counts when it loses, repeats or marks: any growth is a sign of congestion.
CONGESTION = (
    "tcp.retransmitted_segments",
    "tcp.timeouts_count",
    "tcp.delivered_marked_segments",
    "ip.received_marked_packets",
    "nic.receive_dropped_packets",
    "nic.send_dropped_packets",
    "nic.receive_missed_packets",
    "ib.transmit_wait_ticks",
    "ib.send_discarded_packets",
    "ib.out_of_sequence_packets",
    "ib.sequence_errors_count",
    "ib.acknowledge_timeouts_count",
    "ib.adaptive_retransmissions_count",
    "ib.retransmitted_packets",
    "ib.receiver_not_ready_count",
    "ib.out_of_buffer_packets",
    "ib.congestion_notices_sent_packets",
    "ib.congestion_notices_handled_packets",
    "ib.received_marked_packets",
)


def growth(trace: Trace, grid: StepGrid, metric: str, samples: Columns | None = None) -> Array:
    """By how much a counter grew in each step, summed over its devices. (steps, ranks).

    Between two samples it grows evenly. A counter that fell was reset, or wrapped: it did not grow.
    """
    found = np.zeros(grid.shape)
    if metric not in trace.names:
        return found
    rows = trace.of_kind(Kind.SAMPLE) if samples is None else samples
    rows = rows.select(rows.name == trace.names.index(metric))
    rows = rows.sorted_by("rank", "device", "enter_ns")
    changed = (np.diff(rows["rank"], prepend=-1) != 0) | (np.diff(rows.device, prepend=-9) != 0)
    edges = np.append(np.flatnonzero(changed), len(rows))
    for first, last in pairwise(edges):
        column = int(np.searchsorted(grid.ranks, rows["rank"][first]))
        if column < len(grid.ranks) and grid.ranks[column] == rows["rank"][first]:
            found[:, column] += _of_one(grid, column, rows.select(slice(int(first), int(last))))
    return found


def _of_one(grid: StepGrid, column: int, rows: Columns) -> Array:
    """Growth per step of one counter of one rank."""
    values = np.ascontiguousarray(rows.bytes_in).view(np.float64)
    grown = np.concatenate([[0.0], np.cumsum(np.maximum(np.diff(values), 0))])
    at = grid.clocks.common(rows["rank"], rows.enter_ns)
    ends = np.interp(grid.end_ns[:, column], at, grown)
    return np.asarray(ends - np.interp(grid.start_ns[:, column], at, grown))


def congestion(trace: Trace, grid: StepGrid) -> dict[str, Array]:
    """Growth per step, summed over ranks, of each congestion counter that grew at all."""
    known = [metric for metric in CONGESTION if metric in trace.names]
    samples = trace.of_kind(Kind.SAMPLE) if known else None
    grown = {metric: growth(trace, grid, metric, samples).sum(axis=1) for metric in known}
    return {metric: per_step for metric, per_step in grown.items() if per_step.any()}
