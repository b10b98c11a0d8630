"""Whether mending two causes together gains more or less than mending each alone.

Two ranks late in the same step hide one another: mending the later one alone gains only the
difference, mending both gains all. Each is taken out of a replay alone, and both together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.diagnose.finding import Evidence, Finding
from evenstep.diagnose.lateness.case import Case
from evenstep.diagnose.lateness.cost import taken_out
from evenstep.diagnose.lateness.replay import Program, program, saved

Array = npt.NDArray[Any]

MOST = 3  # modes that are paired: the costliest
WORTH = 0.01  # of the step: less is not worth a line


def with_interactions(case: Case, findings: list[Finding]) -> list[Finding]:
    """The findings; the cheaper one of a pair that interact says so in its evidence.

    Only of runs that are held whole: a sample of steps does not show what is carried over.
    """
    cells = {mode: mask for mode, mask in case.claims.by_mode.items() if mask.any()}
    ranked = [mode for mode in dict.fromkeys(f.mode for f in findings) if mode in cells][:MOST]
    if len(ranked) < 2 or len(case.grid.pieces) > 1:
        return findings
    extra = _interactions(case, {mode: cells[mode] for mode in ranked})
    told: list[Finding] = []
    for finding in findings:
        lines = extra.pop(finding.mode, [])
        told.append(replace(finding, evidence=[*finding.evidence, *lines]) if lines else finding)
    return told


def _interactions(case: Case, cells: Mapping[str, Array]) -> dict[str, list[Evidence]]:
    """Lines for the second mode of each pair: gain of both, less the gains of each."""
    plan = program(case.grid)
    total = max(case.grid.total_ns, 1.0)
    alone = {mode: _gain(case, plan, mask) / total for mode, mask in cells.items()}
    lines: dict[str, list[Evidence]] = {}
    for first, second in combinations(cells, 2):
        both = _gain(case, plan, cells[first] | cells[second]) / total
        apart = alone[first] + alone[second]
        if abs(both - apart) >= WORTH:
            name = f"gain_together_with_{first}"
            line = Evidence(name, round(both, 4), round(apart, 4), "share")
            lines.setdefault(second, []).append(line)
    return lines


def _gain(case: Case, plan: Program, cells: Array) -> float:
    """What the job would save without these cells' excess, in ns."""
    removed = taken_out(plan, np.where(cells, case.delays.late_ns, 0.0))
    lead, end = saved(plan, removed)
    return float((np.median(end, axis=1) - np.median(lead, axis=1)).sum())
