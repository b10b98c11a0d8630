"""Peers: lanes that run the same program, so that their rows, place by place, are the same work."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evenstep.diagnose.graph.structure import Graph, row_hash

Array = npt.NDArray[Any]


class Peers(NamedTuple):
    """Lanes of one program, whether or not they had to wait.

    A lane that need not wait at a place has no row there: its work is in the row that follows.
    """

    lanes: Array
    segments: Array
    rows: Array  # (segments, lanes, places), indices into the graph's rows
    there: Array  # likewise: whether the lane has a row of its own at that place

    def by_place(self, own_ns: Array) -> Array:
        """Own work of rows as (segments, lanes, places)."""
        return np.asarray(own_ns[self.rows] * self.there)

    def assign(self, own_ns: Array, here: Array) -> None:
        """Write own work by place into that of rows."""
        own_ns[self.rows] = 0.0
        np.add.at(own_ns, self.rows, here)


def peers(graph: Graph) -> list[Peers]:
    """All lanes by program, over the segments of all structures.

    A lane's program is the sequence of what it enters and the set of kinds it ever waits for.
    """
    lanes, sizes = len(graph.ranks), [len(batch.links.previous) for batch in graph.batches]
    batch = np.repeat(np.arange(len(sizes)), sizes)
    local = np.concatenate([np.arange(size) for size in sizes])
    rows = np.repeat([int(one.first_row[0]) for one in graph.batches], sizes) + local
    cell = batch * lanes + graph.rows.lane[rows]
    cells, opens, line = np.unique(cell, return_index=True, return_inverse=True)
    enter, wait = (row_hash(_kinds(graph, rows, link)) for link in ("enter", "wait"))
    lasting = graph.rows.ends[rows] | (graph.rows.enter[rows] >= 0)
    before = np.cumsum(lasting) - lasting  # a place leads to the next entry, or a wait before it
    place = 2 * (before - before[opens][line]) + lasting
    kind = row_hash([place, np.where(lasting, 0, wait)])
    code, waited = np.zeros(len(cells), np.uint64), np.zeros(lanes, np.uint64)
    np.add.at(code, line[lasting], row_hash([place, graph.rows.ends[rows], enter])[lasting])
    kinds = np.unique(np.stack([(cell % lanes).astype(np.uint64), wait]), axis=1)
    np.add.at(waited, kinds[0].astype(np.int64), row_hash([kinds[1]]))
    code += waited[cells % lanes]
    pair = np.unique(row_hash([cells // lanes, code]), return_inverse=True)[1].reshape(-1)
    members = np.zeros(len(cells), np.uint64)
    np.add.at(members, pair, row_hash([cells % lanes]))  # so that all segments have the same lanes
    code = row_hash([code, members[pair]])[line]
    chosen = (np.flatnonzero(code == number) for number in np.unique(code))
    return [_pool(graph, batch[at], cell[at], kind[at], place[at], local[at]) for at in chosen]


def _pool(
    graph: Graph, batch: Array, cell: Array, kind: Array, place: Array, local: Array
) -> Peers:
    """The peers given by rows of one segment of each structure, `local` within it."""
    order, index = np.lexsort([local, kind, cell]), np.arange(len(cell))
    first = np.append(True, (np.diff(kind[order]) != 0) | (np.diff(cell[order]) != 0))
    turn = index - np.maximum.accumulate(np.where(first, index, 0))
    kind[order] = row_hash([kind[order], turn])  # what a place has twice are two
    _, head, column = np.unique(kind, return_index=True, return_inverse=True)
    column = column.reshape(-1)
    order = np.lexsort([np.bincount(column, local) / np.bincount(column), place[head]])
    column, width = np.argsort(order)[column], len(order)
    line = np.unique(cell, return_inverse=True)[1].reshape(-1)
    of, lanes = np.unique(batch), np.unique(cell % len(graph.ranks))
    table = np.full((len(of) * len(lanes), width), -1)
    table[line, column] = index
    after = np.where(table < 0, table.max(axis=1, keepdims=True), table)
    after = np.minimum.accumulate(after[:, ::-1], axis=1)[:, ::-1]
    held = local[np.where(table < 0, after, table)]  # rows of one place may come in any order
    segments = np.flatnonzero(np.isin(graph.batch_of, of))
    begin = np.searchsorted(graph.rows.segment, segments)[:, None, None]
    turn = np.searchsorted(of, graph.batch_of[segments])
    shape = len(of), len(lanes), width
    there = (table >= 0).reshape(shape)[turn]
    return Peers(lanes, segments, begin + held.reshape(shape)[turn], there)


def _kinds(graph: Graph, rows: Array, link: str) -> list[Array]:
    """Kinds of what rows enter or wait for: operation, message, members, direction."""
    table, number = graph.operations, graph.rows[link][rows]
    if not len(table):
        return [number]
    known, at = number >= 0, np.maximum(number, 0)
    parts = [np.where(known, table[name][at], -1) for name in ("op", "message", "members")]
    ends = message_ends(graph)
    return [*parts, ends[0][number] == graph.rows.lane[rows], _away(graph, ends)[number]]


def _away(graph: Graph, ends: Array) -> Array:
    """How many members of its group further on the receiver of each message is, where the first
    follows the last; 0 if unknown or no message. (operations + 1,)."""
    line = (np.append(graph.operations.group, -1) + 1) * len(graph.ranks) + ends
    known = (ends >= 0).all(axis=0)
    members = np.unique(line[:, known])
    group, own = members // len(graph.ranks), line[0] // len(graph.ranks)
    size = np.searchsorted(group, own, side="right") - np.searchsorted(group, own)
    source, target = np.searchsorted(members, line)
    return np.where(known, (target - source) % np.maximum(size, 1), 0)


def message_ends(graph: Graph) -> Array:
    """The lanes that each message goes from and to, -1 if unknown or no message; the last entry is
    that of no operation, -1. Two of (operations + 1,)."""
    rows, table = graph.rows, graph.operations
    source, target = np.full((2, len(table) + 1), -1)
    message, sender = np.append(table.message, False), np.append(table.root, -1)
    for link in (rows.enter, rows.wait):
        sends = sender[link] == graph.ranks[rows.lane]
        for ends, mine in ((source, message[link] & sends), (target, message[link] & ~sends)):
            ends[link[mine]] = rows.lane[mine]
    return np.stack([source, target])
