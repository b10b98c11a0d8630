"""`straggler` in an operation table: workers slower than the others of their stage, by replay.

A worker is compared with those that hold the same layers. What it costs comes from the whole step
replayed with its computes as long as theirs, because a message late by a little in one stage is
late in all that follow.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.diagnose import levels
from evenstep.diagnose.finding import Evidence, Finding
from evenstep.diagnose.lateness.case import Case
from evenstep.diagnose.lateness.delays import Cause
from evenstep.diagnose.lateness.thresholds import CHRONIC_STEPS, MAD_SIGMA, above_others
from evenstep.diagnose.levels import SMALLEST_SHARE
from evenstep.diagnose.measure.patterns import throughout
from evenstep.diagnose.modes import projection
from evenstep.diagnose.operations.operations import OperationJob, on_steps, replayed
from evenstep.diagnose.sentences import found
from evenstep.statistics.interval import Share
from evenstep.trace.operations import COMPUTES

Array = npt.NDArray[Any]

LONGEST = 16  # workers that are ranked by what each costs alone


def by_replay(
    case: Case, plan: OperationJob, own_s: Array, *, varying: bool
) -> tuple[list[Finding], Array]:
    """Slow workers, if any, and the durations with their computes as long as the others'.

    With data of `varying` length a pipeline all of whose workers are slow has had longer data.
    """
    factor = factors(plan, own_s)
    if varying:
        factor = _without_whole_pipelines(plan, factor)
    slow = np.flatnonzero(factor > 1.0)
    if not len(slow):
        return [], own_s
    slow = np.asarray(slow[np.argsort(-factor[slow], kind="stable")])
    parts = [slow, *(slow[at : at + 1] for at in range(min(len(slow), LONGEST)))]
    mended = [_mended(plan, own_s, factor, workers) for workers in parts]
    length = replayed(plan, np.stack([own_s, *mended], axis=1))
    gain = length[:, :1] - length[:, 1:]
    lost = on_steps(plan, gain[:, 0], case.grid.steps) * 1e9
    share = case.share(lost)
    if share.value < SMALLEST_SHARE:
        return [], own_s
    alone = np.argsort(-gain[:, 1:].mean(axis=0), kind="stable")
    rank_of = plan.table["rank"][np.unique(plan.table.worker, return_index=True)[1]]
    ranks = rank_of[np.concatenate([slow[alone], slow[LONGEST:]])].tolist()
    late = case.delays.cells(Cause.WORK) & np.isin(case.grid.ranks, ranks)
    case.claims.cells(late)
    case.claims.rest(lost)
    first = int(slow[alone[0]])
    return [_finding(case, ranks, share, _spent(plan, own_s, first, factor[first]))], mended[0]


def _without_whole_pipelines(plan: OperationJob, factor: Array) -> Array:
    first = np.unique(plan.table.worker, return_index=True)[1]
    dp_rank = np.unique(plan.table.dp_rank[first], return_inverse=True)[1].reshape(-1)
    members, slow = np.bincount(dp_rank), np.bincount(dp_rank, weights=factor > 1.0)
    return np.where(((members > 1) & (slow == members))[dp_rank], 1.0, factor)


def factors(plan: OperationJob, own_s: Array) -> Array:
    """How many times as long as the others' of its stage each worker's computes are.

    1 for workers that are not slower in most steps, and for those alone on their stage.
    """
    table = plan.table
    rows = np.flatnonzero(np.isin(table.role, COMPUTES))
    workers, steps = int(table.worker.max()) + 1, len(plan.steps)
    cell = np.searchsorted(plan.steps, table.step[rows]) * workers + table.worker[rows]
    count = np.bincount(cell, minlength=steps * workers)
    spent = np.bincount(cell, weights=own_s[rows], minlength=steps * workers)
    mean = np.asarray(spent / np.maximum(count, 1)).reshape(steps, workers)
    stage = table.stage[np.unique(table.worker, return_index=True)[1]]
    found = np.ones(workers)
    for number in np.unique(stage):
        mine = np.flatnonzero((stage == number) & (mean > 0).any(axis=0))
        whole = mean[:, mine][(mean[:, mine] > 0).all(axis=1)]
        if len(mine) < 2 or not len(whole):
            continue
        ratio = whole / (whole - above_others(whole))
        middle = np.median(ratio, axis=0)
        noise = MAD_SIGMA * np.median(np.abs(ratio - middle), axis=0)
        error = noise * np.sqrt(np.pi / 2 / len(ratio))  # of a median, normal distribution
        slower = np.quantile(ratio, 1 - CHRONIC_STEPS, axis=0) >= 1 + levels.NAMED
        found[mine] = np.where(slower & (middle - 1 > levels.ERRORS * error), middle, 1.0)
    return found


def _mended(plan: OperationJob, own_s: Array, factor: Array, workers: Array) -> Array:
    chosen = np.ones(len(factor))
    chosen[workers] = factor[workers]
    computes = np.isin(plan.table.role, COMPUTES)
    return np.where(computes, own_s / chosen[plan.table.worker], own_s)


def _spent(plan: OperationJob, own_s: Array, worker: int, factor: float) -> tuple[float, float]:
    """Compute of a worker in a step, and what it would be at the others' speed, in ns."""
    mine = (plan.table.worker == worker) & np.isin(plan.table.role, COMPUTES)
    spent_ns = float(own_s[mine].sum()) / len(plan.steps) * 1e9
    return spent_ns, spent_ns / factor


def _finding(case: Case, ranks: list[int], share: Share, spent_ns: tuple[float, float]) -> Finding:
    mine, others = spent_ns
    return found(
        "straggler.stage",
        share,
        numbers={
            "who": case.named(ranks), "those": ranks, "mine": mine, "others": others,
            "more": mine - others,
        },
        where=case.where(ranks),
        when=throughout(case.grid.steps),
        projected=projection.constant(share, len(case.grid.ranks)),
        options={"compare": share},
        evidence=[Evidence(f"compute_of_rank_{ranks[0]}", round(mine), round(others), "ns")],
    )  # fmt: skip
