"""Operation tables made ready for replay: what each operation took, and would usually take.

A compute takes its duration. A message or collective is transferred from when its last member
began; what its members waited before is not its own. Usual durations are those of Lin et al. (OSDI
2025, section 3.2): the mean over all computes of a type, the median over all transfers of one.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evenstep.diagnose.graph.replay import Change, replay
from evenstep.diagnose.graph.structure import Batch, Graph
from evenstep.diagnose.operations.dependency import Dependencies, dependencies, segment
from evenstep.trace.columns import Columns
from evenstep.trace.operation_messages import lanes
from evenstep.trace.operations import (
    CLOCK_ERROR_S,
    COLLECTIVES,
    COMPUTES,
    MESSAGES,
    Role,
    extent,
    on_one_line,
    reduces_behind,
)

Array = npt.NDArray[Any]


class OperationJob(NamedTuple):
    """An operation table with its graph. Arrays beside the table are per row, seconds."""

    table: Columns
    steps: Array  # numbers, ascending
    graph: Graph  # a segment of each step, a lane of each worker; a stretch where steps are apart
    row: Array  # of the graph: an operation's own work
    ready: Array  # … and where it could begin, the same where it begins alone
    own_s: Array  # what the operation itself took
    usual_s: Array  # what one of its type usually takes
    delay_s: Array  # from when it could have begun to when it did: work that was not recorded
    measured_s: Array  # (steps,) from the first start, or the end of the step before, to its end
    names: tuple[str, ...]  # of types, by `optype`


def job(operations: Columns, names: tuple[str, ...]) -> OperationJob:
    """Work out dependencies and durations of a table with the columns of `trace.operations`."""
    table = prepared(operations)
    steps, first = np.unique(table.step, return_index=True)
    bounds = np.append(first, len(table))
    _, begun, over = extent(operations)
    apart = not on_one_line(operations) or bool((begun[1:] >= over[:-1]).all())
    left = np.zeros(len(table)) if apart else _left(table, bounds, begun)
    structures = _structures(table, bounds)
    own, delay = np.zeros(len(table)), np.zeros(len(table))
    for indices, waits in structures:
        rows = bounds[indices] + np.arange(len(waits.group))[:, None]
        own[rows], delay[rows] = _measured(table, rows, waits, left[rows])
    measured = over - (begun if apart else np.append(begun[0], over[:-1]))
    graph, row, ready = _laid(structures, table, bounds, np.arange(len(steps)) * apart)
    graph.own_ns[row] = 1e9 * own
    usual = _usual(table, own)
    return OperationJob(table, steps, graph, row, ready, own, usual, delay, measured, names)


def _left(table: Columns, bounds: Array, begun_s: Array) -> Array:
    """Of each row, when its worker had ended the step before; as late as the first step begins."""
    workers = int(table.worker.max()) + 1
    step = np.repeat(np.arange(len(begun_s)), np.diff(bounds))
    ended = np.full((len(begun_s), workers), begun_s[0])
    np.maximum.at(ended, (step, table.worker), table.end_s + begun_s[step])
    ended = np.maximum.accumulate(ended)
    before = np.concatenate([np.full((1, workers), begun_s[0]), ended[:-1]])
    return np.asarray(before[step, table.worker] - begun_s[step])


def _laid(
    structures: list[Structure], table: Columns, bounds: Array, stretch_of: Array
) -> tuple[Graph, Array, Array]:
    """The graph of all steps, and the rows of each operation of the table in it."""
    steps, workers = table.step[bounds[:-1]], int(table.worker.max()) + 1
    parts = [
        segment(waits, table.worker[bounds[indices[0]] : bounds[indices[0] + 1]], workers)
        for indices, waits in structures
    ]
    sizes = np.zeros((2, len(steps)), np.int64)  # rows and operations of each step
    for (indices, _), part in zip(structures, parts, strict=True):
        sizes[:, indices] = [[len(part.links.previous)], [len(part.links.queued)]]
    first_row, first_operation = np.cumsum(sizes, axis=1) - sizes
    row, ready = np.zeros(bounds[-1], np.int64), np.zeros(bounds[-1], np.int64)
    batch_of, place = np.zeros(len(steps), np.int64), np.zeros(len(steps), np.int64)
    batches: list[Batch] = []
    for (indices, _), part in zip(structures, parts, strict=True):
        nodes = len(part.links.previous)
        over = np.zeros(nodes + len(part.links.queued))
        ends = np.stack([part.ends, part.lanes, 0 * part.lanes], axis=1)
        batch_of[indices], place[indices] = len(batches), np.arange(len(indices))
        head = first_row[indices], first_operation[indices]
        batches.append(Batch(indices, *head, part.links, over, ends))
        own = np.arange(len(part.ready))[:, None]
        row[bounds[indices] + own] = first_row[indices] + own
        ready[bounds[indices] + own] = first_row[indices] + part.ready[:, None]
    rows, operations = sizes.sum(axis=1)
    graph = Graph(
        ranks=np.arange(workers),
        steps=steps,
        rows=Columns({"own_ns": np.zeros(rows)}),
        operations=Columns({"took_ns": np.zeros(operations)}),
        batches=batches,
        batch_of=batch_of,
        place_in_batch=place,
        starts_ns=np.zeros((int(stretch_of[-1]) + 1, workers)),
        stretch_of=stretch_of,
    )
    return graph, row, ready


def prepared(operations: Columns) -> Columns:
    """The table in order, with `worker`, `lane` and `end_s`.

    A lane tells apart workers of one stage and data-parallel rank (tensor parallelism). Times count
    from the start of their step.
    """
    rank = np.unique(operations["rank"], return_inverse=True)[1].reshape(-1)
    numbered = {name: operations[name].astype(np.int64) for name in _WHOLE}
    table = Columns(
        {
            **numbered,
            "worker": rank.astype(np.int64),
            "lane": lanes(operations, rank),
            "turn": np.zeros(len(rank), np.int64),
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


_WHOLE = ("dp_rank", "stage", "rank", "step", "role", "optype", "seq_id", "mc", "gmc", "mb_id")


Structure = tuple[Array, Dependencies]  # steps alike, by index, and what waits for what in them


def _structures(table: Columns, bounds: Array) -> list[Structure]:
    """Steps grouped by their structure."""
    turn = _turns(table, bounds)
    names = ("worker", "dp_rank", "stage", "optype", "seq_id", "mc", "gmc", "mb_id")
    form = np.stack([*(table[name] for name in names), turn], axis=1).astype(np.int32)
    workers = int(table.worker.max()) + 1
    step = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
    overlapping = reduces_behind(table, step * workers + table.worker)
    alike: dict[bytes, list[int]] = {}
    for index, (begin, end) in enumerate(pairwise(bounds)):
        alike.setdefault(form[begin:end].tobytes(), []).append(index)
    found = []
    for indices in alike.values():
        rows = table.select(slice(bounds[indices[0]], bounds[indices[0] + 1]))
        found.append((np.array(indices), dependencies(rows, overlapping=overlapping)))
    return found


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


def _measured(table: Columns, rows: Array, waits: Dependencies, left: Array) -> tuple[Array, Array]:
    """What each operation itself took, and how long after it could have begun it did.

    `rows` (operations, steps) of the table, and when their workers had `left` the step before.
    """
    start, end = table.start_s[rows], table.end_s[rows]
    role = table.role[rows[:, 0]]
    together = np.isin(role, (*MESSAGES, *COLLECTIVES))[:, None]
    order = np.argsort(waits.group, kind="stable")
    last = np.maximum.reduceat(start[order], _firsts(waits.group[order]), axis=0)[waits.group]
    transfer = end - last
    own = np.where(together, np.where(transfer <= -CLOCK_ERROR_S, 0.0, transfer), end - start)
    free = left.copy()
    first = _firsts(waits.target)
    if len(first):
        free[waits.target[first]] = np.maximum.reduceat(end[waits.source], first, axis=0)
    delay = start - free
    return own, np.where(delay <= -CLOCK_ERROR_S, 0.0, delay)


def _firsts(ascending: Array) -> Array:
    """Where each value begins."""
    return np.flatnonzero(np.diff(ascending, prepend=-1))


def _usual(table: Columns, own: Array) -> Array:
    """Mean of computes, median of transfers, by type of operation."""
    usual = np.zeros(len(table))
    transfers = np.isin(table.role, (*MESSAGES, *COLLECTIVES, Role.LAYERNORM))
    for kind in np.unique(table.optype):
        mine = table.optype == kind
        middle = np.median if transfers[np.argmax(mine)] else np.mean
        usual[mine] = middle(own[mine])
    return usual


def replayed(plan: OperationJob, durations_s: Array, delays_s: Array | None = None) -> Array:
    """Length of each step, in seconds, were its operations to take these durations.

    `durations_s` is (rows, scenarios), the result (steps, scenarios). Nothing begins before what it
    depends on has ended, nor for `delays_s` after that; without them nothing else takes time.
    """
    changes, everything = [], np.arange(len(plan.graph.rows))
    for scenario in range(durations_s.shape[1]):
        own = np.zeros(len(everything))
        if delays_s is not None:
            own[plan.ready] = delays_s[:, scenario]
        own[plan.row] += durations_s[:, scenario]
        changes.append(Change.none()._replace(rows=everything, own_ns=1e9 * own))
    ends = np.nanmax(replay(plan.graph, changes), axis=2) / 1e9
    stretch = plan.graph.stretch_of
    follows = np.diff(stretch, prepend=-1) == 0
    return np.asarray((ends - np.where(follows, np.roll(ends, 1, axis=1), 0.0)).T)
