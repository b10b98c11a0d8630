"""The case: a trace with its grid, and everything that the failure modes derive from both."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial

import numpy as np

from evenstep import words
from evenstep.diagnose.finding import Where
from evenstep.diagnose.graph.peers import work_by_direction
from evenstep.diagnose.graph.replay import Change
from evenstep.diagnose.graph.structure import (
    Graph,
    begun_ns,
    by_step_and_lane,
    overlap_of_entries,
    regularly_later,
)
from evenstep.diagnose.lateness.cost import Blame, Costs, blame
from evenstep.diagnose.lateness.delays import WORK_PHASES, Cause, Delays, attribute, recorded_ns
from evenstep.diagnose.lateness.thresholds import above_others
from evenstep.diagnose.levels import MINOR, MOST
from evenstep.diagnose.measure.attempts import (
    Death,
    attempts_of,
    deaths,
    first_of,
    hung_first,
    on_one_wall_clock,
)
from evenstep.diagnose.measure.effects import running_share
from evenstep.diagnose.measure.grid import StepGrid, during, held_by, in_phase, step_grid
from evenstep.diagnose.measure.hosts import Contention, contention
from evenstep.diagnose.measure.links import Traffic, flows_of_groups
from evenstep.diagnose.measure.stuck import Stuck, stuck
from evenstep.diagnose.measure.transfers import Shape, Transfers, shapes, transfers
from evenstep.statistics.interval import Share, share_of
from evenstep.trace.columns import Array, largest_of
from evenstep.trace.spool.layout import Flag, Kind, Phase
from evenstep.trace.trace import Trace

INNER_PHASES = (Phase.INPUT, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)
_PHASES = {
    Cause.INPUT: (int(Phase.INPUT),),
    Cause.CHECKPOINT: (int(Phase.CHECKPOINT), int(Phase.EVALUATION)),
}
IDLE = 0.25  # of the lateness: with less CPU time in it, the rank stands still


class Claims:
    """The lateness that findings explain already, so that each late cell is in one finding only.

    Modes with evidence of their own are asked before those that only see lateness. The order does
    not decide what each finding is worth (see `evenstep.diagnose.engine`).
    """

    def __init__(self, shape: tuple[int, int], rest_ns: Array) -> None:
        self.claimed: Array = np.zeros(shape, bool)  # late cells in findings, (steps, ranks)
        self.rest_ns: Array = rest_ns.astype(float)  # unexplained loss per step; may be negative
        self.slow_ns: Array = np.zeros(shape[0])  # known cost of slow transfers, per step
        self.moves: Array = np.zeros(1, bool)  # mask of transfers whose slowness is in a finding

    def unclaimed(self, cells: Array) -> Array:
        """The part of these cells (steps × ranks, boolean) that no finding has claimed."""
        return np.asarray(cells & ~self.claimed)

    def claim(self, cells: Array) -> Array:
        """Claim late cells; return those that were unclaimed."""
        mine = self.unclaimed(cells)
        self.claimed |= mine
        return mine


@dataclass(frozen=True)  # no slots: the properties are cached in its dictionary
class Case:
    """A trace under diagnosis. Only `claims` changes, as modes are asked."""

    trace: Trace
    grid: StepGrid

    @cached_property
    def claims(self) -> Claims:
        """The lateness that the modes asked so far explain."""
        return Claims(self.grid.shape, self.delays.rest_ns)

    @cached_property
    def costs(self) -> Costs:
        """The run's graph, and what changes to it save."""
        return Costs(self.grid.graph, _on_record(self.grid), cache(partial(_in_phases, self.grid)))

    @cached_property
    def delays(self) -> Delays:
        """Which rank was late in which step, why, and what it cost."""
        return attribute(self.grid, self.costs, contended=self.contended)

    @property
    def program_ns(self) -> Array:
        """Own work of each step and rank without recorded input, checkpoints, pauses and stops."""
        others = [self.grid.phase_ns[Phase(one)] for phases in _PHASES.values() for one in phases]
        stood_ns = self.grid.pause_ns + self.grid.stood_ns
        return np.asarray(np.maximum(self.grid.work_ns - sum(others) - stood_ns, 0))

    @cached_property
    def scheduler(self) -> Contention | None:
        """Waits of threads for a core; None where that was not sampled."""
        return contention(self.trace, self.grid)

    @cached_property
    def dead(self) -> list[Death]:
        """Ranks that ended wrongly, in the order of their ends."""
        return deaths(self.trace)

    @cached_property
    def _in_flight(self) -> list[Stuck]:
        """Operations that never ended, however long they were in flight."""
        return stuck(self.trace)

    @cached_property
    def stuck(self) -> list[Stuck]:
        """Operations in flight for much longer than a step takes: where the job hung."""
        return hung_first(self.trace, self._in_flight, self.dead, self.grid.step_ns)

    @cached_property
    def failed(self) -> list[Death]:
        """The dead that ended the job, where no hang did."""
        awaited = [rank for place in self._in_flight for rank in place.missing]
        return [] if self.stuck else first_of(self.dead, awaited)

    @cached_property
    def unexplained(self) -> float | None:
        """Error of the unchanged replay's total length, as a share of the run's length."""
        length = float(self.costs.seen_ns.sum())
        return abs(float(self.costs.length_ns.sum()) / length - 1) if length > 0 else None

    @cached_property
    def step_ns(self) -> Array:
        """Length of each step of the job; on devices that of their streams, as hosts run ahead."""
        if not self.grid.graph.device.any():
            return self.grid.step_ns
        return self.grid.from_sampled(self.costs.seen_ns)

    @property
    def late_start_ns(self) -> Array:
        """How much later than the first half each rank began the first traced step, (ranks,);
        empty where that is an inferred one, with traced calls before it."""
        steps = self.grid.steps
        if not len(steps):
            return np.zeros(0)
        inferred, calls = self.trace.table.flagged(Kind.STEP, Flag.INFERRED), Kind.COLLECTIVE
        if inferred and (self.trace.of_kind(calls).step < steps[0]).any():
            return np.zeros(0)
        start = self.grid.graph.starts_ns[0][: len(self.grid.ranks)]
        return np.asarray(start - begun_ns(start))

    @property
    def contended(self) -> bool:
        """Whether cores were short for most ranks."""
        return self.scheduler is not None and self.scheduler.oversubscribed

    @cached_property
    def blame(self) -> Blame:
        """Waits by step, victim and culprit."""
        return blame(self.grid)

    @cached_property
    def waited_for_ns(self) -> Array:
        """Time that all other ranks together waited for each rank in each step. (steps, ranks)"""
        return self.blame.cells()

    @cached_property
    def transfers(self) -> Transfers:
        """Duration of the data transfer of every collective and message."""
        return transfers(self.grid)

    @cached_property
    def shapes(self) -> list[Shape]:
        """Collectives by operation and by how their groups lie on the nodes."""
        return shapes(self.trace, self.transfers)

    @cached_property
    def flows(self) -> list[Traffic]:
        """Collectives by group, with what each loses beside those alike."""
        return flows_of_groups(self.trace, self.transfers, self.shapes)

    def beyond_alike(self, flows: Iterable[Traffic]) -> Array:
        """By how much each transfer would be shorter if these were as quick as those alike, ns."""
        usual = np.full(len(self.costs.graph.operations), np.inf)
        for one in flows:
            usual[np.asarray(one.operations, int)] = one.usual_ns
        moved = self.transfers.rows
        return np.asarray(np.maximum(moved.transfer_ns - usual[moved.operation], 0.0))

    def groups_named(self, groups: Iterable[int]) -> list[str]:
        """Names of these groups, with their ranks where other groups have the same name; empty
        where no other group moved data."""
        these, table = dict.fromkeys(groups), self.trace.groups
        moved = np.unique(self.transfers.rows.group)
        others = {table[g].name for g in moved if g >= 0 and g not in these}
        named = {
            table[g].name: f" of {words.ranks(list(table[g].ranks))}" * (table[g].name in others)
            for g in these
        }
        single = len(these) == len(named)
        return [name + ranks * single for name, ranks in named.items()] if others else []

    def transferred(self, shorter_ns: Array) -> Change:
        """The change that makes each transfer that much shorter, and in proportion what members
        need from the first's end to their own."""
        graph, moved = self.costs.graph, self.transfers.rows
        part = np.zeros(len(graph.operations) + 1)
        part[moved.operation] = shorter_ns / np.maximum(moved.transfer_ns, 1)
        took = graph.took_ns * (1 - part[:-1])
        less = self._later_ns * part[np.append(-1, graph.rows.wait[:-1])]
        chosen, rows = np.flatnonzero(took != graph.took_ns), np.flatnonzero(less)
        work = Change.of_work(rows, (graph.own_ns - less)[rows])
        return work._replace(operations=chosen, took_ns=np.maximum(took[chosen], 0.0))

    @cached_property
    def _later_ns(self) -> Array:
        """Of each row's work, what is the end of a collective that other members left sooner."""
        kind, rows = np.full(len(self.costs.graph.operations), -1), self.transfers.rows
        kind[rows.operation] = np.where(rows.source < 0, rows.kind, -1)
        return regularly_later(self.costs.graph, kind)

    def relieved(self, cells: Array, cause: Cause = Cause.WORK) -> Change:
        """The change that removes the lateness for a cause from cells (steps × ranks, boolean)."""
        return self.without(np.where(cells, self.delays.late_ns[cause], 0.0), cause)

    def all_relieved(self, cells: Array, but: Array | None = None) -> Change:
        """The change that removes all lateness from cells, but for the work of cells in `but`."""
        late = self.delays.late_ns
        parts = [
            self.relieved(cells if but is None or cause != Cause.WORK else cells & ~but, cause)
            for cause in Cause
            if late[cause].any()
        ]
        return self.costs.combined(parts)

    def with_less_work(self, work_ns: Array) -> Change:
        """The change that removes this much of the median rank's work from each step (steps,), and
        of others' between as much and as large a part: from each place by its regression on it."""
        own, removed = self.costs.graph.own_ns.copy(), work_ns[self.grid.sampled]
        whole = by_step_and_lane(self.costs.graph, own).mean(axis=0)
        for part in self.costs.parts:
            here, more = part.by_place(own), removed[part.segments]
            off, mean = more - more.mean(), here.mean(axis=0)
            alike = whole[part.lanes] / max(np.median(whole), 1.0)
            slope = np.tensordot(off / max(off @ off, 1.0), here, 1)
            seen, bounds = slope.sum(axis=1), np.sort([alike, np.ones_like(alike)], axis=0)
            total = np.clip(seen if off.any() else alike, *bounds)
            slope += ((total - seen) / np.maximum(mean.sum(axis=1), 1.0))[:, None] * mean
            lost = slope * more[:, None, None]
            usual = np.maximum(mean + slope * off[:, None, None], 1.0)
            part.assign(own, here * (1 - np.minimum(lost / usual, 1.0)))
        return self.costs.change_to(own)

    def without(self, cells_ns: Array, cause: Cause) -> Change:
        """The change that removes this much (steps × ranks) of what is recorded for a cause."""
        sampled, usual = self.grid.sampled, self.delays.usual & (cause == Cause.WORK)
        known = recorded_ns(self.delays.late_ns)[sampled]
        return self.costs.relieved(cause, cells_ns[sampled], usual[sampled], known)

    def saved(self, change: Change) -> Array:
        """What a change saves of each step; in a large run, that of the nearest sampled step."""
        return self.all_saved([change])[0]

    def all_saved(self, changes: Sequence[Change]) -> list[Array]:
        """What each change saves of each step, replayed side by side."""
        return [self.grid.from_sampled(saved) for saved in self.costs.saved(changes)]

    def steps_of(self, transfers: Array) -> Array:
        """Mask of the steps with any of these transfers (a mask)."""
        hit = np.zeros(len(self.grid.steps), bool)
        hit[self.transfers.rows.step[transfers]] = True
        return self.grid.spread(hit)

    @property
    def transfers_known(self) -> bool:
        """Whether the cost of transfers is known: apart from waits (all ranks traced, comparable
        times), with the elapsed time known, and no hang."""
        known = self.waits_known and self.trace.elapsed_known
        return known and not self.stuck and bool(len(self.transfers.rows))

    @property
    def hung_ns(self) -> int:
        """How long the run hung at its end."""
        return max((place.since_ns for place in self.stuck), default=0)

    @cached_property
    def ran_ns(self) -> float:
        """How long the job trained, also in steps that the grid leaves out."""
        steps_ns = self.trace.summaries["step_sum_ns"]
        told_ns = np.bincount(self.trace.summary_rank, weights=steps_ns)
        return float(max(self.grid.total_ns, told_ns.max(initial=0)))

    @property
    def running_share(self) -> float:
        """Share of the time in which the job ran, neither hung nor behind a death."""
        after_ns = self.dead[-1].at_ns - self.failed[0].at_ns if self.failed else 0
        return self.ran_ns / max(self.ran_ns + self.hung_ns + after_ns, 1)

    def share(self, lost_ns: Array) -> Share:
        """A loss per step as a share of all time: steps, a hang or death at the end, restarts."""
        steps = share_of(lost_ns, self.step_ns)
        ran = self.running_share * running_share(attempts_of(self.trace.run))
        return Share(*(value * ran for value in steps))

    def loss(self, cells: Array, cause: Cause = Cause.WORK) -> Array:
        """What the late cells of a mask cost per step: their part of the cost of all late cells."""
        return np.asarray(np.where(cells, self.delays.loss_ns[cause], 0.0).sum(axis=1))

    def culprits(self, cells: Array, cause: Cause = Cause.WORK) -> list[int]:
        """Ranks of the late cells, without those late by less than `MINOR` of the latest rank's
        sum; by how long the others waited for them in these cells, and in the next steps for what
        ends one, then by lateness."""
        late = np.where(cells, self.delays.late_ns[cause], 0.0).sum(axis=0)
        held = cells | np.roll(cells, 1, axis=0) & (np.arange(len(cells)) > 0)[:, None]
        waited = np.where(held, self.waited_for_ns, 0.0).sum(axis=0)
        hit = np.flatnonzero(cells.any(axis=0) & (late >= MINOR * late.max(initial=0)))
        order = np.lexsort([-late[hit], -waited[hit]])
        return [int(self.grid.ranks[i]) for i in hit[order]]

    def where(self, ranks: list[int]) -> Where:
        """These ranks as culprits, with the nodes of those that left a trace in the same order."""
        nodes = [self.trace.ranks[rank].node for rank in ranks if rank in self.trace.ranks]
        return Where(ranks=ranks, nodes=list(dict.fromkeys(filter(None, nodes))))

    def ranks_in_words(self, ranks: list[int]) -> str:
        """ "rank 7 (node gpu012)", or several ranks without their nodes."""
        text = words.ranks(ranks)
        nodes = self.where(ranks).nodes if len(ranks) == 1 else ()
        return f"{text} (node {nodes[0]})" if nodes else text

    def mean_excess_ns(self, cells: Array, cause: Cause = Cause.WORK) -> float:
        """Mean lateness of the late cells."""
        delays = self.delays
        more = delays.excess_ns if cause is Cause.WORK else delays.late_ns[cause]
        return float(more[cells].mean()) if cells.any() else 0.0

    def idles(self, cells: Array) -> bool | None:
        """Whether processes use or want little CPU time while the cells are late; None where CPU
        time does not tell, as for device streams."""
        late = np.asarray(cells.any(axis=1))[:, None] & ~cells
        awake = self.grid.cpu_ns + self.grid.run_delay_ns
        excess = self.mean_excess_ns(cells)
        device = self.grid.graph.device[cells.any(axis=0)].any()
        if device or not self.grid.cpu_ns.any() or excess <= 0 or not late.any():
            return None
        return bool(awake[cells].mean() - float(awake[late].mean()) < IDLE * excess)

    def main_phase(self, cells: Array) -> Phase:
        """The phase in which these cells are latest in total, for all causes."""
        late = np.sum(list(self.delays.late_ns.values()), axis=0)
        weight = np.bincount(self.delays.phase[cells], late[cells], len(Phase))
        return Phase(int(np.argmax(weight)))

    def phase_in_words(self, phase: Phase) -> str:
        """Where a phase is, in words; where forwards are inferred, one is called the time before
        backward, and may lie in what is no phase, too: before a message, say."""
        known = self.grid.phase_ns[Phase.FORWARD].any() and not self.grid.issuing.any()
        if phase is Phase.OTHER and not known:
            return words.SOMEWHERE
        if phase in (Phase.FORWARD, Phase.OTHER) and self._forwards_inferred:
            before = phase is Phase.FORWARD
            return words.BEFORE_BACKWARD if before else words.BESIDE_BACKWARD
        return words.PLACES[phase]

    @cached_property
    def _forwards_inferred(self) -> bool:
        """Whether most forwards of the steps are inferred, whatever those before the first are."""
        if not self.trace.table.flagged(Kind.PHASE, Flag.INFERRED):
            return False
        phases = self.trace.of_kind(Kind.PHASE)
        mine = (phases.op == int(Phase.FORWARD)) & np.isin(phases.step, self.grid.steps)
        flags = phases.flags[mine]
        return bool(2 * np.count_nonzero(flags & int(Flag.INFERRED)) > len(flags))

    @property
    def waits_known(self) -> bool:
        """Whether all ranks are traced, with an operation in which several wait for one another."""
        shared = bool((self.grid.graph.operations.members > 1).any())
        return shared and len(self.grid.ranks) >= self.trace.world

    def victims(self, cells: Array) -> tuple[list[int], float, float]:
        """Ranks that wait in the steps of these cells, their median wait in ns, and the share of
        all steps in which any waits.

        A victim waits for at least half of the step's loss in at least half of the steps in which
        it is not late itself.
        """
        rows = np.flatnonzero(cells.any(axis=1))
        if not len(rows):
            return [], 0.0, 0.0
        loss = np.where(cells, self.delays.all_loss_ns, 0.0).sum(axis=1)[rows]
        waits = self.grid.wait_ns[rows]
        waiting = (waits >= MOST * loss[:, None]) & (loss[:, None] > 0) & ~cells[rows]
        usual = waiting.sum(axis=0) >= MOST * np.maximum((~cells[rows]).sum(axis=0), 1)
        if not waiting.any():
            return [], 0.0, 0.0
        share = float(waiting.any(axis=1).sum()) / len(self.grid.steps)
        ranks = [int(self.grid.ranks[i]) for i in np.flatnonzero(usual & waiting.any(axis=0))]
        return ranks, float(np.median(waits[waiting])), share

    def waiting_in_words(self, cells: Array) -> str:
        """The ranks that wait for these cells, how long and how often, in words."""
        ranks, wait_ns, share = self.victims(cells)
        if not share:
            return "ranks arrive apart, but compute hides most of it"
        who = words.ranks(ranks) if ranks else "the other ranks"
        often = f"{words.percent(share)} of the steps" if len(self.grid.steps) > 1 else "the step"
        verb = "waits" if len(ranks) == 1 else "wait"
        return f"{who} {verb} {words.duration(wait_ns)} in {often}"

    def waits(self, cells: Array) -> dict[str, float]:
        """Numbers of the victims' wait, also in steps without late cells; how many usually wait."""
        ranks, wait_ns, share = self.victims(cells)
        calm = self.grid.wait_ns[~cells.any(axis=1)]
        usual_ns = float(np.median(calm)) if calm.size else 0.0
        found = {"wait": wait_ns, "calm": usual_ns, "waited": share}
        return found | {"waiters": len(ranks)} if ranks else found


