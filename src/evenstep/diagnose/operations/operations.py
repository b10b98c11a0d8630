"""Operation tables made ready for replay: what each operation took, and would usually take.

A compute takes its duration. A message or collective is transferred from when its last member
began; what its members waited before is not its own. Usual durations are those of Lin et al. (OSDI
2025, section 3.2): the mean over all computes of a type, the median over all transfers of one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evenstep.diagnose.operations.dependency import OperationGraph, graph
from evenstep.diagnose.operations.messages import CLOCK_ERROR_S
from evenstep.trace.columns import Columns
from evenstep.trace.operations import COLLECTIVES, COMPUTES, MESSAGES, Role

Array = npt.NDArray[Any]


class StepBatch(NamedTuple):
    """Steps of one structure. `rows` is (nodes, steps): rows of the table, in the graph's order."""

    steps: Array  # indices into `OperationJob.steps`
    rows: Array
    graph: OperationGraph


class OperationJob(NamedTuple):
    """An operation table with its dependencies. Arrays beside the table are per row, seconds."""

    table: Columns
    steps: Array  # numbers, ascending
    batches: list[StepBatch]
    own_s: Array  # what the operation itself took
    usual_s: Array  # what one of its type usually takes
    delay_s: Array  # from when it could have begun to when it did: work that was not recorded
    measured_s: Array  # (steps,) first start to last end
    names: tuple[str, ...]  # of types, by `optype`

    @property
    def unpaired(self) -> int:
        """Messages whose other end is not in the table."""
        return sum(len(batch.steps) * batch.graph.unpaired for batch in self.batches)


def job(operations: Columns, names: tuple[str, ...]) -> OperationJob:
    """Work out dependencies and durations of a table with the columns of `trace.operations`."""
    table = prepared(operations)
    steps, first = np.unique(table.step, return_index=True)
    bounds = np.append(first, len(table))
    batches = _batches(table, bounds)
    own, delay = np.zeros(len(table)), np.zeros(len(table))
    for batch in batches:
        own[batch.rows], delay[batch.rows] = _measured(table, batch)
    start = np.minimum.reduceat(table.start_s, first)
    measured = np.maximum.reduceat(table.end_s, first) - start
    return OperationJob(table, steps, batches, own, _usual(table, own), delay, measured, names)


def prepared(operations: Columns) -> Columns:
    """The table in order, with `worker`, `lane`, `end_s` and every global virtual stage.

    A lane tells apart workers of one stage and data-parallel rank (tensor parallelism). Times count
    from the start of their step.
    """
    rank = np.unique(operations["rank"], return_inverse=True)[1].reshape(-1)
    stages = int(operations.stage.max()) + 1
    mc = np.maximum(operations.mc, 0)
    gmc = np.where(operations.gmc >= 0, operations.gmc, mc * stages + operations.stage)
    numbered = {name: operations[name].astype(np.int64) for name in _WHOLE}
    table = Columns(
        {
            **numbered,
            "gmc": np.where(np.isin(operations.role, COMPUTES), gmc, -1).astype(np.int64),
            "worker": rank.astype(np.int64),
            "lane": _lanes(operations, rank),
            "start_s": operations.start_s.astype(float),
            "end_s": operations.start_s + operations.duration_s.astype(float),
        }
    )
    place = table.step * (int(rank.max()) + 1) + table.worker
    place = place * (int(table.optype.max()) + 1) + table.optype
    table = table.select(np.lexsort([table.seq_id, table.start_s, place]))
    first = np.flatnonzero(np.diff(table.step, prepend=table.step[0] - 1))
    begun = np.minimum.reduceat(table.start_s, first)
    begun = np.repeat(begun, np.diff(np.append(first, len(table))))
    return table.with_column("start_s", table.start_s - begun).with_column(
        "end_s", table.end_s - begun
    )


_WHOLE = ("dp_rank", "stage", "rank", "step", "role", "optype", "seq_id", "mc", "mb_id")


