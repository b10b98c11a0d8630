"""Ranks of the same program: those whose rows, place by place, are the same work."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evenstep.diagnose.graph.structure import Batch, Graph, mixed

Array = npt.NDArray[Any]


class Alike(NamedTuple):
    """Lanes of one program, and their rows: (segments, lanes, places), indices into the graph's."""

    lanes: Array
    segments: Array
    rows: Array


def alike(graph: Graph) -> list[Alike]:
    """All rows, laid out by program and place."""
    return [part for batch in graph.batches for part in _of_batch(graph, batch)]


def programs(graph: Graph) -> Array:
    """A number for each lane, the same where programs are; by the structure most segments have."""
    found = np.full(len(graph.ranks), -1)
    for batch in sorted(graph.batches, key=lambda one: -len(one.segments)):
        for part in _of_batch(graph, batch):
            new = part.lanes[found[part.lanes] < 0]
            if len(new):
                found[new] = found.max() + 1
    return found


def _of_batch(graph: Graph, batch: Batch) -> list[Alike]:
    count = len(batch.schedule.rows)
    head = slice(int(batch.first_row[0]), int(batch.first_row[0]) + count)
    lane = graph.rows.lane[head]
    code = _codes(graph, head, lane)
    first = np.flatnonzero(np.diff(lane, prepend=-1))
    sizes = np.diff(np.append(first, count))
    whole = np.concatenate([np.zeros(1, np.uint64), np.cumsum(code, dtype=np.uint64)])
    program = mixed([whole[first + sizes] - whole[first], sizes])
    found = []
    for number in np.unique(program):
        mine = np.flatnonzero(program == number)
        places = first[mine][:, None] + np.arange(sizes[mine[0]])[None, :]
        rows = batch.first_row[:, None, None] + places[None]
        found.append(Alike(lane[first[mine]], batch.segments, rows))
    return found


def _codes(graph: Graph, head: slice, lane: Array) -> Array:
    """A number per row: its place, and the kind of what it enters and waits for."""
    opens = np.flatnonzero(np.diff(lane, prepend=-1))
    place = np.arange(len(lane)) - np.repeat(opens, np.diff(np.append(opens, len(lane))))
    parts = [place, graph.rows.ends[head]]
    table = graph.operations
    if not len(table):
        return mixed(parts)
    for link in ("enter", "wait"):
        number = graph.rows[link][head]
        known = number >= 0
        at = np.maximum(number, 0)
        parts += [np.where(known, table[name][at], -1) for name in ("op", "message", "members")]
        root, message = table.root[at], known & table.message[at]
        parts.append(np.where(message, np.sign(root - graph.ranks[lane]), 0))
    return mixed(parts)


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
        own = graph.own_ns[part.rows]
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
