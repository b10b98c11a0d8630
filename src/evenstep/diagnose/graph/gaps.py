"""The gaps between entries of a lane: how long each lasted, of which part was work, and what was
waited for in the rest, by how well that fits the pace of all of the lane's work in the step.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from evenstep.diagnose.graph.streams import AT_ONCE_NS, TELLING, idle_before
from evenstep.diagnose.graph.structure import grouped_order, means, row_numbers
from evenstep.diagnose.levels import MOST, SEVERAL
from evenstep.trace.columns import Array, Columns, begins, largest_of

FURTHEST = 6  # entries after which an operation may still be waited for: a layer of experts has 5
SURE = 0.15  # of a misfit: smaller improvements do not count
WHOLE = (0.0, 1.0)  # shares of work, done before a wait; others only where these fit clearly worse
SHARES = (0.0, 0.25, 1 / 3, 0.5, 2 / 3, 0.75, 1.0)  # as layers are cut
LARGEST_WEIGHT = 1 / 3  # of a step's work: weight of one place in the pace
PACE_ROUNDS = 4  # of fitting waits and computing paces in turn
MOST_GAPS = 60_000  # that are fitted


class Gaps(NamedTuple):
    """The gap before each entry but a lane's first, since the entry before it. ns."""

    row: Array
    kind: Array  # the same at the same place of the same program
    pair: Array  # the same between the same two kinds of entries, in forward or in backward
    cell: Array  # lane and step: twice their number, and one more for what is of backward
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

    def sample(self) -> Gaps:
        """The gaps of some steps and lanes, spread evenly."""
        every = -(-len(self.row) // MOST_GAPS)
        kept = self.cell // 2 % every == 0
        return Gaps(*(part[..., kept] for part in self))

    def waits(self, share: Array) -> Iterator[tuple[Array, Array]]:
        """What is waited for, and each gap's share, of those ahead that any kind waits for."""
        for over, part in zip(self.over, share.T, strict=True):
            if not np.isnan(part).all():
                yield over, part[self.kind]

    @property
    def soon(self) -> Array:
        """How long after a wait a gap may end without having worked since: copies are short."""
        return np.asarray(np.maximum(AT_ONCE_NS, TELLING * self.lasted))

    def work(self, share: Array) -> tuple[Array, Array]:
        """The work in each gap, and whether a wait or an idle device near its end hides some."""
        work: Array = self.lasted
        unseen = self.idle
        for over, part in self.waits(share):
            rest = np.where(part < 1, 1 - part, np.nan)
            work = np.fmin(work, (self.lasted - over) / rest)
            unseen = unseen | (part == 1) & (self.lasted <= over + self.soon)
        told = ~np.isnan(self.computed)
        return np.where(told, self.computed, np.maximum(work, 0.0)), unseen & ~told

    def expected(self, share: Array, work: Array, sooner: Array | float = 0.0) -> Array:
        """How long each gap lasts with this work, which began so much sooner than the gap."""
        lasts = work - sooner
        for over, part in self.waits(share):
            lasts = np.fmax(lasts, over + (1 - part) * work)
        return lasts

    def paces(self, share: Array) -> Array:
        """How many times as long as usual all work of a gap's lane is in its step: 1, unless more
        of it than one gap says otherwise; and likewise in forward and in backward, that of both
        unless their own work does. Work whose usual length is not known tells nothing."""
        work, unseen = self.work(share)
        pace: Array = np.ones(len(work))
        steps = int(self.cell.max(initial=-1)) // 2 + 1
        there = np.bincount(self.cell, minlength=2 * steps).reshape(-1, 2)
        both = there.all(axis=1).repeat(2)
        for _ in range(2):
            length = self.lengths(work / pace, unseen)[self.kind]
            weight = np.where(self.known(unseen), length, 0.0)
            ratio = np.where(unseen, np.nan, work / np.maximum(length, 1.0))
            whole = _pace_of(self.cell // 2, ratio, weight, np.ones(steps)).repeat(2)
            pace = np.where(both, _pace_of(self.cell, ratio, weight, whole), whole)[self.cell]
        return pace

    def lengths(self, work: Array, unseen: Array) -> Array:
        """Usual work of each kind; of one that is mostly hidden, so that only its longest is seen,
        that between the same two kinds of entries, if it is known, but no longer than what is
        seen, or than its longest gap."""
        own, shown = weighted_median(work, ~unseen, self.kind), means(~unseen, self.kind) > MOST
        if shown.all():
            return own
        seen = self.seen(unseen) & (work > 0)  # some places have none
        alike = weighted_median(work, seen, self.pair)[self.pairs]
        most = np.where(own > 0, own, largest_of(self.lasted, self.kind, len(own), least=0.0))
        return np.where(shown | (alike == 0), own, np.minimum(alike, most))

    def seen(self, unseen: Array) -> Array:
        """Gaps whose work is not hidden, of kinds of which it mostly is not."""
        return np.asarray(~unseen & (means(~unseen, self.kind) > MOST)[self.kind])

    def known(self, unseen: Array) -> Array:
        """Whether the usual work of each gap's kind is known: that of mostly hidden kinds is not,
        unless others between the same two kinds of entries are seen."""
        return np.asarray(np.bincount(self.pair, self.seen(unseen))[self.pair] > 0)

    def misfit(self, share: Array, pace: Array) -> tuple[Array, Array]:
        """Of each kind, the mean absolute difference of its gaps from what they would last in pace,
        and its usual work. A gap in which the device was idle may be longer, as one may that a wait
        ends, by what follows it."""
        work, unseen = self.work(share)
        length = self.lengths(work / pace, unseen)
        work = np.where(np.isnan(self.computed), length[self.kind] * pace, self.computed)
        longer = self.lasted - self.expected(share, work)
        copied = unseen & (longer <= self.soon)
        apart = np.where(self.idle | copied, np.maximum(-longer, 0.0), np.abs(longer))
        return means(apart, self.kind), length


def _pace_of(cell: Array, ratio: Array, weight: Array, usual: Array) -> Array:
    """The pace of each cell: the weighted median of known ratios, drawn towards its `usual` one."""
    most = LARGEST_WEIGHT * np.bincount(cell, weight, len(usual))
    weight = np.where(np.isnan(ratio), 0.0, np.minimum(weight, most[cell]))
    values = np.append(ratio, usual), np.append(weight, most)
    found = weighted_median(*values, np.append(cell, np.arange(len(usual))))
    return np.where(found > 0, found, usual)


def gaps_between(rows: Columns, over: Array, place: Array, entered: Array) -> Gaps:
    """The gaps between rows in order of lane and time; `over` is when each row's operation ended,
    `place` and `entered` number its place in the program and what it enters."""
    row = np.flatnonzero(~begins(rows.lane))
    before = rows.enter_ns[row - 1]
    opens = begins(rows.lane, rows.step)
    ends = np.full((FURTHEST, len(row)), -np.inf)
    for ahead in range(1, FURTHEST + 1):
        there = row >= ahead
        there[there] = rows.lane[row[there] - ahead] == rows.lane[row[there]]
        ends[ahead - 1, there] = over[row[there] - ahead] - before[there]
    lasted = (rows.enter_ns[row] - before).astype(float)
    computed = rows.computed_ns[row] - rows.computed_ns[row - 1]
    back = rows.backward[row] if "backward" in rows else np.zeros(len(row), bool)
    cell = 2 * (np.cumsum(opens)[row] - 1) + back
    pair = row_numbers(entered[row - 1], entered[row], opens[row], back, other_record(rows, row))
    kind, idle = place[row - 1], np.zeros(len(row), bool)
    if "slack_ns" in rows:  # of devices
        own = rows.lane[row] * (int(kind.max(initial=0)) + 1) + kind
        idle = idle_before(rows.slack_ns[row], lasted, own) & np.isnan(computed)
    return Gaps(row, kind, pair, cell, opens[row], idle, lasted, computed, ends)


def other_record(rows: Columns, row: Array) -> Array:
    """Whether each of these entries was issued in another recorded phase, such as the backward of
    another batch or model, than the entry before; not where either phase is unknown."""
    record = rows.inside if "inside" in rows else np.zeros(len(rows), np.int64)
    return np.asarray((record[row - 1] > 0) & (record[row] > 0) & (np.diff(record)[row - 1] != 0))


def best_shares(gaps: Gaps, share: Array, sure: Array, *others: Array) -> Array:
    """The shares that fit the paces of lanes and steps best, searched from `share`, from `others`,
    from no waits and from waits at once; `share` unless another is clearly better, or `sure`."""
    some = gaps.sample()
    known = int(some.kind.max(initial=-1)) + 1  # the other kinds have no gap in it
    unseen, sure = share[known:], sure[:known]
    share = share[:known]
    never = np.full(share.shape, np.nan)
    first, starts = share, [*(one[:known] for one in others), never, _with(never, 0, 0.0)]
    share, misfit = fit_shares(some, share, ~sure, WHOLE)
    for start in starts:
        other, rest = fit_shares(some, np.where(sure[:, None], first, start), ~sure, WHOLE)
        better = clearly(rest, misfit, AT_ONCE_NS)
        share = np.where(better[:, None], other, share)
        misfit = np.where(better, rest, misfit)
    return np.concatenate([fit_shares(some, share, ~sure, SHARES)[0], unseen])


def with_waits_of_hosts(gaps: Gaps, share: Array) -> Array:
    """The shares, with one more wait for each kind whose devices mostly idle, if the gaps in which
    they do last clearly more alike so: a host that looks for what its device did comes late because
    that waited, and takes as long as usual besides. Whom a stream holds up does not idle."""
    some = gaps.sample()
    idle = some.idle & (means(some.idle, some.kind) > MOST)[some.kind]
    if not idle.any():
        return share
    pace = some.paces(share)[idle]
    some = Gaps(*(part[..., idle] for part in some))._replace(idle=np.zeros(len(pace), bool))
    more = [_with(share, *one) for one in _tries(some, SHARES)]
    tried = np.stack([share, *(np.where(np.isnan(share), one, share) for one in more)])
    misfits = np.stack([some.misfit(one, pace)[0] for one in tried])
    floor = np.maximum(TELLING * some.misfit(share, pace)[1], AT_ONCE_NS)
    better = np.flatnonzero(clearly(misfits.min(axis=0), misfits[0], floor))
    found = share.copy()
    found[better] = tried[misfits.argmin(axis=0)[better], better]
    return found


def fit_shares(
    gaps: Gaps, share: Array, free: Array, shares: tuple[float, ...]
) -> tuple[Array, Array]:
    """The share of each kind, changed for `free` kinds wherever others of `shares` fit clearly
    better; and, of each kind, the misfit of a gap in its steps."""
    tries = _tries(gaps, shares)
    following: dict[bytes, Array] = {}
    for _ in range(PACE_ROUNDS if tries else 0):
        if share.tobytes() not in following:
            following[share.tobytes()] = _fit_round(gaps, share, free, tries)
        share = following[share.tobytes()]
    misfit, _ = gaps.misfit(share, gaps.paces(share))
    count = np.maximum(np.bincount(gaps.cell), 1)
    each = np.bincount(gaps.cell, misfit[gaps.kind]) / count
    return share, means(each[gaps.cell], gaps.kind)


def _tries(gaps: Gaps, shares: tuple[float, ...]) -> list[tuple[int, float]]:
    """The waits, how many entries ahead and after which of these shares, that may hold anybody."""
    late = (gaps.over > np.minimum(gaps.lasted, 0.0) - AT_ONCE_NS).any(axis=1)
    return [(ahead, part) for ahead in np.flatnonzero(late).tolist() for part in shares]


def _fit_round(gaps: Gaps, share: Array, free: Array, tries: list[tuple[int, float]]) -> Array:
    """The shares of one round: paces as these have it, and up to two waits for each kind."""
    pace = gaps.paces(share)
    misfit, length = gaps.misfit(share, pace)
    step = gaps.cell // 2  # whose pace a part with few places has, too
    whole, square = (np.bincount(step, length[gaps.kind] ** power) for power in (1, 2))
    paced = whole * whole >= SEVERAL * square
    told = paced[step] | ~np.isnan(gaps.computed)
    known = means(told, gaps.kind) > MOST
    floor = np.maximum(TELLING * length, AT_ONCE_NS)
    opens = means(gaps.opens, gaps.kind) > 0
    best = np.full(share.shape, np.nan)
    least = gaps.misfit(best, pace)[0]
    for _turn in range(2):
        tried = [_with(best, *one) for one in tries]
        misfits = np.stack([gaps.misfit(one, pace)[0] for one in tried])
        misfits[np.array([part > 0 for _, part in tries])[:, None] & opens] = np.inf
        better = clearly(misfits.min(axis=0), least, floor)
        chosen = np.stack(tried)[misfits.argmin(axis=0), np.arange(len(share))]
        best = np.where(better[:, None], chosen, best)
        least = np.where(better, misfits.min(axis=0), least)
    better = free & known & clearly(least, misfit, floor)
    return np.where(better[:, None], best, share)


def _with(share: Array, ahead: int, part: float) -> Array:
    found = share.copy()
    found[:, ahead] = part
    return found


def clearly(misfit: Array, before: Array, floor: Array | float) -> Array:
    """Whether a misfit is less than before by more than `floor` and a share of what is left."""
    return np.asarray(before - misfit > np.maximum(floor, SURE * misfit))


def weighted_median(values: Array, weight: Array, group: Array, count: int = 0) -> Array:
    """Weighted median of each group, at least of `count`; 0 where all weights are 0."""
    count = max(count, int(group.max(initial=-1)) + 1)
    kept = np.flatnonzero(weight)
    order = kept[np.argsort(values[kept])]
    order = order[grouped_order(group[order])]
    values, group = values[order], group[order]
    line = np.cumsum(weight[order].astype(float))
    first = np.searchsorted(group, np.arange(count + 1))
    edges = np.append(0.0, line)[first]
    middle = np.searchsorted(line, (edges[:-1] + edges[1:]) / 2)
    found, there = np.zeros(count), edges[1:] > edges[:-1]
    found[there] = values[middle[there]]
    return found
