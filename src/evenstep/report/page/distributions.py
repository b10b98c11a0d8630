"""How long each phase takes on each rank: quantiles over the steps, for a row of boxes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.trace.columns import Columns
from evenstep.trace.spool.layout import Phase

Array = npt.NDArray[Any]

BOXES = 128  # a phase; of more ranks neighbours share one
QUANTILES = {"q05_us": 0.05, "q25_us": 0.25, "q50_us": 0.5, "q75_us": 0.75, "q95_us": 0.95}
SMALLEST = 1e-5  # of all time: less is what rounding leaves over
COLUMNS = ("phase", "rank", "last_rank", *QUANTILES)

#: As they follow each other in a step.
PHASES_IN_ORDER = (*sorted(set(Phase) - {Phase.OTHER}), Phase.OTHER)


def distributions(steps: Columns) -> Columns:
    """One row a phase and rank (or run of ranks): the first, the last, and five quantiles.

    `steps` is the step table. Phases that took no time to speak of are left out.
    """
    parts = [_of_phase(steps, phase) for phase in PHASES_IN_ORDER if _took_time(steps, phase)]
    if not parts:
        return Columns({name: np.empty(0, np.float32) for name in COLUMNS})
    return Columns.concatenate(parts)


def _column(phase: Phase) -> str:
    return f"phase_{phase.name.lower()}_ns"


def _took_time(steps: Columns, phase: Phase) -> bool:
    """Whether the phase is more than a rounding of the others."""
    if _column(phase) not in steps:
        return False
    total = float((steps.end_ns - steps.start_ns).sum())
    return float(steps[_column(phase)].sum()) > SMALLEST * total


def _of_phase(steps: Columns, phase: Phase) -> Columns:
    ranks = np.unique(steps.rank)
    width = -(-len(ranks) // BOXES)
    box = np.searchsorted(ranks, steps.rank) // width
    time_us = np.asarray(steps[_column(phase)], float) / 1e3
    order = np.lexsort([time_us, box])
    count = np.bincount(box)
    first = np.cumsum(count) - count
    quantiles = {
        name: _quantile(time_us[order], first, count, share) for name, share in QUANTILES.items()
    }
    last = np.minimum(np.arange(1, len(count) + 1) * width, len(ranks)) - 1
    return Columns(
        {
            "phase": np.full(len(count), int(phase), np.uint8),
            "rank": ranks[::width].astype(np.int32),
            "last_rank": ranks[last].astype(np.int32),
            **quantiles,
        }
    )


def _quantile(ordered: Array, first: Array, count: Array, share: float) -> Array:
    """Linear between neighbours, as numpy's default (Hyndman and Fan 1996, type 7)."""
    place = share * (count - 1)
    low = np.floor(place).astype(int)
    high = np.minimum(low + 1, count - 1)
    below, above = ordered[first + low], ordered[first + high]
    return np.asarray(below + (above - below) * (place - low)).astype(np.float32)
