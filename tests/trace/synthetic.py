"""Traces made from columns: collectives of several ranks, with clocks as one likes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from evenstep.trace.columns import Columns
from evenstep.trace.spool.layout import RECORD_FIELDS, Kind, Op
from evenstep.trace.spooled import EVENT_COLUMNS
from evenstep.trace.trace import RankInfo, Trace

Times = npt.NDArray[np.int64]


def table(rows: Mapping[str, npt.NDArray[np.int64]]) -> Columns:
    """Events with these columns; the others are zero."""
    types = {"rank": "<i4", **dict(RECORD_FIELDS), "group": "<i4", "name": "<i4"}
    number = len(rows["rank"])
    return Columns(
        {name: np.asarray(rows.get(name, np.zeros(number)), types[name]) for name in EVENT_COLUMNS}
    )


def collectives(enter: Mapping[int, Times], leave: Mapping[int, Times], **same: int) -> Columns:
    """One group's all-reduces: the n-th of every rank is the same one."""
    parts = [
        table(
            {
                "rank": np.full(len(times), rank),
                "enter_ns": times,
                "exit_ns": leave[rank],
                "group_seq": np.arange(len(times)),
                "kind": np.full(len(times), same.get("kind", Kind.COLLECTIVE)),
                "op": np.full(len(times), same.get("op", Op.ALL_REDUCE)),
            }
        )
        for rank, times in enter.items()
    ]
    return Columns.concatenate(parts)


def trace_of(events: Columns, boots: Mapping[int, str]) -> Trace:
    """A trace with these events; `boots` gives each rank's boot id."""
    ranks = {rank: RankInfo(rank, {"boot_id": boot}) for rank, boot in boots.items()}
    return Trace({}, len(ranks), 0, ranks, events)
