"""Operation tables: one row per operation of a pipeline- and data-parallel job, as columns.

The form of Lin et al., "Understanding Stragglers in Large Model Training Using What-if Analysis"
(OSDI 2025): every compute, message and collective of every worker, with its start and duration.
`Trace.operations` holds such a table if the trace was imported from one.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from evenstep.trace.columns import Array, Columns, largest_of, smallest_of


class Role(IntEnum):
    """Role of an operation in its step; from GC on in the order after the last compute."""

    OTHER = 0
    FORWARD = 1
    BACKWARD = 2
    FORWARD_SEND = 3
    FORWARD_RECV = 4
    BACKWARD_SEND = 5
    BACKWARD_RECV = 6
    PARAMS = 7  # gather of parameters over the data-parallel ranks
    MEETING = 8  # any other collective, wherever its thread comes to it
    GC = 9
    LAYERNORM = 10
    EMBEDDING = 11  # reduction of the gradients that first and last stage share
    GRADS = 12  # reduction of gradients over the data-parallel ranks
    SEPARATE = 13  # reduction of some gradients apart, where the others overlap with backward
    CLIP = 14  # agreement of all workers on the gradient norm
    OPTIMIZER = 15


COMPUTES = (Role.FORWARD, Role.BACKWARD)
SENDS = (Role.FORWARD_SEND, Role.BACKWARD_SEND)
RECVS = (Role.FORWARD_RECV, Role.BACKWARD_RECV)
MESSAGES = (*SENDS, *RECVS)
DATA_PARALLEL = (Role.PARAMS, Role.GRADS, Role.SEPARATE)
COLLECTIVES = (*DATA_PARALLEL, Role.EMBEDDING, Role.CLIP)
ANYWHERE = (Role.OTHER, Role.MEETING)  # of which a table's model does not say when they come

#: Type of an operation, as the table names it, to its role.
ROLES: dict[str, Role] = {
    "forward-compute": Role.FORWARD,
    "backward-compute": Role.BACKWARD,
    "forward-send": Role.FORWARD_SEND,
    "forward-recv": Role.FORWARD_RECV,
    "backward-send": Role.BACKWARD_SEND,
    "backward-recv": Role.BACKWARD_RECV,
    "params-all-gather": Role.PARAMS,
    "params-sync": Role.PARAMS,
    "gc": Role.GC,
    "layernorm-grads-all-reduce": Role.LAYERNORM,
    "embedding-grads-all-reduce": Role.EMBEDDING,
    "grads-reduce-scatter": Role.GRADS,
    "grads-sync": Role.GRADS,
    "separate-grads-all-reduce": Role.SEPARATE,
    "optimizer-clip-main-grad": Role.CLIP,
    "optimizer": Role.OPTIMIZER,
}

#: Columns of `Trace.operations`. `role` is a `Role`, `optype` indexes `Trace.names`; `seq_id` is
#: the order among operations of a type in a step of a worker; `mc` the virtual stage within the
#: stage, `gmc` within the model, `mb_id` the micro-batch; -1 is unknown or does not apply.
COLUMNS: tuple[str, ...] = (
    *("dp_rank", "stage", "rank", "step", "role", "optype", "start_s", "duration_s", "seq_id"),
    *("mc", "gmc", "mb_id"),
)


def extent(operations: Columns) -> tuple[Array, Array, Array]:
    """Return each row's index of its step, and each step's first start and last end in seconds."""
    steps, turn = np.unique(operations.step, return_inverse=True)
    begin = smallest_of(operations.start_s, turn, len(steps), most=np.inf)
    end_s = operations.start_s + operations.duration_s
    return turn, begin, largest_of(end_s, turn, len(steps), least=-np.inf)


def on_one_line(operations: Columns) -> bool:
    """Whether all steps share one time line: most workers begin to compute in a step only after
    their computes of the step before. Else each counts from its own beginning."""
    computes = np.isin(operations.role, COMPUTES)
    busy = operations.select(computes) if computes.any() else operations
    steps, step = np.unique(busy.step, return_inverse=True)
    ranks, rank = np.unique(busy["rank"], return_inverse=True)
    place, shape = (step, rank), (len(steps), len(ranks))
    begin = smallest_of(busy.start_s, place, shape, most=np.nan)
    end = largest_of(busy.start_s + busy.duration_s, place, shape, least=np.nan)
    known = np.isfinite(begin[1:]) & np.isfinite(end[:-1])
    later = np.count_nonzero(begin[1:][known] >= end[:-1][known])
    return bool(2 * later > np.count_nonzero(known))


CLOCK_ERROR_S = 0.010  # between clocks of different workers (Lin et al.'s bound)


def latest(where: Array, values: Array, worker: Array) -> Array:
    """For each row, the largest value among its worker's rows `where`; -inf without any."""
    return largest_of(values[where], worker[where], int(worker.max()) + 1, least=-np.inf)[worker]


def gathered_ahead(operations: Columns) -> Array:
    """Which rows gather parameters for the next step: those after the worker's last compute and its
    ends of the step. The table has a column `worker`, a different number in each step."""
    this_step = np.isin(operations.role, COMPUTES) | (operations.role >= Role.GC)
    last = latest(this_step, operations.start_s, operations.worker)
    ahead = (operations.start_s > last) & np.isfinite(last)
    return np.asarray((operations.role == Role.PARAMS) & ahead)


def reduces_behind(operations: Columns, worker: Array) -> bool:
    """Whether reductions of gradients overlap with backward: some gradients are reduced apart, or
    of most `worker` (a number per step) the first begins before its last compute has ended; later
    ones may queue until after that."""
    if (operations.role == Role.SEPARATE).any():
        return True
    reduces = operations.role == Role.GRADS
    last = latest(np.isin(operations.role, COMPUTES), operations.end_s, worker)
    first = -latest(reduces, -operations.start_s, worker)
    early = first[reduces] < last[reduces] - CLOCK_ERROR_S
    return bool(len(early)) and bool(early.mean() > 0.5)


Pairs = tuple[Array, Array]  # rows, and the row that depends on each


def after_gathers(operations: Columns, gathers: Array, forwards: Array) -> Pairs:
    """Pair the first gather of each virtual stage (if unknown, of the worker) with its first
    forward. The table has a column `worker`."""
    chunk, worker = _chunks(operations), operations.worker
    known = np.isin(chunk[gathers], chunk[forwards])
    some, rest = gathers[known], gathers[~known]
    by_chunk = in_chunks(operations, some, forwards)
    by_worker = join((rest, worker[rest]), (forwards, worker[forwards]))
    return np.append(by_chunk[0], by_worker[0]), np.append(by_chunk[1], by_worker[1])


def in_chunks(operations: Columns, before: Array, after: Array) -> Pairs:
    """Pair the first rows of `before` and `after` of each worker's virtual stage."""
    chunk = _chunks(operations)
    return join((before, chunk[before]), (after, chunk[after]))


def _chunks(operations: Columns) -> Array:
    """A number for each combination of worker and virtual stage."""
    return np.asarray(operations.worker.astype(np.int64) * 2**20 + operations.mc)


def join(before: Pairs, after: Pairs) -> Pairs:
    """Pair the first rows of `before` and `after` with the same key; each is (rows, keys)."""
    key, first = np.unique(before[1], return_index=True)
    other, second = np.unique(after[1], return_index=True)
    _, here, there = np.intersect1d(key, other, assume_unique=True, return_indices=True)
    return before[0][first[here]], after[0][second[there]]
