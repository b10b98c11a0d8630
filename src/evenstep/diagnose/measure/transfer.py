"""How long data moved: each collective from its last entry to its end, beside what is usual.

A collective begins to move when its last member has entered and its group's one before is over; it
ends when the first member leaves, since every seen exit is an upper bound. Bandwidths are those of
nccl-tests (doc/PERFORMANCE.md): size over time, times what the operation sends over a link.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evenstep.diagnose.graph.structure import Graph
from evenstep.diagnose.measure.arrivals import FROM_ROOT, TO_ROOT
from evenstep.diagnose.measure.grid import StepGrid
from evenstep.trace.columns import Columns
from evenstep.trace.spool.layout import SYNCHRONIZING_OPS, Flag, Op

Array = npt.NDArray[Any]

ENOUGH = 20  # collectives of one kind, from which its quiet level and its noise are known
USUAL = 0.25  # quantile that a pause of the collector does not reach
LOW, LOWER = 0.10, 0.02  # quantiles of what a fifth of the collectives, undisturbed, would show
LOW_SIGMAS, BETWEEN_SIGMAS = 1.2816, 0.7722  # z(.9) and z(.98) - z(.9), normal distribution

_HALVES = frozenset({Op.ALL_GATHER, Op.REDUCE_SCATTER, Op.ALL_TO_ALL, Op.GATHER, Op.SCATTER})


class Transfers(NamedTuple):
    """Collectives of the grid's steps that moved data, in order of group and sequence.

    `rows`: instance (of the arrivals), step (index), group, op, size_bytes, members, root, dtype,
    begin_ns and end_ns on the common time, transfer_ns, bounded (every exit seen is only an upper
    bound), kind. `kinds`: group, op, size_bytes, members, count, floor_ns (low quantile), quiet_ns
    (middle of the undisturbed ones), noise_ns (their deviation; nan where too few).
    """

    rows: Columns
    kinds: Columns

    def of_kind(self, column: str) -> Array:
        """A column of the kinds, for every row."""
        return np.asarray(self.kinds[column][self.rows.kind])


def bus_factor(op: int, members: int) -> float:
    """Bus bandwidth over algorithm bandwidth (nccl-tests, doc/PERFORMANCE.md)."""
    if op == Op.ALL_REDUCE:
        return 2 * (members - 1) / members
    return (members - 1) / members if op in _HALVES else 1.0


def busbw_gBps(op: int, members: int, size_bytes: float, time_ns: float) -> float:  # noqa: N802
    """Bus bandwidth reached, in 10^9 bytes/s (bytes per nanosecond)."""
    return bus_factor(op, members) * size_bytes / time_ns if time_ns > 0 else 0.0


def transfers(grid: StepGrid) -> Transfers:
    """Measure every complete collective of the grid's steps."""
    rows = _instances(grid)
    rows = _numbered(rows)
    if len(rows):
        rows = rows.with_column("transfer_ns", _undisturbed(rows, grid))
    return Transfers(rows, _kinds(rows))


def operations_of(graph: Graph, measured: Transfers) -> Array:
    """The graph's operation of each transfer; -1 where it has none."""
    table = graph.operations
    width = int(max(table.sequence.max(initial=0), measured.rows.seq.max(initial=0))) + 1
    key = np.where(table.message, -1, table.group * width + table.sequence)
    order = np.argsort(key, kind="stable")
    wanted = measured.rows.group.astype(np.int64) * width + measured.rows.seq.astype(np.int64)
    at = np.minimum(np.searchsorted(key[order], wanted), max(len(key) - 1, 0))
    if not len(key):
        return np.full(len(wanted), -1)
    return np.where(key[order[at]] == wanted, order[at], -1)


def _instances(grid: StepGrid) -> Columns:
    """One row per instance, before kinds are known."""
    rows = grid.arrivals.rows
    first = np.flatnonzero(np.diff(rows.instance, prepend=-1))
    heads = rows.select(first)
    cell, inside = grid.cell(heads)
    end, known = _ends(rows, first)
    members = np.diff(np.append(first, len(rows)))
    table = Columns(
        {
            "instance": heads.instance,
            "step": cell // max(len(grid.ranks), 1),
            "group": heads.group,
            "op": heads.op,
            "size_bytes": _sizes(rows, first, members),
            "members": members,
            "root": heads.peer_or_root,
            "dtype": heads.dtype,
            "last_ns": grid.arrivals.last_ns[heads.instance],
            "end_ns": end,
            "bounded": _all_bounded(rows, first),
            "relative": heads.relative,
            "seq": heads.group_seq,
        }
    )
    begin = _begins(table)
    table = table.with_column("begin_ns", begin)
    table = table.with_column("transfer_ns", np.maximum(end - begin, 0))
    return table.select(inside & known & np.isin(heads.op, list(map(int, _MEASURED))))


_MEASURED = SYNCHRONIZING_OPS | FROM_ROOT | TO_ROOT


