"""Operation tables: one row per operation of a pipeline- and data-parallel job, as columns.

The form of Lin et al., "Understanding Stragglers in Large Model Training Using What-if Analysis"
(OSDI 2025): every compute, message and collective of every worker, with its start and duration.
`Trace.operations` holds such a table where a trace has one.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.trace.columns import Columns


class Role(IntEnum):
    """What an operation does in its step; the order from GC on is that after the last compute."""

    OTHER = 0
    FORWARD = 1
    BACKWARD = 2
    FORWARD_SEND = 3
    FORWARD_RECV = 4
    BACKWARD_SEND = 5
    BACKWARD_RECV = 6
    PARAMS = 7  # parameters gathered over the data-parallel ranks
    GC = 8
    LAYERNORM = 9
    EMBEDDING = 10  # first and last stage share these gradients
    GRADS = 11  # gradients reduced over the data-parallel ranks
    SEPARATE = 12  # gradients reduced apart, where the others overlap with backward
    CLIP = 13  # all workers agree on the gradient norm
    OPTIMIZER = 14


COMPUTES = (Role.FORWARD, Role.BACKWARD)
SENDS = (Role.FORWARD_SEND, Role.BACKWARD_SEND)
RECVS = (Role.FORWARD_RECV, Role.BACKWARD_RECV)
MESSAGES = (*SENDS, *RECVS)
DATA_PARALLEL = (Role.PARAMS, Role.GRADS, Role.SEPARATE)
COLLECTIVES = (*DATA_PARALLEL, Role.EMBEDDING, Role.CLIP)

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
    "dp_rank",
    "stage",
    "rank",
    "step",
    "role",
    "optype",
    "start_s",
    "duration_s",
    "seq_id",
    "mc",
    "gmc",
    "mb_id",
)


Extent = tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]


def extent(operations: Columns) -> Extent:
    """Of each row, the place of its step; of each step, its first start and last end, seconds."""
    steps, turn = np.unique(operations.step, return_inverse=True)
    begin, end = np.full(len(steps), np.inf), np.full(len(steps), -np.inf)
    np.minimum.at(begin, turn, operations.start_s)
    np.maximum.at(end, turn, operations.start_s + operations.duration_s)
    return turn, begin, end


def on_one_line(operations: Columns) -> bool:
    """Whether steps lie on one line of time, where the next may begin before all workers have ended
    the one before, but no worker computes in two at once; and not each at times that count from its
    own beginning."""
    computes = np.isin(operations.role, COMPUTES)
    busy = operations.select(computes) if computes.any() else operations
    steps, step = np.unique(busy.step, return_inverse=True)
    ranks, rank = np.unique(busy["rank"], return_inverse=True)
    begin, end = np.full((2, len(steps), len(ranks)), np.nan)
    np.fmin.at(begin, (step, rank), busy.start_s)
    np.fmax.at(end, (step, rank), busy.start_s + busy.duration_s)
    known = np.isfinite(begin[1:]) & np.isfinite(end[:-1])
    later = np.count_nonzero(begin[1:][known] >= end[:-1][known])
    return bool(2 * later > np.count_nonzero(known))


CLOCK_ERROR_S = 0.010  # of different workers' clocks (Lin et al.'s bound)


def latest(
    where: npt.NDArray[Any], values: npt.NDArray[Any], worker: npt.NDArray[Any]
) -> npt.NDArray[Any]:
    """Of each row, the largest value of its worker's rows in the mask; -inf where it has none."""
    found = np.full(int(worker.max()) + 1, -np.inf)
    np.maximum.at(found, worker[where], values[where])
    return np.asarray(found[worker])


def gathered_ahead(operations: Columns) -> npt.NDArray[Any]:
    """Gathers of parameters for the step that follows: of what the worker computes, and of what
    ends its step, nothing comes after. The table has `worker`, another one in each step."""
    others = np.isin(operations.role, COMPUTES) | (operations.role >= Role.GC)
    last = latest(others, operations.start_s, operations.worker)
    ahead = (operations.start_s > last) & np.isfinite(last)
    return np.asarray((operations.role == Role.PARAMS) & ahead)


def reduces_behind(operations: Columns, worker: npt.NDArray[Any]) -> bool:
    """Whether gradients are reduced behind backward: some are then reduced apart, or most begin
    before the last compute of the `worker`, another one in each step, has ended."""
    if (operations.role == Role.SEPARATE).any():
        return True
    reduces = operations.role == Role.GRADS
    last = latest(np.isin(operations.role, COMPUTES), operations.end_s, worker)
    early = operations.start_s[reduces] < last[reduces] - CLOCK_ERROR_S
    return bool(len(early)) and bool(early.mean() > 0.5)


Pairs = tuple[npt.NDArray[Any], npt.NDArray[Any]]  # rows, and what each leads to


def after_gathers(
    operations: Columns, gathers: npt.NDArray[Any], forwards: npt.NDArray[Any]
) -> Pairs:
    """The first of the gathers of each virtual stage and the first forward of it; of the worker
    where the table does not say of which. The table has `worker`."""
    chunk, worker = _chunks(operations), operations.worker
    known = np.isin(chunk[gathers], chunk[forwards])
    some, rest = gathers[known], gathers[~known]
    one = in_chunks(operations, some, forwards)
    other = joined((rest, worker[rest]), (forwards, worker[forwards]))
    return np.append(one[0], other[0]), np.append(one[1], other[1])


def in_chunks(operations: Columns, before: npt.NDArray[Any], after: npt.NDArray[Any]) -> Pairs:
    """The first row of `before` of each worker's virtual stage, with the first of it in `after`."""
    chunk = _chunks(operations)
    return joined((before, chunk[before]), (after, chunk[after]))


def _chunks(operations: Columns) -> npt.NDArray[Any]:
    """Worker and virtual stage of each row in one number."""
    return np.asarray(operations.worker.astype(np.int64) * 2**20 + operations.mc)


def joined(before: Pairs, after: Pairs) -> Pairs:
    """The first row of each key in `before`, (rows, keys), with the first of it in `after`."""
    key, first = np.unique(before[1], return_index=True)
    other, second = np.unique(after[1], return_index=True)
    _, here, there = np.intersect1d(key, other, assume_unique=True, return_indices=True)
    return before[0][first[here]], after[0][second[there]]
