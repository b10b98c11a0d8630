"""Who waited for whom, and what the largest delay led to, as plain values of a summary."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.diagnose.lateness.blame import by_node, drift
from evenstep.diagnose.lateness.case import Case
from evenstep.diagnose.lateness.thresholds import MAD_SIGMA

Array = npt.NDArray[Any]

LISTED = 5  # entries of each kind
MOST_RANKS = 2048  # of a full matrix: 32 MB
VICTIM = 0.05  # of the largest loss: who lost less is no victim
DECAYED_SIGMAS = 3.0
CALM_SHARE = 0.02  # of a step: waits below it are nothing


def largest_delay(case: Case) -> dict[str, Any] | None:
    """The late cell that was waited for most, who suffered, and how long."""
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
    victims = np.flatnonzero((lost > VICTIM * lost.max()) & (np.arange(len(lost)) != column))
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
    """What all ranks together wait more than usual in a step without a late rank."""
    total = more[~late].sum(axis=1) if (~late).any() else np.zeros(1)
    middle = float(np.median(total))
    spread = MAD_SIGMA * float(np.median(np.abs(total - middle)))
    least = CALM_SHARE * float(np.median(case.grid.step_ns)) * int(more.shape[1])
    return max(middle + DECAYED_SIGMAS * spread, least)


def summary(case: Case) -> dict[str, Any] | None:
    """The few largest entries, as plain values; None where nobody was seen to wait."""
    found = case.blame
    total = float(found.lost_ns.sum())
    if total <= 0:
        return None
    grid, nodes = case.grid, [case.trace.ranks[int(rank)].node for rank in case.grid.ranks]
    windows = found.by_window()
    matrix = found.matrix() if found.shape[1] <= MOST_RANKS else np.zeros((0, 0))
    return {
        "rank_seconds": float(grid.wait_ns.sum()) / 1e9,
        "culprits": _culprits(windows.sum(axis=0), grid.ranks, total),
        "pairs": _pairs(matrix, grid.ranks.tolist(), total),
        "nodes": _nodes(matrix, nodes, total),
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


def _culprits(blamed: Array, ranks: Array, total: float) -> list[dict[str, Any]]:
    order = np.argsort(-blamed, kind="stable")[:LISTED]
    return [
        {"rank": int(ranks[i]), "share": float(blamed[i] / total)} for i in order if blamed[i] > 0
    ]


def _pairs(table: Array, names: list[Any], total: float) -> list[dict[str, Any]]:
    order = np.argsort(-table, axis=None, kind="stable")[:LISTED]
    pairs = [np.unravel_index(int(i), table.shape) for i in order]
    return [
        {"waiting": names[victim], "for": names[culprit], "share": float(table[place] / total)}
        for place in pairs
        for victim, culprit in [place]
        if table[place] > 0
    ]


def _nodes(matrix: Array, nodes: list[str], total: float) -> list[dict[str, Any]]:
    """Node by node, where there are several."""
    names = list(dict.fromkeys(nodes))
    if len(names) < 2 or not matrix.size:
        return []
    return _pairs(by_node(matrix, np.array([names.index(node) for node in nodes])), names, total)