def _lanes(operations: Columns, rank: Array) -> Array:
    """Place of each worker among those of its stage and data-parallel rank."""
    _, first = np.unique(rank, return_index=True)
    stage, dp_rank = operations.stage[first], operations.dp_rank[first]
    order = np.lexsort([stage, dp_rank])
    new = np.diff(stage[order], prepend=-1) != 0
    new |= np.diff(dp_rank[order], prepend=-1) != 0
    begin = np.maximum.accumulate(np.where(new, np.arange(len(order)), 0))
    lane = np.empty(len(order), np.int64)
    lane[order] = np.arange(len(order)) - begin
    return lane[rank]


def _batches(table: Columns, bounds: Array) -> list[StepBatch]:
    """Steps grouped by their structure, each with one graph."""
    turn = _turns(table, bounds)
    names = ("worker", "dp_rank", "stage", "optype", "seq_id", "mc", "gmc", "mb_id")
    form = np.stack([*(table[name] for name in names), turn], axis=1).astype(np.int32)
    overlapping = _reduces_behind(table)
    alike: dict[bytes, list[int]] = {}
    for index in range(len(bounds) - 1):
        alike.setdefault(form[bounds[index] : bounds[index + 1]].tobytes(), []).append(index)
    found = []
    for indices in alike.values():
        begin, end = bounds[indices[0]], bounds[indices[0] + 1]
        plan = graph(table.select(slice(begin, end)), overlapping=overlapping)
        rows = plan.order[:, None] + bounds[indices][None, :]
        found.append(StepBatch(np.asarray(indices), rows, plan))
    return found


def _reduces_behind(table: Columns) -> bool:
    """Whether gradients are reduced behind backward: some are then reduced apart, or most begin
    before the worker's last compute has ended."""
    if (table.role == Role.SEPARATE).any():
        return True
    reduces = table.role == Role.GRADS
    if not reduces.any():
        return False
    computes = np.isin(table.role, COMPUTES)
    step = np.searchsorted(np.unique(table.step), table.step)
    worker = step * (int(table.worker.max()) + 1) + table.worker
    last = np.full(int(worker.max()) + 1, -np.inf)
    np.maximum.at(last, worker[computes], table.end_s[computes])
    early = table.start_s[reduces] < last[worker[reduces]] - CLOCK_ERROR_S
    return bool(early.mean() > 0.5)


def _turns(table: Columns, bounds: Array) -> Array:
    """Order in time among the computes, and among the collectives, of a worker in a step."""
    turn = np.zeros(len(table), np.int64)
    step = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
    stretch = step * (int(table.worker.max()) + 1) + table.worker
    for roles in ((*COMPUTES, Role.OTHER), (Role.PARAMS, Role.GRADS)):
        mine = np.flatnonzero(np.isin(table.role, roles))
        order = mine[np.lexsort([table.start_s[mine], stretch[mine]])]
        turn[order] = np.arange(len(order)) - np.searchsorted(stretch[order], stretch[order])
    return turn


def _measured(table: Columns, batch: StepBatch) -> tuple[Array, Array]:
    """What each operation itself took, and how long after it could have begun it did."""
    start, end = table.start_s[batch.rows], table.end_s[batch.rows]
    role = table.role[batch.rows[:, 0]]
    together = np.isin(role, (*MESSAGES, *COLLECTIVES))[:, None]
    group = batch.graph.group
    edges = np.flatnonzero(np.diff(group, prepend=-1))
    member = np.cumsum(np.diff(group, prepend=-1) != 0) - 1
    last = np.maximum.reduceat(start, edges, axis=0)[member]
    transfer = end - last
    own = np.where(together, np.where(transfer <= -CLOCK_ERROR_S, 0.0, transfer), end - start)
    return own, _delays(start, end, batch.graph)


