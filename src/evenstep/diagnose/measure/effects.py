"""Effects of checkpoints, restarts, pacing and other actions on a run, and its goodput.

Checkpoints and restarts reset, leave or amplify variation: the CV of the step time, the slow ranks
and the floor of the exposed transfer before are compared with those after. Restarts also cost time,
which the best checkpoint interval (Daly) makes least. Of pacing: which ranks were held, what it
cost at most, and what its guards found.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from math import isfinite
from typing import Any, NamedTuple

import numpy as np

from evenstep.checkpoints import daly, waste
from evenstep.diagnose import levels
from evenstep.diagnose.measure.attempts import WINDOW, Attempt, attempts_of, cv_of
from evenstep.diagnose.measure.grid import WARM_UP_STEPS, StepGrid
from evenstep.statistics.interval import BLOCK_STEPS
from evenstep.trace.columns import Array
from evenstep.trace.spool.layout import Kind, Phase
from evenstep.trace.trace import Trace

_KINDS = ("reset", "unchanged", "amplified")


class _Side(NamedTuple):
    """Steps before or after an event."""

    steps: int
    cv: float
    slow: list[int] | None  # ranks; None unknown
    floor_ns: float | None


def _side(grid: StepGrid, rows: Array) -> _Side:
    """Variation, slow ranks and floor in some rows of the grid."""
    step = grid.step_ns[rows]
    work = np.median(grid.work_ns[rows], axis=0)
    slow = grid.ranks[work - np.median(work) > levels.NAMED * float(np.median(step))]
    exposed = np.maximum(grid.blocked_ns[rows] - grid.wait_ns[rows], 0).mean(axis=1)
    floor = float(np.quantile(exposed, levels.LOW))
    return _Side(len(step), cv_of(step), [int(rank) for rank in slow], floor)


def _judge_variation(before: _Side, after: _Side) -> str:
    """Whether variation fell, stayed or rose beyond chance, as one of `_KINDS`.

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


def _checkpoints(grid: StepGrid) -> Iterator[dict[str, Any]]:
    """An entry for every checkpoint with enough steps around it."""
    writing = np.asarray((grid.phase_ns[Phase.CHECKPOINT] > 0).any(axis=1))
    edges = [-1, *np.flatnonzero(writing).tolist(), len(writing)]
    for last, row, following in zip(edges, edges[1:-1], edges[2:], strict=False):
        before = np.arange(max(last + 1, row - WINDOW), row)
        after = np.arange(row + 1, min(following, row + 1 + WINDOW))
        if min(len(before), len(after)) >= BLOCK_STEPS:
            sides = _side(grid, before), _side(grid, after)
            yield _entry(int(grid.steps[row]), "checkpoint", *sides)


def _entry(step: int | None, kind: str, before: _Side, after: _Side) -> dict[str, Any]:
    """One event as plain values: pairs are before and after."""
    return {
        "step": step,
        "kind": kind,
        "cv": [before.cv, after.cv],
        "slow_ranks": [before.slow, after.slow],
        "floor_ns": [before.floor_ns, after.floor_ns],
        "verdict": _judge_variation(before, after),
    }


def checkpoints(grid: StepGrid, attempts: Sequence[Attempt] = ()) -> dict[str, Any] | None:
    """How often checkpoints, and restarts between these attempts, reset, leave or amplify
    variation, and the latest of them; None without any."""
    entries = [*restarts(attempts), *_checkpoints(grid)]
    if not entries:
        return None
    return {
        **{kind: sum(one["verdict"] == kind for one in entries) for kind in _KINDS},
        "events": entries[-levels.LISTED :],
    }


# -- the cost of restarts --------------------------------------------------------------------------


class Loss(NamedTuple):
    """The cost of one restart."""

    steps: int  # done again
    work_s: float
    gap_s: float  # from the last step of one attempt to the first of the next
    seen: bool  # whether a checkpoint or a logged count tells the lost steps; else none count
    at_most: int  # steps that may have been done again


