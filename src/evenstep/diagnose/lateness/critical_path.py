"""The dynamic critical path: which rank and phase bounds each step, how it moves and stays.

A step is bounded by the rank that the others lost most time to in it, in the phase in which that
rank exceeds them most. Where nobody lost more than a hundredth of the step to anybody, no rank
bounds it. How often the bound moves is the entropy of the bounding ranks: 0 bits for one rank,
log2(n) for all of them alike.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evenstep.diagnose.lateness.case import Case
from evenstep.trace.spool.layout import Phase

Array = npt.NDArray[Any]

LEAST = 0.01  # of a step, lost by the mean rank: below it nobody bounds the step
LISTED = 5
NOBODY = -1


class Path(NamedTuple):
    """Per step: its number, column of the bounding rank (`NOBODY` if none) and its `Phase`."""

    step: Array
    column: Array
    phase: Array


def critical_path(case: Case) -> Path:
    """Who bounds each step of the grid, and where."""
    grid, lost = case.grid, case.waited_for_ns
    steps, ranks = grid.shape
    column = lost.argmax(axis=1) if ranks else np.zeros(steps, int)
    rows = np.arange(steps)
    clear = lost[rows, column] / max(ranks - 1, 1) > LEAST * grid.step_ns
    phase = case.delays.phase[rows, column]
    return Path(grid.steps, np.where(clear, column, NOBODY), phase)


def _seen(case: Case, path: Path) -> Path:
    """The steps whose collectives were looked at."""
    sampled = case.grid.sampled
    return Path(*(part[sampled] for part in path)) if sampled.any() else path


def entropy(counts: Array) -> float:
    """Bits of a distribution given by counts (Shannon 1948)."""
    share = counts[counts > 0] / max(counts.sum(), 1)
    return max(0.0, -float((share * np.log2(share)).sum()))


def dwells(column: Array) -> tuple[Array, Array]:
    """Runs of steps with the same bound: (who, length), in order."""
    if not len(column):
        return column, column
    edges = np.flatnonzero(np.diff(column, prepend=column[0] - 1))
    return column[edges], np.diff(np.append(edges, len(column)))


def summary(case: Case) -> dict[str, Any] | None:
    """The path as plain values; None where waits are not known."""
    steps, ranks = case.grid.shape
    if not steps or ranks < 2 or not case.waits_known:
        return None
    path = _seen(case, critical_path(case))
    bound = path.column != NOBODY
    counts = np.bincount(path.column[bound], minlength=ranks)
    bits = entropy(counts)
    who, length = dwells(path.column)
    stays = length[who != NOBODY]
    return {
        "bounds": _bounds(case, path),
        "unbound_share": float((~bound).mean()),
        "entropy_bits": bits,
        "entropy_normalized": bits / float(np.log2(ranks)),
        "moves_share": _moves(path.column[bound]),
        "dwell_steps": {
            "mean": float(stays.mean()) if len(stays) else None,
            "longest": _longest(case, path, who, length),
        },
    }


def _moves(column: Array) -> float | None:
    """Share of bounded steps with another bound than the one before."""
    return float((np.diff(column) != 0).mean()) if len(column) > 1 else None


def _longest(case: Case, path: Path, who: Array, length: Array) -> dict[str, int] | None:
    stays = np.where(who != NOBODY, length, 0)
    if not len(stays) or stays.max() == 0:
        return None
    at = int(stays.argmax())
    first = int(length[:at].sum())
    return {
        "rank": int(case.grid.ranks[who[at]]),
        "steps": int(length[at]),
        "first_step": int(path.step[first]),
    }


def _bounds(case: Case, path: Path) -> list[dict[str, Any]]:
    """The rank and phase pairs that bound most steps."""
    bound = path.column != NOBODY
    pair = path.column[bound] * len(Phase) + path.phase[bound]
    values, counts = np.unique(pair, return_counts=True)
    order = np.argsort(-counts, kind="stable")[:LISTED]
    found = []
    for i in order:
        rank = int(case.grid.ranks[values[i] // len(Phase)])
        found.append(
            {
                "rank": rank,
                "node": case.trace.ranks[rank].node,
                "phase": Phase(int(values[i] % len(Phase))).name.lower(),
                "share": float(counts[i] / len(path.column)),
            }
        )
    return found
