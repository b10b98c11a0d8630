"""Dynamics of a run: the critical path from step to step, and who waited for whom.

A step is bounded by the rank to which the others lost most time in it, in the phase in which that
rank exceeds them most; by no rank where that is at most a hundredth of the step. How much the bound
moves is the entropy of the bounding ranks: 0 bits for one rank, log2(n) for n equally often.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from evenstep.diagnose.lateness.case import Case
from evenstep.diagnose.lateness.cost import Blame, drift
from evenstep.diagnose.lateness.thresholds import CHRONIC_SHARE
from evenstep.diagnose.levels import CLEARLY, LISTED, MINOR, SMALLEST_SHARE
from evenstep.statistics.interval import MAD_SIGMA
from evenstep.trace.columns import Array
from evenstep.trace.spool.layout import Phase

NOBODY = -1


class Path(NamedTuple):
    """Per step: its number, column of the bounding rank (`NOBODY` if none) and its `Phase`."""

    step: Array
    column: Array
    phase: Array


def critical_path(case: Case) -> Path:
    """The rank and phase that bound each step of the grid."""
    grid, lost = case.grid, case.waited_for_ns
    steps, ranks = grid.shape
    column = lost.argmax(axis=1) if ranks else np.zeros(steps, int)
    rows = np.arange(steps)
    clear = lost[rows, column] / max(ranks - 1, 1) > SMALLEST_SHARE * grid.step_ns
    return Path(grid.steps, np.where(clear, column, NOBODY), case.delays.phase[rows, column])


def entropy(counts: Array) -> float:
    """Bits of a distribution given by counts (Shannon 1948)."""
    share = counts[counts > 0] / max(counts.sum(), 1)
    return max(0.0, -float((share * np.log2(share)).sum()))


def dwells(column: Array) -> tuple[Array, Array]:
    """Runs of steps with the same bound: column and length of each, in order."""
    edges = np.flatnonzero(np.diff(column, prepend=column[0] - 1))
    return column[edges], np.diff(np.append(edges, len(column)))


def path_summary(case: Case) -> dict[str, Any] | None:
    """The path as plain values; None where waits are not known."""
    steps, ranks = case.grid.shape
    if not steps or ranks < 2 or not case.waits_known:
        return None
    sampled = case.grid.sampled
    path = Path(*(part[sampled] for part in critical_path(case)))
    bound = path.column != NOBODY
    changes = np.diff(path.column[bound]) != 0
    bits = entropy(np.bincount(path.column[bound], minlength=ranks))
    who, length = dwells(path.column)
    stays, longest = length[who != NOBODY], None
    if len(stays):
        at = int(np.where(who != NOBODY, length, 0).argmax())
        rank, first = case.grid.ranks[who[at]], path.step[length[:at].sum()]
        longest = {"rank": int(rank), "steps": int(length[at]), "first_step": int(first)}
    return {
        "bounds": _bounds(case, path),
        "unbound_share": float((~bound).mean()),
        "entropy_bits": bits,
        "entropy_normalized": bits / float(np.log2(ranks)),
        # of bounded steps, with another bound than the one before
        "moves_share": float(changes.mean()) if len(changes) else None,
        "dwell_steps": {"mean": float(stays.mean()) if len(stays) else None, "longest": longest},
    }


def _bounds(case: Case, path: Path) -> list[dict[str, Any]]:
    """The rank and phase pairs that bound most steps."""
    bound = path.column != NOBODY
    pair = path.column[bound] * len(Phase) + path.phase[bound]
    values, counts = np.unique(pair, return_counts=True)
    order = np.argsort(-counts, kind="stable")[:LISTED]
    ranks = case.grid.ranks[values // len(Phase)].tolist()
    return [
        {
            "rank": ranks[i],
            "node": case.trace.ranks[ranks[i]].node,
            "phase": Phase(int(values[i] % len(Phase))).name.lower(),
            "share": float(counts[i] / len(path.column)),
        }
        for i in order
    ]


# -- who waited for whom ---------------------------------------------------------------------------


MOST_RANKS = 2048  # of a full matrix: 32 MB


def largest_delay(case: Case) -> dict[str, Any] | None:
    """The late cell that was waited for most, its victims, and how long waiting took to decay."""
    grid = case.grid
    loss = np.where(case.delays.any, case.waited_for_ns, 0.0)
    if not loss.size or loss.max() <= 0:
        return None
    row, column = (int(i) for i in np.unravel_index(int(np.argmax(loss)), loss.shape))
    late = np.asarray(case.delays.any.any(axis=1))
    usual = np.median(grid.wait_ns[~late], axis=0) if (~late).any() else 0.0
    more = np.maximum(grid.wait_ns - usual, 0)
    calm = np.flatnonzero(more[row + 1 :].sum(axis=1) <= _calm(case, more, late))
    again = np.flatnonzero(late[row + 1 :])
    end = min(int(part[0]) if len(part) else len(late) - row - 1 for part in (calm, again)) + 1
    lost = more[row : row + end].sum(axis=0)
    victims = np.flatnonzero((lost > MINOR * lost.max()) & (np.arange(len(lost)) != column))
    delay_ns = float(sum(late[row, column] for late in case.delays.late_ns.values()))
    shown = victims[:LISTED] if len(lost) > 4 * LISTED else victims
    lost_s = float(lost.sum()) / 1e9  # waited more than usual, by everybody, until it had decayed
    return {
        "step": int(grid.steps[row]),
        "rank": int(grid.ranks[column]),
        "delay_ns": round(delay_ns),
        "victims": grid.ranks[shown].tolist(),
        "victims_count": len(victims),
        "rank_seconds_lost": lost_s,
        "rank_seconds_per_second_of_delay": lost_s * 1e9 / max(delay_ns, 1.0),
        # None: not before the next delay or the end
        "steps_to_decay": end if len(calm) and int(calm[0]) + 1 == end else None,
    }


def _calm(case: Case, more: Array, late: Array) -> float:
    """Excess waiting of all ranks together that a step without a late rank may have by chance."""
    total = more[~late].sum(axis=1) if (~late).any() else np.zeros(1)
    middle = float(np.median(total))
    spread = MAD_SIGMA * float(np.median(np.abs(total - middle)))
    least = CHRONIC_SHARE * float(np.median(case.grid.step_ns)) * int(more.shape[1])
    return max(middle + CLEARLY * spread, least)


def blame_summary(case: Case) -> dict[str, Any] | None:
    """The largest entries of the blame, as plain values; None where no rank waited."""
    found = case.blame
    total = float(found.lost_ns.sum())
    if total <= 0:
        return None
    grid, windows = case.grid, found.by_window()
    lost = windows.sum(axis=0)
    worst = np.argsort(-lost, kind="stable")[: min(LISTED, np.count_nonzero(lost > 0))]
    small, nodes = found.shape[1] <= MOST_RANKS, [case.trace.ranks[int(r)].node for r in grid.ranks]
    return {
        "rank_seconds": float(grid.wait_ns.sum()) / 1e9,
        "culprits": [
            {"rank": int(grid.ranks[at]), "share": float(lost[at] / total)} for at in worst
        ],
        "pairs": _pairs(found, grid.ranks.tolist(), total) if small else [],
        "nodes": _pairs(found, nodes, total) if small and len(set(nodes)) > 1 else [],
        "windows": [
            {
                "steps": [int(grid.steps[first]), int(grid.steps[last - 1])],
                "rank_seconds": float(blamed.sum()) / 1e9,
                "most_blamed": int(grid.ranks[int(blamed.argmax())]),
            }
            for (first, last), blamed in zip(found.windows, windows, strict=True)
        ],
        "drift": drift(found),
        "largest_delay": largest_delay(case),
    }


def _pairs(found: Blame, places: list[Any], total: float) -> list[dict[str, Any]]:
    """The largest entries between places, of which every rank has one."""
    return [
        {"waiting": waiting, "for": awaited, "share": lost_ns / total}
        for waiting, awaited, lost_ns in found.largest(places)
    ]
