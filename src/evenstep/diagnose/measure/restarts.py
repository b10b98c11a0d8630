"""The cost of restarts, the best checkpoint interval (Daly), and the goodput of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from evenstep import checkpoints
from evenstep.diagnose.measure.attempts import WINDOW, Attempt, attempts_of
from evenstep.diagnose.measure.effects import Side, entry
from evenstep.diagnose.measure.grid import StepGrid
from evenstep.trace.spool.layout import Kind, Phase
from evenstep.trace.trace import Trace


class Loss(NamedTuple):
    """The cost of one restart."""

    steps: int  # done again
    work_s: float
    gap_s: float  # from the last step of one attempt to the first of the next
    seen: bool  # whether a checkpoint or a logged count tells the lost steps; else none count
    at_most: int  # steps that may have been done again


class AttemptsAccount(NamedTuple):
    """All attempts of a run together."""

    losses: list[Loss]
    elapsed_s: float
    running_s: float
    steps: int  # done, those done again included
    lost_steps: int

    @property
    def unsure_steps(self) -> int:
        """Steps that may have been done again without a record of it."""
        return sum(loss.at_most - loss.steps for loss in self.losses)

    @property
    def net_steps(self) -> int:
        """Steps that count."""
        return max(self.steps - self.lost_steps, 1)

    @property
    def lost_s(self) -> float:
        """Time of work done again and of gaps between attempts."""
        return sum(loss.work_s + loss.gap_s for loss in self.losses)

    @property
    def amplification(self) -> float:
        """Elapsed time per step that counts, over the running time of a step."""
        return (self.elapsed_s / self.net_steps) / (self.running_s / max(self.steps, 1))


def account(attempts: Sequence[Attempt]) -> AttemptsAccount:
    """The total cost of the restarts between these attempts."""
    losses = [between(before, after) for before, after in pairwise(attempts)]
    return AttemptsAccount(
        losses, elapsed_s=attempts[-1].ended_s - attempts[0].started_s,
        running_s=sum(one.steps * one.step_ns for one in attempts) / 1e9,
        steps=sum(one.steps for one in attempts), lost_steps=sum(loss.steps for loss in losses),
    )  # fmt: skip


def running_share(attempts: Sequence[Attempt]) -> float:
    """Share of a run's time not lost to restarts; 1 without restarts."""
    if len(attempts) < 2:
        return 1.0
    total = account(attempts)
    return max(0.0, 1 - total.lost_s / total.elapsed_s) if total.elapsed_s > 0 else 1.0


def between(before: Attempt, after: Attempt) -> Loss:
    """The loss from one attempt to the next.

    The script's logged count of steps shows which were done again; else those after the last
    checkpoint were. Without either nothing counts: some jobs save where no hook sees it.
    """
    gap_s = max(after.started_s - before.ended_s, 0.0)
    if before.last_progress is not None and after.first_progress is not None:
        again = min(max(before.last_progress - after.first_progress + 1, 0), before.steps)
        return Loss(again, again * before.step_ns / 1e9, gap_s, seen=True, at_most=again)
    most = before.steps_since_checkpoint
    if before.checkpoints or after.checkpoints:
        return Loss(most, before.since_checkpoint_ns / 1e9, gap_s, seen=True, at_most=most)
    return Loss(0, 0.0, gap_s, seen=False, at_most=most)


class Cadence(NamedTuple):
    """The checkpoint interval as it was, and the best one."""

    checkpoint_s: float
    between_failures_s: float
    now_s: float | None  # run time between two; None without one
    best_s: float

    def saved(self, restart_s: float) -> float | None:
        """Share of time that the best interval gives back."""
        if self.now_s is None:
            return None
        at = partial(checkpoints.waste, self.checkpoint_s, self.between_failures_s)
        now, best = (at(interval=each, restart=restart_s) for each in (self.now_s, self.best_s))
        return max(0.0, now - best)


def cadence(attempts: Sequence[Attempt], total: AttemptsAccount) -> Cadence | None:
    """The checkpoint interval of a run; None where no checkpoint was seen."""
    number = sum(one.checkpoints for one in attempts)
    lengths = [(one.checkpoint_ns or 0.0) * one.checkpoints for one in attempts]
    if not number or sum(lengths) <= 0:
        return None
    cost_s = sum(lengths) / number / 1e9
    mean_s = total.running_s / max(len(total.losses), 1)
    return Cadence(cost_s, mean_s, total.running_s / number, checkpoints.daly(cost_s, mean_s))


def restarts(attempts: Sequence[Attempt]) -> list[dict[str, Any]]:
    """An entry as by `effects.entry` for every restart with enough steps on both sides; slow ranks
    and floors are unknown, as other attempts have no grid."""
    return [
        entry(None, "restart", *(Side(WINDOW, cv, None, None) for cv in (old, new)))
        for before, after in pairwise(attempts)
        if (old := before.cv_at_end) and (new := after.cv_at_start)
    ]


# -- one number for a job --------------------------------------------------------------------------
# Goodput: the time from a job's start to its last step, over all attempts, less initialisation and
# restarts, work done again, and what ranks spent in steps on data, checkpoints and waiting for one
# another. Transfer and evaluation count as progress.


BUCKETS = ("init", "data", "checkpoint", "restart", "lost_work", "wait")


class GoodputSeconds(NamedTuple):
    """Seconds of a job, mean over its ranks; buckets do not overlap."""

    elapsed_s: float
    lost_s: Mapping[str, float]  # by bucket

    @property
    def share(self) -> float:
        """Share of the elapsed time that made progress."""
        return max(0.0, 1.0 - sum(self.lost_s.values()) / self.elapsed_s)

    def to_json(self) -> dict[str, Any]:
        """`share`, `elapsed_s`, and `lost`: the buckets as shares of the time elapsed."""
        lost = {name: round(self.lost_s.get(name, 0.0) / self.elapsed_s, 6) for name in BUCKETS}
        return {"share": round(self.share, 6), "elapsed_s": self.elapsed_s, "lost": lost}


def goodput(trace: Trace, grid: StepGrid) -> GoodputSeconds | None:
    """The goodput of the job of a trace; None without a step. Attempts are those that
    `attempts.with_attempts` found."""
    total_ns = float(grid.duration_ns.sum())
    if total_ns <= 0:
        return None
    attempts = attempts_of(trace.run)
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


def _init_s(trace: Trace) -> float:
    """From the start of the agent to the first step, of the median rank; 0 where unknown, as only
    the header of a live run tells when the agent started."""
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
    if len(table := trace.summaries):
        rank, start, end = trace.summary_rank, table["start_ns"], table["end_ns"]
    else:
        steps = trace.of_kind(Kind.STEP)
        rank, start, end = steps["rank"], steps.enter_ns, steps.exit_ns
    closed = end > 0
    rank, start, end = rank[closed], start[closed], end[closed]
    spans = [int(end[rank == one].max()) - int(start[rank == one].min()) for one in np.unique(rank)]
    return float(np.median(spans)) / 1e9 if spans else 0.0
