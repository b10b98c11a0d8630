"""Questions about what ranks do themselves: their work, pauses, input, and being there.

Work is changed where a rank has it: row by row of the graph.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.diagnose.graph.replay import Change
from evenstep.diagnose.lateness.case import Case
from evenstep.diagnose.what_if_spec import Spec
from evenstep.trace.spool.layout import Kind, Phase

Array = npt.NDArray[Any]

# -- ranks and nodes -------------------------------------------------------------------------------


def ranks_change(case: Case, spec: Spec) -> Change:
    """These ranks' work at the median of the others', place by place and step, or multiplied."""
    assert case.costs is not None
    graph, mine = case.costs.graph, _columns(case, spec)
    own = graph.own_ns.copy()
    if spec.change == "x":
        own[mine[graph.rows.lane]] *= spec.factor
        return _changed(case, own)
    for part in case.costs.parts:
        chosen = mine[part.lanes]
        if chosen.any() and not chosen.all():
            usual = np.median(own[part.rows[:, ~chosen]], axis=1, keepdims=True)
            own[part.rows[:, chosen]] = np.broadcast_to(usual, part.rows[:, chosen].shape)
        elif chosen.any():
            own[part.rows] *= _beside_others(case, mine)
    return _changed(case, own)


def _beside_others(case: Case, mine: Array) -> float:
    """The others' work over that of these ranks, where nobody else has their program."""
    work = np.median(case.grid.work_ns, axis=0)
    return float(np.median(work[~mine]) / max(np.median(work[mine]), 1.0))


def _columns(case: Case, spec: Spec) -> Array:
    """Columns of the grid asked about."""
    if spec.subject == "node":
        wanted = [rank for rank, info in case.trace.ranks.items() if info.node == spec.target]
        return np.isin(case.grid.ranks, wanted)
    return np.isin(case.grid.ranks, spec.numbers)


def _changed(case: Case, own_ns: Array) -> Change:
    """The change to this own work of all rows."""
    assert case.costs is not None
    rows = np.flatnonzero(own_ns != case.costs.graph.own_ns)
    return Change.of_work(rows, own_ns[rows])


def ranks_refusal(case: Case, spec: Spec) -> str | None:
    if spec.change == "median" and _columns(case, spec).all():
        return "there are no other ranks to take the median of"
    return None


def even_change(case: Case, _: Spec) -> Change:
    """Each stretch of own work at the mean of all ranks of the same program."""
    assert case.costs is not None
    own = case.costs.graph.own_ns.copy()
    for part in case.costs.parts:
        here = own[part.rows]
        own[part.rows] = np.broadcast_to(here.mean(axis=1, keepdims=True), here.shape)
    return _changed(case, own)


def even_refusal(case: Case, _: Spec) -> str | None:
    return None if len(case.grid.ranks) > 1 else "there is one rank only"


def removal(case: Case, spec: Spec) -> Change:
    """These ranks with nothing to do: nobody waits for them."""
    return ranks_change(case, spec._replace(change="x", factor=0.0))


def removal_refusal(case: Case, spec: Spec) -> str | None:
    left = ~np.isin(case.grid.ranks, spec.numbers)
    return None if left.sum() > 1 else "fewer than two ranks would be left"


# -- pauses and input ------------------------------------------------------------------------------


def collector_change(case: Case, spec: Spec) -> Change:
    """Without pauses; aligned, with the longest of each n-th one on all ranks at a time."""
    assert case.costs is not None
    costs = case.costs
    own = costs.taken(case.grid.pause_ns[case.grid.sampled])
    if spec.change == "aligned":
        first = costs.first_rows()
        own[first] += _aligned(case)[case.grid.sampled][:, None]
    return _changed(case, own)


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


def input_change(case: Case, _: Spec) -> Change:
    """Without the time spent in the input, at the beginning of each step."""
    assert case.costs is not None
    return _changed(case, case.costs.taken(case.grid.phase_ns[Phase.INPUT][case.grid.sampled]))


def input_refusal(case: Case, _: Spec) -> str | None:
    return None if case.grid.phase_ns[Phase.INPUT].any() else "no input phase was recorded"
