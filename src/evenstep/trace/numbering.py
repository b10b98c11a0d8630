"""One numbering of the steps for all ranks, where they began to count at different moments.

A rank counts its steps from when it attached. Collectives carry identities that do not depend on
that, so two ranks that took part in the same ones show by how many steps their counts differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.trace.columns import Columns
from evenstep.trace.spool.layout import Kind

Array = npt.NDArray[Any]


def step_shifts(events: Columns) -> dict[int, int]:
    """What to add to each rank's step numbers so that they agree; ranks without evidence: 0.

    The median over common collectives of the difference to the lowest rank that shares some, so a
    single collective on the edge of a step does no harm. Among ranks that share collectives, the
    one that began first keeps its count: shifts are never negative.
    """
    rows = events.select((events.kind == int(Kind.COLLECTIVE)) & (events.group >= 0))
    rows = rows.sorted_by("group", "group_seq", "rank")
    shifts = dict.fromkeys((int(rank) for rank in np.unique(events["rank"])), 0)
    if not len(rows):
        return shifts
    same = (np.diff(rows.group) == 0) & (np.diff(rows.group_seq.astype(np.int64)) == 0)
    instance = np.cumsum(np.concatenate([[0], ~same]))
    first = np.searchsorted(instance, np.arange(int(instance[-1]) + 1))
    lead_rank, lead_step = (
        rows["rank"][first][instance],
        rows.step[first].astype(np.int64)[instance],
    )
    ahead = lead_step - rows.step.astype(np.int64)
    kin = {rank: rank for rank in shifts}  # lowest rank of those it can be compared with
    for rank in sorted(shifts):
        mine = (rows["rank"] == rank) & (lead_rank != rank)
        for lead in np.unique(lead_rank[mine])[:1]:
            shifts[rank] = shifts[int(lead)] + int(np.median(ahead[mine & (lead_rank == lead)]))
            kin[rank] = kin[int(lead)]
    lowest = {root: min(shifts[r] for r in kin if kin[r] == root) for root in set(kin.values())}
    return {rank: shift - lowest[kin[rank]] for rank, shift in shifts.items()}


def renumbered(events: Columns) -> tuple[Columns, dict[int, int]]:
    """The events with common step numbers, and the shifts that were needed (empty if none)."""
    shifts = {rank: shift for rank, shift in step_shifts(events).items() if shift}
    if not shifts:
        return events, {}
    step = events.step.astype(np.int64)
    for rank, shift in shifts.items():
        step[events["rank"] == rank] += shift
    return events.with_column("step", step.astype(np.uint32)), shifts


def shifts_in_words(shifts: Mapping[int, int]) -> list[str]:
    """What is to be said of ranks that were renumbered."""
    return [
        f"rank {rank} began to count {shift} steps after the others; its steps were renumbered"
        for rank, shift in shifts.items()
    ]
