"""Steps where nobody recorded any: training repeats its collectives, and a repetition is a step.

Taken as steps only where the duration of every collective is known: without it there is nothing
that tells waiting, and steps would promise what the trace cannot give.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.importers.draft import Draft
from evenstep.trace.columns import Columns
from evenstep.trace.layout import Flag, Kind
from evenstep.trace.trace import Trace

Array = npt.NDArray[Any]

FEWEST_STEPS = 6  # repetitions that are no coincidence
LONGEST = 4_096  # collectives of a step


def with_steps(trace: Trace) -> tuple[Trace, str]:
    """The trace with a record per step, and what was taken as one; the same and "" without."""
    table = _common(trace)
    if table is None:
        return trace, ""
    reference = table.select(table["rank"] == table["rank"][0])
    period = _period(np.stack([reference.op, reference.bytes_in, reference.dtype], axis=1))
    if not period:
        return trace, ""
    edges = _edges(table, len(reference), period)
    draft = Draft()
    for rank, times in edges.items():
        draft.rows(
            rank,
            {
                "kind": int(Kind.STEP), "step": np.arange(len(times) - 1) + 1,
                "enter_ns": times[:-1], "exit_ns": times[1:], "peer_or_root": 0,
                "flags": int(Flag.INFERRED),
            },
        )  # fmt: skip
    step = trace.events.step.astype(np.int64)
    for rank, times in edges.items():
        mine = trace.events["rank"] == rank
        step[mine] = np.searchsorted(times, trace.events.enter_ns[mine], side="right")
    events = trace.events.with_column("step", step.astype(np.uint32))
    repeated = len(next(iter(edges.values()))) - 1
    return (
        replace(trace, events=draft.appended(events)),
        f"steps were inferred: {period} collectives that come again {repeated} times; what lies "
        "within a step besides them is not recorded",
    )


def _common(trace: Trace) -> Columns | None:
    """The collectives of the largest group that all ranks have, timed; in order of rank and place.

    None where there is no such group, or not every duration is known.
    """
    rows = trace.of_kind(Kind.COLLECTIVE)
    whole = [
        number
        for number, group in enumerate(trace.groups)
        if set(group.ranks) == set(trace.ranks) and len(group.ranks) > 1
    ]
    if len(rows) == 0 or not whole:
        return None
    counts = np.bincount(rows.group, minlength=len(trace.groups))
    rows = rows.select(rows.group == max(whole, key=lambda number: counts[number]))
    first = max((_bound(rows, rank, np.min) for rank in trace.ranks), default=0)
    last = min((_bound(rows, rank, np.max) for rank in trace.ranks), default=-1)
    place = rows.group_seq.astype(np.int64)
    rows = rows.select((place >= first) & (place <= last)).sorted_by("rank", "group_seq")
    ended = rows.device_exit_ns > 0
    if first < 0 or last - first < FEWEST_STEPS or not ended[:-1].all():
        return None
    return rows if len(rows) == (last - first + 1) * len(trace.ranks) else None


def _bound(rows: Columns, rank: int, which: Any) -> int:
    mine = rows.group_seq[rows["rank"] == rank]
    return int(which(mine)) if len(mine) else -1


def _period(signature: Array) -> int:
    """After how many rows a table repeats, in all but its first quarter; 0 for never.

    The first quarter may hold start-up.
    """
    settled = signature[len(signature) // 4 :]
    for period in range(1, min(len(settled) // FEWEST_STEPS, LONGEST) + 1):
        if (settled[period:] == settled[:-period]).all():
            return period
    return 0


def _edges(table: Columns, length: int, period: int) -> dict[int, Array]:
    """When each rank began its steps: at the collective that follows the longest usual pause."""
    enter = table.enter_ns.reshape(-1, length)[:, length // 4 :]
    pauses = np.diff(enter, axis=1)
    usual = [np.median(pauses[:, place::period]) for place in range(period)]
    begins = (int(np.argmax(usual)) + 1) % period
    ranks = table["rank"].reshape(-1, length)[:, 0]
    return {int(rank): times[begins::period] for rank, times in zip(ranks, enter, strict=True)}
