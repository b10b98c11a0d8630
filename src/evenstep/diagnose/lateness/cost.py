"""What lateness cost: the job replayed without it, and the loss shared out among the late cells.

A second replay, with all ranks' work made even beside, tells what is lost to nobody in particular.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evenstep.diagnose.lateness.levelling import levelled, unlike
from evenstep.diagnose.lateness.others import above_others
from evenstep.diagnose.lateness.replay import Ahead, Program, Removed, by_layer, program, saved
from evenstep.diagnose.measure.grid import StepGrid
from evenstep.trace.cores import each

Array = npt.NDArray[Any]

CHAINED = 4  # pieces of a large run replayed one after the other; chains run side by side
APPROACH = 16  # steps replayed before a chain: leads between ranks rarely last longer


class Late(NamedTuple):
    """What each cell is late by (steps × ranks), and which ranks' work differs at all times."""

    ns: Array
    lasting: Array


def costs(grid: StepGrid, late_ns: Array) -> tuple[Array, Array]:
    """What every cell cost that was late by this much, and the further loss of each step.

    A large run goes in chains.
    """
    late = Late(late_ns, unlike(grid.work_ns - late_ns))
    chains = [grid.pieces[i : i + CHAINED] for i in range(0, len(grid.pieces), CHAINED)]
    parts = each(lambda chain: _chained(grid, late, chain), chains)
    loss, rest = (np.concatenate(found) for found in zip(*parts, strict=True))
    return loss, rest


class _Reached(NamedTuple):
    """How far ranks are ahead when a stretch of steps begins, replayed as it was and levelled."""

    usual: Ahead
    even: Ahead


def _chained(grid: StepGrid, late: Late, chain: Sequence[tuple[int, int]]) -> tuple[Array, Array]:
    """Loss and rest of stretches that follow one another, each beginning as the one before ended.

    In the middle of a run, some steps before the first stretch tell how ranks come into it.
    """
    ranks = grid.shape[1]
    first = chain[0][0]
    nothing = Ahead(np.zeros(ranks), np.zeros(ranks))
    begin = max(first - APPROACH, 0)
    if begin > 0:
        tail = _removed(grid.piece(begin - 1, begin), late.ns, begin - 1)[1].tail_ns[0]
        nothing = nothing._replace(late_ns=tail)
    reached = _Reached(nothing, nothing)
    if begin < first:
        _, _, reached = _replayed(grid, late, (begin, first), reached)
    losses, rests = [], []
    for piece in chain:
        loss, rest, reached = _replayed(grid, late, piece, reached)
        losses.append(loss)
        rests.append(rest)
    return np.concatenate(losses), np.concatenate(rests)


def _replayed(
    grid: StepGrid, late: Late, piece: tuple[int, int], reached: _Reached
) -> tuple[Array, Array, _Reached]:
    """Loss and rest of some steps, and how ranks leave them.

    The step after has a part in what its predecessor cost.
    """
    first, last = piece
    number, beyond = last - first, min(last + 1, len(grid.steps))
    plan, removed = _removed(grid.piece(first, beyond), late.ns, first)
    lead, end = saved(plan, removed, ahead=reached.usual)
    gain = _gain(lead, end)
    loss = _shared_out(gain, lead, plan, removed, reached.usual.late_ns)
    level = levelled(plan, removed, late.lasting)
    even, even_end = saved(plan, level, lead, ahead=reached.even)
    rest = _gain(even, even_end) - gain
    if beyond > last:
        reached = _Reached(
            Ahead(lead[number], removed.tail_ns[number - 1]),
            Ahead(even[number], level.tail_ns[number - 1]),
        )
    return loss[:number], rest[:number], reached


def _removed(grid: StepGrid, late_ns: Array, first: int) -> tuple[Program, Removed]:
    """The program of a piece that begins at step `first`, and what is taken out of it."""
    plan = program(grid)
    return plan, taken_out(plan, late_ns[first : first + len(grid.steps)])


def taken_out(plan: Program, late_ns: Array) -> Removed:
    """What cells are late by, laid where their own work between collectives is above the others'.

    Nothing is taken out of cells that are 0.
    """
    late = late_ns > 0
    rows = np.zeros(len(plan.rows))
    tail = np.where(late, np.maximum(above_others(plan.tail_ns), 0), 0.0)
    for part, own in by_layer(plan, late.shape):
        # who has no part in it does nothing then: the two ends of a message are not all ranks
        more = np.maximum(above_others(np.nan_to_num(own)), 0)
        rows[part] = np.where(late, more, 0.0).reshape(-1)[plan.rows.cell[part]]
    found = tail.reshape(-1) + np.bincount(plan.rows.cell, weights=rows, minlength=late.size)
    wanted = late_ns.reshape(-1)
    hidden = (wanted > 2 * found).reshape(late.shape)
    if hidden.any():
        rows, tail = _above_usual(plan, hidden, rows, tail)
        found = tail.reshape(-1) + np.bincount(plan.rows.cell, weights=rows, minlength=late.size)
    scale = wanted / np.where(found > 0, found, 1)
    return Removed(rows * scale[plan.rows.cell], tail * scale.reshape(late.shape))


def _above_usual(plan: Program, hidden: Array, rows: Array, tail: Array) -> tuple[Array, Array]:
    """Of cells whose excess others have at the same time, where they exceed what is usual."""
    rows, tail = rows.copy(), tail.copy()
    usual = np.median(plan.tail_ns, axis=0)
    tail[hidden] = np.maximum(plan.tail_ns - usual, 0)[hidden]
    for part, own in by_layer(plan, hidden.shape):
        cell = plan.rows.cell[part]
        mine = hidden.reshape(-1)[cell]
        if mine.any():
            known = own[:, ~np.isnan(own).all(axis=0)]
            more = np.maximum(own - np.nanmedian(known), 0).reshape(-1)[cell]
            rows[part] = np.where(mine, more, rows[part])
    return rows, tail


def _gain(lead: Array, end: Array) -> Array:
    """How much shorter the job's step is: what the median rank has saved in it. (steps,).

    Over several steps the leads cancel, so a step may well be negative.
    """
    return np.asarray(np.median(end, axis=1) - np.median(lead, axis=1))


def _shared_out(gain: Array, lead: Array, plan: Program, removed: Removed, late_ns: Array) -> Array:
    """Each step's gain among the cells whose work was taken out, in proportion.

    A lead that some ranks bring from the step before is the merit of that step's cells.
    """
    steps, ranks = removed.tail_ns.shape
    within = np.bincount(plan.rows.cell, weights=removed.rows_ns, minlength=steps * ranks)
    within = within.reshape(steps, ranks)
    taken = within + removed.tail_ns
    whole = taken.sum(axis=1, keepdims=True)
    before = lead.max(axis=1, initial=0)
    before[0] += late_ns.sum()
    before[1:] += removed.tail_ns[:-1].sum(axis=1)
    total = within.sum(axis=1) + before
    each = gain / np.where(total > 0, total, 1)
    loss = each[:, None] * within
    loss[:-1] += (each * before)[1:, None] * (taken / np.where(whole > 0, whole, 1))[:-1]
    return np.asarray(loss)
