"""What every failure mode's module is given: the trace, and what was worked out of it once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep import words
from evenstep.diagnose.finding import (
    Evidence,
    Where,
)
from evenstep.diagnose.graph.replay import Change
from evenstep.diagnose.graph.structure import summed
from evenstep.diagnose.lateness.blame import Blame, blame
from evenstep.diagnose.lateness.cost import Costs
from evenstep.diagnose.lateness.delays import WORK_PHASES, Cause, Delays, attribute
from evenstep.diagnose.lateness.thresholds import above_others
from evenstep.diagnose.levels import MINOR, MOST
from evenstep.diagnose.measure import attempts, restarts
from evenstep.diagnose.measure.deaths import Death, deaths, first_of, hung_first
from evenstep.diagnose.measure.expected import Shape, shapes
from evenstep.diagnose.measure.grid import StepGrid, during, step_grid
from evenstep.diagnose.measure.samples import Contention, contention
from evenstep.diagnose.measure.stuck import Stuck, stuck
from evenstep.diagnose.measure.transfer import Transfers, transfers
from evenstep.statistics.interval import Share, share_of
from evenstep.trace.spool.layout import Flag, Kind, Phase
from evenstep.trace.trace import Trace

Array = npt.NDArray[Any]

_INNER = (Phase.INPUT, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)
_PHASES = {
    Cause.INPUT: (int(Phase.INPUT),),
    Cause.CHECKPOINT: (int(Phase.CHECKPOINT), int(Phase.EVALUATION)),
}
LONG = 0.99  # quantile of the steps that a hang is compared with
IDLE = 0.25  # of what a rank is late by: with less time of a processor it stands still


class Claims:
    """What of the lateness has a name already, so that each late cell is named once.

    Who has evidence of his own is asked before who only sees lateness; what each is worth beside
    the others no order decides (see `evenstep.diagnose.engine`). Late cells (steps × ranks)
    that have been named; what slow transfers are known to have cost,
    and what waiting without a culprit has not been explained, per step."""

    def __init__(self, shape: tuple[int, int], rest_ns: Array) -> None:
        self._taken = np.zeros(shape, bool)
        self.rest_ns: Array = rest_ns.astype(float)  # of single steps it may be negative
        self.slow_ns: Array = np.zeros(shape[0])
        self.moves: Array | None = None  # transfers (boolean) whose slowness has a name

    @property
    def taken(self) -> Array:
        """Late cells that have been claimed. (steps, ranks), boolean."""
        taken: Array = self._taken.copy()
        return taken

    def free(self, cells: Array) -> Array:
        """Of these cells (steps × ranks, boolean), those nobody has claimed."""
        return np.asarray(cells & ~self._taken)

    def cells(self, cells: Array) -> Array:
        """Claim late cells: those of them that were free."""
        mine = self.free(cells)
        self._taken |= mine
        return mine

    def rest(self, explained_ns: Array) -> None:
        """Waiting without a culprit that has been explained."""
        self.rest_ns = self.rest_ns - np.minimum(explained_ns, self.rest_ns)


@dataclass(frozen=True)  # no slots: whatever else is worked out when it is first asked for
class Case:
    """A trace under diagnosis. `claims` is the one thing that changes, as modes are asked."""

    trace: Trace
    grid: StepGrid

    @cached_property
    def claims(self) -> Claims:
        """What the modes asked so far have explained."""
        return Claims(self.grid.shape, self.delays.rest_ns)

    @cached_property
    def costs(self) -> Costs | None:
        """The run's graph, and what changes to it save; None without a step."""
        graph = self.grid.graph
        if graph is None or not len(graph.rows):
            return None
        return Costs(graph, _on_record(self.grid), partial(_in_phases, self.grid))

    @cached_property
    def delays(self) -> Delays:
        """Which rank was late in which step, why, and what it cost."""
        return attribute(self.grid, self.costs, contended=self.contended)

    @property
    def program_ns(self) -> Array:
        """Own work of each step and rank but for what is on record as something else."""
        others = [self.grid.phase_ns[Phase(one)] for phases in _PHASES.values() for one in phases]
        return np.asarray(np.maximum(self.grid.work_ns - sum(others) - self.grid.pause_ns, 0))

    @cached_property
    def scheduler(self) -> Contention | None:
        """How much threads waited for a core; None where that was not sampled."""
        return contention(self.trace, self.grid)

    @cached_property
    def dead(self) -> list[Death]:
        """Ranks that ended wrongly, in the order in which they did."""
        return deaths(self.trace)

    @cached_property
    def _standing(self) -> list[Stuck]:
        """Operations that nobody left, however long they have been in flight."""
        return stuck(self.trace)

    @cached_property
    def stuck(self) -> list[Stuck]:
        """Those that stood still for much longer than a step takes: where the job hung."""
        steps = self.grid.step_ns
        longest_ns = float(np.quantile(steps, LONG)) if len(steps) else 0.0
        return hung_first(self.trace, self._standing, self.dead, longest_ns)

    @cached_property
    def failed(self) -> list[Death]:
        """The dead that ended the job, where no hang did."""
        awaited = [rank for place in self._standing for rank in place.missing]
        return [] if self.stuck else first_of(self.dead, awaited)

    @cached_property
    def unexplained(self) -> float | None:
        """By how much the replay misses the length of the run it replays, as a share of it."""
        if self.costs is None:
            return None
        length = float(self.costs.seen_ns.sum())
        return abs(float(self.costs.length_ns.sum()) / length - 1) if length > 0 else None

    @cached_property
    def step_ns(self) -> Array:
        """How long each step of the job took: on devices by their streams, as hosts run ahead."""
        graph = self.grid.graph
        if self.costs is None or graph is None or not graph.device.any():
            return self.grid.step_ns
        steps = np.zeros(len(self.grid.steps))
        steps[self.grid.sampled] = self.costs.seen_ns
        return self.grid.spread(steps)

    @property
    def late_start_ns(self) -> Array:
        """By how much each rank came into the first traced step after most ranks. (ranks,)"""
        graph = self.grid.graph
        if graph is None or not len(self.grid.steps):
            return np.zeros(0)
        start = graph.starts_ns[0][: len(self.grid.ranks)]
        return np.asarray(start - np.median(start))

    @property
    def contended(self) -> bool:
        """Whether the scheduler says that there were more runnable tasks than cores."""
        return self.scheduler is not None and self.scheduler.oversubscribed

    @cached_property
    def blame(self) -> Blame:
        """Who waited for whom, in which step."""
        return blame(self.grid)

    @cached_property
    def waited_for_ns(self) -> Array:
        """How long all the others together waited for each rank in each step. (steps, ranks)"""
        return self.blame.cells()

    @cached_property
    def transfers(self) -> Transfers:
        """How long data moved in every collective."""
        return transfers(self.grid)

    @cached_property
    def shapes(self) -> list[Shape]:
        """Collectives by operation and by how their groups lie on the nodes."""
        return shapes(self.trace, self.transfers)

    def groups_named(self, groups: Iterable[int]) -> list[str]:
        """Names of these groups, with their ranks where others have the same name; none where they
        are all that moved data."""
        these, table = dict.fromkeys(groups), self.trace.groups
        others = {table[g].name for g in np.unique(self.transfers.rows.group) if g not in these}
        named = {
            table[g].name: f" of {words.ranks(list(table[g].ranks))}" * (table[g].name in others)
            for g in these
        }
        single = len(these) == len(named)
        return [name + ranks * single for name, ranks in named.items()] if others else []

    def gained(self, shorter_ns: Array) -> Array:
        """How much shorter each step gets when each transfer is that much shorter, per step."""
        return self.saved(self.transferred(shorter_ns))

    def transferred(self, shorter_ns: Array) -> Change:
        """The change that makes each transfer that much shorter."""
        assert self.costs is not None
        table = self.costs.graph.operations
        took = table.took_ns.copy()
        took[self.transfers.rows.operation] -= shorter_ns
        chosen = np.flatnonzero(took != table.took_ns)
        return Change.of_transfers(chosen, took[chosen])

    def relieved(self, cells: Array, cause: Cause = Cause.WORK) -> Change:
        """The change that takes the lateness for this cause out of these cells."""
        assert self.costs is not None
        sampled = self.grid.sampled
        late = np.where(cells, self.delays.late_ns[cause], 0.0)[sampled]
        change = self.costs.relieved(cause, late, self.delays.chronic)
        if cause is not Cause.COLLECTOR:
            return change
        return self.costs.together([change, self.costs.held_up(cells[sampled])])

    def all_relieved(self, cells: Array, but: Array | None = None) -> Change:
        """The change that takes all lateness out of these cells; `but`: the work of those."""
        late = self.delays.late_ns
        parts = [
            self.relieved(cells if but is None or cause != Cause.WORK else cells & ~but, cause)
            for cause in Cause
            if late[cause].any()
        ]
        return self.together(parts)

    def less(self, work_ns: Array) -> Change:
        """The change that takes so much of the work that most ranks have in each step (steps,), and
        from every rank in proportion."""
        assert self.costs is not None
        graph = self.costs.graph
        common = np.maximum(np.median(summed(graph, graph.own_ns), axis=1), 1.0)
        share = np.clip(work_ns[self.grid.sampled] / common, 0.0, 1.0)[graph.rows["index"]]
        rows = np.flatnonzero(share > 0)
        return Change.of_work(rows, graph.own_ns[rows] * (1 - share[rows]))

    def taken(self, cells_ns: Array, cause: Cause) -> Change:
        """The change that takes so much (steps × ranks) of what is on record for a cause."""
        assert self.costs is not None
        return self.costs.relieved(cause, cells_ns[self.grid.sampled], self.delays.chronic)

    def together(self, changes: Sequence[Change]) -> Change:
        """All of these changes at once."""
        assert self.costs is not None
        return self.costs.together(changes)

    def saved(self, change: Change) -> Array:
        """What a change saves of each step; of a large run, as in the nearest step sampled."""
        return self.all_saved([change])[0]

    def all_saved(self, changes: Sequence[Change]) -> list[Array]:
        """The same for several changes, replayed side by side."""
        assert self.costs is not None
        found = []
        for saved in self.costs.saved(changes):
            steps = np.zeros(len(self.grid.steps))
            steps[self.grid.sampled] = saved
            found.append(self.grid.spread(steps))
        return found

    def steps_of(self, transfers: Array) -> Array:
        """Steps that some of these transfers (a mask) are in, boolean."""
        hit = np.zeros(len(self.grid.steps), bool)
        hit[self.transfers.rows.step[transfers]] = True
        return self.grid.spread(hit)

    @property
    def transfers_known(self) -> bool:
        """Whether what transfers cost can be told: from waiting, as all ranks are there, on
        comparable times, and from what compute hides."""
        known = self.waits_known and self.trace.elapsed_known
        return known and not self.stuck and bool(len(self.transfers.rows))

    @property
    def hung_ns(self) -> int:
        """Time the run stood still at its end."""
        return max((place.since_ns for place in self.stuck), default=0)

    @property
    def running_share(self) -> float:
        """Part of the time in which the job ran: it stood still in a hang, and after a death."""
        after_ns = self.dead[-1].at_ns - self.failed[0].at_ns if self.failed else 0
        return self.grid.total_ns / max(self.grid.total_ns + self.hung_ns + after_ns, 1)

    def share(self, lost_ns: Array) -> Share:
        """A per-step loss as a share of all time: steps, standstill at the end, restarts."""
        steps = share_of(lost_ns, self.step_ns)
        ran = self.running_share * restarts.running_share(attempts.known(self.trace.run))
        return Share(*(value * ran for value in steps))

    def loss(self, cells: Array, cause: Cause = Cause.WORK) -> Array:
        """What the late cells of a mask cost, per step: their part of what all late cells do."""
        return np.asarray(np.where(cells, self.delays.loss_ns[cause], 0.0).sum(axis=1))

    def culprits(self, cells: Array, cause: Cause = Cause.WORK) -> list[int]:
        """Ranks of the late cells, the costliest first, without those that are so now and then:
        whom the others waited for longest in them; of those nobody was seen to wait for, who was
        later."""
        waited, late = (
            np.where(cells, each, 0.0).sum(axis=0)
            for each in (self.waited_for_ns, self.delays.late_ns[cause])
        )
        hit = np.flatnonzero(cells.any(axis=0) & (late >= MINOR * late.max(initial=0)))
        order = np.lexsort([-late[hit], -waited[hit]])
        return [int(self.grid.ranks[i]) for i in hit[order]]

    def where(self, ranks: list[int]) -> Where:
        """These ranks as culprits, with their nodes in the same order."""
        nodes = [self.trace.ranks[rank].node for rank in ranks]
        return Where(ranks=ranks, nodes=list(dict.fromkeys(filter(None, nodes))))

    def named(self, ranks: list[int]) -> str:
        """ "rank 7 (node gpu012)", or several ranks without their nodes."""
        text = words.ranks(ranks)
        node = self.trace.ranks[ranks[0]].node if len(ranks) == 1 else ""
        return f"{text} (node {node})" if node else text

    def mean_excess_ns(self, cells: Array, cause: Cause = Cause.WORK) -> float:
        """By how much the late cells are late, in the mean: times their number, all of it."""
        delays = self.delays
        more = delays.excess_ns if cause is Cause.WORK else delays.late_ns[cause]
        return float(more[cells].mean()) if cells.any() else 0.0

    def idles(self, cells: Array) -> bool | None:
        """Whether the processes stand still for most of what the late cells are late by; None where
        no time of processors tells, as of devices' streams."""
        late = np.asarray(cells.any(axis=1))[:, None] & ~cells
        usual = float(self.grid.cpu_ns[late].mean()) if late.any() else 0.0
        excess, graph = self.mean_excess_ns(cells), self.grid.graph
        device = graph is not None and bool(graph.device[cells.any(axis=0)].any())
        if device or not self.grid.cpu_ns.any() or excess <= 0:
            return None
        return bool(self.grid.cpu_ns[cells].mean() - usual < IDLE * excess)

    def main_phase(self, cells: Array) -> Phase:
        """The phase in which these cells are late most, whatever makes them late."""
        late = np.sum(list(self.delays.late_ns.values()), axis=0)
        weight = np.bincount(self.delays.phase[cells], late[cells], len(Phase))
        return Phase(int(np.argmax(weight)))

    def place(self, phase: Phase) -> str:
        """Where a phase is, in words; a forward nobody could see is not called one."""
        if phase is Phase.FORWARD and self.forward_inferred:
            return words.BEFORE_BACKWARD
        if phase is Phase.OTHER and not self.grid.phase_ns[Phase.FORWARD].any():
            return words.SOMEWHERE
        return words.PLACES[phase]

    @property
    def phases_known(self) -> bool:
        """Whether anything of the step's inner order was recorded."""
        return any(bool(self.grid.phase_ns[phase].any()) for phase in _INNER)

    @property
    def waits_known(self) -> bool:
        """Whether every rank is there, with a collective they wait for one another in."""
        graph = self.grid.graph
        met = graph is not None and bool((graph.operations.members > 1).any())
        return met and not self.trace.missing_ranks

    @property
    def forward_inferred(self) -> bool:
        """Whether the time before backward is only taken to be the forward."""
        return self.trace.flagged(Kind.PHASE, Flag.INFERRED)

    def victims(self, cells: Array) -> tuple[list[int], float, float]:
        """Who waits in the steps of these cells, how long (median, ns) and in which share of all.

        A victim's wait is its own: what it was blocked for until the late rank arrived. It waits
        for half of the step's loss or more, in half of the steps in which it is not late itself.
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

    def waiting(self, cells: Array) -> str:
        """Who waits for these cells, how long and how often, in words."""
        ranks, wait_ns, share = self.victims(cells)
        if not share:
            return "ranks arrive apart, but compute hides most of it"
        who = words.ranks(ranks) if ranks else "the other ranks"
        often = f"{words.percent(share)} of the steps" if len(self.grid.steps) > 1 else "the step"
        verb = "waits" if len(ranks) == 1 else "wait"
        return f"{who} {verb} {words.duration(wait_ns)} in {often}"

    def wait_evidence(self, cells: Array) -> list[Evidence]:
        """The victims' wait beside the floor, and how long it is expected to be."""
        ranks, wait_ns, share = self.victims(cells)
        late = cells.any(axis=1)
        calm = self.grid.wait_ns[~late]
        expected = float(np.median(calm)) if calm.size else 0.0
        return [
            Evidence("wait_of_the_others", wait_ns, expected, "ns"),
            Evidence("steps_with_wait", share, 0.0, "share"),
            Evidence("ranks_waiting", len(ranks), 0, "ranks"),
        ]


