"""What lateness, slow transfers and noise cost: the run replayed without them; and blame.

Blame is rank-seconds that one rank lost to another's lateness, per window of steps. The rank that
enters a collective last is to blame for what its members wait in it; the root, where members wait
for the root alone. Waits are scaled to the time a rank was really blocked, so that all blame adds
up to the wait of the grid.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from evenstep.diagnose.graph.peers import Peers, between_barriers, peers
from evenstep.diagnose.graph.replay import Change, combine, replay, step_lengths
from evenstep.diagnose.graph.structure import (
    Graph,
    by_step_and_lane,
    last_lanes,
    quantiles,
    row_numbers,
)
from evenstep.diagnose.lateness.thresholds import (
    above_others,
    error_of_median,
    local_median,
    usual_of,
)
from evenstep.diagnose.levels import ERRORS, LISTED, MOST, UNDISTURBED
from evenstep.diagnose.measure.grid import StepGrid
from evenstep.statistics.interval import BLOCK_STEPS
from evenstep.trace.columns import Array, largest_of
from evenstep.trace.spool.layout import TO_ROOT

NONE = Change.none()


def _level(own: Array) -> Array:
    """(1, lanes, places): mean of each place over lanes; a lane with unusual work has its own."""
    amount = own.sum(axis=2)
    mean = amount.mean(axis=0)
    error = amount.std(axis=0).max() / np.sqrt(len(amount))
    unlike = np.abs(mean - np.median(mean)) > ERRORS * error
    lanes = own.mean(axis=0)
    common = lanes[~unlike].mean(axis=0) if (~unlike).any() else lanes.mean(axis=0)
    return np.asarray(np.where(unlike[:, None], lanes, common[None, :]))[None]


class Costs:
    """A run's graph, the changes that remove a cause from it, and what they save."""

    def __init__(
        self,
        graph: Graph,
        on_record_ns: Mapping[int, tuple[Array, Array, bool]] | None = None,
        in_phases_ns: Callable[[], Array] | None = None,
    ) -> None:
        """`on_record_ns`: by cause, the parts of each row's own work, and of its issue or flight,
        that records cover, and whether they hold up what is in flight; `in_phases_ns`: of the work
        what its lane's phases usually have more than others'."""
        self.graph = graph
        self.on_record_ns = on_record_ns or {}
        self.in_phases_ns = in_phases_ns or (lambda: np.zeros(len(graph.rows)))

    @cached_property
    def parts(self) -> list[Peers]:
        """Rows by program and place."""
        return peers(self.graph)

    @cached_property
    def length_ns(self) -> Array:
        """Length of each step of the job, replayed unchanged."""
        return np.asarray(step_lengths(self.graph, replay(self.graph, [NONE]))[0])

    @cached_property
    def seen_ns(self) -> Array:
        """Length of each step of the job by the ends seen, without idle time before the step."""
        rows = self.graph.rows
        ends = np.full((1, len(self.graph.steps), len(self.graph.ranks)), np.nan)
        last = rows.ends
        ends[0, rows["index"][last], rows.lane[last]] = rows.at_ns[last]
        return np.asarray(step_lengths(self.graph, ends)[0] - self.graph.between_ns)

    def at_barriers_ns(self, part_ns: Array) -> Array:
        """How much later than the others each lane usually comes to some barriers of all, and how
        much earlier to others, where it waits: (2, steps, lanes); in proportion to the part of
        rows' own work. 0 of lanes with programs of their own."""
        found = np.zeros((2, len(self.graph.steps), len(self.graph.ranks)))
        everybody = self.graph.operations.members == found.shape[2]
        whole = (one for one in self.parts if everybody.any() and len(one.lanes) == found.shape[2])
        for peer in whole:
            own_ns = self.graph.own_ns, part_ns
            cuts = [between_barriers(self.graph, peer, of, everybody)[0] for of in own_ns]
            for cut in cuts:
                cut[0] += cut[-1]  # the last of a step and the first of the next end at one barrier
            for own, part in zip(*(cut[:-1] for cut in cuts), strict=True):
                above = above_others(own)
                surely = np.abs(np.median(above, axis=0)) > ERRORS * error_of_median(above)
                usual = local_median(above) * surely * part / np.maximum(own, 1.0)
                found[:, peer.segments] += np.maximum([usual, -usual], 0.0)
        return found

    def saved(self, changes: Sequence[Change]) -> Array:
        """How much shorter each step is under each change: (changes, steps), ns."""
        lengths = step_lengths(self.graph, replay(self.graph, changes))
        return np.asarray(self.length_ns[None, :] - lengths)

    # -- interventions -----------------------------------------------------------------------------

    def relieved(self, cause: int, late_ns: Array, usual: Array, recorded_ns: Array) -> Change:
        """Cells (steps × lanes) without their lateness for this cause: taken from where its records
        lie, if there are any, else from where the cell does more than others, or where the lane's
        `usual` cells (or lanes, of which all are) do, beside what they are late for other causes
        that are `recorded_ns`. Of a late lane, what the records of other steps hid goes, too; what
        holds up others goes from all cells, as what another's hid would then come to light."""
        if cause not in self.on_record_ns:
            return self._like_others(late_ns, usual, recorded_ns)
        recorded, beside, holds_up = self.on_record_ns[cause]
        rows = self.graph.rows
        whole = by_step_and_lane(self.graph, recorded)
        part = np.minimum(late_ns / np.maximum(whole, 1), 1.0)
        # behind what the lane waited for
        hidden = late_ns <= 0 if holds_up else (whole == 0) & late_ns.any(axis=0)
        less = recorded * part[rows["index"], rows.lane]
        sooner = beside * np.where(hidden, 1.0, part)[rows["index"], rows.lane]
        sooner *= self.graph.device[rows.lane]
        chosen, issued = np.flatnonzero(less > 0), np.flatnonzero(sooner > 0)
        operations = self.graph.host[issued]
        took = self.graph.took_ns[operations] - sooner[issued]
        change = Change(chosen, self.graph.own_ns[chosen] - less[chosen], operations, took)
        return self.combined([change, self._flown_on(late_ns > 0, beside)]) if holds_up else change

    def _flown_on(self, paused: Array, flight_ns: Array) -> Change:
        """Operations that hosts enter in paused cells (steps × lanes) shorter by what records
        cover of their flight (rows,), down to the usual duration of their kind.

        A pause holds the interpreter lock, which callbacks and threads of the transport need, and a
        stopped process has no thread that runs: what is in flight may end when the pause does, on
        every member.
        """
        rows, table = self.graph.rows, self.graph.operations
        mine = np.flatnonzero(paused[rows["index"], rows.lane] & ~self.graph.device[rows.lane])
        mine = mine[rows.enter[mine] >= 0]
        beside = largest_of(flight_ns[mine], rows.enter[mine], len(table), least=0.0)
        kind = row_numbers(table.queue, table.op, table.size_bytes)
        usual = quantiles(table.took_ns, kind, UNDISTURBED, int(kind.max(initial=-1)) + 1)
        less = np.minimum(beside, np.maximum(table.took_ns - usual[kind], 0.0))
        hit = np.flatnonzero(less)
        return Change.of_transfers(hit, (table.took_ns - less)[hit])

    def _like_others(self, late_ns: Array, usual: Array, recorded_ns: Array) -> Change:
        """Cells without their lateness, taken from places where they do more than others: usual
        cells where these usually do, and of lanes that always are (chronic) all of that but what is
        on record, as having less to do between other operations makes up for nothing (without a
        peer that is not: in such phases), others where they do in that very step; from all places
        where those explain less than half. What a device does after the last operation of a late
        step is seen before the first of the next, and taken there. Hosts of late lanes issue as
        soon as others', or their devices, with less to do, would wait for them."""
        usual = np.broadcast_to(usual, late_ns.shape)
        chronic: Array = np.asarray(usual.all(axis=0))
        usual = self._by_segment(usual.astype(float)) > 0
        changed, late_ns = self.graph.own_ns.copy(), self._by_segment(late_ns)
        took, recorded_ns = self.graph.took_ns.copy(), self._by_segment(recorded_ns)
        issue_ns = np.append(took, 0.0)[self.graph.host]
        for part in self.parts:
            wanted = late_ns[part.segments][:, part.lanes]
            if not (wanted > 0).any():
                continue
            own, always = part.by_place(changed), chronic[part.lanes]
            late = usual[part.segments][:, part.lanes] | always
            weight = _excess(own, late)
            if always.all() and (weight.sum() < MOST * wanted.sum()):  # as late as all of its peers
                weight = part.by_place(self.in_phases_ns())
            else:
                whole = weight.sum(axis=2) - recorded_ns[part.segments][:, part.lanes]
                wanted = np.where(always & (wanted > 0), np.maximum(wanted, whole), wanted)
            explains = weight.sum(axis=2, keepdims=True) >= MOST * wanted[:, :, None]
            less = _distribute(wanted, np.where(explains, weight, own), own)
            ended = self.graph.device[part.lanes] & ~always & (np.diff(part.segments) == 1)[:, None]
            ended &= (wanted[:-1] > 0) & (wanted[1:] <= 0)
            above, alike = above_others(own[1:, :, 0]), ended & late[:-1]
            rest = np.where(alike, usual_of(above, alike), above)
            less[1:, :, 0] += np.where(ended, np.maximum(rest, 0.0), 0.0)
            part.assign(changed, np.maximum(own - less, 0.0))
            issued = self.graph.host[part.rows]
            held = part.there & (issued >= 0) & (wanted > 0)[:, :, None]
            held &= (recorded_ns[part.segments][:, part.lanes] <= 0)[:, :, None]
            if held.any():
                issue = part.by_place(issue_ns)
                np.minimum.at(took, issued[held], (issue - _excess(issue, late))[held])
        sooner = np.flatnonzero(took != self.graph.took_ns)
        return self.change_to(changed, NONE._replace(operations=sooner, took_ns=took[sooner]))

    def _by_segment(self, cells_ns: Array) -> Array:
        """Values of cells (steps × lanes) by segment and lane: of a cell with rows in a later
        step's segment, in the segment of its longest row."""
        rows, count = self.graph.rows, len(self.graph.batch_of)
        home = np.minimum(np.indices(cells_ns.shape)[0], count - 1)  # of cells without rows, too
        if (rows.segment == rows["index"]).all():
            return cells_ns
        order = np.argsort(rows.own_ns, kind="stable")
        home[rows["index"][order], rows.lane[order]] = rows.segment[order]
        found = np.zeros((count, cells_ns.shape[1]))
        np.add.at(found, (home, np.arange(cells_ns.shape[1])), cells_ns)
        return found

    def even(self, base: Change = NONE, level: Callable[[Array], Array] = _level) -> Change:
        """Every row's own work at the `level` of its place, of its (segments, lanes, places), on
        top of another change; by default at the mean, but a lane that always has more or less to
        do keeps its own."""
        own = self.own_ns(base)
        for part in self.parts:
            here = part.by_place(own)
            part.assign(own, np.broadcast_to(level(here), here.shape))
        return self.change_to(own, base)

    def even_amounts(self, base: Change = NONE, *, part: float) -> Change:
        """Every cell with the usual amount of its lane's work, or `part` of the way there, on top
        of another change.

        Each place changes in proportion to its work, by its regression on the cell's amount.
        """
        own = self.own_ns(base)
        for one in self.parts:
            here = one.by_place(own)
            amount = here.sum(axis=2)
            more = amount - _level(here).sum(axis=2)
            usual = here.mean(axis=0, keepdims=True)
            whole = max(float((more * more).sum()), 1.0)
            slope = ((here - usual) * more[:, :, None]).sum(axis=(0, 1)) / whole
            expected = np.maximum(usual + more[:, :, None] * slope, 1.0)
            one.assign(own, here * (1 - part * np.maximum(1 - usual / expected, -1.0)))
        return self.change_to(own, base)

    def own_ns(self, base: Change) -> Array:
        """Own work of all rows under a change."""
        own = self.graph.own_ns.copy()
        own[base.rows] = base.own_ns
        return own

    def change_to(self, own_ns: Array, base: Change = NONE) -> Change:
        """The change to this own work of all rows, with the transfers of `base`."""
        rows = np.flatnonzero(own_ns != self.graph.own_ns)
        return base._replace(rows=rows, own_ns=np.maximum(own_ns[rows], 0.0))

    def combined(self, changes: Sequence[Change]) -> Change:
        """All of these changes at once."""
        return combine(self.graph, changes)


