"""Waits of compute streams, which no record shows, inferred from when operations are entered.

Between two entries a lane does its own work, or waits for an operation it entered before: at once,
after a part of its work, or after all of it. All work of a lane in a step has one pace; the waits
that fit the paces of all places best are taken (a max-plus model of each gap, fitted by its mean
absolute error).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from evenstep.diagnose.graph.streams import (
    AT_ONCE_NS,
    CROSSING_NS,
    TELLING,
    idle_before,
    kernels,
    moved,
)
from evenstep.diagnose.graph.structure import grouped_order, means, row_hash
from evenstep.diagnose.levels import MINOR, MOST, NEARLY_ALL, SEVERAL
from evenstep.trace.columns import Array, Columns
from evenstep.trace.spool.layout import Op

FURTHEST = 6  # entries after which an operation may still be waited for: a layer of experts has 5
SURE = 0.15  # of a misfit: smaller improvements do not count
WHOLE = (0.0, 1.0)  # shares of work, done before a wait; others only where these fit clearly worse
SHARES = (0.0, 0.25, 1 / 3, 0.5, 2 / 3, 0.75, 1.0)  # as layers are cut
LARGEST_WEIGHT = 1 / 3  # of a step's work: weight of one place in the pace
_AT_ONCE = (0.0, *[np.nan] * (FURTHEST - 1))  # shares of work before a wait for the last entry
REACHED_ROUNDS = 2  # of usual work and entries held by their queue in turn
PACE_ROUNDS = 4  # of fitting waits and computing paces in turn
MOST_GAPS = 60_000  # that are fitted
_REDUCTIONS = (int(Op.ALL_REDUCE), int(Op.REDUCE_SCATTER), int(Op.REDUCE))


class Awaited(NamedTuple):
    """How many entries later each entry's lane waits for its operation (0: never); whether it works
    before it waits, and since when it then waits; and whether it was idle before the entry."""

    ahead: Array
    worked: Array
    since_ns: Array
    idle: Array


def awaited(rows: Columns, operations: Columns, over_ns: Array) -> Awaited:
    """Infer the waits of each entry's lane.

    `rows` in order of lane and time; `over_ns` is the end of each operation, in place of which
    device rows use their own stamps. Places of a program are judged over all lanes and steps.
    Messages that one kernel carries are entered, and waited for, as one.
    """
    if not rows.on_device.any():
        return _awaited(rows, operations, over_ns)
    last = np.flatnonzero((np.diff(kernels(rows), append=-1) != 0) | ~rows.on_device)
    found = _awaited(rows.select(last), operations, over_ns)
    return found if len(last) == len(rows) else _of_members(found, last, len(rows))


def _of_members(found: Awaited, last: Array, count: int) -> Awaited:
    """The waits of the last row of each kernel, for all its rows; `ahead` counts rows."""
    member = np.searchsorted(last, np.arange(count))
    first = np.append(0, last[:-1] + 1)
    end = np.minimum(member + found.ahead[member], len(last) - 1)
    entered = np.where(found.worked[member], first[end], last[np.maximum(end - 1, member)] + 1)
    ahead = np.where(found.ahead[member] > 0, entered - np.arange(count), 0)
    return Awaited(ahead, found.worked[member], found.since_ns[member], found.idle[member])


def _awaited(rows: Columns, operations: Columns, over_ns: Array) -> Awaited:
    over = np.where(rows.on_device, rows.leave_ns, over_ns[rows.operation])
    entered = _entered_kinds(rows, operations)
    gaps = _gaps(rows, over, _places(rows, entered), entered)
    share = _shares_alike(rows, operations, gaps)
    return _waits_of_rows(rows, gaps, _shares(rows, operations, gaps, share))


def _shares(rows: Columns, operations: Columns, gaps: _Gaps, share: Array) -> Array:
    """How much of each kind's work is done before it waits, (kinds, FURTHEST), nan: no wait;
    searched from `share`."""
    received = operations.message[rows.operation[gaps.row - 1]] & np.isnan(gaps.computed)
    sure = (means(received, gaps.kind) > MOST) & (share[:, 0] == 0)
    seen, told = _shares_by_idle_time(rows, gaps)
    share = np.where(told[:, None], seen, share)
    follows = _in_stream(rows, gaps)
    share[follows], told = _AT_ONCE, told | follows
    return _best_shares(gaps, share, sure | told)


def with_reached(rows: Columns, operations: Columns) -> Columns:
    """The entries, with those whose kernels began as soon as the queue of their group was free
    moved to when compute reached them, as far as other lanes and steps tell how long that takes.

    `rows` in any order. Where entries are stamped when compute reaches them, some come while the
    operation before is in flight, and all stay; so do those that no host is known to have issued,
    as in dumps, whose times between are estimates.
    """
    mine = np.flatnonzero(rows.on_device & np.isnan(rows.computed_ns) & (rows.slack_ns >= 0))
    mine = mine[np.lexsort([rows.seq[mine], rows.lane[mine]])]
    some = rows.select(mine)
    held = _held_by_queue(some, operations)
    if not held.any():
        return rows
    passed = np.where(held, some.enter_ns - _soonest_from(some.lane, some.enter_ns), 0)
    some = moved(some, slice(None), passed)
    entered = _entered_kinds(some, operations)
    place = _places(some, entered)
    gaps = _gaps(some, some.leave_ns, place, entered)
    always = held[gaps.row] & ~gaps.opens
    always &= _on_all_lanes(some, gaps.row, held[gaps.row], gaps.kind)[gaps.kind]
    held[gaps.row[always]] = False
    first = _since_issued(some, gaps.row[always])
    some = moved(some, slice(None), first)
    stamped, sooner = _gaps(some, some.leave_ns, place, entered), np.zeros(len(some), np.int64)
    for _ in range(REACHED_ROUNDS if held.any() else 0):
        gaps = _gaps(moved(some, slice(None), sooner), some.leave_ns, place, entered)
        work, share = _usual_work(some, operations, gaps, held[gaps.row])
        sooner[gaps.row] = np.rint(_held_ns(stamped, share, work, held[gaps.row]))
    return moved(rows, mine, passed + first + sooner)


def _soonest_from(lane: Array, time: Array) -> Array:
    """The earliest time of each row and those of its lane after it."""
    low = int(time.min())
    width = int(time.max()) - low + 1
    line = time - low + lane * width
    return np.asarray(np.minimum.accumulate(line[::-1])[::-1] + low - lane * width)


def _since_issued(rows: Columns, lost: Array) -> Array:
    """How long before their kernels began compute reached these entries (indices), of which no
    lane tells: as far from the entry before to the one after as hosts issued them. (rows,), ns."""
    there = np.ones(len(rows), bool)
    there[lost] = False
    seen = np.append(np.flatnonzero(there), len(rows) - 1)
    following = np.searchsorted(seen, lost)
    before, after = seen[following - 1], seen[following]
    issued = rows.enter_ns - rows.slack_ns
    whole = issued[after] - issued[before]
    told = (whole > 0) & (rows.lane[after] == rows.lane[before])
    part = np.where(told, (issued[lost] - issued[before]) / np.where(told, whole, 1), 0.0)
    reached = rows.enter_ns[before] + part * (rows.enter_ns[after] - rows.enter_ns[before])
    found = np.zeros(len(rows), np.int64)
    found[lost] = np.maximum(rows.enter_ns[lost] - np.rint(reached), 0)
    return found


def _usual_work(
    rows: Columns, operations: Columns, gaps: _Gaps, held: Array
) -> tuple[Array, Array]:
    """The work of each gap, as other lanes and steps do it at this one's pace, nan where all of the
    kind's entries are `held`; and the shares of each kind done before it waits."""
    late, gaps = gaps.idle & ~held, gaps._replace(idle=gaps.idle | held)
    starts = _usual_shares(rows, operations, gaps), _shares_alike(rows, operations, gaps)
    found = [_shares(rows, operations, gaps, start) for start in starts]
    misfits = [_misfit(gaps, one, _paces(gaps, one))[0][gaps.kind].sum() for one in found]
    share = found[int(np.argmin(misfits))]
    work, unseen = _work(gaps, share)
    pace = _paces(gaps, share)
    seen = ~unseen | late & (means(~unseen, gaps.kind) == 0)[gaps.kind]  # else at most so long
    length = _median(work / pace, seen, gaps.kind)
    told = means(seen, gaps.kind) > 0
    return np.where(told, length[: len(told)], np.nan)[gaps.kind] * pace, share


