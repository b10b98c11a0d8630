"""What pacing did in a run: who was held, what it cost at most, and what its guards found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

import numpy as np

from evenstep.diagnose.measure.attempts import WARM_UP
from evenstep.trace.spool.layout import Kind
from evenstep.trace.trace import Trace

ENDED_EARLY = "unknown: the rank did not end in order"


def pacing(trace: Trace) -> dict[str, Any] | None:
    """What a diagnosis's summary says of pacing; None where no rank was allowed to hold back.

    `held_share` is a share of the paced ranks' steps, `lost_at_most` of their time, as the ledgers
    booked it; `verdicts` counts the ranks whose guards say so. Where only a part of the job was
    paced, `part` says which, and `beside` compares the two kinds of ranks.
    """
    accounts = {rank: _account(info.facts) for rank, info in trace.ranks.items()}
    paced = sorted(rank for rank, account in accounts.items() if account.get("mode") == "on")
    steps = trace.of_kind(Kind.STEP)
    steps = steps.select(np.isin(steps.rank, paced))
    if not len(steps):
        return None
    held = steps.select(steps.held_ns > 0)
    booked = [accounts[rank].get("booked_ns") for rank in paced]
    return {
        "ranks": paced,
        "held_ranks": [int(rank) for rank in np.unique(held.rank)],
        "held_share": len(held) / len(steps),
        "held_mean_ns": float(held.held_ns.mean()) if len(held) else 0.0,
        "lost_at_most": _share(booked, float((steps.exit_ns - steps.enter_ns).sum())),
        "verdicts": dict(Counter(_word(accounts[rank]) for rank in paced)),
        "effect": _effect([accounts[rank].get("verdict") or {} for rank in paced]),
        "part": next((str(one["part"]) for one in accounts.values() if one.get("part")), ""),
        "beside": _beside(trace, paced),
    }


def _beside(trace: Trace, paced: Sequence[int]) -> dict[str, Any] | None:
    """Paced and unpaced ranks; None where there is but one kind."""
    unpaced = sorted(set(trace.ranks) - set(paced))
    if not unpaced:
        return None
    return {"paced": _kind(trace, paced), "unpaced": _kind(trace, unpaced)}


def _kind(trace: Trace, ranks: Sequence[int]) -> dict[str, Any]:
    """Mean and CV (population) of these ranks' step times, and how much of them they were held and
    waited; a wait counts where it could be told, and the first steps are left out.
    """
    steps = trace.of_kind(Kind.STEP)
    steps = steps.select(np.isin(steps.rank, ranks) & (steps.step >= WARM_UP))
    length = (steps.exit_ns - steps.enter_ns).astype(float)
    rows = trace.summaries[np.isin(trace.summary_rank, ranks)]
    told = rows[rows["wait_known"] > 0]
    time_ns = float((told["step_sum_ns"] / told["count"] * told["wait_known"]).sum())
    return {
        "ranks": list(ranks),
        "step_mean_ns": float(length.mean()) if len(length) else None,
        "step_cv": float(length.std() / length.mean()) if len(length) else None,
        "held": float(steps.held_ns.sum() / length.sum()) if len(length) else None,
        "wait": float(told["wait_ns"].sum()) / time_ns if time_ns > 0 else None,
    }


def _account(facts: Mapping[str, Any]) -> dict[str, Any]:
    """What the rank's pacer said at its end; of a rank that had none, the mode it began in."""
    return {**(facts.get("pace") or {}), **(facts.get("pacing_account") or {})}


def _share(booked: Sequence[int | None], total_ns: float) -> float | None:
    known = [value for value in booked if value is not None]
    return sum(known) / total_ns if len(known) == len(booked) and total_ns > 0 else None


def _word(account: Mapping[str, Any]) -> str:
    return str((account.get("verdict") or {}).get("word") or ENDED_EARLY)


def _effect(verdicts: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Change of throughput and its 95 % interval, by the trial that has compared most."""
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
    """Of throughput, by the share of a step that is saved; None where that is not known."""
    return None if saved is None or not isfinite(saved) or saved >= 1 else saved / (1 - saved)