def open_case(trace: Trace) -> Case:
    grid = step_grid(trace)
    return Case(on_one_wall_clock(trace, grid.clocks), grid)


def _on_record(grid: StepGrid) -> dict[int, tuple[Array, Array, bool]]:
    """By cause, how much of each row's own work, and of its issue or flight, its records
    cover, and whether they hold up what is in flight; not of waits for a core, of which only a sum
    per step is known."""
    phases = grid.records.of_kind(Kind.PHASE)
    found = {}
    for cause, kind in ((Cause.COLLECTOR, Kind.PAUSE), (Cause.STOP, Kind.STOP)):
        if len(rows := grid.records.of_kind(kind)):
            found[int(cause)] = held_by(grid, rows), during(grid, rows, overlap_of_entries), True
    for cause, kinds in _PHASES.items():
        if len(rows := phases.select(np.isin(phases.op, kinds))):
            own = np.sum([in_phase(grid, Phase(kind)) for kind in kinds], axis=0)
            found[int(cause)] = own, during(grid, rows, overlap_of_entries), False
    return found


def _in_phases(grid: StepGrid) -> Array:
    """The part of each row's own work that its lane usually has more than the others: turn by turn
    of phases, or where there are none of what is done with micro-batches on each of their two ways;
    and of what is neither that nor compute of its device."""
    graph, lane = grid.graph, grid.graph.rows.lane
    parts = [in_phase(grid, phase) for phase in WORK_PHASES[:-1]]
    parts = parts if np.any(parts) else work_by_direction(graph)
    spans = grid.records.of_kind(Kind.SPAN)
    computed = during(grid, spans.select((spans.flags & int(Flag.ON_DEVICE)) != 0))
    profiled = np.asarray(grid.device_ns.any(axis=0))
    known = ~graph.device | ~np.isnan(grid.computed_ns).any(axis=0)
    spent = np.where(profiled[lane], computed, sum(parts))
    rest = np.where(known[lane], np.maximum(graph.own_ns - spent, 0.0), 0.0)
    return _more(graph, rest) + sum(_more(graph, part, in_turn=True) for part in parts)


