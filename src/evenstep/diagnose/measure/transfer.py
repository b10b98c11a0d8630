"""How long data moved: each collective from its last entry to its end, beside what is usual.

A collective begins to move when its last member has entered and its group's one before is over; it
ends when the first who waited leaves, since every seen exit is an upper bound. Bandwidths are those
of nccl-tests (doc/PERFORMANCE.md): size over time, times what the operation sends over a link.
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

ENOUGH = 20  # collectives of one kind, from which its quiet level and its noise are known
LOWER = 0.02  # quantile: with `LOW`, of what a fifth of the collectives, undisturbed, would show


class Transfers(NamedTuple):
    """Collectives of the grid's steps that moved data, in order of group and sequence.

    `rows`: operation (of the graph), step (index), group, op, size_bytes, members, root, dtype,
    begin_ns and end_ns on the graph's time, transfer_ns, kind. `kinds`: group, op, size_bytes,
    members, count, floor_ns (low quantile), quiet_ns (middle of the undisturbed ones), noise_ns
    (their deviation; nan where too few).
    """

    rows: Columns
    kinds: Columns

    def of_kind(self, column: str) -> Array:
        """A column of the kinds, for every row."""
        return np.asarray(self.kinds[column][self.rows.kind])


def transfers(grid: StepGrid) -> Transfers:
    """Every collective of the grid's steps that all traced members of its group took part in."""
    rows = _numbered(_moved(grid))
    if len(rows):
        rows = rows.with_column("transfer_ns", _undisturbed(rows, grid))
    return Transfers(rows, _kinds(rows))


_FROM_GRAPH = ("group", "op", "size_bytes", "members", "root", "dtype")
_OPS = list(map(int, (*SYNCHRONIZING_OPS, *FROM_ROOT, *TO_ROOT)))


def _moved(grid: StepGrid) -> Columns:
    """One row per collective, before kinds are known."""
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


def _numbered(rows: Columns) -> Columns:
    """With the number of each row's kind: equal group, operation and size."""
    if not len(rows):
        return rows.with_column("kind", np.zeros(0, np.int64))
    key = np.stack([rows.group.astype(np.int64), rows.op.astype(np.int64), rows.size_bytes])
    kind = np.unique(key, axis=1, return_inverse=True)[1].reshape(-1)
    return rows.with_column("kind", kind.astype(np.int64))


def _undisturbed(rows: Columns, grid: StepGrid) -> Array:
    """Transfers of steps in which a rank collected garbage brought down to what is usual.

    A pause holds the interpreter lock, and with it the callbacks and the transport's threads.
    """
    paused = np.asarray((grid.pause_ns > 0).any(axis=1))[rows.step]
    transfer = rows.transfer_ns
    if not paused.any():
        return np.asarray(transfer)
    usual = quantiles(transfer, rows.kind, UNDISTURBED, int(rows.kind.max()) + 1)
    return np.asarray(np.where(paused, np.minimum(transfer, usual[rows.kind]), transfer))


def _kinds(rows: Columns) -> Columns:
    """What is usual of each kind."""
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
    """Low quantile of what the same transfer takes in all steps, for each transfer.

    The same: equal kind, and equally many of the kind before it in the step. A step's first and
    last buckets may take less than those between, with nobody else on the links.
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
    """What ranks receive in all-to-alls: tokens, where experts are on the ranks.

    `imbalance` is the mean, over calls, of the fullest rank's bytes over the members' mean (experts
    on it have so much more to compute, and the others wait); `fullest` the ranks that were it, with
    their share of the calls. None where sizes are not recorded or all alike.
    """
    if grid.graph is None or int(Op.ALL_TO_ALL) not in grid.graph.operations.op:
        return None
    rows = trace.of_kind(Kind.COLLECTIVE)
    rows = rows.select((rows.op == int(Op.ALL_TO_ALL)) & (rows.bytes_out > 0) & (rows.group >= 0))
    call = np.stack([rows.group.astype(np.int64), rows.group_seq.astype(np.int64)])
    calls, place, members = np.unique(call, axis=1, return_inverse=True, return_counts=True)
    place, received = place.reshape(-1), rows.bytes_out.astype(float)
    most = np.zeros(calls.shape[1])
    np.maximum.at(most, place, received)
    ratio = most / (np.bincount(place, received) / members)
    ratio = ratio[members > 1]
    if not len(ratio) or ratio.mean() < 1 + SMALLEST_SHARE:
        return None
    fullest = rows["rank"][(received == most[place]) & (members[place] > 1)]
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

    rank, seq (of the record), step, group, operation (a number), here_ns (entry, on the line of
    time that the rank's steps are on), took_ns, wait_ns (until the last of those it depends on has
    entered), awaited (it is that last one) and relative (only times in flight compare).
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
    """Entries on the host's time: those of a device as early as nothing of a step runs before it is
    issued, unless its stamps are on the host's clock.

    The two clocks have no common zero and drift, so each step of a rank is placed by itself.
    """
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
