"""Effects of checkpoints, restarts, pacing and other actions on a run.

Checkpoints and restarts reset, leave or amplify variation: the CV of the step time, the slow ranks
and the floor of the exposed transfer before are compared with those after. Of pacing: which ranks
were held, what it cost at most, and what its guards found.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evenstep.diagnose import levels
from evenstep.diagnose.measure.attempts import WINDOW, cv_of
from evenstep.diagnose.measure.grid import WARM_UP_STEPS, StepGrid
from evenstep.statistics.interval import BLOCK_STEPS
from evenstep.trace.spool.layout import Kind, Phase
from evenstep.trace.trace import Trace

Array = npt.NDArray[Any]

KINDS = ("reset", "unchanged", "amplified")


class Side(NamedTuple):
    """Steps before or after an event."""

    steps: int
    cv: float
    slow: list[int] | None  # ranks; None unknown
    floor_ns: float | None


def side(grid: StepGrid, rows: Array) -> Side:
    """Variation, slow ranks and floor in some rows of the grid."""
    step = grid.step_ns[rows]
    work = np.median(grid.work_ns[rows], axis=0)
    slow = grid.ranks[work - np.median(work) > levels.NAMED * float(np.median(step))]
    exposed = np.maximum(grid.blocked_ns[rows] - grid.wait_ns[rows], 0).mean(axis=1)
    floor = float(np.quantile(exposed, levels.LOW))
    return Side(len(step), cv_of(step), [int(rank) for rank in slow], floor)


def judged(before: Side, after: Side) -> str:
    """Whether variation fell, stayed or rose beyond chance, as one of `KINDS`.

    The logarithm of a standard deviation has a standard error of 1/√(2n) (normal distribution).
    """
    if min(before.cv, after.cv) <= 0:
        return "unchanged"
    change = float(np.log(after.cv / before.cv))
    error = np.sqrt(0.5 / before.steps + 0.5 / after.steps)
    slower = len(after.slow or ()) - len(before.slow or ())
    if slower:
        return "amplified" if slower > 0 else "reset"
    if abs(change) < max(np.log(levels.CHANGED), levels.CLEARLY * error):
        return "unchanged"
    return "amplified" if change > 0 else "reset"


def events(grid: StepGrid) -> list[tuple[int, Side, Side]]:
    """(row, before, after) of every checkpoint with enough steps around it."""
    if not len(grid.steps):
        return []
    writing = np.asarray((grid.phase_ns[Phase.CHECKPOINT] > 0).any(axis=1))
    rows = np.flatnonzero(writing)
    found = []
    for index, row in enumerate(rows):
        start = rows[index - 1] + 1 if index else 0
        end = rows[index + 1] if index + 1 < len(rows) else len(writing)
        before = np.arange(max(start, row - WINDOW), row)
        after = np.arange(row + 1, min(end, row + 1 + WINDOW))
        if min(len(before), len(after)) >= BLOCK_STEPS:
            found.append((int(row), side(grid, before), side(grid, after)))
    return found


def entry(step: int | None, kind: str, before: Side, after: Side) -> dict[str, Any]:
    """One event as plain values: pairs are before and after."""
    return {
        "step": step,
        "kind": kind,
        "cv": [before.cv, after.cv],
        "slow_ranks": [before.slow, after.slow],
        "floor_ns": [before.floor_ns, after.floor_ns],
        "verdict": judged(before, after),
    }


def checkpoints(grid: StepGrid, restarts: Sequence[dict[str, Any]] = ()) -> dict[str, Any] | None:
    """How often checkpoints reset, leave or amplify variation, and the latest of them; None without
    any. `restarts`: entries of the same form, for the restarts before this attempt."""
    entries = [entry(int(grid.steps[row]), "checkpoint", *sides) for row, *sides in events(grid)]
    entries = [*restarts, *entries]
    if not entries:
        return None
    return {
        **{kind: sum(one["verdict"] == kind for one in entries) for kind in KINDS},
        "events": entries[-levels.LISTED :],
    }


# -- pacing ----------------------------------------------------------------------------------------

ENDED_EARLY = "unknown: the rank did not end in order"


def pacing(trace: Trace) -> dict[str, Any] | None:
    """The summary of pacing; None where no rank was paced.

    `held_share` is a share of the paced ranks' steps, `lost_at_most` of their time, as their
    ledgers booked it; `verdicts` counts ranks by their guards' verdict. Where only a part of the
    job was paced, `part` says which, and `beside` compares the two kinds of ranks.
    """
    accounts = {rank: _account(info.facts) for rank, info in trace.ranks.items()}
    paced = sorted(rank for rank, account in accounts.items() if account.get("mode") == "on")
    steps = trace.of_kind(Kind.STEP)
    steps = steps.select(np.isin(steps.rank, paced))
    if not len(steps):
        return None
    held = steps.select(steps.held_ns > 0)
    booked = [accounts[rank].get("booked_ns") for rank in paced]
    verdicts = [accounts[rank].get("verdict") or {} for rank in paced]
    return {
        "ranks": paced,
        "held_ranks": [int(rank) for rank in np.unique(held.rank)],
        "held_share": len(held) / len(steps),
        "held_mean_ns": float(held.held_ns.mean()) if len(held) else 0.0,
        "lost_at_most": _share(booked, float((steps.exit_ns - steps.enter_ns).sum())),
        "verdicts": dict(Counter(str(one.get("word") or ENDED_EARLY) for one in verdicts)),
        "effect": _effect(verdicts),
        "part": next((str(one["part"]) for one in accounts.values() if one.get("part")), ""),
        "beside": _beside(trace, paced),
    }


def acted(trace: Trace) -> list[dict[str, Any]]:
    """The effect of each action, by the rank whose trial compared most pairs: the keys of that
    fact, and `rank`."""
    most: dict[tuple[str, str | None], dict[str, Any]] = {}
    for rank, info in sorted(trace.ranks.items()):
        for told in info.facts.get("actions") or []:
            best = most.setdefault((told["action"], told.get("of")), {"rank": rank, **told})
            if told.get("pairs", 0) > best.get("pairs", 0):
                best |= {"rank": rank, **told}
    return list(most.values())


def _beside(trace: Trace, paced: Sequence[int]) -> dict[str, Any] | None:
    """Paced and unpaced ranks compared; None where there is one kind only."""
    unpaced = sorted(set(trace.ranks) - set(paced))
    if not unpaced:
        return None
    return {"paced": _kind(trace, paced), "unpaced": _kind(trace, unpaced)}


def _kind(trace: Trace, ranks: Sequence[int]) -> dict[str, Any]:
    """Mean and CV (population) of these ranks' step times, and the shares they were held and
    waited; waits only where known; without the warm-up steps."""
    steps = trace.of_kind(Kind.STEP)
    steps = steps.select(np.isin(steps.rank, ranks) & (steps.step >= WARM_UP_STEPS))
    length = (steps.exit_ns - steps.enter_ns).astype(float)
    rows = trace.summaries[np.isin(trace.summary_rank, ranks)]
    known = rows[rows["wait_known"] > 0]
    time_ns = float((known["step_sum_ns"] / known["count"] * known["wait_known"]).sum())
    return {
        "ranks": list(ranks),
        "step_mean_ns": float(length.mean()) if len(length) else None,
        "step_cv": float(length.std() / length.mean()) if len(length) else None,
        "held": float(steps.held_ns.sum() / length.sum()) if len(length) else None,
        "wait": float(known["wait_ns"].sum()) / time_ns if time_ns > 0 else None,
    }


def _account(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The pacer's account at its end; without one, the mode it began in."""
    return {**(facts.get("pace") or {}), **(facts.get("pacing_account") or {})}


def _share(booked: Sequence[int | None], total_ns: float) -> float | None:
    known = [value for value in booked if value is not None]
    return sum(known) / total_ns if len(known) == len(booked) and total_ns > 0 else None


def _effect(verdicts: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Change of throughput and its 95 % interval, by the trial that compared most pairs."""
    most = max(verdicts, key=lambda verdict: verdict.get("pairs") or 0)
    if not most.get("pairs"):
        return None
    low, high = (_change(most.get(side)) for side in ("low", "high"))
    known = low is not None and high is not None
    return {
        "pairs": most["pairs"],
        "gain": _change(most["gain"]),
        "low": low if known else None,
        "high": high if known else None,
    }


def _change(saved: float | None) -> float | None:
    """Change of throughput from the share of a step that is saved; None where unknown."""
    return None if saved is None or not isfinite(saved) or saved >= 1 else saved / (1 - saved)