class AttemptsAccount(NamedTuple):
    """All attempts of a run together."""

    attempts: Sequence[Attempt]
    losses: list[Loss]  # of the restarts between them
    elapsed_s: float
    running_s: float
    steps: int  # done, those done again included
    lost_steps: int
    unsure_steps: int  # that may have been done again without a record of it
    work_s: float  # of work done again
    gap_s: float  # between attempts

    @property
    def net_steps(self) -> int:
        """Steps that count."""
        return max(self.steps - self.lost_steps, 1)

    @property
    def lost_s(self) -> float:
        """Time of work done again, and between attempts."""
        return self.work_s + self.gap_s

    @property
    def amplification(self) -> float:
        """Elapsed time per step that counts, over the running time of a step."""
        return (self.elapsed_s / self.net_steps) / (self.running_s / max(self.steps, 1))

    @property
    def cadence(self) -> Cadence | None:
        """The checkpoint interval; None where no checkpoint was seen."""
        number = sum(one.checkpoints for one in self.attempts)
        whole = sum((one.checkpoint_ns or 0.0) * one.checkpoints for one in self.attempts)
        if not number or whole <= 0:
            return None
        cost_s, mean_s = whole / number / 1e9, self.running_s / max(len(self.losses), 1)
        return Cadence(cost_s, mean_s, self.running_s / number, daly(cost_s, mean_s))


def account(attempts: Sequence[Attempt]) -> AttemptsAccount:
    """The total cost of the restarts between these attempts."""
    losses = [_loss(before, after) for before, after in pairwise(attempts)]
    return AttemptsAccount(
        attempts, losses, elapsed_s=attempts[-1].ended_s - attempts[0].started_s,
        running_s=sum(one.steps * one.step_ns for one in attempts) / 1e9,
        steps=sum(one.steps for one in attempts), lost_steps=sum(loss.steps for loss in losses),
        unsure_steps=sum(loss.at_most - loss.steps for loss in losses),
        work_s=sum(loss.work_s for loss in losses), gap_s=sum(loss.gap_s for loss in losses),
    )  # fmt: skip


def running_share(attempts: Sequence[Attempt]) -> float:
    """Share of a run's time not lost to restarts; 1 without restarts."""
    if len(attempts) < 2:
        return 1.0
    total = account(attempts)
    return max(0.0, 1 - total.lost_s / total.elapsed_s) if total.elapsed_s > 0 else 1.0


def _loss(before: Attempt, after: Attempt) -> Loss:
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
    now_s: float  # run time between two
    best_s: float

    def saved(self, restart_s: float) -> float:
        """Share of time that the best interval gives back."""
        at = partial(waste, self.checkpoint_s, self.between_failures_s)
        now, best = (at(interval=each, restart=restart_s) for each in (self.now_s, self.best_s))
        return max(0.0, now - best)


def restarts(attempts: Sequence[Attempt]) -> list[dict[str, Any]]:
    """An entry for every restart with enough steps on both sides; slow ranks
    and floors are unknown, as other attempts have no grid."""
    return [
        _entry(None, "restart", *(_Side(WINDOW, cv, None, None) for cv in (old, new)))
        for before, after in pairwise(attempts)
        if (old := before.cv_at_end) and (new := after.cv_at_start)
    ]


# -- pacing ----------------------------------------------------------------------------------------

ENDED_EARLY = "unknown: the rank did not end in order"


def pacing(trace: Trace) -> dict[str, Any] | None:
    """The summary of pacing; None where no rank was paced.

    `held_share` is a share of the paced ranks' steps, `lost_at_most` of their time, as their
    ledgers booked it; `verdicts` counts ranks by their guards' verdict. Where only a part of the
    job was paced, `part` says which, and `beside` compares the two kinds of ranks.
    """
    accounts = {  # the pacer's account at its end; without one, the mode it began in
        rank: {**(info.facts.get("pace") or {}), **(info.facts.get("pacing_account") or {})}
        for rank, info in trace.ranks.items()
    }
    paced = sorted(rank for rank, account in accounts.items() if account.get("mode") == "on")
    steps = trace.of_kind(Kind.STEP)
    steps = steps.select(np.isin(steps.rank, paced))
    if not len(steps):
        return None
    held, unpaced = steps.select(steps.held_ns > 0), sorted(set(trace.ranks) - set(paced))
    booked: list[Any] = [accounts[rank].get("booked_ns") for rank in paced]
    whole_ns = max(float((steps.exit_ns - steps.enter_ns).sum()), 1.0)
    verdicts = [accounts[rank].get("verdict") or {} for rank in paced]
    return {
        "ranks": paced,
        "held_ranks": [int(rank) for rank in np.unique(held.rank)],
        "held_share": len(held) / len(steps),
        "held_mean_ns": float(held.held_ns.mean()) if len(held) else 0.0,
        "lost_at_most": None if None in booked else sum(booked) / whole_ns,
        "verdicts": dict(Counter(str(one.get("word") or ENDED_EARLY) for one in verdicts)),
        "effect": _effect(verdicts),
        "part": next((str(one["part"]) for one in accounts.values() if one.get("part")), ""),
        "beside": {"paced": _kind(trace, paced), "unpaced": _kind(trace, unpaced)}
        if unpaced
        else None,
    }