def _held_by_queue(rows: Columns, operations: Columns) -> Array:
    """Entries that begin as the operation before in their lane's queue ends; none where others
    come before that."""
    queue = operations.queue[rows.operation]
    order = np.lexsort([np.arange(len(rows)), queue, rows.lane])
    lane, queue, number = rows.lane[order], queue[order], rows.operation[order]
    follows = (np.diff(lane, prepend=-1) == 0) & (np.diff(queue, prepend=-1) == 0)
    after = rows.enter_ns[order] - np.append(0, rows.leave_ns[order][:-1])
    follows &= ~operations.message[number]
    early, at_once = follows & (after < -CROSSING_NS), follows & (np.abs(after) <= CROSSING_NS)
    held = np.zeros(len(rows), bool)
    held[order] = at_once & (early.sum() <= MINOR * at_once.sum())
    return held


def _held_ns(gaps: _Gaps, share: Array, work: Array, held: Array) -> Array:
    """How long each held entry waited for its queue since its lane had done this work; 0 where
    the work is not known, nan."""
    after = np.append(False, (np.diff(gaps.row) == 1) & held[:-1])
    turn = np.arange(len(held)) - np.maximum.accumulate(
        np.where(held & after, 0, np.arange(len(held)))
    )
    found = np.zeros(len(held))
    for depth in range(int(turn.max(initial=0)) + 1):
        at = np.flatnonzero(held & ~np.isnan(work) & (turn == depth))
        one = _Gaps(*(part[..., at] for part in gaps))
        before = np.where(after[at], found[at - 1], 0.0)
        lasts = _expected(one, share, work[at], before)
        found[at] = np.maximum(one.lasted - lasts, 0.0)
    return found


