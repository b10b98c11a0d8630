"""How a run moves: its critical path, who waits for whom, and what checkpoints change."""

from __future__ import annotations

from typing import Any

from evenstep.diagnose.lateness import blame, critical_path
from evenstep.diagnose.lateness.case import Case
from evenstep.diagnose.measure import resets
from evenstep.diagnose.measure.attempts import known
from evenstep.diagnose.measure.restarts import entries
from evenstep.diagnose.modes import async_staleness


def summary(case: Case) -> dict[str, Any]:
    """Four entries of a diagnosis's summary; None where the trace does not show it."""
    if not len(case.grid.steps):
        return dict.fromkeys(("critical_path", "blame", "checkpoints", "asynchrony"))
    found = blame.blame(case.grid)
    return {
        "critical_path": critical_path.summary(case, found),
        "blame": blame.summary(case, found),
        "checkpoints": resets.summary(case.grid, entries(known(case.trace.run))),
        "asynchrony": async_staleness.summary(case),
    }
