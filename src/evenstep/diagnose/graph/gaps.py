"""The gaps between entries of a lane: how long each lasted, of which part was work, and what was
waited for in the rest, by how well that fits the pace of all of the lane's work in the step.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from evenstep.diagnose.graph.streams import AT_ONCE_NS, TELLING, idle_before
from evenstep.diagnose.graph.structure import grouped_order, means
from evenstep.diagnose.levels import MOST
from evenstep.trace.columns import Array, Columns

FURTHEST = 6  # entries after which an operation may still be waited for: a layer of experts has 5
SURE = 0.15  # of a misfit: smaller improvements do not count
LARGEST_WEIGHT = 1 / 3  # of a step's work: weight of one place in the pace
PACE_ROUNDS = 4  # of fitting waits and computing paces in turn
MOST_GAPS = 60_000  # that are fitted


class Gaps(NamedTuple):
    """The gap before each entry but a lane's first, since the entry before it. ns.

    What a kind of gap waits for (`waits`, a number for each kind) is the operation entered so many
    entries before it: 0 none, negative where the work of the gap is done before the wait.
    """

    row: Array
    kind: Array  # the same at the same place of the same program
    cell: Array  # lane and step
    opens: Array  # whether a step begins in the gap, with work of the host
    idle: Array  # whether it ended as soon as the host issued the entry: the work was done before
    lasted: Array
    computed: Array  # of that, by the device's own record; nan where there is none
    over: Array  # (1 + FURTHEST, gaps): ends of the operations entered last; -inf none, as for 0

    def sample(self) -> Gaps:
        """The gaps of some steps and lanes, spread evenly."""
        cells = int(self.cell[-1]) + 1 if len(self.cell) else 0
        every = -(-len(self.row) // MOST_GAPS)
        kept = (np.arange(cells) % every == 0)[self.cell] if every > 1 else slice(None)
        return Gaps(*(part[..., kept] for part in self))

    def over_of(self, waits: Array) -> Array:
        """The end of what each gap waits for; -inf where it waits for nothing."""
        return np.asarray(self.over[np.abs(waits)[self.kind], np.arange(len(self.kind))])

    def work(self, waits: Array) -> tuple[Array, Array]:
        """The work in each gap, and whether a wait or an idle device at its end hides how long it
        took."""
        over, worked = self.over_of(waits), waits[self.kind] < 0
        work = np.where(worked, self.lasted, np.minimum(self.lasted, self.lasted - over))
        unseen = self.idle | worked & (self.lasted <= over + AT_ONCE_NS)
        told = ~np.isnan(self.computed)
        return np.where(told, self.computed, np.maximum(work, 0.0)), unseen & ~told

    def expected(self, waits: Array, work: Array, sooner: Array | float = 0.0) -> Array:
        """How long each gap lasts with this work, which began so much sooner than the gap."""
        held = self.over_of(waits) + np.where(waits[self.kind] < 0, 0.0, work)
        return np.asarray(np.fmax(work - sooner, held))

    def paces(self, waits: Array) -> Array:
        """How many times as long as usual all work of a gap's lane is in its step: 1, unless more
        of it than one gap says otherwise. Of kinds that are mostly hidden, only the longest are
        seen: these tell nothing."""
        work, unseen = self.work(waits)
        shown = (means(~unseen, self.kind) > MOST)[self.kind]
        length = weighted_median(work, ~unseen, self.kind)[self.kind]
        cells = np.arange(int(self.cell.max(initial=-1)) + 1)
        most = LARGEST_WEIGHT * np.bincount(self.cell, length * shown, len(cells))
        weight = np.where(unseen | ~shown, 0.0, np.minimum(length, most[self.cell]))
        ratio = np.append(work / np.maximum(length, 1.0), np.ones(len(cells)))
        usual = weighted_median(ratio, np.append(weight, most), np.append(self.cell, cells))
        return np.where(usual > 0, usual, 1.0)[self.cell]

    def misfit(self, waits: Array, pace: Array) -> tuple[Array, Array]:
        """Of each kind, the mean absolute difference of its gaps from what they would last in pace,
        and its usual work. A gap in which the device was idle may be longer."""
        work, unseen = self.work(waits)
        length = weighted_median(work / pace, ~unseen, self.kind)
        work = np.where(np.isnan(self.computed), length[self.kind] * pace, self.computed)
        longer = self.lasted - self.expected(waits, work)
        apart = np.where(self.idle, np.maximum(-longer, 0.0), np.abs(longer))
        return means(apart, self.kind), length


def gaps_between(rows: Columns, over: Array, place: Array) -> Gaps:
    """The gaps between rows in order of lane and time; `over` is when each row's operation ended,
    `place` numbers its place in the program."""
    row = np.flatnonzero(np.diff(rows.lane, prepend=-1) == 0)
    before = rows.enter_ns[row - 1]
    opens = (np.diff(rows.lane, prepend=-1) != 0) | (np.diff(rows.step, prepend=-1) != 0)
    ends = np.full((1 + FURTHEST, len(row)), -np.inf)
    for ahead in range(1, 1 + FURTHEST):
        there = row >= ahead
        there[there] = rows.lane[row[there] - ahead] == rows.lane[row[there]]
        ends[ahead, there] = over[row[there] - ahead] - before[there]
    lasted = (rows.enter_ns[row] - before).astype(float)
    computed = rows.computed_ns[row] - rows.computed_ns[row - 1]
    cell = (np.cumsum(opens) - 1)[row]
    kind, idle = place[row - 1], np.zeros(len(row), bool)
    if "slack_ns" in rows:  # of devices
        own = rows.lane[row] * (int(kind.max(initial=0)) + 1) + kind
        idle = idle_before(rows.slack_ns[row], lasted, own) & np.isnan(computed)
    return Gaps(row, kind, cell, opens[row], idle, lasted, computed, ends)


def best_waits(gaps: Gaps, waits: Array, sure: Array) -> Array:
    """The waits that fit the paces of lanes and steps best, searched from `waits`, from none and
    from waits at once; `waits` unless others are clearly better, and for `sure` kinds."""
    some = gaps.sample()
    first, unseen = np.split(waits, [some.kind.max(initial=-1) + 1])  # those without a gap in it
    free = ~sure[: len(first)]
    found, misfit = _fitted(some, first, free)
    for start in (0, 1):
        other, rest = _fitted(some, np.where(free, start, first), free)
        better = clearly(rest, misfit, AT_ONCE_NS)
        found, misfit = np.where(better, other, found), np.where(better, rest, misfit)
    return np.append(found, unseen)


def _fitted(gaps: Gaps, waits: Array, free: Array) -> tuple[Array, Array]:
    """The waits, of `free` kinds changed wherever others fit clearly better; and, of each kind, the
    misfit of a gap in its steps."""
    late = (gaps.over > np.minimum(gaps.lasted, 0.0) - AT_ONCE_NS).any(axis=1)  # others hold nobody
    tries = [one for ahead in np.flatnonzero(late).tolist() for one in (ahead, -ahead)]
    for _ in range(PACE_ROUNDS if tries else 0):
        before, waits = waits, np.where(free, _fit_round(gaps, waits, tries), waits)
        if (waits == before).all():
            break
    misfit, _ = gaps.misfit(waits, gaps.paces(waits))
    count = np.maximum(np.bincount(gaps.cell), 1)
    each = np.bincount(gaps.cell, misfit[gaps.kind]) / count
    return waits, means(each[gaps.cell], gaps.kind)


def _fit_round(gaps: Gaps, waits: Array, tries: list[int]) -> Array:
    """The waits of one round, with paces as these have it."""
    pace = gaps.paces(waits)
    misfit, length = gaps.misfit(waits, pace)
    floor = np.maximum(TELLING * length, AT_ONCE_NS)
    none, *misfits = (gaps.misfit(np.full_like(waits, one), pace)[0] for one in (0, *tries))
    best, least = np.array(tries)[np.argmin(misfits, axis=0)], np.min(misfits, axis=0)
    waiting = clearly(least, none, floor)
    better = clearly(np.where(waiting, least, none), misfit, floor)
    return np.where(better, np.where(waiting, best, 0), waits)


def clearly(misfit: Array, before: Array, floor: Array | float) -> Array:
    """Whether a misfit is less than before by more than `floor` and a share of what is left."""
    return np.asarray(before - misfit > np.maximum(floor, SURE * misfit))


def weighted_median(values: Array, weight: Array, group: Array) -> Array:
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
