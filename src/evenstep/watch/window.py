"""The latest steps of a running job as numbers, per rank and per step.

Both can be merged, so that a node can compute them for its own ranks and pass on nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np

from evenstep.trace.columns import Array
from evenstep.trace.spool.layout import Phase

WINDOW_STEPS = 32  # most steps of a rank; all values but the curve are computed from these, …
WINDOW_NS = 10_000_000_000  # … without older ones, …
FEWEST_STEPS = 8  # … unless fewer would be left


@dataclass(slots=True)
class RankWindow:
    """Means over the window of every rank that has finished a step, one value per rank."""

    ranks: Array
    step_ns: Array
    work_ns: Array  # step without waiting, transfer and pacing
    error_ns: Array  # standard error of work_ns beside the others'; NaN for a single step
    sync_ns: Array
    wait_ns: Array  # NaN if unknown
    held_ns: Array
    pause_ns: Array
    phase_ns: Array  # (ranks, phases)
    last_step: Array
    counts: Array  # number of steps of each rank

    @classmethod
    def merged(cls, windows: Sequence[RankWindow]) -> RankWindow:
        columns = {
            field.name: np.concatenate([getattr(window, field.name) for window in windows])
            for field in fields(cls)
        }
        order = np.argsort(columns["ranks"], kind="stable")
        return cls(**{name: values[order] for name, values in columns.items()})


class StepTable(NamedTuple):
    """The latest steps, ascending, with statistics over ranks."""

    step: Array
    ranks: Array  # number of ranks that have finished it
    time_ns: Array  # median over ranks
    work_ns: Array  # median of the step without waiting, transfer and pacing
    most_work_ns: Array  # maximum of that


NO_STEPS = StepTable(np.zeros(0, np.int64), np.zeros(0, np.int64), *([np.zeros(0)] * 3))


def rank_window(steps: Mapping[int, Array]) -> RankWindow:
    """Means over the latest steps of each rank; `steps` has at least one row per rank, oldest
    first, as kept by `evenstep.watch.spool`."""
    tails = [_window(rows) for rows in steps.values()]
    counts = np.array([len(rows) for rows in tails], np.int64)
    rows: Array = np.concatenate(tails) if tails else np.empty(0)
    begins = np.cumsum(counts) - counts

    def mean(values: Array) -> Array:
        total = np.add.reduceat(values.astype(np.float64), begins, axis=0)
        return np.asarray(total / (counts[:, None] if total.ndim > 1 else counts))

    if not tails:
        nothing = {field.name: np.zeros(0) for field in fields(RankWindow)}
        return RankWindow(**nothing | {"phase_ns": np.zeros((0, len(Phase)))})
    phases, step, held = (mean(rows[name]) for name in ("phase_ns", "step_sum_ns", "held_ns"))
    known, wait = mean(rows["wait_known"]), mean(rows["wait_ns"])
    sync = phases[:, int(Phase.SYNC)]
    work = np.maximum(step - sync - held, 0.0)
    blocked = rows["phase_ns"][:, int(Phase.SYNC)].astype(np.float64) + rows["held_ns"]
    apart = _not_shared(rows, rows["step_sum_ns"] - blocked - np.repeat(work, counts))
    with np.errstate(invalid="ignore", divide="ignore"):
        waits = np.where(known > 0, np.minimum(wait / known, sync), np.nan)
        error = np.sqrt(mean(apart**2) / (counts - 1))
    return RankWindow(
        ranks=np.array(list(steps), np.int64), step_ns=step, work_ns=work, error_ns=error,
        sync_ns=sync, wait_ns=waits, held_ns=held, pause_ns=mean(rows["pause_ns"]), phase_ns=phases,
        last_step=np.array([int(rows_["first_step"][-1]) for rows_ in tails], np.int64),
        counts=counts,
    )  # fmt: skip


def _not_shared(rows: Array, apart: Array) -> Array:
    """What each rank's step differs by from its mean, without what the ranks share in that step (as
    of steps of two kinds), which makes none of them late; as wide as if the mean were known."""
    _, step = np.unique(rows["first_step"], return_inverse=True)
    ranks = np.bincount(step)
    shared = np.where(ranks > 1, np.bincount(step, apart) / ranks, 0.0)
    known = np.where(ranks > 1, (ranks - 1) / ranks, 1.0)  # a rank alone shares nothing
    return np.asarray((apart - shared[step]) / np.sqrt(known)[step])


def _in_the_loop(steps: Array) -> Array:
    """Drop a rank's step 0, which includes everything before the training loop."""
    return steps[int(len(steps) > 1 and not steps["first_step"][0]) :]


def _window(steps: Array) -> Array:
    steps = _in_the_loop(steps)
    recent = int(np.count_nonzero(steps["start_ns"] >= steps["end_ns"][-1] - WINDOW_NS))
    return steps[-min(max(recent, FEWEST_STEPS), WINDOW_STEPS) :]


def step_table(steps: Sequence[Array]) -> StepTable:
    if not steps:
        return NO_STEPS
    rows = np.concatenate([_in_the_loop(each) for each in steps])
    step, time = rows["first_step"].astype(np.int64), rows["step_sum_ns"].astype(np.float64)
    work = time - (rows["phase_ns"][:, int(Phase.SYNC)].astype(np.float64) + rows["held_ns"])
    return merge_steps([StepTable(step, np.ones(len(step), np.int64), time, work, work)])


def merge_steps(tables: Sequence[StepTable]) -> StepTable:
    """Merge tables of several nodes; medians are those of the nodes' medians, weighted by ranks."""
    tables = [table for table in tables if len(table.step)]
    if not tables:
        return NO_STEPS
    step, ranks, time, work, most = map(np.concatenate, zip(*tables, strict=True))
    order = np.argsort(step, kind="stable")
    numbers, begins = np.unique(step[order], return_index=True)
    return StepTable(
        numbers, np.add.reduceat(ranks[order], begins), _weighted_median(step, time, ranks, begins),
        _weighted_median(step, work, ranks, begins), np.maximum.reduceat(most[order], begins),
    )  # fmt: skip


def _weighted_median(step: Array, values: Array, weights: Array, begins: Array) -> Array:
    order = np.lexsort((values, step))
    reached = np.cumsum(weights[order])
    before = reached[begins] - weights[order][begins]
    total = np.add.reduceat(weights[order], begins)
    low = np.searchsorted(reached, before + total / 2, side="left")
    high = np.searchsorted(reached, before + total / 2, side="right")
    return np.asarray((values[order][low] + values[order][high]) / 2)
