"""What lateness, slow transfers and noise cost: the run replayed without them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.diagnose.graph.peers import Alike, alike
from evenstep.diagnose.graph.replay import Change, replay, step_lengths, together
from evenstep.diagnose.graph.structure import Graph, mixed, quantiles, summed
from evenstep.diagnose.lateness.thresholds import above_others, around
from evenstep.diagnose.levels import ERRORS, MOST, SEVERAL, UNDISTURBED

Array = npt.NDArray[Any]

NONE = Change.none()


class Costs:
    """A run's graph, and what changes to it would save."""

    def __init__(
        self,
        graph: Graph,
        on_record_ns: Mapping[int, Array] | None = None,
        in_phases_ns: Callable[[], Array] | None = None,
    ) -> None:
        """`on_record_ns`: by cause, how much of each row's own work a record of it explains;
        `in_phases_ns`: how much of it its lane usually has more than others, by its phases."""
        self.graph = graph
        self.on_record_ns = on_record_ns or {}
        self._in_phases_ns = in_phases_ns or (lambda: np.zeros(len(graph.rows)))

    @cached_property
    def in_phases_ns(self) -> Array:
        """What of each row's own work is more than others have in its phases."""
        return self._in_phases_ns()

    @cached_property
    def parts(self) -> list[Alike]:
        """Rows by program and place."""
        return alike(self.graph)

    @cached_property
    def length_ns(self) -> Array:
        """Each step of the job, replayed as it was."""
        return np.asarray(step_lengths(self.graph, replay(self.graph, [NONE]))[0])

    @cached_property
    def seen_ns(self) -> Array:
        """Each step of the job, as it was seen to end; not what passed before it in no step."""
        rows = self.graph.rows
        ends = np.full((1, len(self.graph.steps), len(self.graph.ranks)), np.nan)
        last = rows.ends
        ends[0, rows["index"][last], rows.lane[last]] = rows.at_ns[last]
        return np.asarray(step_lengths(self.graph, ends)[0] - self.graph.between_ns)

    def saved(self, changes: Sequence[Change]) -> Array:
        """How much shorter each step is under each change: (changes, steps), ns."""
        lengths = step_lengths(self.graph, replay(self.graph, changes))
        return np.asarray(self.length_ns[None, :] - lengths)

    # -- interventions -----------------------------------------------------------------------------

    def held_up(self, paused: Array) -> Change:
        """Operations of paused cells (steps × lanes) at what their kind usually takes.

        A pause holds the interpreter lock, and with it the callbacks and the transport's threads
        that run them: what is in flight then may end when the pause does, on every member.
        """
        if not paused.any():
            return NONE
        rows = self.graph.rows
        mine = np.unique(rows.enter[paused[rows["index"], rows.lane] & (rows.enter >= 0)])
        table = self.graph.operations
        kind = mixed([table.queue, table.op, table.size_bytes])
        kind = np.unique(kind, return_inverse=True)[1].reshape(-1)
        usual = quantiles(table.took_ns, kind, UNDISTURBED, int(kind.max(initial=-1)) + 1)
        return Change.of_transfers(mine, np.minimum(table.took_ns, usual[kind])[mine])

    def relieved(self, cause: int, late_ns: Array, chronic: Array) -> Change:
        """Cells (steps × lanes) relieved of what they are late by for this cause: where its records
        lie, if there are any; else where they do more than others. `chronic` (lanes,)."""
        if cause not in self.on_record_ns:
            return self._like_others(late_ns, chronic)
        there = self.on_record_ns[cause]
        rows = self.graph.rows
        part = np.minimum(late_ns / np.maximum(summed(self.graph, there), 1), 1.0)
        less = there * part[rows["index"], rows.lane]
        chosen = np.flatnonzero(less > 0)
        return Change.of_work(chosen, self.graph.own_ns[chosen] - less[chosen])

    def _like_others(self, late_ns: Array, chronic: Array) -> Change:
        """Cells relieved where they do more than others: chronic lanes in the places in which they
        usually do, or of a program that no other lane has in such phases, the others where their
        own work exceeds the others' in that very step; all of their work where that explains less
        than half."""
        changed, late_ns = self.graph.own_ns.copy(), self._by_segment(late_ns)
        for part in self.parts:
            wanted = late_ns[part.segments][:, part.lanes]
            if not (wanted > 0).any():
                continue
            own = part.of(changed)
            wanted = _beside_peers(wanted, own.sum(axis=2), chronic[part.lanes])
            alone = len(part.lanes) == 1 and chronic[part.lanes].all()
            weight = part.of(self.in_phases_ns) if alone else _excess(own, chronic[part.lanes])
            explains = weight.sum(axis=2, keepdims=True) >= MOST * wanted[:, :, None]
            part.lay(changed, own - _laid(wanted, np.where(explains, weight, own), own))
        return self._own(changed)

    def _by_segment(self, cells_ns: Array) -> Array:
        """What is asked of cells (steps × lanes), by segment and lane: a step's rows may lie in the
        segment of a later one, and then that is where the longest of them lies."""
        rows, home = self.graph.rows, np.indices(cells_ns.shape)[0]
        if (rows.segment == rows["index"]).all():
            return cells_ns
        order = np.argsort(rows.own_ns, kind="stable")
        home[rows["index"][order], rows.lane[order]] = rows.segment[order]
        found = np.zeros((len(self.graph.batch_of), cells_ns.shape[1]))
        np.add.at(found, (home, np.arange(cells_ns.shape[1])), cells_ns)
        return found

    def even(self, base: Change = NONE) -> Change:
        """Every row's own work at the mean of its place, on top of another change; of a lane that
        always has more or less to do, at the mean of its own."""
        own = self.graph.own_ns.copy()
        own[base.rows] = base.own_ns
        for part in self.parts:
            here = part.of(own)
            part.lay(own, np.broadcast_to(_level(here), here.shape))
        return self._own(own, base)

    def even_amounts(self, base: Change = NONE, *, part: float) -> Change:
        """Every cell with the usual amount of its lane's work, or as much of the way there, on top
        of another change.

        What a place has more or less in cells of other amounts is taken from it or given to it, in
        proportion, as its noise is to its work.
        """
        own = self.graph.own_ns.copy()
        own[base.rows] = base.own_ns
        for one in self.parts:
            here = one.of(own)
            amount = here.sum(axis=2)
            more = amount - _level(here).sum(axis=2)
            usual = here.mean(axis=0, keepdims=True)
            whole = max(float((more * more).sum()), 1.0)
            slope = ((here - usual) * more[:, :, None]).sum(axis=(0, 1)) / whole
            expected = np.maximum(usual + more[:, :, None] * slope, 1.0)
            one.lay(own, here * (1 - part * np.maximum(1 - usual / expected, -1.0)))
        return self._own(own, base)

    def _own(self, own_ns: Array, base: Change = NONE) -> Change:
        """The change to this own work of all rows, and of transfers as in another."""
        rows = np.flatnonzero(own_ns != self.graph.own_ns)
        return base._replace(rows=rows, own_ns=np.maximum(own_ns[rows], 0.0))

    def first_rows(self) -> Array:
        """The first row of each cell: (steps, lanes)."""
        found = np.zeros((len(self.graph.steps), len(self.graph.ranks)), np.int64)
        for part in self.parts:
            found[part.segments[:, None], part.lanes[None, :]] = part.rows[:, :, 0]
        return found

    def together(self, changes: Sequence[Change]) -> Change:
        """All of these changes at once."""
        return together(self.graph, changes)


