"""Which rows of a graph are the same work: of lanes of one program, and of one micro-batch.

Peers are lanes that run the same program, so that their rows agree place by place. A micro-batch is
followed by the messages that pass it on. Work of a lane between a message received and the next one
sent belongs to the micro-batch of both; but the first stage, which receives a micro-batch that
comes back, then sends a new one: there a row ends one and begins another.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

import numpy as np

from evenstep.diagnose.graph.structure import (
    Graph,
    quantiles,
    row_hash,
    row_numbers,
)
from evenstep.diagnose.levels import ERRORS, MINOR, MOST, NEARLY_ALL
from evenstep.statistics.interval import MAD_SIGMA
from evenstep.statistics.trend import linear, rank_values
from evenstep.trace.columns import Array, largest_of, positions_by_key, smallest_of

LONG = 0.01  # of a lane's work in a step: shorter rows are left out
ROUNDS = 4  # of dividing rows of two micro-batches by what each takes elsewhere


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

    A lane's program is the sequence of what it enters, the set of kinds it ever waits for, and
    whether it begins the way of micro-batches: in a group of two, directions look alike.
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
    code += (waited + beginning(graph))[cells % lanes]
    pair = row_numbers(cells // lanes, code)
    members = np.zeros(len(cells), np.uint64)
    np.add.at(members, pair, row_hash([cells % lanes]))  # so that all segments have the same lanes
    code = row_hash([code, members[pair]])[line]
    chosen = (np.flatnonzero(code == number) for number in np.unique(code))
    return [_pool(graph, batch[at], cell[at], kind[at], place[at], local[at]) for at in chosen]


def _pool(
    graph: Graph, batch: Array, cell: Array, kind: Array, place: Array, local: Array
) -> Peers:
    """The peers given by rows of one segment of each structure, `local` within it."""
    kind = row_hash([kind, positions_by_key(cell, kind)])  # what a place has twice are two
    _, head, column = np.unique(kind, return_index=True, return_inverse=True)
    column = column.reshape(-1)
    order = np.lexsort([np.bincount(column, local) / np.bincount(column), place[head]])
    column, width = np.argsort(order)[column], len(order)
    line = np.unique(cell, return_inverse=True)[1].reshape(-1)
    of, lanes = np.unique(batch), np.unique(cell % len(graph.ranks))
    table = np.full((len(of) * len(lanes), width), -1)
    table[line, column] = np.arange(len(cell))
    after = np.where(table < 0, table.max(axis=1, keepdims=True), table)
    after = np.minimum.accumulate(after[:, ::-1], axis=1)[:, ::-1]
    held = local[np.where(table < 0, after, table)]  # rows of one place may come in any order
    segments = np.flatnonzero(np.isin(graph.batch_of, of))
    begin = np.searchsorted(graph.rows.segment, segments)[:, None, None]
    turn = np.searchsorted(of, graph.batch_of[segments])
    shape = len(of), len(lanes), width
    there = (table >= 0).reshape(shape)[turn]
    return Peers(lanes, segments, begin + held.reshape(shape)[turn], there)


def between_barriers(graph: Graph, part: Peers, own_ns: Array, wide: Array) -> tuple[Array, Array]:
    """Own work of rows of all lanes, with waits for other operations, before each place where most
    wait for one of the `wide` operations (a mask), and after the last: (places + 1, steps, lanes).
    And when each lane was past these places: (places, steps, lanes), nan where it need not wait.
    """
    wait = graph.rows.wait[part.rows]
    known = (wait >= 0) & part.there
    wide = known & np.append(wide, False)[wait]
    at, over = graph.rows.at_ns[part.rows], np.append(graph.operations.over_ns, 0)[wait]
    blocked = np.where(known, np.maximum(over - at, 0), 0)
    places = np.flatnonzero((wide & (blocked > 0)).mean(axis=(0, 1)) >= MOST)
    own = part.by_place(own_ns).astype(float)
    own[:, :, 1:] += np.where(wide, 0.0, blocked)[:, :, :-1]  # counts with the work after it
    cut = np.split(own, places + 1, axis=2)
    past = np.where(wide, np.maximum(over, at), np.nan)[:, :, places]
    return np.stack([chunk.sum(axis=2) for chunk in cut]), np.moveaxis(past, 2, 0)


def replicas(graph: Graph) -> tuple[Array, Array]:
    """Which replica of the job each lane is part of, and the mask of the collectives that reach
    several: (lanes,) and (operations,).

    Lanes of a replica share its work: they pass messages on, or are in groups that reach less far
    from the first lane to the last, as shards within a node do, than those that hold all together.
    A lane is its own where all groups reach as far, or where messages alone hold all together.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    count, lanes, table = len(graph.operations), len(graph.ranks), graph.operations
    link = np.stack([graph.rows.enter, graph.rows.wait])
    lane, link = np.broadcast_to(graph.rows.lane, link.shape)[link >= 0], link[link >= 0]
    first = smallest_of(lane, link, count, most=lanes)
    reach = np.where(table.message, 0, largest_of(lane, link, count, least=0) - first)
    pair = np.unique((reach[link] * lanes + first[link]) * lanes + lane)
    far, *ends = np.unravel_index(pair, (lanes, lanes, lanes))
    reaches = np.unique(far)

    def joined(most: int) -> tuple[int, Array]:
        near = far <= most
        edges = (near[near], np.stack(ends)[:, near])
        return connected_components(coo_array(edges, shape=(lanes,) * 2))  # type: ignore[no-any-return]

    unit = np.arange(lanes)
    if len(reaches):
        fewest, _ = joined(reaches[-1])
        all_are = bisect_left(reaches, True, key=lambda most: joined(most)[0] == fewest)
        unit = joined(reaches[all_are - 1])[1] if all_are else unit
    wide = np.zeros(count, bool)
    wide[link[unit[lane] != unit[first[link]]]] = True
    return unit, wide & ~table.message


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
    group = np.append(graph.operations.group, -1) + 1
    line = group * len(graph.ranks) + ends
    known = (ends >= 0).all(axis=0)
    members = np.unique(line[:, known])
    size = np.bincount(members // len(graph.ranks), minlength=int(group.max()) + 1)[group]
    source, target = np.searchsorted(members, line)
    return np.where(known, (target - source) % np.maximum(size, 1), 0)


def message_ends(graph: Graph) -> Array:
    """The lanes that each message goes from and to, -1 if unknown or no message; the last entry is
    that of no operation, -1. Two of (operations + 1,)."""
    rows, table = graph.rows, graph.operations
    source, target = np.full((2, len(table) + 1), -1)
    message, sender = np.append(table.message, False), table.root
    for column in (rows.enter, rows.wait):
        mine = np.flatnonzero(message[column])
        link, lane = column[mine], rows.lane[mine]
        sends = sender[link] == graph.ranks[lane]
        source[link[sends]], target[link[~sends]] = lane[sends], lane[~sends]
    return np.stack([source, target])


def beginning(graph: Graph) -> Array:
    """Whether each lane mostly sends its first message of a step before one has come to it: the
    first stage of a pipeline does, as do all members of a ring."""
    rows, lanes = graph.rows, len(graph.ranks)
    source, target = message_ends(graph)
    passed = (source >= 0) & (target >= 0)
    sends = np.flatnonzero(passed[rows.enter] & (source[rows.enter] == rows.lane))
    cell = rows["index"][sends] * lanes + rows.lane[sends]
    sent_ns = smallest_of(rows.at_ns[sends], cell, len(graph.steps) * lanes, most=np.inf)
    return np.asarray((sent_ns < _first_came_ns(graph)).reshape(-1, lanes).mean(axis=0) > MOST)


def _first_came_ns(graph: Graph) -> Array:
    """When the first message of each step came to each lane, inf for none: (steps × lanes,)."""
    table, lanes, (source, target) = graph.operations, len(graph.ranks), message_ends(graph)
    came = np.flatnonzero((source >= 0)[:-1] & (target >= 0)[:-1])
    cell = np.searchsorted(graph.steps, table.step[came]) * lanes + target[came]
    return smallest_of(table.over_ns[came], cell, len(graph.steps) * lanes, most=np.inf)


def in_hand(graph: Graph) -> Array:
    """Share of each lane's work with a message in hand: between its coming and one that the lane
    sends, and but for lanes that begin a step after the first of that step has come. All stages of
    a pipeline have some; of two ranks that exchange what is done one has none."""
    rows, lanes = graph.rows, len(graph.ranks)
    source, target = message_ends(graph)
    cell = rows["index"] * lanes + rows.lane
    order = np.lexsort([rows.at_ns, cell])
    came, gone = (target[rows.wait] == rows.lane)[order], (source[rows.enter] == rows.lane)[order]
    more = came.astype(int) - gone
    held = np.cumsum(more) - more  # before each row
    least = smallest_of(held, cell[order])
    own, lane, cell = graph.own_ns[order], rows.lane[order], cell[order]
    since_ns = np.where(beginning(graph)[lane], -np.inf, _first_came_ns(graph)[cell])
    working = (held > least[cell]) & (rows.at_ns[order] - own >= since_ns)
    share = np.bincount(lane, own * working, lanes)
    return np.asarray(share / np.maximum(np.bincount(lane, own, lanes), 1.0))


# -- micro-batches ---------------------------------------------------------------------------------


class MicroBatches(NamedTuple):
    """Rows of micro-batches that several lanes worked on."""

    rows: Array
    common: Array  # length of each row's micro-batches over the mean, noise left out
    correlation: float  # of a lane's lengths with the other lanes'
    deviation: float  # of the lengths of micro-batches, relative to their mean


class _Parts(NamedTuple):
    """Parts of rows that belong to one micro-batch: `share` of the row's own work."""

    row: Array
    batch: Array
    share: Array

    def select(self, chosen: Array) -> _Parts:
        return _Parts(*(column[chosen] for column in self))


def micro_batches(graph: Graph) -> MicroBatches | None:
    """The micro-batches of a graph; None where no messages pass work on."""
    if not graph.operations.message.any():
        return None
    passed = _passage(graph)
    usual = _usual(graph, passed)
    relative = graph.own_ns / np.maximum(usual, 1.0)
    parts = _parts(graph, passed, usual)
    if not len(parts.row):
        return None
    batch, weight = parts.batch, usual[parts.row] * parts.share**2
    length = _lengths(parts, relative, weight)
    of_lane = row_numbers(batch, graph.rows.lane[parts.row])
    whole, count = np.bincount(batch, weight * length), np.bincount(batch, weight)
    own, size = np.bincount(of_lane, weight * length), np.bincount(of_lane, weight)
    rest = count[batch] - size[of_lane]
    shared = rest > MINOR * count[batch]
    if np.count_nonzero(shared) < 2:
        return None
    others = (whole[batch] - own[of_lane])[shared] / rest[shared]
    mine = (own / size)[of_lane][shared]
    covariance = float(((mine - mine.mean()) * others).mean())
    correlation = linear(rank_values(mine), rank_values(others))  # that few long ones do not move
    common = whole[batch] / count[batch]
    reliable = min(max(covariance, 0.0) / max(float(common[shared].var()), 1e-12), 1.0)
    more = np.where(shared, reliable * (common - 1), 0.0)
    found = 1 + np.bincount(parts.row, parts.share * more, len(graph.rows))
    rows = np.unique(parts.row[shared])
    mean = np.average(found[rows], weights=usual[rows])
    return MicroBatches(rows, found[rows] / mean, correlation, float(np.sqrt(max(covariance, 0.0))))


def _lengths(parts: _Parts, relative: Array, weight: Array) -> Array:
    """How many times as long as usual each part is; in a row of two micro-batches, what remains
    when the other takes as long as in all its rows."""
    whole = relative[parts.row]
    found, count = whole, np.maximum(np.bincount(parts.batch, weight), 1e-12)
    for _ in range(ROUNDS if (parts.share < 1).any() else 0):
        common = (np.bincount(parts.batch, weight * found) / count)[parts.batch]
        both = np.bincount(parts.row, parts.share * common)[parts.row]
        found = common + (whole - both) / parts.share
    return np.asarray(found)


def _usual(graph: Graph, passed: _Passed) -> Array:
    """The usual work of each row, 0 where too short: that of its place, or of all places that do
    the same with a micro-batch where the difference may be chance."""
    usual, place = np.zeros(len(graph.rows)), np.zeros(len(graph.rows), np.int64)
    kind, places = np.zeros(len(graph.rows), np.uint64), 0
    for number, part in enumerate(peers(graph)):
        own = part.by_place(graph.own_ns)
        middle = np.median(own, axis=(0, 1))
        long = part.there & (middle > LONG * middle.sum())
        rows, at = part.rows[long], np.broadcast_to(np.arange(len(middle)), own.shape)[long]
        usual[rows], place[rows], kind[rows] = middle[at], places + at, number
        places += len(middle)
    rows = np.flatnonzero(usual > 0)
    role = row_numbers(kind[rows], *(np.sign(one[rows]) for one in passed))
    own, mine = graph.own_ns[rows], usual[rows]
    roles = int(role.max(initial=-1)) + 1
    level = quantiles(own, role, MOST, roles)[role]
    apart = quantiles(np.abs(own / mine - 1), role, MOST, roles)[role] * MAD_SIGMA
    error = apart * np.sqrt(np.pi / 2 / np.bincount(place[rows])[place[rows]])
    by_chance = np.abs(mine / np.maximum(level, 1.0) - 1) <= ERRORS * error
    usual[rows] = np.where(by_chance, level, mine)
    return usual


def _parts(graph: Graph, passed: _Passed, usual: Array) -> _Parts:
    """The parts of all rows with usual work."""
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


def work_by_direction(graph: Graph) -> list[Array]:
    """Each row's own work before messages to earlier lanes, and to later ones: backward and forward
    of a pipeline's stages between the first and the last, which do both before they send. Two of
    (rows,), ns; none where it is not known for whom most messages are."""
    rows, lanes = graph.rows, len(graph.ranks)
    source, target = (ends[rows.enter] for ends in message_ends(graph))
    sends = np.flatnonzero((source == rows.lane) & (target >= 0))
    if len(sends) <= NEARLY_ALL * np.count_nonzero(source == rows.lane):
        return []
    following = np.append(sends, -1)[np.searchsorted(sends, np.arange(len(rows)))]
    same = (rows.lane[following] == rows.lane) & (rows["index"][following] == rows["index"])
    way = np.where((following >= 0) & same, np.sign(target - rows.lane)[following], 0)
    both = [np.bincount(rows.lane[way == one], minlength=lanes) > 0 for one in (-1, 1)]
    between = np.all(both, axis=0)[rows.lane]
    return [np.where(between & (way == one), graph.own_ns, 0.0) for one in (-1, 1)]


class _Passed(NamedTuple):
    """Micro-batches that each row received and sends. A micro-batch has the number of the message
    that first passed it on."""

    came: Array  # -1 none
    goes: Array  # -1 none
    fresh: Array  # whether the one sent is new
    source: Array  # how many lanes further on the sender is; 0 where nothing came
    target: Array  # likewise the receiver


def _passage(graph: Graph) -> _Passed:
    rows = graph.rows
    source, target = message_ends(graph)
    sends, receives = source[rows.enter] == rows.lane, target[rows.wait] == rows.lane
    awaits_own = (source[rows.wait] == rows.lane) & (rows.enter != rows.wait)
    # but for the first stage, whose micro-batches follow each other without a message between
    collective = ~np.append(graph.operations.message, True)[rows.wait]
    within = awaits_own | (collective & ~beginning(graph)[rows.lane])
    came = _before(graph, np.where(receives, rows.wait, -1), sends, within)
    back = (came >= 0) & (target[rows.enter] == source[came])
    begins = np.bincount(rows.lane, sends & (came < 0), len(graph.ranks)) >= len(graph.steps) * MOST
    fresh = sends & ((came < 0) | (back & begins[rows.lane]))
    parent = np.arange(len(source))
    passed = sends & ~fresh
    parent[rows.enter[passed]] = came[passed]
    for _ in range(len(parent).bit_length()):
        parent = parent[parent]
    first = np.append(parent[:-1], -1)  # for no message
    goes = np.where(sends, first[rows.enter], -1)
    away = np.where(came >= 0, source[came] - rows.lane, 0)
    ahead = np.where(sends, target[rows.enter] - rows.lane, 0)
    return _Passed(first[came], goes, fresh.astype(int), away, ahead)


def _before(graph: Graph, received: Array, sends: Array, passed_over: Array) -> Array:
    """The message each row's lane received last, if it sent and awaited nothing since; -1 none.

    `received`: the message each row waits for; `passed_over`: rows whose waits do not count."""
    rows = graph.rows
    order = np.lexsort([np.arange(len(rows)), rows.at_ns, rows.lane])
    lane, received = rows.lane[order], received[order]
    tells = (((rows.wait >= 0) & ~passed_over) | sends | rows.ends)[order]
    last = np.maximum.accumulate(np.where(tells, np.arange(len(rows)), 0))
    came = np.full(len(rows), -1)
    came[order[1:]] = np.where(lane[last[:-1]] == lane[1:], received[last[:-1]], -1)
    return came