def _in_stream(rows: Columns, gaps: _Gaps) -> Array:
    """Kinds of gaps that end with the operation before, as blocking calls on the stream of compute
    do: between the same two kinds of entries nearly all, on all lanes, as behind an operation that
    only keeps its queue busy some lane's compute comes last. By the operations' own ends."""
    ends = np.abs(gaps.lasted - gaps.over[0]) <= CROSSING_NS
    told = rows.on_device[gaps.row] & np.isnan(gaps.computed) & ~gaps.opens
    told &= gaps.lasted > SEVERAL * CROSSING_NS
    return _on_all_lanes(rows, gaps.row, ends & told, gaps.pair)[gaps.pairs]


def _on_all_lanes(rows: Columns, row: Array, which: Array, number: Array) -> Array:
    """The numbers of which nearly always all lanes that enter an operation are among these rows."""
    entered = rows.operation[row]
    others = np.bincount(entered, ~which)[entered] > 0
    return means(~others, number) > NEARLY_ALL


def _usual_shares(rows: Columns, operations: Columns, gaps: _Gaps) -> Array:
    """Shares where programs usually wait: after the last of several reductions, for anything else
    at once, for a message sent never. (kinds, FURTHEST); nan: no wait."""
    number = rows.operation[gaps.row - 1]
    reduces = np.isin(operations.op, _REDUCTIONS)
    more = reduces[number] & reduces[rows.operation[gaps.row]] & ~gaps.opens
    waits = means(~more & ~rows.sends[gaps.row - 1], gaps.kind) > MOST
    went_on = gaps.lasted < gaps.over[0] - CROSSING_NS
    waits &= means(went_on, gaps.kind) <= MINOR
    share = np.full((len(waits), FURTHEST), np.nan)
    share[waits, 0] = 0.0
    return share