def _ends(rows: Columns, first: Array) -> tuple[Array, Array]:
    """End of each instance and whether it is known.

    Who waits for all leaves with all: the earliest exit is the tightest. In an all-to-all each has
    its own share to receive: the middle one. Rooted ones end where the data arrives.
    """
    if not len(first):
        return np.zeros(0, np.int64), np.zeros(0, bool)
    op = rows.op[first]
    left = rows.leave_ns > 0
    soonest = np.minimum.reduceat(np.where(left, rows.leave_ns, 2**62), first)
    latest = np.maximum.reduceat(np.where(left, rows.leave_ns, 0), first)
    is_root = rows["rank"] == rows.peer_or_root
    at_root = np.maximum.reduceat(np.where(left & is_root, rows.leave_ns, 0), first)
    end = np.where(np.isin(op, list(map(int, FROM_ROOT))), latest, soonest)
    to_root = np.isin(op, list(map(int, TO_ROOT)))
    end = np.where(to_root, np.where(at_root > 0, at_root, latest), end)
    mixed = op == int(Op.ALL_TO_ALL)
    end[mixed] = _middles(rows, first)[mixed] if mixed.any() else end[mixed]
    known = (np.add.reduceat(left, first) > 0) & (end < 2**62)
    return end, known


def _middles(rows: Columns, first: Array) -> Array:
    """Median exit of each instance; neighbouring rows belong to one."""
    order = np.lexsort([rows.leave_ns, rows.instance])
    size = np.diff(np.append(first, len(rows)))
    return np.asarray(rows.leave_ns[order][first + size // 2])


def _sizes(rows: Columns, first: Array, members: Array) -> Array:
    """Size as nccl-tests counts it: the whole buffer where ranks hold parts of it."""
    if not len(first):
        return np.zeros(0, np.int64)
    op = rows.op[first]
    sent = np.maximum.reduceat(rows.bytes_in, first).astype(np.int64)
    received = np.maximum.reduceat(rows.bytes_out, first).astype(np.int64)
    parts_in = np.isin(op, [int(Op.ALL_GATHER), int(Op.GATHER)])
    parts_out = np.isin(op, [int(Op.REDUCE_SCATTER), int(Op.SCATTER)])
    size = np.where(parts_in, np.where(received > sent, received, sent * members), sent)
    return np.asarray(np.where(parts_out & (sent <= received), received * members, size))


def _all_bounded(rows: Columns, first: Array) -> Array:
    if not len(first):
        return np.zeros(0, bool)
    exact = (rows.flags & int(Flag.EXIT_UPPER_BOUND)) == 0
    return np.asarray(np.add.reduceat(exact, first) == 0)


def _begins(table: Columns) -> Array:
    """When data could move: all have entered, and the group's one before is over.

    Rows are in order of group and sequence. Ends that only compare within their instance do not
    queue.
    """
    before = np.roll(table.end_ns, 1)
    follows = (np.diff(table.group, prepend=-2) == 0) & ~table.relative
    follows &= ~np.roll(table.relative, 1) & (before < table.end_ns)
    return np.asarray(np.where(follows, np.maximum(table.last_ns, before), table.last_ns))


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
    usual = _by_kind(rows, USUAL)
    return np.asarray(np.where(paused, np.minimum(transfer, usual[rows.kind]), transfer))


def _by_kind(rows: Columns, share: float) -> Array:
    """A quantile of the transfers of each kind: the value at or below it."""
    order = np.lexsort([rows.transfer_ns, rows.kind])
    count = np.bincount(rows.kind)
    place = np.cumsum(count) - count + (share * (count - 1)).astype(int)
    return np.asarray(rows.transfer_ns[order[place]].astype(float))


def _kinds(rows: Columns) -> Columns:
    """What is usual of each kind."""
    heads = rows.select(np.unique(rows.kind, return_index=True)[1])
    count = np.bincount(rows.kind)
    floor, lower = _by_kind(rows, LOW), _by_kind(rows, LOWER)
    noise = np.where(count >= ENOUGH, (floor - lower) / BETWEEN_SIGMAS, np.nan)
    quiet = floor + LOW_SIGMAS * np.nan_to_num(noise)
    table = {name: heads[name] for name in ("group", "op", "size_bytes", "members")}
    added = {"count": count, "floor_ns": floor, "quiet_ns": quiet, "noise_ns": noise}
    return Columns({**table, **added})


# -- all-to-alls -----------------------------------------------------------------------------------

EVEN = 1.01  # fullest rank over the mean: sizes are the same but for rounding


def tokens(grid: StepGrid) -> dict[str, Any] | None:
    """What ranks receive in all-to-alls: tokens, where experts are on the ranks.

    `imbalance` is the mean, over calls, of the fullest rank's bytes over the members' mean (experts
    on it have so much more to compute, and the others wait); `fullest` the ranks that were it, with
    their share of the calls. None where sizes are not recorded or all alike.
    """
    rows = grid.arrivals.rows
    rows = rows.select((rows.op == int(Op.ALL_TO_ALL)) & (rows.bytes_out > 0))
    if not len(rows):
        return None
    calls, place, members = np.unique(rows.instance, return_inverse=True, return_counts=True)
    received = rows.bytes_out.astype(float)
    most = np.zeros(len(calls))
    np.maximum.at(most, place, received)
    ratio = most / (np.bincount(place, received) / members)
    ratio = ratio[members > 1]
    if not len(ratio) or ratio.mean() < EVEN:
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