def _level(own: Array) -> Array:
    """(1, lanes, places): mean of each place over all lanes, or over those that are unlike."""
    amount = own.sum(axis=2)
    mean = amount.mean(axis=0)
    error = amount.std(axis=0).max() / np.sqrt(len(amount))
    unlike = np.abs(mean - np.median(mean)) > ERRORS * error
    lanes = own.mean(axis=0)
    common = lanes[~unlike].mean(axis=0) if (~unlike).any() else lanes.mean(axis=0)
    return np.asarray(np.where(unlike[:, None], lanes, common[None, :]))[None]


def _beside_peers(wanted: Array, amount: Array, chronic: Array) -> Array:
    """What is wanted of chronic lanes (segments, lanes): at least what they usually do more than
    most lanes of their program, as all others may always have more to do than these."""
    if len(chronic) <= SEVERAL or chronic.sum() >= MOST * len(chronic):
        return wanted
    more = around(above_others(amount)) * amount / np.maximum(around(amount), 1.0)
    return np.asarray(np.where(chronic & (wanted > 0), np.maximum(wanted, more), wanted))


def _laid(wanted: Array, weight: Array, own: Array) -> Array:
    """What is wanted of each cell laid on its places by weight; what they have not, on all."""
    total = weight.sum(axis=2)
    share = np.where(wanted > 0, wanted, 0.0) / np.where(total > 0, total, 1.0)
    laid = np.minimum(weight * share[:, :, None], own)
    rest = np.maximum(np.where(wanted > 0, wanted, 0.0) - laid.sum(axis=2), 0.0)
    room = own - laid
    whole = room.sum(axis=2)
    return np.asarray(laid + room * (rest / np.where(whole > 0, whole, 1.0))[:, :, None])


def _excess(own: Array, chronic: Array) -> Array:
    """Own work (segments, lanes, places) above the peers': of chronic lanes what is usual of it, in
    proportion to the work, as whoever is slower is so at everything."""
    if own.shape[1] < 2:
        return np.asarray(np.maximum(own - np.median(own, axis=0, keepdims=True), 0.0))
    above = np.stack([above_others(own[:, :, place]) for place in range(own.shape[2])], axis=2)
    usual = np.maximum(np.median(above, axis=0, keepdims=True), 0.0)
    usual = usual * own / np.maximum(np.median(own, axis=0, keepdims=True), 1.0)
    return np.asarray(np.where(chronic[None, :, None], usual, np.maximum(above, 0.0)))
