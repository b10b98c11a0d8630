"""The micro-batches of a pipeline: whose each piece of work is, and how long each is beside others.

A micro-batch is known by the messages that pass it on. What a lane works between a message received
and the next one sent belongs to the micro-batch of both; but the first stage, which receives what
comes back, sends a new one: there a row is the end of one and the beginning of another.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evenstep.diagnose.graph.peers import alike, message_ends
from evenstep.diagnose.graph.structure import Graph, mixed, quantiles
from evenstep.diagnose.levels import ERRORS, MOST
from evenstep.statistics.interval import MAD_SIGMA

Array = npt.NDArray[Any]

LONG = 0.01  # of a lane's work in a step: shorter rows tell little
TURNS = 4  # of telling what of a row of two micro-batches is the one's by what the other takes


class Batches(NamedTuple):
    """Rows of micro-batches that several lanes have worked on.

    `common` is how many times as long as in the mean the micro-batches of each one are, noise left
    out. `together` is the correlation of a lane's with the other lanes', `deviation` how much
    micro-batches differ.
    """

    rows: Array
    common: Array
    together: float
    deviation: float


class _Parts(NamedTuple):
    """What rows have of micro-batches: all of their own work, or the `share` of each of two."""

    row: Array
    batch: Array
    share: Array

    def select(self, chosen: Array) -> _Parts:
        """Those picked by a mask."""
        return _Parts(*(column[chosen] for column in self))


def micro_batches(graph: Graph) -> Batches | None:
    """The micro-batches of a graph; None where no messages pass work on."""
    if not graph.operations.message.any():
        return None
    passed = _passed(graph)
    usual = _usual(graph, passed)
    over = np.where(usual > 0, graph.own_ns / np.maximum(usual, 1.0), 1.0)
    parts = _parts(graph, passed, usual)
    if not len(parts.row):
        return None
    batch, lane = parts.batch, graph.rows.lane[parts.row]
    weight = usual[parts.row] * parts.share**2
    each = _each(parts, over, weight)
    of_lane = np.unique(batch * len(graph.ranks) + lane, return_inverse=True)[1].reshape(-1)
    whole, count = np.bincount(batch, weight * each), np.bincount(batch, weight)
    own, size = np.bincount(of_lane, weight * each), np.bincount(of_lane, weight)
    rest = count[batch] - size[of_lane]
    met = rest > 0.1 * count[batch]
    if np.count_nonzero(met) < 2:
        return None
    others = (whole[batch] - own[of_lane])[met] / rest[met]
    mine = (own / size)[of_lane][met]
    spread = np.sqrt(mine.var() * others.var())
    covariance = float(((mine - mine.mean()) * (others - others.mean())).mean())
    together = covariance / float(spread) if spread > 0 else 0.0
    common = whole[batch] / count[batch]
    reliable = min(max(covariance, 0.0) / max(float(common[met].var()), 1e-12), 1.0)
    more = np.where(met, reliable * (common - 1), 0.0)
    found = 1 + np.bincount(parts.row, parts.share * more, len(graph.rows))
    rows = np.unique(parts.row[met])
    mean = np.average(found[rows], weights=usual[rows])
    return Batches(rows, found[rows] / mean, together, float(np.sqrt(max(covariance, 0.0))))


def _each(parts: _Parts, over: Array, weight: Array) -> Array:
    """How many times as long as usual each part is: of a row of two micro-batches what is left when
    the other takes as long as in all its other rows."""
    whole = over[parts.row]
    found, count = whole, np.maximum(np.bincount(parts.batch, weight), 1e-12)
    for _ in range(TURNS if (parts.share < 1).any() else 0):
        common = (np.bincount(parts.batch, weight * found) / count)[parts.batch]
        both = np.bincount(parts.row, parts.share * common)[parts.row]
        found = common + (whole - both) / parts.share
    return np.asarray(found)


def _usual(graph: Graph, passed: _Passed) -> Array:
    """The usual work of each row, 0 where that is too short to tell: of its place, or of all places
    where the same is done with a micro-batch, as far as these differ by no more than chance."""
    usual, place = np.zeros(len(graph.rows)), np.zeros(len(graph.rows), np.int64)
    kind, places = np.zeros(len(graph.rows), np.uint64), 0
    for number, part in enumerate(alike(graph)):
        own = part.of(graph.own_ns)
        middle = np.median(own, axis=(0, 1))
        long = part.there & (middle > LONG * middle.sum())
        rows, at = part.rows[long], np.broadcast_to(np.arange(len(middle)), own.shape)[long]
        usual[rows], place[rows], kind[rows] = middle[at], places + at, number
        places += len(middle)
    rows = np.flatnonzero(usual > 0)
    role = mixed([kind[rows], *(np.sign(one[rows]) for one in passed)])
    role = np.unique(role, return_inverse=True)[1].reshape(-1)
    own, mine = graph.own_ns[rows], usual[rows]
    roles = int(role.max(initial=-1)) + 1
    level = quantiles(own, role, MOST, roles)[role]
    apart = quantiles(np.abs(own / mine - 1), role, MOST, roles)[role] * MAD_SIGMA
    error = apart * np.sqrt(np.pi / 2 / np.bincount(place[rows])[place[rows]])
    by_chance = np.abs(mine / np.maximum(level, 1.0) - 1) <= ERRORS * error
    usual[rows] = np.where(by_chance, level, mine)
    return usual


def _parts(graph: Graph, passed: _Passed, usual: Array) -> _Parts:
    """The parts of all rows whose work is long enough to tell."""
    came, goes, fresh = passed.came, passed.goes, passed.fresh > 0
    batch = np.where(came >= 0, came, goes)
    both = (came >= 0) & fresh
    begins = fresh & (came < 0)
    lane = graph.rows.lane
    forward = quantiles(usual[begins], lane[begins], MOST, len(graph.ranks))[lane]
    share = np.where(both, np.minimum(forward / np.maximum(usual, 1.0), 1.0), 0.0)
    rows = np.arange(len(lane))
    parts = _Parts(np.append(rows, rows), np.append(batch, goes), np.append(1 - share, share))
    return parts.select((parts.batch >= 0) & (usual[parts.row] > 0) & (parts.share > 0))


class _Passed(NamedTuple):
    """Of each row the micro-batch that it received and the one that it sends, -1 none, and whether
    that is a new one; and from where, and to where. A micro-batch has the number of the message
    that first passed it on."""

    came: Array
    goes: Array
    fresh: Array
    source: Array  # lanes further on; 0 where nothing came or goes
    target: Array


def _passed(graph: Graph) -> _Passed:
    """What each row passes on."""
    rows = graph.rows
    source, target = message_ends(graph)
    sends, receives = source[rows.enter] == rows.lane, target[rows.wait] == rows.lane
    awaits_own = (source[rows.wait] == rows.lane) & (rows.enter != rows.wait)
    came = _before(graph, np.where(receives, rows.wait, -1), sends, awaits_own)
    back = (came >= 0) & (target[rows.enter] == source[came])
    begins = np.bincount(rows.lane, sends & (came < 0), len(graph.ranks)) >= len(graph.steps) * MOST
    fresh = sends & ((came < 0) | (back & begins[rows.lane]))
    parent = np.arange(len(source))
    passed = sends & ~fresh
    parent[rows.enter[passed]] = came[passed]
    for _ in range(int(np.ceil(np.log2(max(len(parent), 2))))):
        parent = parent[parent]
    first = np.append(parent[:-1], -1)  # of none
    goes = np.where(sends, first[rows.enter], -1)
    away = np.where(came >= 0, source[came] - rows.lane, 0)
    ahead = np.where(sends, target[rows.enter] - rows.lane, 0)
    return _Passed(first[came], goes, fresh.astype(int), away, ahead)


def _before(graph: Graph, received: Array, sends: Array, awaits_own: Array) -> Array:
    """The message that each row's lane had received last and neither passed on nor waited for
    anything else since, -1 none. `received`: what each row waits for, if that is one; `awaits_own`:
    it waits for nothing but that one of its own has gone."""
    rows = graph.rows
    order = np.lexsort([np.arange(len(rows)), rows.at_ns, rows.lane])
    lane, received = rows.lane[order], received[order]
    tells = (((rows.wait >= 0) & ~awaits_own) | sends | rows.ends)[order]
    last = np.maximum.accumulate(np.where(tells, np.arange(len(rows)), 0))
    last = np.append(0, last)[:-1]
    came = np.full(len(rows), -1)
    came[order] = np.where(lane[last] == lane, received[last], -1)
    return came