def _shares_alike(rows: Columns, operations: Columns, gaps: _Gaps) -> Array:
    """The usual shares, or others with which all gaps between the same two kinds of entries take
    equally long, clearly better: a program waits in one way. (kinds, …)."""
    like = gaps._replace(kind=gaps.pair)
    some = like.sample()
    known = int(some.kind.max(initial=-1)) + 1
    share, unseen = np.split(_usual_shares(rows, operations, like), [known])
    share = _fitted(some, share, np.ones(known, bool), WHOLE)[0]
    return np.concatenate([share, unseen])[gaps.pairs]


def _shares_by_idle_time(rows: Columns, gaps: _Gaps) -> tuple[Array, Array]:
    """Shares by recorded idle time: compute that was idle until an operation was over waited for
    it. Also, whether most of a kind's idle time is explained so."""
    share = np.full((int(gaps.kind.max(initial=-1)) + 1, FURTHEST), np.nan)
    first = np.flatnonzero(rows.idled_ns > 0)
    if not len(first):
        return share, np.zeros(len(share), bool)
    idle = np.where(np.isnan(gaps.computed), 0.0, gaps.lasted - gaps.computed)
    low = int(rows.enter_ns.min(initial=2**62))
    width = int(rows.enter_ns.max(initial=low)) - low + 2
    line = rows.lane * width + rows.enter_ns - low
    last = rows.leave_ns[first] - AT_ONCE_NS - low
    row = np.searchsorted(line, rows.lane[first] * width + last)
    row = np.maximum(row, first + 1)
    there = row < len(rows)
    there[there] = rows.lane[row[there]] == rows.lane[first[there]]
    there &= row - first <= FURTHEST
    first, row = first[there], row[there]
    gap = np.searchsorted(gaps.row, row)
    since = np.maximum(rows.leave_ns[first] - rows.idled_ns[first], rows.enter_ns[row - 1])
    length = np.maximum(rows.leave_ns[first] - since, 0)
    part = (rows.freed_ns[first] - rows.computed_ns[row - 1]) / np.maximum(gaps.computed[gap], 1.0)
    explained = np.minimum(np.bincount(gap, length, len(idle)), idle)
    told = means(explained, gaps.kind) > MOST * means(idle, gaps.kind)
    told &= means(idle, gaps.kind) > AT_ONCE_NS
    place = gaps.kind[gap] * FURTHEST + row - first - 1
    of_kind = np.bincount(gaps.kind[gap], length, len(share))
    much = np.bincount(place, length, share.size).reshape(share.shape) > MINOR * of_kind[:, None]
    usual = _median(np.append(part, 0.0), np.append(length, 0.0), np.append(place, share.size - 1))
    share[much] = usual.reshape(share.shape)[much]
    share = np.where(share < TELLING, 0.0, np.where(share > 1 - TELLING, 1.0, share))
    return share, told


# -- the pace of a lane's work ---------------------------------------------------------------------


