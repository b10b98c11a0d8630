"""What each step is bound by, how long that lasts, and whether it comes back with a period."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.diagnose.measure.grid import StepGrid
from evenstep.statistics.spectrum import periodic
from evenstep.trace.spool.layout import Phase

Array = npt.NDArray[Any]

NAMES = ("compute", "transfer", "wait", "input")


def classes(grid: StepGrid) -> Array:
    """Index into `NAMES` of what took most of each step on the median rank. (steps,)."""
    fed = grid.phase_ns[Phase.INPUT]
    parts = grid.work_ns - fed, grid.blocked_ns - grid.wait_ns, grid.wait_ns, fed
    return np.asarray(np.argmax([np.median(part, axis=1) for part in parts], axis=0))


def regimes(grid: StepGrid) -> dict[str, Any] | None:
    """For the summary: share of steps per class, changes, mean dwell in steps, period in steps."""
    if not len(grid.steps):
        return None
    of = classes(grid)
    starts = np.flatnonzero(np.diff(of, prepend=-1))
    length = np.diff(np.append(starts, len(of)))
    dwell = {
        name: round(float(length[of[starts] == number].mean()), 2)
        for number, name in enumerate(NAMES)
        if (of == number).any()
    }
    usual = int(np.argmax(np.bincount(of)))
    peak = periodic((of == usual).astype(float)) if len(starts) > 1 else None
    return {
        "shares": {name: round(float((of == i).mean()), 4) for i, name in enumerate(NAMES)},
        "changes": len(starts) - 1,
        "dwell_steps": dwell,
        "period_steps": round(peak.period, 3) if peak is not None else None,
    }
