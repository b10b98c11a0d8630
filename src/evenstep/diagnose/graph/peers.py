"""Ranks of the same program: those whose rows, place by place, are the same work."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evenstep.diagnose.graph.structure import Graph, mixed

Array = npt.NDArray[Any]


class Alike(NamedTuple):
    """Lanes of one program, whatever they were seen to wait for; (segments, lanes, places).

    Who need not wait leaves no record of it: that place is not there, and what was worked in it is
    in the row that follows. `rows` are indices into the graph's.
    """

    lanes: Array
    segments: Array
    rows: Array
    there: Array

    def of(self, own_ns: Array) -> Array:
        """Own work by place, of that of rows."""
        return np.asarray(own_ns[self.rows] * self.there)

    def lay(self, own_ns: Array, here: Array) -> None:
        """Put own work by place into that of rows."""
        own_ns[self.rows] = 0.0
        np.add.at(own_ns, self.rows, here)


def alike(graph: Graph) -> list[Alike]:
    """All rows by program and place, over the segments of all structures.

    A lane's program is what it enters, step by step, and all kinds of what it ever waits for.
    """
    lanes, sizes = len(graph.ranks), [len(batch.links.previous) for batch in graph.batches]
    batch = np.repeat(np.arange(len(sizes)), sizes)
    local = np.concatenate([np.arange(size) for size in sizes])
    rows = np.repeat([int(one.first_row[0]) for one in graph.batches], sizes) + local
    cell = batch * lanes + graph.rows.lane[rows]
    cells, opens, line = np.unique(cell, return_index=True, return_inverse=True)
    enter, wait = (mixed(_kinds(graph, rows, link)) for link in ("enter", "wait"))
    lasting = graph.rows.ends[rows] | (graph.rows.enter[rows] >= 0)
    before = np.cumsum(lasting) - lasting  # a place leads to the next entry, or a wait before it
    place = 2 * (before - before[opens][line]) + lasting
    kind = mixed([place, np.where(lasting, 0, wait)])
    code, waited = np.zeros(len(cells), np.uint64), np.zeros(lanes, np.uint64)
    np.add.at(code, line[lasting], mixed([place, graph.rows.ends[rows], enter])[lasting])
    kinds = np.unique(np.stack([(cell % lanes).astype(np.uint64), wait]), axis=1)
    np.add.at(waited, kinds[0].astype(np.int64), mixed([kinds[1]]))
    code += waited[cells % lanes]
    pair = np.unique(mixed([cells // lanes, code]), return_inverse=True)[1].reshape(-1)
    together = np.zeros(len(cells), np.uint64)
    np.add.at(together, pair, mixed([cells % lanes]))  # so that all have the same lanes
    code = mixed([code, together[pair]])[line]
    chosen = (np.flatnonzero(code == number) for number in np.unique(code))
    return [_pool(graph, batch[at], cell[at], kind[at], place[at], local[at]) for at in chosen]


def _pool(
    graph: Graph, batch: Array, cell: Array, kind: Array, place: Array, local: Array
) -> Alike:
    """Of rows of one segment of each structure: kind, order, and place in the segment."""
    order, index = np.lexsort([local, kind, cell]), np.arange(len(cell))
    first = np.append(True, (np.diff(kind[order]) != 0) | (np.diff(cell[order]) != 0))
    turn = index - np.maximum.accumulate(np.where(first, index, 0))
    kind[order] = mixed([kind[order], turn])  # what a place has twice are two
    _, head, column = np.unique(kind, return_index=True, return_inverse=True)
    column = column.reshape(-1)
    order = np.lexsort([np.bincount(column, local) / np.bincount(column), place[head]])
    column, width = np.argsort(order)[column], len(order)
    line = np.unique(cell, return_inverse=True)[1].reshape(-1)
    of, lanes = np.unique(batch), np.unique(cell % len(graph.ranks))
    table = np.full((len(of) * len(lanes), width), -1)
    table[line, column] = index
    latest = np.where(table < 0, len(index), table)[:, ::-1]  # rows of a lane ascend
    after = np.minimum.accumulate(latest, axis=1)[:, ::-1]
    held = local[np.where(after < len(index), after, table.max(axis=1, keepdims=True))]
    segments = np.flatnonzero(np.isin(graph.batch_of, of))
    begin = np.searchsorted(graph.rows.segment, segments)[:, None, None]
    turn = np.searchsorted(of, graph.batch_of[segments])
    shape = len(of), len(lanes), width
    there = (table >= 0).reshape(shape)[turn]
    return Alike(lanes, segments, begin + held.reshape(shape)[turn], there)


def _kinds(graph: Graph, rows: Array, link: str) -> list[Array]:
    """Of what rows enter or wait for: operation, message or not, members, and the way it goes."""
    table, number = graph.operations, graph.rows[link][rows]
    if not len(table):
        return [number]
    known, at = number >= 0, np.maximum(number, 0)
    parts = [np.where(known, table[name][at], -1) for name in ("op", "message", "members")]
    way = np.sign(table.root[at] - graph.ranks[graph.rows.lane[rows]])
    return [*parts, np.where(known & table.message[at], way, 0)]


LONG = 0.01  # of a lane's work in a step: shorter rows tell little


class Batches(NamedTuple):
    """Rows of micro-batches that several lanes have worked on.

    `common` is how many times as long as usual the rows of each one's micro-batch are, noise left
    out. `together` is the correlation of a lane's with the other lanes', `deviation` how much
    micro-batches differ.
    """

    rows: Array
    common: Array
    together: float
    deviation: float


def micro_batches(graph: Graph) -> Batches | None:
    """The micro-batches of a graph; None where no messages pass work on."""
    if not graph.operations.message.any():
        return None
    number = _numbers(graph)
    over, usual = np.ones(len(graph.rows)), np.zeros(len(graph.rows))
    for part in alike(graph):
        own = part.of(graph.own_ns)
        middle = np.median(own, axis=0, keepdims=True)
        long = middle > LONG * middle.sum(axis=2, keepdims=True)
        over[part.rows] = np.where(long, own / np.maximum(middle, 1.0), 1.0)
        usual[part.rows] = np.where(long, middle, 0.0)
    rows = np.flatnonzero((number >= 0) & (usual > 0))
    if not len(rows):
        return None
    number, lane = number[rows], graph.rows.lane[rows]
    weight, over = usual[rows], over[rows]
    of_lane = np.unique(number * len(graph.ranks) + lane, return_inverse=True)[1].reshape(-1)
    batch, count = np.bincount(number, weight * over), np.bincount(number, weight)
    own, size = np.bincount(of_lane, weight * over), np.bincount(of_lane, weight)
    rest = count[number] - size[of_lane]
    met = rest > 0.1 * count[number]
    if np.count_nonzero(met) < 2:
        return None
    others = (batch[number] - own[of_lane])[met] / rest[met]
    mine = (own / size)[of_lane][met]
    spread = np.sqrt(mine.var() * others.var())
    covariance = float(((mine - mine.mean()) * (others - others.mean())).mean())
    together = covariance / float(spread) if spread > 0 else 0.0
    common = batch[number] / count[number]
    reliable = min(max(covariance, 0.0) / max(float(common[met].var()), 1e-12), 1.0)
    return Batches(
        rows[met],
        1 + reliable * (common[met] - 1),
        together,
        float(np.sqrt(max(covariance, 0.0))),
    )


def _numbers(graph: Graph) -> Array:
    """The micro-batch of each row, -1 none: that of the message it came after or passes on."""
    rows, message = graph.rows, np.append(graph.operations.message, False)
    order = np.lexsort([np.arange(len(rows)), rows.at_ns, rows.lane])
    lane, wait, enter = rows.lane[order], rows.wait[order], rows.enter[order]
    came = np.full(len(rows), -1)
    came[1:] = np.where((lane[1:] == lane[:-1]) & message[wait[:-1]], wait[:-1], -1)
    sends = message[enter] & (graph.operations.root[enter] == graph.ranks[lane])
    parent = np.arange(len(graph.operations))
    passed = sends & (came >= 0)
    parent[enter[passed]] = came[passed]
    for _ in range(int(np.ceil(np.log2(max(len(parent), 2))))):
        parent = parent[parent]
    found = np.full(len(rows), -1)
    through = np.where(came >= 0, came, np.where(sends, enter, -1))
    found[order] = np.where(through >= 0, parent[through], -1)
    return found