def _distribute(wanted: Array, weight: Array, own: Array) -> Array:
    """What to take from each cell, distributed over its places by weight; what exceeds the work of
    these places, over all places."""
    wanted, total = np.maximum(wanted, 0.0), weight.sum(axis=2)
    share = wanted / np.where(total > 0, total, 1.0)
    taken = np.minimum(weight * share[:, :, None], own)
    rest = np.maximum(wanted - taken.sum(axis=2), 0.0)
    room = own - taken
    whole = room.sum(axis=2)
    return np.asarray(taken + room * (rest / np.where(whole > 0, whole, 1.0))[:, :, None])


def _excess(own: Array, late: Array) -> Array:
    """Own work (segments, lanes, places) above the peers'; of `late` cells (segments × lanes) the
    usual excess of those around, in proportion to the work, as a slower rank is slower at
    everything: unless that is less than half of a cell's own, and others of the lane are not."""
    if own.shape[1] < 2:
        return np.asarray(np.maximum(own - np.median(own, axis=0, keepdims=True), 0.0))
    above = np.stack([above_others(own[:, :, place]) for place in range(own.shape[2])], axis=2)
    more, found = np.maximum(usual_of(above, late), 0.0), np.maximum(above, 0.0)
    more *= own / np.maximum(usual_of(own, late), 1.0)
    alike = more.sum(axis=2) >= MOST * above.sum(axis=2)
    return np.where((late & (alike | late.all(axis=0)))[:, :, None], more, found)