def _more(graph: Graph, part: Array, *, in_turn: bool = False) -> Array:
    """How much of this part of each row's own work, ns, its lane usually has more than others that
    have some. `in_turn`: in each turn, where all have as many, as every stage does the same
    forwards in one order, but not all with chunks of the model that are equally large."""
    found, shape = np.zeros(len(graph.rows)), (len(graph.steps), len(graph.ranks))
    cell = graph.rows["index"] * shape[1] + graph.rows.lane
    longest = largest_of(part, cell, shape[0] * shape[1], least=0.0)
    rows = np.flatnonzero(part > MINOR * longest[cell])
    rows = rows[np.argsort(cell[rows], kind="stable")]
    count = np.bincount(cell[rows], minlength=len(longest)).reshape(shape)
    mine = np.flatnonzero(count.any(axis=0))
    if len(mine) < 2:
        return found
    even = in_turn and bool((count[:, mine] == count.max()).all())
    done = part[rows] if even else by_step_and_lane(graph, part)[:, mine]
    done = np.moveaxis(done.reshape(shape[0], len(mine), -1), 2, 0)
    above = above_others(done.reshape(-1, len(mine))).reshape(done.shape)
    ratio = np.zeros((shape[1], len(done)))
    ratio[mine] = np.maximum(np.median(above / np.maximum(done, 1.0), axis=1), 0.0).T
    turn = (np.arange(len(rows)) - np.searchsorted(cell[rows], cell[rows])) * even
    found[rows] = part[rows] * ratio[graph.rows.lane[rows], turn]
    return found
