"""Transfers: how long the data of each collective moved, beside what is usual for its kind.

A transfer begins when the last member has entered and the group's previous collective is over; it
ends when the first waiting member leaves, since every exit seen is an upper bound. Bandwidths are
those of nccl-tests (doc/PERFORMANCE.md): size over time, times the operation's bus factor.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evenstep.diagnose.graph.entries import FROM_ROOT, TO_ROOT, collectives
from evenstep.diagnose.graph.structure import quantiles
from evenstep.diagnose.levels import LOW, SMALLEST_SHARE, UNDISTURBED
from evenstep.diagnose.measure.grid import StepGrid
from evenstep.statistics.interval import z
from evenstep.trace.clocks.clocks import Clocks
from evenstep.trace.columns import Columns
from evenstep.trace.spool.layout import SYNCHRONIZING_OPS, Kind, Op
from evenstep.trace.trace import Trace

Array = npt.NDArray[Any]

ENOUGH = 20  # collectives of a kind, from which its quiet level and its noise are known
LOWER = 0.02  # quantile that with `LOW` gives the spread of undisturbed collectives


class Transfers(NamedTuple):
    """Collectives of the grid's steps that moved data, in order of group and sequence.

    `rows`: operation (of the graph), step (index), group, op, size_bytes, members, root, dtype,
    begin_ns and end_ns on the graph's time, transfer_ns, kind. `kinds`: group, op, size_bytes,
    members, count, floor_ns (low quantile), quiet_ns (median of the undisturbed ones), noise_ns
    (their standard deviation; nan where too few).
    """

    rows: Columns
    kinds: Columns

    def of_kind(self, column: str) -> Array:
        """A column of the kinds, per row."""
        return np.asarray(self.kinds[column][self.rows.kind])


def transfers(grid: StepGrid) -> Transfers:
    """Every collective of the grid's steps that all traced members of its group took part in."""
    rows = _with_kind(_transfers(grid))
    if len(rows):
        rows = rows.with_column("transfer_ns", _without_pauses(rows, grid))
    return Transfers(rows, _kinds(rows))


_FROM_GRAPH = ("group", "op", "size_bytes", "members", "root", "dtype")
_OPS = list(map(int, (*SYNCHRONIZING_OPS, *FROM_ROOT, *TO_ROOT)))


def _transfers(grid: StepGrid) -> Columns:
    """One row per collective, without its kind."""
    if grid.graph is None:
        nothing = np.zeros(0, np.int64)
        return Columns(dict.fromkeys((*_FROM_GRAPH, *_ADDED), nothing))
    table = grid.graph.operations
    moved = np.flatnonzero(table.whole & (table.members > 1) & np.isin(table.op, _OPS))
    moved = moved[np.lexsort([table.sequence[moved], table.group[moved]])]
    rows = table.select(moved)
    step = np.minimum(np.searchsorted(grid.steps, rows.step), len(grid.steps) - 1)
    took = np.rint(rows.took_ns).astype(np.int64)
    added = dict(zip(_ADDED, (moved, step, rows.over_ns - took, rows.over_ns, took), strict=True))
    found = Columns({**{name: rows[name] for name in _FROM_GRAPH}, **added})
    return found.select(grid.steps[step] == rows.step)


_ADDED = ("operation", "step", "begin_ns", "end_ns", "transfer_ns")


def _with_kind(rows: Columns) -> Columns:
    """The rows with `kind`, a number per group, operation and size."""
    if not len(rows):
        return rows.with_column("kind", np.zeros(0, np.int64))
    key = np.stack([rows.group.astype(np.int64), rows.op.astype(np.int64), rows.size_bytes])
    kind = np.unique(key, axis=1, return_inverse=True)[1].reshape(-1)
    return rows.with_column("kind", kind.astype(np.int64))


def _without_pauses(rows: Columns, grid: StepGrid) -> Array:
    """Durations of transfers, at most the usual one in steps in which a rank collected garbage: a
    pause holds the interpreter lock, which callbacks and threads of the transport need."""
    paused = np.asarray((grid.pause_ns > 0).any(axis=1))[rows.step]
    transfer = rows.transfer_ns
    if not paused.any():
        return np.asarray(transfer)
    usual = quantiles(transfer, rows.kind, UNDISTURBED, int(rows.kind.max()) + 1)
    return np.asarray(np.where(paused, np.minimum(transfer, usual[rows.kind]), transfer))


def _kinds(rows: Columns) -> Columns:
    """The usual durations of each kind."""
    heads = rows.select(np.unique(rows.kind, return_index=True)[1])
    count = np.bincount(rows.kind)
    took, kind = rows.transfer_ns, rows.kind
    floor, lower = (
        quantiles(took, kind, share, len(count)).astype(float) for share in (LOW, LOWER)
    )
    noise = np.where(count >= ENOUGH, (floor - lower) / (z(LOW) - z(LOWER)), np.nan)
    quiet = floor - z(LOW) * np.nan_to_num(noise)
    table = {name: heads[name] for name in ("group", "op", "size_bytes", "members")}
    added = {"count": count, "floor_ns": floor, "quiet_ns": quiet, "noise_ns": noise}
    return Columns({**table, **added})