def effects_of_actions(trace: Trace) -> list[dict[str, Any]]:
    """The effect of each action, by the rank that compared most pairs in its trial, and of these
    acted in most steps: the keys of that fact, and `rank`."""
    most: dict[tuple[str, str | None], dict[str, Any]] = {}
    for rank, info in sorted(trace.ranks.items()):
        for told in info.facts.get("actions") or []:
            best = most.setdefault((told["action"], told.get("of")), {"rank": rank, **told})
            if _tried(told) > _tried(best):
                best |= {"rank": rank, **told}
    return list(most.values())


def _tried(told: Mapping[str, Any]) -> tuple[int, int]:
    return told.get("pairs", 0), told.get("acted_steps", 0)


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
        lost = {"restart": whole.gap_s, "lost_work": whole.work_s}
        again_s = [loss.work_s for loss in whole.losses] + [0.0]
        each_s = [one.steps * one.step_ns / 1e9 - work_s
                  for one, work_s in zip(attempts, again_s, strict=True)]  # fmt: skip
    else:
        running_s = elapsed_s = _running_s(trace)
        each_s = [running_s]
        lost = {"lost_work": float(trace.run.get("lost_work_s") or 0.0)}
        elapsed_s += lost["lost_work"]
    inside = {
        "data": grid.phase_ns[Phase.INPUT],
        "checkpoint": grid.phase_ns[Phase.CHECKPOINT],
        "wait": grid.wait_ns,
    }
    # earlier attempts compiled, too: this one, the last, stands for them, as far as they came
    first_s = _warm_up_s(trace, float(grid.duration_ns.mean()))
    warm_up_s = sum(min(first_s, one_s) for one_s in each_s)
    kept_s = max(running_s - warm_up_s - (lost["lost_work"] if attempts else 0.0), 0.0)
    lost |= {name: float(cells.sum()) / total_ns * kept_s for name, cells in inside.items()}
    return GoodputSeconds(elapsed_s + init_s, {"init": init_s + warm_up_s, **lost})


TICK_NS = 10_000_000  # of process starts: USER_HZ of Linux is 100 (proc(5), starttime)


def _init_s(trace: Trace) -> float:
    """From the start of its process to the first step, of the median rank: imports and the wait for
    the others in `init_process_group`, too; from attaching where no launcher started the process,
    which may be a notebook's of yesterday. 0 where unknown, as only the header of a live run tells
    when it started."""
    if not len(trace.summaries):
        return 0.0
    waits = []
    for rank, info in trace.ranks.items():
        mine = trace.summaries["start_ns"][trace.summary_rank == rank]
        begun_ns, ticks = map(info.identity.get, ("anchor_monotonic_ns", "started_ticks"))
        launched = info.identity.get("launcher") != "single"
        if len(mine) and isinstance(begun_ns, int):
            if launched and isinstance(ticks, int):
                # ticks go on while a host sleeps, where this may be later
                begun_ns = min(begun_ns, ticks * TICK_NS)
            waits.append(max(int(mine.min()) - begun_ns, 0))
    return float(np.median(waits)) / 1e9 if waits else 0.0


def _warm_up_s(trace: Trace, usual_ns: float) -> float:
    """What a rank's first steps, whatever their numbers, took beyond usual ones, of the median
    rank: compilation, say. An upper bound of runs so long that summaries are of many steps."""
    rows, each = trace.summaries, []
    longer = np.maximum(rows["step_sum_ns"] - rows["count"] * usual_ns, 0)
    longer = np.minimum(longer, WARM_UP_STEPS * rows["step_max_ns"].astype(float))
    for rank in trace.ranks:
        mine = trace.summary_rank == rank
        before = np.cumsum(rows["count"][mine]) - rows["count"][mine]
        each.append(longer[mine][before < WARM_UP_STEPS].sum())
    return float(np.median(each)) / 1e9


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