# -- blame -----------------------------------------------------------------------------------------


class Blame(NamedTuple):
    """Waits by step, victim and culprit: parallel columns over cells × collectives."""

    step: Array  # row of the grid
    victim: Array  # column of the grid
    culprit: Array
    lost_ns: Array
    shape: tuple[int, int]  # (steps, ranks)

    def cells(self) -> Array:
        """(steps, ranks) of nanoseconds that all the others waited for each rank."""
        place = self.step * self.shape[1] + self.culprit
        size = self.shape[0] * self.shape[1]
        return np.bincount(place, weights=self.lost_ns, minlength=size).reshape(self.shape)

    def between(self, place: Array) -> Array:
        """(waiting, awaited) places of rank-nanoseconds lost; `place` is the number of each rank's
        place, such as its node."""
        side = int(place.max(initial=-1)) + 1
        cell = place[self.victim] * side + place[self.culprit]
        return np.bincount(cell, weights=self.lost_ns, minlength=side * side).reshape(side, side)

    def largest(self, places: Sequence[Any]) -> list[tuple[Any, Any, float]]:
        """Places that waited most for others, or for themselves, the place waited for, and the time
        lost, ns; at most `LISTED`. `places`: that of each rank."""
        number = {place: at for at, place in enumerate(dict.fromkeys(places))}
        names, table = list(number), self.between(np.array([number[place] for place in places]))
        most = np.argsort(-table, axis=None, kind="stable")[:LISTED]
        pairs = [divmod(int(at), len(names)) for at in most]
        return [(names[a], names[b], float(table[a, b])) for a, b in pairs if table[a, b] > 0]

    @property
    def windows(self) -> list[tuple[int, int]]:
        """Rows of windows of about equal length, as half-open ranges: at most `LISTED`, of at least
        `BLOCK_STEPS` steps where there are so many."""
        number = max(min(LISTED, self.shape[0] // BLOCK_STEPS), 1)
        edges = np.linspace(0, self.shape[0], number + 1).astype(int)
        return [(int(first), int(last)) for first, last in pairwise(edges)]

    def by_window(self) -> Array:
        """(windows, culprits) of rank-nanoseconds lost to each rank."""
        cells = self.cells()
        return np.stack([cells[first:last].sum(axis=0) for first, last in self.windows])


def blame(grid: StepGrid) -> Blame:
    """Trace every wait back to the rank it was for; of a large run, in the sampled steps."""
    graph = grid.graph
    table = graph.operations
    shared = np.append(table.whole & (table.members > 1) & ~table.message, False)
    rows = graph.rows.select(shared[graph.rows.enter])
    mine = table.select(rows.enter)
    sends = np.isin(mine.op, TO_ROOT) & (graph.ranks[rows.lane] != mine.root)
    wait = np.where(sends, 0, np.maximum(mine.last_ns - rows.at_ns, 0)).astype(float)
    step = np.searchsorted(grid.steps, graph.steps[rows["index"]])
    seen = np.zeros(grid.shape)
    np.add.at(seen, (step, rows.lane), wait)
    real = grid.wait_ns / np.where(seen > 0, seen, 1)
    culprit = last_lanes(graph)[rows.enter]
    kept = (wait > 0) & (culprit >= 0)
    lost = (wait * real[step, rows.lane])[kept]
    return Blame(step[kept], rows.lane[kept], culprit[kept], lost, grid.shape)


def drift(found: Blame) -> float | None:
    """How far blame moves from the first window to the last: 0 not at all, 1 to other ranks.

    Total variation: half the sum of absolute differences of the culprits' shares.
    """
    windows = found.by_window()
    first, last = windows[0], windows[-1]
    if len(windows) < 2 or first.sum() <= 0 or last.sum() <= 0:
        return None
    return float(np.abs(first / first.sum() - last / last.sum()).sum() / 2)
