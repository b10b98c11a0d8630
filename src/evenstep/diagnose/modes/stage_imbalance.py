"""A pipeline stage with more to do than the others: what it costs.

Part of `workload_imbalance`. Its ranks are found chronically late, and lose what late ranks do:
what the run saves with the stage as short as its peers. Moving layers gives back less, for the
others must take what is moved: that is replayed as well.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evenstep.diagnose import levels
from evenstep.diagnose.finding import Evidence, Finding, Where
from evenstep.diagnose.graph.peers import message_ends
from evenstep.diagnose.graph.replay import Change
from evenstep.diagnose.graph.structure import Graph
from evenstep.diagnose.lateness.case import Array, Case
from evenstep.diagnose.lateness.delays import Cause
from evenstep.diagnose.levels import SMALLEST_SHARE
from evenstep.diagnose.measure import recurrence
from evenstep.diagnose.measure.recurrence import throughout
from evenstep.diagnose.sentences import worded
from evenstep.statistics.interval import Share
from evenstep.trace.spool.layout import Phase

LAYERS = (Phase.FORWARD, Phase.BACKWARD)  # in which a stage computes them


@dataclass(slots=True, frozen=True)
class Stage:
    """A stage beside the others; lengths in ns per step and worker."""

    number: int
    stages: int
    ranks: list[int]
    work_ns: float
    others_ns: float

    @property
    def name(self) -> str:
        """ "pipeline stage 3 (the last of 4)"."""
        place = "the last" if self.number == self.stages - 1 else f"{self.number + 1}"
        return f"pipeline stage {self.number} ({place} of {self.stages})"

    @property
    def longer(self) -> float:
        """How many times as long its compute is."""
        return self.work_ns / self.others_ns if self.others_ns > 0 else 1.0


def by_lateness(case: Case) -> list[Finding]:
    """A stage all of whose ranks are chronically late, where groups say who is which stage."""
    stages = stages_of(case)
    late = case.delays.cells(Cause.WORK) & case.delays.chronic[None, :]
    number = np.array([stages.get(int(rank), -1) for rank in case.grid.ranks])
    slow = [s for s in np.unique(number[number >= 0]) if case.delays.chronic[number == s].all()]
    if len(slow) != 1:
        return []
    mine = number == slow[0]
    work = np.median(case.grid.work_ns, axis=0)
    stage = Stage(
        int(slow[0]),
        int(number.max()) + 1,
        case.grid.ranks[mine].tolist(),
        float(work[mine].mean()),
        float(work[~mine].mean()),
    )
    share = case.share(case.loss(case.claims.free(late & mine)))
    if stage.stages < 2 or stage.longer < 1 + levels.NAMED or share.value < SMALLEST_SHARE:
        return []
    if case.idles(late & mine) and case.main_phase(late & mine) not in LAYERS:
        return []  # it waits for something: layers compute
    cells = case.claims.cells(late & mine)
    relieved = case.relieved(cells)
    spread = case.share(case.saved(_moved(case, relieved, mine, stage.stages)))
    work_evidence = Evidence(
        "work_of_the_stage", round(stage.work_ns), round(stage.others_ns), "ns"
    )
    evidence = [work_evidence, *case.wait_evidence(cells)]
    return [_finding(case, stage, (share, spread), evidence, relieved)]


def _moved(case: Case, relieved: Change, mine: Array, stages: int) -> Change:
    """The change that shares out what a stage is relieved of evenly among all stages."""
    assert case.costs is not None
    graph = case.costs.graph
    own, others = graph.own_ns.copy(), ~mine[graph.rows.lane]
    excess = own[relieved.rows] - relieved.own_ns
    own[relieved.rows] -= excess * (1 - 1 / stages)
    given = excess.sum() / stages * np.count_nonzero(~mine) / np.count_nonzero(mine)
    own[others] *= 1 + given / max(float(own[others].sum()), 1.0)
    return Change.of_work(np.arange(len(own)), own)


def stages_of(case: Case) -> dict[int, int]:
    """Stage of each rank: its place in its pipeline group, where groups have such names; else as
    messages pass work on; of who passes none, that of all the others in one of its groups."""
    groups = case.trace.groups
    named = [
        group
        for group in groups
        if group.name.lower().startswith(("pp", "pipe")) and len(group.ranks) > 1
    ]
    found = {rank: place for group in named for place, rank in enumerate(group.ranks)}
    if not found and case.grid.graph is not None:
        number = stages_passed(case.grid.graph)
        found = {int(case.grid.ranks[at]): int(number[at]) for at in np.flatnonzero(number >= 0)}
        for group in groups if found else ():
            theirs = {found[rank] for rank in group.ranks if rank in found}
            if len(theirs) == 1:
                found |= dict.fromkeys(group.ranks, theirs.pop())
    return found


def stages_passed(graph: Graph) -> Array:
    """Stage of each lane, -1 none, by who sends first in a step, and to whom before anything comes
    back. All -1 unless every stage has as many lanes: then it is no pipeline."""
    table, lanes = graph.operations, len(graph.ranks)
    none = np.full(lanes, -1)
    if not table.message.any():
        return none
    source, target = (ends[:-1] for ends in message_ends(graph))
    passed = np.flatnonzero((source >= 0) & (target >= 0))
    step = np.searchsorted(graph.steps, table.step[passed])
    sent_ns, came_ns = table.last_ns[passed], table.over_ns[passed]
    source, target = source[passed], target[passed]
    way, channel = np.unique(source * lanes + target, return_inverse=True)
    turned = way % lanes * lanes + way // lanes
    back = np.where(np.isin(turned, way), np.searchsorted(way, turned), len(way))

    def first(column: Array, count: int, time_ns: Array) -> Array:
        """When the first of each step was, (steps, count)."""
        found = np.full((len(graph.steps), count), np.inf)
        np.minimum.at(found, (step, column), time_ns)
        return found

    gone = first(channel.reshape(-1), len(way) + 1, sent_ns)
    onward = (gone[:, :-1] < gone[:, back]).mean(axis=0) > levels.MOST
    begins = first(source, lanes, sent_ns) < first(target, lanes, came_ns)
    begins = begins.mean(axis=0) > levels.MOST
    stage = np.where(begins, 0, none)
    for place in range(1, lanes):
        reached = (way % lanes)[onward & (stage[way // lanes] == place - 1)]
        reached = reached[stage[reached] < 0]
        if not len(reached):
            break
        stage[reached] = place
    even = len(np.unique(np.bincount(stage[stage >= 0]))) == 1
    return stage if even and stage.max() > 0 else none


# -- the finding -----------------------------------------------------------------------------------


def _finding(
    case: Case,
    stage: Stage,
    gains: tuple[Share, Share],
    evidence: list[Evidence],
    change: Change,
) -> Finding:
    """`gains`: of the stage as short as its peers, and of its excess shared out."""
    share, spread = gains
    where = case.where(stage.ranks)
    return worded(
        "workload_imbalance.stage",
        share,
        numbers={
            "name": stage.name,
            "mine": stage.work_ns,
            "others": stage.others_ns,
            "longer": stage.longer,
            "stage": stage.number,
        },
        where=Where(where.ranks, where.nodes, (), [f"stage {stage.number}"]),
        when=throughout(case.grid.steps),
        projected=recurrence.constant(share, len(case.grid.ranks)),
        options={"shorten": share, "move": spread},
        evidence=evidence,
        change=change,
    )