class _Gaps(NamedTuple):
    """The gap before each entry but a lane's first, since the entry before it. ns."""

    row: Array
    kind: Array  # the same at the same place of the same program
    pair: Array  # the same between the same two kinds of entries
    cell: Array  # lane and step
    opens: Array  # whether a step begins in the gap, with work of the host
    idle: Array  # whether it ended as soon as the host issued the entry: the work was done before
    lasted: Array
    computed: Array  # of that, by the device's own record; nan where there is none
    over: Array  # (FURTHEST, gaps): ends of the operations entered last; -inf none

    @property
    def pairs(self) -> Array:
        """The pair of each kind."""
        found = np.zeros(int(self.kind.max(initial=-1)) + 1, np.int64)
        found[self.kind] = self.pair
        return found

    def sample(self) -> _Gaps:
        """The gaps of some steps and lanes, spread evenly."""
        cells = int(self.cell[-1]) + 1 if len(self.cell) else 0
        every = -(-len(self.row) // MOST_GAPS)
        kept = (np.arange(cells) % every == 0)[self.cell] if every > 1 else slice(None)
        return _Gaps(*(part[..., kept] for part in self))


def _gaps(rows: Columns, over: Array, place: Array, entered: Array) -> _Gaps:
    row = np.flatnonzero(np.diff(rows.lane, prepend=-1) == 0)
    before = rows.enter_ns[row - 1]
    opens = (np.diff(rows.lane, prepend=-1) != 0) | (np.diff(rows.step, prepend=-1) != 0)
    ends = np.full((FURTHEST, len(row)), -np.inf)
    for ahead in range(1, FURTHEST + 1):
        there = row >= ahead
        there[there] = rows.lane[row[there] - ahead] == rows.lane[row[there]]
        ends[ahead - 1, there] = over[row[there] - ahead] - before[there]
    lasted = (rows.enter_ns[row] - before).astype(float)
    computed = rows.computed_ns[row] - rows.computed_ns[row - 1]
    cell = (np.cumsum(opens) - 1)[row]
    pair = np.unique(row_hash([entered[row - 1], entered[row], opens[row]]), return_inverse=True)[1]
    kind, idle = place[row - 1], np.zeros(len(row), bool)
    if "slack_ns" in rows:  # of devices
        own = rows.lane[row] * (int(kind.max(initial=0)) + 1) + kind
        idle = idle_before(rows.slack_ns[row], lasted, own) & np.isnan(computed)
    return _Gaps(row, kind, pair, cell, opens[row], idle, lasted, computed, ends)


def _waits(gaps: _Gaps, share: Array) -> Iterator[tuple[Array, Array]]:
    """What is waited for, and each gap's share, of those ahead that any kind waits for."""
    for over, part in zip(gaps.over, share.T, strict=True):
        if not np.isnan(part).all():
            yield over, part[gaps.kind]


def _work(gaps: _Gaps, share: Array) -> tuple[Array, Array]:
    """The work in each gap, and whether a wait or an idle device at the end of the gap hides how
    long it took."""
    work: Array = gaps.lasted
    unseen = gaps.idle
    for over, part in _waits(gaps, share):
        rest = np.where(part < 1, 1 - part, np.nan)
        work = np.fmin(work, (gaps.lasted - over) / rest)
        unseen = unseen | (part == 1) & (gaps.lasted <= over + AT_ONCE_NS)
    told = ~np.isnan(gaps.computed)
    return np.where(told, gaps.computed, np.maximum(work, 0.0)), unseen & ~told


def _expected(gaps: _Gaps, share: Array, work: Array, sooner: Array | float = 0.0) -> Array:
    """How long each gap lasts with this work, which began so much sooner than the gap."""
    lasts = work - sooner
    for over, part in _waits(gaps, share):
        lasts = np.fmax(lasts, over + (1 - part) * work)
    return lasts


def _paces(gaps: _Gaps, share: Array) -> Array:
    """How many times as long as usual all work of a gap's lane is in its step: 1, unless more of it
    than one gap says otherwise. Of kinds that are mostly hidden, only the longest are seen: these
    tell nothing."""
    work, unseen = _work(gaps, share)
    pace: Array = np.ones(len(work))
    shown = (means(~unseen, gaps.kind) > MOST)[gaps.kind]
    cells = np.arange(int(gaps.cell.max(initial=-1)) + 1)
    for _ in range(2):
        length = _lengths(gaps, work / pace, unseen)[gaps.kind]
        weight = np.where(shown, length, 0.0)
        most = LARGEST_WEIGHT * np.bincount(gaps.cell, weight, len(cells))
        weight = np.where(unseen, 0.0, np.minimum(weight, most[gaps.cell]))
        ratio = np.append(work / np.maximum(length, 1.0), np.ones(len(cells)))
        usual = _median(ratio, np.append(weight, most), np.append(gaps.cell, cells))
        pace = np.where(usual > 0, usual, 1.0)[gaps.cell]
    return pace


def _lengths(gaps: _Gaps, work: Array, unseen: Array) -> Array:
    """Usual work of each kind; of one that is mostly hidden, so that only its longest is seen, that
    between the same two kinds of entries, if it is known."""
    own, shown = _median(work, ~unseen, gaps.kind), means(~unseen, gaps.kind) > MOST
    if shown.all():
        return own
    alike = _median(work, ~unseen & shown[gaps.kind], gaps.pair)[gaps.pairs]
    return np.where(shown | (alike == 0), own, alike)


def _misfit(gaps: _Gaps, share: Array, pace: Array) -> tuple[Array, Array]:
    """Of each kind, the mean absolute difference of its gaps from what they would last in pace, and
    its usual work. A gap in which the device was idle may be longer."""
    work, unseen = _work(gaps, share)
    length = _lengths(gaps, work / pace, unseen)
    work = np.where(np.isnan(gaps.computed), length[gaps.kind] * pace, gaps.computed)
    longer = gaps.lasted - _expected(gaps, share, work)
    apart = np.where(gaps.idle, np.maximum(-longer, 0.0), np.abs(longer))
    return means(apart, gaps.kind), length


def _best_shares(gaps: _Gaps, share: Array, sure: Array) -> Array:
    """The shares that fit the paces of lanes and steps best, searched from `share`, from no waits
    and from waits at once; `share` unless another is clearly better. Those of `sure` kinds stay."""
    some = gaps.sample()
    share, unseen = np.split(share, [some.kind.max(initial=-1) + 1])  # those without any gap in it
    sure = sure[: len(share)]
    never = np.where(sure[:, None], share, np.nan)
    share, misfit = _fitted(some, share, ~sure, WHOLE)
    for start in (never, _with(never, 0, 0.0)):
        other, rest = _fitted(some, start, ~sure, WHOLE)
        better = _clearly(rest, misfit, AT_ONCE_NS)
        share = np.where(better[:, None], other, share)
        misfit = np.where(better, rest, misfit)
    return np.concatenate([_fitted(some, share, ~sure, SHARES)[0], unseen])


def _fitted(
    gaps: _Gaps, share: Array, free: Array, shares: tuple[float, ...]
) -> tuple[Array, Array]:
    """The share of each kind, changed for `free` kinds wherever others of `shares` fit clearly
    better; and, of each kind, the misfit of a gap in its steps."""
    late = (gaps.over > np.minimum(gaps.lasted, 0.0) - AT_ONCE_NS).any(axis=1)  # others hold nobody
    tries = [(ahead, part) for ahead in np.flatnonzero(late).tolist() for part in shares]
    following: dict[bytes, Array] = {}
    for _ in range(PACE_ROUNDS if tries else 0):
        if share.tobytes() not in following:
            following[share.tobytes()] = _refitted(gaps, share, free, tries)
        share = following[share.tobytes()]
    misfit, _ = _misfit(gaps, share, _paces(gaps, share))
    count = np.maximum(np.bincount(gaps.cell), 1)
    each = np.bincount(gaps.cell, misfit[gaps.kind]) / count
    return share, means(each[gaps.cell], gaps.kind)


def _refitted(gaps: _Gaps, share: Array, free: Array, tries: list[tuple[int, float]]) -> Array:
    """The shares of one round: paces as these have it, and up to two waits for each kind."""
    pace = _paces(gaps, share)
    misfit, length = _misfit(gaps, share, pace)
    whole, square = (np.bincount(gaps.cell, length[gaps.kind] ** power) for power in (1, 2))
    paced = whole * whole >= SEVERAL * square
    told = paced[gaps.cell] | ~np.isnan(gaps.computed)
    known = means(told, gaps.kind) > MOST
    floor = np.maximum(TELLING * length, AT_ONCE_NS)
    opens = means(gaps.opens, gaps.kind) > 0
    best = np.full(share.shape, np.nan)
    least = _misfit(gaps, best, pace)[0]
    for _turn in range(2):
        tried = [_with(best, *one) for one in tries]
        misfits = np.stack([_misfit(gaps, one, pace)[0] for one in tried])
        misfits[np.array([part > 0 for _, part in tries])[:, None] & opens] = np.inf
        better = _clearly(misfits.min(axis=0), least, floor)
        chosen = np.stack(tried)[misfits.argmin(axis=0), np.arange(len(share))]
        best = np.where(better[:, None], chosen, best)
        least = np.where(better, misfits.min(axis=0), least)
    better = free & known & _clearly(least, misfit, floor)
    return np.where(better[:, None], best, share)


def _with(share: Array, ahead: int, part: float) -> Array:
    found = share.copy()
    found[:, ahead] = part
    return found


def _clearly(misfit: Array, before: Array, floor: Array | float) -> Array:
    return np.asarray(before - misfit > np.maximum(floor, SURE * misfit))


def _waits_of_rows(rows: Columns, gaps: _Gaps, share: Array) -> Awaited:
    found, worked = np.zeros(len(rows), np.int64), np.zeros(len(rows), bool)
    since = rows.enter_ns.astype(np.int64)
    work, unseen = _work(gaps, share)
    if unseen.any():
        pace = _paces(gaps, share)
        length = _lengths(gaps, work / pace, unseen)[gaps.kind]
        work = np.where(unseen & (length > 0), np.minimum(work, length * pace), work)
    for ahead in range(FURTHEST, 0, -1):
        part = share[gaps.kind, ahead - 1]
        waits = np.isfinite(part) & (gaps.lasted >= gaps.over[ahead - 1] - CROSSING_NS)
        waits &= np.isfinite(gaps.over[ahead - 1])
        row, part = gaps.row[waits], part[waits]
        first = row - ahead
        found[first], worked[first] = ahead, part > 0
        begun = _reached(gaps, share, part, work, waits)
        since[first] = rows.enter_ns[row - 1] + np.rint(begun).astype(np.int64)
    last = np.diff(rows.lane, append=-1) != 0  # nothing tells what comes after
    idle = np.zeros(len(rows), bool)
    idle[gaps.row] = gaps.idle
    return Awaited(np.where(last & (found == 0), 1, found), worked, since, idle)


def _reached(gaps: _Gaps, share: Array, part: Array, work: Array, which: Array) -> Array:
    """How long after these gaps began that part of their work was done, held up by waits before."""
    work, reached = work[which], part * work[which]
    for over, sooner in _waits(gaps, share):
        held = np.where(sooner[which] < part, over[which] + (part - sooner[which]) * work, reached)
        reached = np.maximum(reached, held)
    return np.asarray(reached)


def _median(values: Array, weight: Array, group: Array) -> Array:
    """Weighted median of each group; 0 where all weights are 0."""
    count = int(group.max(initial=-1)) + 1
    kept = np.flatnonzero(weight)
    order = kept[np.argsort(values[kept])]
    order = order[grouped_order(group[order])]
    values, group = values[order], group[order]
    line = np.cumsum(weight[order].astype(float))
    first = np.searchsorted(group, np.arange(count + 1))
    edges = np.append(0.0, line)[first]
    middle = np.searchsorted(line, (edges[:-1] + edges[1:]) / 2)
    there = edges[1:] > edges[:-1]
    return np.where(there, np.append(values, 0.0)[np.minimum(middle, len(values))], 0.0)


def _entered_kinds(rows: Columns, operations: Columns) -> Array:
    """A number for what each entry enters: operation, size of its group, direction."""
    number = rows.operation
    away = np.where(operations.message[number], operations.root[number] - rows.lane, 0)
    kinds = [operations.op[number], operations.members[number], np.sign(away), rows.sends]
    return row_hash(kinds)


def _places(rows: Columns, entered: Array) -> Array:
    """A number per entry, the same at the same place in steps of the same program."""
    opens = (np.diff(rows.lane, prepend=-1) != 0) | (np.diff(rows.step, prepend=-1) != 0)
    step = np.cumsum(opens) - 1
    first = np.flatnonzero(opens)
    place = np.arange(len(rows)) - first[step]
    code = np.cumsum(row_hash([place, entered]), dtype=np.uint64)
    ends = np.append(first[1:], len(rows)) - 1
    whole = code[ends] - np.where(first > 0, code[first - 1], np.uint64(0))
    return np.unique(row_hash([whole[step], place]), return_inverse=True)[1].reshape(-1)
