"""Waits of compute streams, which no record shows, inferred from when operations are entered.

Between two entries a lane does its own work, and waits for an operation it entered before: at once,
or after all of the work. All work of a lane in a step has one pace; the waits that fit the paces of
all places best are taken (a max-plus model of each gap, fitted by its mean absolute error).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from evenstep.diagnose.graph.gaps import Gaps, best_waits, gaps_between, weighted_median
from evenstep.diagnose.graph.streams import CROSSING_NS, kernels
from evenstep.diagnose.graph.structure import means, row_hash
from evenstep.diagnose.levels import MOST
from evenstep.trace.columns import Array, Columns
from evenstep.trace.spool.layout import Op

_REDUCTIONS = (int(Op.ALL_REDUCE), int(Op.REDUCE_SCATTER), int(Op.REDUCE))


class Awaited(NamedTuple):
    """How many entries later each entry's lane waits for its operation (0: never); whether it works
    before it waits, and since when it then waits; and whether it was idle before the entry."""

    ahead: Array
    worked: Array
    since_ns: Array
    idle: Array


def infer_waits(rows: Columns, operations: Columns, over_ns: Array) -> Awaited:
    """Infer the waits of each entry's lane.

    `rows` in order of lane and time; `over_ns` is the end of each operation, in place of which
    device rows use their own stamps. Places of a program are judged over all lanes and steps.
    Messages that one kernel carries are entered, and waited for, as one.
    """
    if not rows.on_device.any():
        return _infer_waits(rows, operations, over_ns)
    last = np.flatnonzero((np.diff(kernels(rows), append=-1) != 0) | ~rows.on_device)
    found = _infer_waits(rows.select(last), operations, over_ns)
    return found if len(last) == len(rows) else _of_members(found, last, len(rows))


def _of_members(found: Awaited, last: Array, count: int) -> Awaited:
    """The waits of the last row of each kernel, for all its rows; `ahead` counts rows."""
    member = np.searchsorted(last, np.arange(count))
    first = np.append(0, last[:-1] + 1)
    end = np.minimum(member + found.ahead[member], len(last) - 1)
    entered = np.where(found.worked[member], first[end], last[np.maximum(end - 1, member)] + 1)
    ahead = np.where(found.ahead[member] > 0, entered - np.arange(count), 0)
    return Awaited(ahead, found.worked[member], found.since_ns[member], found.idle[member])


def _infer_waits(rows: Columns, operations: Columns, over_ns: Array) -> Awaited:
    over = np.where(rows.on_device, rows.leave_ns, over_ns[rows.operation])
    gaps = gaps_between(rows, over, places_of(rows, operations))
    return _waits_of_rows(rows, gaps, waits_of(rows, operations, gaps))


def waits_of(rows: Columns, operations: Columns, gaps: Gaps) -> Array:
    """What each kind of gap waits for, (kinds,): what fits best, searched from what programs
    usually wait for. That is the last of several reductions and anything else at once, but no
    message sent; one received is surely waited for, where no record tells of compute."""
    number, sent = rows.operation[gaps.row - 1], rows.sends[gaps.row - 1]
    reduces = np.isin(operations.op, _REDUCTIONS)
    more = reduces[number] & reduces[rows.operation[gaps.row]] & ~gaps.opens
    usual = means(~more & ~sent, gaps.kind) > MOST
    received = operations.message[number] & ~sent & np.isnan(gaps.computed)
    return best_waits(gaps, usual.astype(int), means(received, gaps.kind) > MOST)


def _waits_of_rows(rows: Columns, gaps: Gaps, waits: Array) -> Awaited:
    ahead, worked = np.zeros(len(rows), np.int64), np.zeros(len(rows), bool)
    since = rows.enter_ns.astype(np.int64)
    work, unseen = gaps.work(waits)
    if unseen.any():
        pace = gaps.paces(waits)
        length = weighted_median(work / pace, ~unseen, gaps.kind)[gaps.kind]
        work = np.where(unseen & (length > 0), np.minimum(work, length * pace), work)
    over = gaps.over_of(waits)
    held = np.isfinite(over) & (gaps.lasted >= over - CROSSING_NS)
    waiting = np.flatnonzero(held)[::-1]  # of several waits for an operation, the first
    wait, row = waits[gaps.kind[waiting]], gaps.row[waiting]
    first = row - np.abs(wait)
    ahead[first], worked[first] = np.abs(wait), wait < 0
    done = np.where(wait < 0, np.rint(work[waiting]), 0).astype(np.int64)
    since[first] = rows.enter_ns[row - 1] + done
    last = np.diff(rows.lane, append=-1) != 0  # nothing tells what comes after
    idle = np.zeros(len(rows), bool)
    idle[gaps.row] = gaps.idle
    return Awaited(np.where(last & (ahead == 0), 1, ahead), worked, since, idle)


def places_of(rows: Columns, operations: Columns) -> Array:
    """A number per entry, the same at the same place in steps of the same program: of the same
    operations, sizes of groups and directions."""
    number = rows.operation
    away = np.where(operations.message[number], operations.root[number] - rows.lane, 0)
    entered = [operations.op[number], operations.members[number], np.sign(away), rows.sends]
    opens = (np.diff(rows.lane, prepend=-1) != 0) | (np.diff(rows.step, prepend=-1) != 0)
    step = np.cumsum(opens) - 1
    first = np.flatnonzero(opens)
    place = np.arange(len(rows)) - first[step]
    code = np.cumsum(row_hash([place, row_hash(entered)]), dtype=np.uint64)
    ends = np.append(first[1:], len(rows)) - 1
    whole = code[ends] - np.where(first > 0, code[first - 1], np.uint64(0))
    return np.unique(row_hash([whole[step], place]), return_inverse=True)[1].reshape(-1)
