"""Questions about what ranks do themselves: their work, pauses, input, and being there.

Work is taken out where a rank has it: between its collectives, layer by layer of the replay.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.diagnose.lateness.case import Case
from evenstep.diagnose.lateness.replay import Program, by_layer
from evenstep.diagnose.what_if.change import Change, instances_of
from evenstep.diagnose.what_if_spec import Spec
from evenstep.trace.spool.layout import Kind, Phase

Array = npt.NDArray[Any]

# -- ranks and nodes -------------------------------------------------------------------------------


def ranks_change(case: Case, plan: Program, spec: Spec) -> Change:
    """These ranks' work at the median of the others', or multiplied."""
    mine = _columns(case, spec)
    change = Change.none(plan)
    for part, own in by_layer(plan, plan.tail_ns.shape):
        taken = _taken(own, mine, spec)
        change.rows_ns[part] = taken.reshape(-1)[plan.rows.cell[part]]
    return change._replace(tail_ns=_taken(plan.tail_ns.astype(float), mine, spec))


def _columns(case: Case, spec: Spec) -> Array:
    """Columns of the grid asked about."""
    if spec.subject == "node":
        wanted = [rank for rank, info in case.trace.ranks.items() if info.node == spec.target]
        return np.isin(case.grid.ranks, wanted)
    return np.isin(case.grid.ranks, spec.numbers)


def _taken(own: Array, mine: Array, spec: Spec) -> Array:
    """Of own work (steps × ranks, nan where there is none): what is to go."""
    taken = np.zeros(own.shape)
    if spec.change == "x":
        taken[:, mine] = own[:, mine] * (1 - spec.factor)
    else:
        others = own[:, ~mine]
        usual = np.zeros(len(own))
        known = np.asarray(np.isfinite(others).any(axis=1))
        usual[known] = np.nanmedian(others[known], axis=1)
        taken[:, mine] = np.where(known[:, None], own[:, mine] - usual[:, None], 0.0)
    return np.nan_to_num(taken)


def ranks_refusal(case: Case, spec: Spec) -> str | None:
    if spec.change == "median" and _columns(case, spec).all():
        return "there are no other ranks to take the median of"
    return None


def even_change(_: Case, plan: Program, __: Spec) -> Change:
    """The same work in total, the same for every rank."""
    return at_the_mean(plan)


def even_refusal(case: Case, _: Spec) -> str | None:
    return None if len(case.grid.ranks) > 1 else "there is one rank only"


def at_the_mean(plan: Program) -> Change:
    """Each stretch of own work brought to the mean of all ranks in it."""
    change = Change.none(plan)
    for part, own in by_layer(plan, plan.tail_ns.shape):
        there = np.maximum(np.isfinite(own).sum(axis=1, keepdims=True), 1)
        more = np.nan_to_num(own - np.nansum(own, axis=1, keepdims=True) / there)
        change.rows_ns[part] = more.reshape(-1)[plan.rows.cell[part]]
    return change._replace(tail_ns=plan.tail_ns - plan.tail_ns.mean(axis=1, keepdims=True))


def removal(case: Case, plan: Program, spec: Spec) -> Change:
    return Change.none(plan)._replace(absent=np.isin(case.grid.ranks, spec.numbers))


def removal_refusal(case: Case, spec: Spec) -> str | None:
    left = ~np.isin(case.grid.ranks, spec.numbers)
    return None if left.sum() > 1 else "fewer than two ranks would be left"


# -- pauses and input ------------------------------------------------------------------------------


def collector_change(case: Case, plan: Program, spec: Spec) -> Change:
    """Without pauses; aligned, with the longest of each n-th one of all ranks at a time."""
    change = _paused(case, plan)
    return change._replace(added_ns=_aligned(case)) if spec.change == "aligned" else change


def _aligned(case: Case) -> Array:
    """Cost of the pauses per step, were the n-th of every rank in the same step."""
    pauses = case.trace.of_kind(Kind.PAUSE)
    cell, inside = case.grid.cell(pauses)
    ranks = len(case.grid.ranks)
    cell = cell[inside]
    length = (pauses.exit_ns - pauses.enter_ns)[inside].astype(float)
    order = np.lexsort([cell // ranks, cell % ranks])
    rank, step, length = (cell % ranks)[order], (cell // ranks)[order], length[order]
    first = np.searchsorted(rank, rank)
    turn = np.arange(len(rank)) - first
    cost = np.zeros(len(case.grid.steps))
    for number in range(int(turn.max(initial=-1)) + 1):
        here = turn == number
        cost[int(np.median(step[here]))] += length[here].max()
    return cost


def collector_refusal(case: Case, _: Spec) -> str | None:
    return None if case.grid.pause_ns.any() else "no pause of a garbage collector was recorded"


def input_change(case: Case, plan: Program, _: Spec) -> Change:
    """Without the time spent in the input, before a step's first collective."""
    change = Change.none(plan)
    left = case.grid.phase_ns[Phase.INPUT].reshape(-1).astype(float)
    cells, first = np.unique(plan.rows.cell, return_index=True)
    change.rows_ns[first] = np.minimum(left[cells], plan.rows.own_ns[first])
    return change


def input_refusal(case: Case, _: Spec) -> str | None:
    return None if case.grid.phase_ns[Phase.INPUT].any() else "no input phase was recorded"


def _paused(case: Case, plan: Program) -> Change:
    """Every pause taken out of the own work that it lies in."""
    change = Change.none(plan)
    pauses = case.trace.of_kind(Kind.PAUSE)
    cell, inside = case.grid.cell(pauses)
    pauses, cell = pauses.select(inside & (pauses.exit_ns > 0)), cell[inside & (pauses.exit_ns > 0)]
    begun = case.grid.clocks.common(pauses["rank"], pauses.enter_ns)
    line = int(case.grid.duration_ns.max()) + 1
    start = case.grid.start_ns.reshape(-1)
    rows, here = _places(case, plan)
    at = np.searchsorted(here, cell * line + np.clip(begun - start[cell], 0, line - 1))
    last = np.minimum(at, len(rows) - 1)
    within = (at < len(rows)) & (plan.rows.cell[rows[last]] == cell)
    length = (pauses.exit_ns - pauses.enter_ns).astype(float)
    np.add.at(change.rows_ns, rows[last[within]], length[within])
    np.add.at(change.tail_ns.reshape(-1), cell[~within], length[~within])
    np.minimum(change.rows_ns, plan.rows.own_ns, out=change.rows_ns)
    np.minimum(change.tail_ns, plan.tail_ns, out=change.tail_ns)
    return change


def _places(case: Case, plan: Program) -> tuple[Array, Array]:
    """The program's rows in order of cell and time, and where on the line of all cells they are."""
    arrived = case.grid.arrivals.rows
    cell, inside = case.grid.cell(arrived)
    known = instances_of(case)
    inside &= np.isin(arrived.instance, known)
    arrived, cell = arrived.select(inside), cell[inside]
    here = arrived.here_ns - case.grid.start_ns.reshape(-1)[cell]
    line = int(case.grid.duration_ns.max()) + 1
    key = cell * plan.instances + np.searchsorted(known, arrived.instance)
    order = np.argsort(key, kind="stable")
    mine = plan.rows.cell * plan.instances + plan.rows.instance
    at = cell * line + np.clip(here, 0, line - 1)
    place = at[order][np.searchsorted(key[order], mine)]
    rows = np.argsort(place, kind="stable")
    return rows, place[rows]