def _delays(start: Array, end: Array, plan: OperationGraph) -> Array:
    before = np.concatenate([end, np.zeros((1, end.shape[1]))])
    free = np.zeros(start.shape)
    for level in plan.levels:
        edges = np.flatnonzero(np.diff(level.targets, prepend=-1))
        free[level.targets[edges]] = np.maximum.reduceat(before[level.sources], edges, axis=0)
    delay = start - free
    return np.where(delay <= -CLOCK_ERROR_S, 0.0, delay)


def _usual(table: Columns, own: Array) -> Array:
    """Mean of computes, median of transfers, by type of operation."""
    usual = np.zeros(len(table))
    transfers = np.isin(table.role, (*MESSAGES, *COLLECTIVES, Role.LAYERNORM))
    for kind in np.unique(table.optype):
        mine = table.optype == kind
        middle = np.median if transfers[np.argmax(mine)] else np.mean
        usual[mine] = middle(own[mine])
    return usual


# -- other divisions of the work -------------------------------------------------------------------


def on_steps(plan: OperationJob, values: Array, steps: Array) -> Array:
    """Values per step of the job for these numbers of steps, all of which it has."""
    return np.asarray(values[np.searchsorted(plan.steps, steps)])


def balanced(plan: OperationJob, own_s: Array) -> Array:
    """Durations with each stage's computes as long, on average, as those of all stages."""
    result = own_s.copy()
    stage = plan.table.stage
    for role in COMPUTES:
        mine = plan.table.role == role
        if not mine.any():
            continue
        count = np.maximum(np.bincount(stage[mine]), 1)
        mean = np.bincount(stage[mine], weights=own_s[mine]) / count
        here = mean[mean > 0]
        scale = np.where(mean > 0, here.mean() if len(here) else 0.0, 1.0)
        scale = scale / np.where(mean > 0, mean, 1.0)
        result[mine] = own_s[mine] * scale[stage[mine]]
    return result


def evened(plan: OperationJob, own_s: Array) -> Array:
    """Durations with every compute at the mean of those of its virtual stage."""
    table, own = plan.table, own_s.copy()
    for role in COMPUTES:
        mine = table.role == role
        place = table.gmc[mine] - table.gmc.min()
        mean = np.bincount(place, weights=own[mine]) / np.maximum(np.bincount(place), 1)
        own[mine] = mean[place]
    return own


# -- replay ----------------------------------------------------------------------------------------

CELLS = 500_000  # of a replay at a time: what stays in a core's cache


def replayed(plan: OperationJob, durations_s: Array, delays_s: Array | None = None) -> Array:
    """Length of each step, in seconds, were its operations to take these durations.

    `durations_s` is (rows, scenarios), the result (steps, scenarios). Nothing begins before what it
    depends on has ended, nor for `delays_s` after that; without them nothing else takes time.
    """
    scenarios = durations_s.shape[1]
    length = np.zeros((len(plan.steps), scenarios))
    for batch in plan.batches:
        nodes = len(batch.rows)
        width = max(1, CELLS // (nodes * scenarios))
        for first in range(0, len(batch.steps), width):
            part = slice(first, first + width)
            rows = batch.rows[:, part]
            shape = (nodes, rows.shape[1] * scenarios)
            taken = durations_s[rows].reshape(shape)
            held = None if delays_s is None else delays_s[rows].reshape(shape)
            ends = _ends(batch.graph, taken, held)
            length[batch.steps[part]] = ends.max(axis=0).reshape(-1, scenarios)
    return length


def _ends(plan: OperationGraph, taken: Array, held: Array | None) -> Array:
    """When each node ends: (nodes, columns)."""
    ends = np.zeros((len(taken) + 1, taken.shape[1]))
    for level in plan.levels:
        free = ends[level.sources]
        if held is not None:
            free += held[level.targets]
        begin = np.maximum.reduceat(free, level.edges, axis=0)
        np.add(begin[level.member], taken[level.nodes], out=ends[level.nodes])
    return ends[:-1]
