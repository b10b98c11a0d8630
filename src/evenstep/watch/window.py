"""The latest steps of a running job as numbers: rank by rank, and step by step.

Both are small and add up: those of a job are those of its nodes put together. So a node may work
them out for its own ranks and hand on nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evenstep.trace.spool.layout import Phase

if TYPE_CHECKING:
    from typing import Self

Array = npt.NDArray[Any]

WINDOW_STEPS = 32  # of each rank at most, everything but the curve is told from these, …
WINDOW_NS = 10_000_000_000  # … but not from those that are older, …
FEWEST_STEPS = 8  # … unless they are fewer


@dataclass(slots=True)
class RankWindow:
    """Sums over the window of every rank that has finished a step, one place a rank."""

    ranks: Array
    step_ns: Array  # mean
    work_ns: Array  # mean of the step without waiting, transfer and pacing
    error_ns: Array  # standard error of that; NaN of a single step
    sync_ns: Array
    wait_ns: Array  # NaN where it cannot be told
    held_ns: Array
    pause_ns: Array
    phase_ns: Array  # a row a rank
    last_step: Array
    counts: Array  # steps there are of each

    @classmethod
    def together(cls, windows: Sequence[Self]) -> Self:
        """The ranks of several windows, in order of rank."""
        columns = {
            field.name: np.concatenate([getattr(window, field.name) for window in windows])
            for field in fields(cls)
        }
        order = np.argsort(columns["ranks"], kind="stable")
        return cls(**{name: values[order] for name, values in columns.items()})


class StepTable(NamedTuple):
    """Every step that is still known, ascending: what its ranks took for it."""

    step: Array
    ranks: Array  # how many have finished it
    time_ns: Array  # of the median rank
    work_ns: Array  # the same without waiting, transfer and pacing
    most_work_ns: Array  # of the rank that worked longest


NO_STEPS = StepTable(np.zeros(0, np.int64), np.zeros(0, np.int64), *([np.zeros(0)] * 3))


def rank_window(steps: Mapping[int, Array]) -> RankWindow:
    """The latest steps of each rank, as means per step.

    They are as `evenstep.watch.spool` keeps them, oldest first, and at least one of each.
    """
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
    apart = rows["step_sum_ns"] - blocked - np.repeat(work, counts)
    with np.errstate(invalid="ignore", divide="ignore"):
        waits = np.where(known > 0, np.minimum(wait / known, sync), np.nan)
        error = np.sqrt(mean(apart**2) / (counts - 1))
    return RankWindow(
        ranks=np.array(list(steps), np.int64),
        step_ns=step,
        work_ns=work,
        error_ns=error,
        sync_ns=sync,
        wait_ns=waits,
        held_ns=held,
        pause_ns=mean(rows["pause_ns"]),
        phase_ns=phases,
        last_step=np.array([int(rows_["first_step"][-1]) for rows_ in tails], np.int64),
        counts=counts,
    )


def _in_the_loop(steps: Array) -> Array:
    """The steps of a rank but its first, which holds what comes before the loop."""
    return steps[int(len(steps) > 1 and not steps["first_step"][0]) :]


def _window(steps: Array) -> Array:
    """The latest steps of a rank that are told from."""
    steps = _in_the_loop(steps)
    recent = int(np.count_nonzero(steps["start_ns"] >= steps["end_ns"][-1] - WINDOW_NS))
    return steps[-min(max(recent, FEWEST_STEPS), WINDOW_STEPS) :]


def step_table(steps: Sequence[Array]) -> StepTable:
    """The latest steps of some ranks."""
    if not steps:
        return NO_STEPS
    rows = np.concatenate([_in_the_loop(each) for each in steps])
    step, time = rows["first_step"].astype(np.int64), rows["step_sum_ns"].astype(np.float64)
    blocked = rows["phase_ns"][:, int(Phase.SYNC)].astype(np.float64) + rows["held_ns"]
    begins, times = _by_step(step, time)
    _, works = _by_step(step, time - blocked)
    sizes = np.diff(np.append(begins, len(step)))
    return StepTable(
        np.sort(step)[begins],
        sizes,
        times[begins + sizes // 2],
        (works[begins + sizes // 2] + works[begins + (sizes - 1) // 2]) / 2,
        works[begins + sizes - 1],
    )


def steps_together(tables: Sequence[StepTable]) -> StepTable:
    """The steps of several nodes: medians are those of the nodes' medians, by their ranks."""
    tables = [table for table in tables if len(table.step)]
    if not tables:
        return NO_STEPS
    step, ranks, time, work, most = (
        np.concatenate(columns) for columns in zip(*tables, strict=True)
    )
    begins, _ = _by_step(step, time)
    numbers = np.sort(step)[begins]
    order = np.argsort(step, kind="stable")
    return StepTable(
        numbers,
        np.add.reduceat(ranks[order], begins),
        _weighted_median(step, time, ranks, begins),
        _weighted_median(step, work, ranks, begins),
        np.maximum.reduceat(most[order], begins),
    )


def _by_step(step: Array, values: Array) -> tuple[Array, Array]:
    """Where each step begins once rows are in order of it; the values, ascending in each step."""
    order = np.lexsort((values, step))
    begins = np.flatnonzero(np.append(True, np.diff(step[order]) != 0))
    return begins, values[order]


def _weighted_median(step: Array, values: Array, weights: Array, begins: Array) -> Array:
    """For each step the value that half of the weight lies below."""
    order = np.lexsort((values, step))
    reached = np.cumsum(weights[order])
    before = reached[begins] - weights[order][begins]
    total = np.add.reduceat(weights[order], begins)
    return np.asarray(values[order][np.searchsorted(reached, before + total / 2, side="left")])
