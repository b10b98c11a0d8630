"""A pipeline stage with more work than the others, and its cost: part of `workload_imbalance`.

The ranks of the stage are chronically late, and the run gains what it saves with the stage as short
as its peers. Moving layers gains less, as the other stages take what is moved: a replay of its own.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from evenstep.diagnose import levels
from evenstep.diagnose.finding import Evidence, Finding
from evenstep.diagnose.graph.peers import message_ends
from evenstep.diagnose.graph.replay import Change
from evenstep.diagnose.graph.structure import Graph
from evenstep.diagnose.lateness.case import Array, Case
from evenstep.diagnose.lateness.delays import Cause
from evenstep.diagnose.measure.recurrence import constant
from evenstep.diagnose.modes.intervention import Gain, finding_of
from evenstep.trace.spool.layout import Phase

LAYERS = (Phase.FORWARD, Phase.BACKWARD)  # in which a stage computes them


def slow_stage(case: Case) -> list[Finding]:
    """The only stage all of whose ranks are chronically late, where stages are known."""
    stages, chronic = stages_of(case), case.delays.chronic
    number = np.array([stages.get(int(rank), -1) for rank in case.grid.ranks])
    slow = [int(s) for s in np.unique(number[number >= 0]) if chronic[number == s].all()]
    if len(slow) != 1:
        return []
    mine, last = number == slow[0], int(number.max())
    late = case.delays.cells(Cause.WORK) & chronic[None, :] & mine
    work = np.median(case.grid.work_ns, axis=0)
    own_ns, others_ns = float(work[mine].mean()), float(work[~mine].mean())
    longer = own_ns / others_ns if others_ns > 0 else 1.0
    share = case.share(case.loss(case.claims.unclaimed(late)))
    if last < 1 or longer < 1 + levels.NAMED or share.value < levels.SMALLEST_SHARE:
        return []
    if case.idles(late) and case.main_phase(late) not in LAYERS:
        return []  # layers compute: this stage waits for something
    cells = case.claims.claim(late)
    relieved = case.relieved(cells)
    place = "the last" if slow[0] == last else f"{slow[0] + 1}"
    return finding_of(
        case, "workload_imbalance.stage", Gain(share, relieved),
        numbers={
            "name": f"pipeline stage {slow[0]} ({place} of {last + 1})",
            "mine": own_ns,
            "others": others_ns,
            "longer": longer,
            "stage": slow[0],
        },
        where=replace(case.where(case.grid.ranks[mine].tolist()), groups=[f"stage {slow[0]}"]),
        projected=constant,
        options={
            "shorten": share,
            "move": case.share(case.saved(_moved(case, relieved, mine, last + 1))),
        },
        evidence=[
            Evidence("work_of_the_stage", round(own_ns), round(others_ns), "ns"),
            *case.wait_evidence(cells),
        ],
    )  # fmt: skip


def _moved(case: Case, relieved: Change, mine: Array, stages: int) -> Change:
    """The change that shares the excess of a stage out evenly among all stages."""
    assert case.costs is not None
    graph = case.costs.graph
    own, others = graph.own_ns.copy(), ~mine[graph.rows.lane]
    excess = own[relieved.rows] - relieved.own_ns
    own[relieved.rows] -= excess * (1 - 1 / stages)
    given = excess.sum() / stages * np.count_nonzero(~mine) / np.count_nonzero(mine)
    own[others] *= 1 + given / max(float(own[others].sum()), 1.0)
    return Change.of_work(np.arange(len(own)), own)


def stages_of(case: Case) -> dict[int, int]:
    """Stage of each rank: its place in its pipeline group, where groups have such names; else by
    the messages that pass work on. A rank without messages has the stage of one of its groups."""
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
    """Stage of each lane, -1 none: the lanes that send first in a step are the first stage, and the
    lanes they send to before they receive from them the next. All -1 where stages differ in their
    number of lanes: that is no pipeline."""
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
        """Time of the first in each step; (steps, count)."""
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