def open_case(trace: Trace) -> Case:
    """A trace with its grid; what else modes share is worked out as they ask for it."""
    return Case(trace, step_grid(trace))


def _on_record(grid: StepGrid) -> dict[int, Array]:
    """By cause, how much of each row's own work its records cover. Not of waits for a core, of
    which only a sum is known."""
    phases = grid.records.of_kind(Kind.PHASE)
    records = {Cause.COLLECTOR: grid.records.of_kind(Kind.PAUSE)}
    for cause, kinds in _PHASES.items():
        records[cause] = phases.select(np.isin(phases.op, kinds))
    return {int(cause): during(grid, rows) for cause, rows in records.items() if len(rows)}


def _in_phases(grid: StepGrid) -> Array:
    """Of each row's own work what its lane usually has more than the others, phase by phase."""
    assert grid.graph is not None
    phases, more = grid.records.of_kind(Kind.PHASE), np.zeros(len(grid.graph.rows))
    for phase in WORK_PHASES[:-1]:
        spent = grid.phase_ns[phase]
        usual = np.maximum(np.median(above_others(spent), axis=0), 0.0)
        part = usual / np.maximum(np.median(spent, axis=0), 1.0)
        if part.any():
            there = during(grid, phases.select((phases.op == int(phase)) & (phases.exit_ns > 0)))
            more += there * part[grid.graph.rows.lane]
    return more
