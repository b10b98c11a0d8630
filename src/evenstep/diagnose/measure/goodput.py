"""One number for a job: the share of its time in which it made progress, and where the rest went.

Of the time from a job's start to its last step, all attempts together, is taken off what no step
counts (initialisation, restarts), what was done again (lost work), and of the steps what ranks
spent on data, checkpoints and waiting for one another. What is left is the goodput; transfer and
evaluation are in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from evenstep.diagnose.measure.attempts import Attempt, known
from evenstep.diagnose.measure.grid import StepGrid
from evenstep.diagnose.measure.restarts import account
from evenstep.trace.spool.layout import Kind, Phase
from evenstep.trace.trace import Trace

BUCKETS = ("init", "data", "checkpoint", "restart", "lost_work", "wait")


class GoodputSeconds(NamedTuple):
    """Seconds of a job, as its ranks had them on average; buckets do not overlap."""

    elapsed_s: float
    lost_s: Mapping[str, float]  # by bucket

    @property
    def share(self) -> float:
        """Of the time elapsed, what made progress."""
        return max(0.0, 1.0 - sum(self.lost_s.values()) / self.elapsed_s)

    def to_json(self) -> dict[str, Any]:
        """`share`, `elapsed_s`, and `lost`: the buckets as shares of the time elapsed."""
        lost = {name: round(self.lost_s.get(name, 0.0) / self.elapsed_s, 6) for name in BUCKETS}
        return {"share": round(self.share, 6), "elapsed_s": self.elapsed_s, "lost": lost}


def goodput(trace: Trace, grid: StepGrid) -> GoodputSeconds | None:
    """Of the job a trace is of, as far back as the trace tells; None without a step.

    Where there are several attempts, `attempts.with_attempts` has to have found them.
    """
    total_ns = float(grid.duration_ns.sum())
    if total_ns <= 0:
        return None
    attempts = known(trace.run)
    init_s = float(trace.run.get("init_s") or _init_s(trace))
    if attempts:
        whole = account(attempts)
        running_s, elapsed_s = whole.running_s, whole.elapsed_s
        lost = {
            "restart": sum(loss.gap_s for loss in whole.losses),
            "lost_work": sum(loss.work_s for loss in whole.losses),
        }
    else:
        running_s = elapsed_s = _running_s(trace)
        lost = {"lost_work": float(trace.run.get("lost_work_s") or 0.0)}
        elapsed_s += lost["lost_work"]
    inside = {
        "data": grid.phase_ns[Phase.INPUT],
        "checkpoint": grid.phase_ns[Phase.CHECKPOINT],
        "wait": grid.wait_ns,
    }
    kept_s = max(running_s - (lost["lost_work"] if attempts else 0.0), 0.0)
    lost |= {name: float(cells.sum()) / total_ns * kept_s for name, cells in inside.items()}
    return GoodputSeconds(elapsed_s + init_s, {"init": init_s, **lost})


def of_attempts(attempts: Sequence[Attempt], inside_s: Mapping[str, float]) -> GoodputSeconds:
    """Of a past run from its summaries; `inside_s` of its steps (data, checkpoint, wait).

    Steps done again have their part of it.
    """
    whole = account(attempts)
    kept = whole.net_steps / max(whole.steps, 1)
    elapsed_s = max(whole.elapsed_s, whole.running_s, 1e-9)
    between = {
        "restart": sum(loss.gap_s for loss in whole.losses),
        "lost_work": sum(loss.work_s for loss in whole.losses),
    }
    return GoodputSeconds(
        elapsed_s, {name: kept * lost for name, lost in inside_s.items()} | between
    )


def _init_s(trace: Trace) -> float:
    """From the start of the agent to the first step, of the median rank; 0 where neither is known.

    Only a live run's header tells when the job began.
    """
    if not len(trace.summaries):
        return 0.0
    waits = []
    for rank, info in trace.ranks.items():
        mine = trace.summaries["start_ns"][trace.summary_rank == rank]
        begun_ns = info.identity.get("anchor_monotonic_ns")
        if len(mine) and isinstance(begun_ns, int):
            waits.append(max(int(mine.min()) - begun_ns, 0))
    return float(np.median(waits)) / 1e9 if waits else 0.0


def _running_s(trace: Trace) -> float:
    """From the first step to the end of the last, of the median rank."""
    if len(trace.summaries):
        rank, start, end = (
            trace.summary_rank,
            trace.summaries["start_ns"],
            trace.summaries["end_ns"],
        )
    else:
        steps = trace.of_kind(Kind.STEP)
        rank, start, end = steps["rank"], steps.enter_ns, steps.exit_ns
    closed = end > 0
    rank, start, end = rank[closed], start[closed], end[closed]
    spans = [int(end[rank == one].max()) - int(start[rank == one].min()) for one in np.unique(rank)]
    return float(np.median(spans)) / 1e9 if spans else 0.0
