"""Which work of a pipeline is of one micro-batch: its rows follow one another through messages."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evenstep.diagnose.graph.peers import alike
from evenstep.diagnose.graph.structure import Graph

Array = npt.NDArray[Any]

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