def floors(step: Array, kind: Array, took_ns: Array) -> Array:
    """Low quantile of the durations of the same transfer in all steps, for each transfer.

    Transfers are the same if they are the n-th of their kind in their step: a step's first and last
    buckets may be quicker than those between, being alone on the links.
    """
    order = np.lexsort([kind, step])
    new = (np.diff(step[order], prepend=-1) != 0) | (np.diff(kind[order], prepend=-1) != 0)
    begin = np.maximum.accumulate(np.where(new, np.arange(len(order)), 0))
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order)) - begin
    same = np.unique(np.stack([kind, place]), axis=1, return_inverse=True)[1].reshape(-1)
    return np.asarray(quantiles(took_ns, same, LOW, int(same.max(initial=-1)) + 1)[same])


# -- all-to-alls -----------------------------------------------------------------------------------


def tokens(trace: Trace, grid: StepGrid) -> dict[str, Any] | None:
    """Imbalance of what ranks receive in all-to-alls: tokens, where experts are on the ranks.

    `imbalance` is the mean over calls of the largest amount over the members' mean; `fullest` are
    the ranks that received it, with their share of the calls. None where sizes are not recorded or
    equal.
    """
    if grid.graph is None or int(Op.ALL_TO_ALL) not in grid.graph.operations.op:
        return None
    rows = trace.of_kind(Kind.COLLECTIVE)
    rows = rows.select((rows.op == int(Op.ALL_TO_ALL)) & (rows.group >= 0))
    call = np.stack([rows.group.astype(np.int64), rows.group_seq.astype(np.int64)])
    calls, place, members = np.unique(call, axis=1, return_inverse=True, return_counts=True)
    place, received = place.reshape(-1), rows.bytes_out.astype(float)
    most = np.zeros(calls.shape[1])
    np.maximum.at(most, place, received)
    known = (members > 1) & (most > 0)  # a member of such a call may receive nothing
    ratio = (most * members)[known] / np.bincount(place, received)[known]
    if not len(ratio) or ratio.mean() < 1 + SMALLEST_SHARE:
        return None
    fullest = rows["rank"][(received == most[place]) & known[place]]
    ranks, counts = np.unique(fullest, return_counts=True)
    order = np.argsort(-counts, kind="stable")[:4]
    return {
        "calls": len(ratio),
        "imbalance": round(float(ratio.mean()), 4),
        "fullest": [
            {"rank": int(ranks[at]), "share": round(float(counts[at] / counts.sum()), 4)}
            for at in order
        ],
    }


def arrivals(trace: Trace, clocks: Clocks) -> Columns:
    """A row for each rank in each collective that all traced members of its group took part in.

    rank, seq (of the record), step, group, operation (a number), here_ns (entry on the time of the
    rank's steps), took_ns, wait_ns (until the last deciding member has entered), awaited (the rank
    is that member) and relative (entry times do not compare, only times in flight).
    """
    ranks = np.array(sorted(trace.ranks), np.int64)
    rows, operations = collectives(trace, clocks, ranks)
    rows = rows.select((operations.whole & (operations.members > 1))[rows.operation])
    number, took = rows.operation, np.maximum(rows.leave_ns - rows.enter_ns, 0)
    apart = np.isin(ranks, list(clocks.unplaced))[rows.lane] | rows.on_device
    relative = (np.bincount(number, apart, len(operations)) > 0)[number]
    entered = np.where(relative, -took, rows.enter_ns)
    last = np.full(len(operations), np.iinfo(np.int64).min)
    np.maximum.at(last, number[rows.decides], entered[rows.decides])
    wait = np.where(rows.waits, np.clip(last[number] - entered, 0, took), 0)
    return Columns(
        {
            "rank": ranks[rows.lane],
            "seq": rows.seq,
            "step": rows.step,
            "group": operations.group[number],
            "operation": number,
            "here_ns": _here(rows, clocks, ranks, trace.host_clock_ranks),
            "took_ns": took,
            "wait_ns": wait,
            "awaited": rows.decides & (entered == last[number]),
            "relative": relative,
        }
    )


def _here(rows: Columns, clocks: Clocks, ranks: Array, one_clock: list[int]) -> Array:
    """Entries on the host's time. Those of a device on a clock of its own are moved step by step,
    as both clocks drift, by the least with which nothing runs before it is issued."""
    if not rows.on_device.any():
        return np.asarray(rows.enter_ns)
    step = np.unique(np.stack([rows.lane, rows.step]), axis=1, return_inverse=True)[1].reshape(-1)
    shift = np.full(int(step.max()) + 1, np.iinfo(np.int64).min)
    np.maximum.at(shift, step, np.where(rows.on_device, rows.issued_ns - rows.enter_ns, shift[0]))
    rank = ranks[rows.lane]
    issued = rows.enter_ns + shift[step]
    on_hosts = clocks.common(rank, rows.enter_ns)
    there = np.where(np.isin(rank, one_clock), on_hosts, issued)
    return np.where(rows.on_device, there, rows.enter_ns)
