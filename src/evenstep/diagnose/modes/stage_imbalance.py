"""A pipeline stage with more to do than the others, or slow workers of one: what they cost.

Part of `workload_imbalance`. Of an operation table the run is replayed with the stage's computes as
long as the other stages'; beside that stands M_S of Lin et al. (OSDI 2025, section 5.2), the last
stage at what operations usually take. Or with workers as long as those that hold the same layers,
because a message late by a little in one stage is late in all that follow. Of other traces the
stage's ranks are found chronically late, and lose what late ranks do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from evenstep.diagnose import levels
from evenstep.diagnose.finding import Evidence, Finding, When, Where
from evenstep.diagnose.graph.peers import message_ends
from evenstep.diagnose.graph.structure import Graph
from evenstep.diagnose.lateness.case import Array, Case
from evenstep.diagnose.lateness.delays import Cause
from evenstep.diagnose.lateness.thresholds import CHRONIC_STEPS, above_others
from evenstep.diagnose.levels import SMALLEST_SHARE
from evenstep.diagnose.measure import recurrence
from evenstep.diagnose.measure.recurrence import throughout
from evenstep.diagnose.operations.operations import OperationJob, balanced, on_steps, replayed
from evenstep.diagnose.sentences import worded
from evenstep.statistics.interval import MAD_SIGMA, Share
from evenstep.trace.operations import COMPUTES
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


# -- of an operation table -------------------------------------------------------------------------


def by_replay(case: Case, plan: OperationJob, own_s: Array) -> list[Finding]:
    """The stage whose mending saves most. `own_s`: durations of the rows, as far as not mended."""
    each_ns = _each_ns(plan, own_s)
    longest = np.argsort(-each_ns, kind="stable")[: levels.ASKED]
    if len(each_ns) < 2:
        return []
    mended = [_like_others(plan, own_s, int(stage)) for stage in longest]
    last = np.where(plan.table.stage == plan.table.stage.max(), plan.usual_s, own_s)
    scenarios = [own_s, plan.usual_s, balanced(plan, own_s), last, *mended]
    length = replayed(plan, np.stack(scenarios, axis=1))
    gain = length[:, :1] - length[:, 4:]
    best = int(np.argmax(gain.mean(axis=0)))
    stage = _beside_others(plan, each_ns, int(longest[best]))
    lost = on_steps(plan, gain[:, best], case.grid.steps) * 1e9
    share = case.share(lost)
    if stage.longer < 1 + levels.NAMED or share.value < SMALLEST_SHARE:
        return []
    spread = case.share(on_steps(plan, length[:, 0] - length[:, 2], case.grid.steps) * 1e9)
    late = case.delays.cells(Cause.WORK) & np.isin(case.grid.ranks, stage.ranks)
    case.claims.cells(late)
    case.claims.rest(lost)
    slowdown = float((length[:, 0] - length[:, 1]).sum())
    explained = float((length[:, 0] - length[:, 3]).sum()) / slowdown if slowdown else None
    return [_finding(case, stage, share, spread, _evidence(stage, length, explained))]


def _like_others(plan: OperationJob, own_s: Array, number: int) -> Array:
    """Durations with the stage's computes as long as those of the other stages are in the median,
    where that is shorter."""
    table, result = plan.table, own_s.copy()
    stages = int(table.stage.max()) + 1
    for role in COMPUTES:
        stage, own = table.stage[table.role == role], own_s[table.role == role]
        count = np.bincount(stage, minlength=stages)
        mean = np.bincount(stage, own, stages) / np.maximum(count, 1)
        others = mean[(count > 0) & (np.arange(stages) != number)]
        if mean[number] > 0 and len(others):
            theirs = (table.role == role) & (table.stage == number)
            result[theirs] *= min(float(np.median(others)) / mean[number], 1.0)
    return result


def _evidence(stage: Stage, length: Array, explained: float | None) -> list[Evidence]:
    slowdown = float(length[:, 0].mean() / length[:, 1].mean())
    last = None if explained is None else round(explained, 4)
    return [
        Evidence("compute_of_the_stage", round(stage.work_ns), round(stage.others_ns), "ns"),
        Evidence("M_S", last, 0.0, "share of the slowdown"),
        Evidence("slowdown", round(slowdown, 4), 1.0, "factor"),
    ]


def _each_ns(plan: OperationJob, own_s: Array) -> Array:
    """Compute in a step of the worker of each stage that computes least: a stage is long where all
    of its workers are, else a worker is slow."""
    table = plan.table
    computes = np.isin(table.role, COMPUTES)
    spent = np.bincount(table.worker[computes], weights=own_s[computes])
    worker, first = np.unique(table.worker[computes], return_index=True)
    least = np.full(int(table.stage.max()) + 1, np.inf)
    np.minimum.at(least, table.stage[computes][first], spent[worker])
    return np.where(np.isfinite(least), least, 0.0) / len(plan.steps) * 1e9


def _beside_others(plan: OperationJob, each_ns: Array, number: int) -> Stage:
    others = float(np.delete(each_ns, number).mean())
    ranks = np.unique(plan.table["rank"][plan.table.stage == number]).tolist()
    return Stage(number, len(each_ns), ranks, float(each_ns[number]), others)


# -- slow workers in an operation table ------------------------------------------------------------


def workers_by_replay(
    case: Case, plan: OperationJob, own_s: Array, *, varying: bool
) -> tuple[list[Finding], Array]:
    """Slow workers, if any, and the durations with their computes as long as the others'.

    With data of `varying` length a pipeline all of whose workers are slow has had longer data.
    """
    factor = factors(plan, own_s)
    if varying:
        factor = _without_whole_pipelines(plan, factor)
    slow = np.flatnonzero(factor > 1.0)
    if not len(slow):
        return [], own_s
    slow = np.asarray(slow[np.argsort(-factor[slow], kind="stable")])
    parts = [slow, *(slow[at : at + 1] for at in range(min(len(slow), levels.ASKED)))]
    mended = [_mended(plan, own_s, factor, workers) for workers in parts]
    length = replayed(plan, np.stack([own_s, *mended], axis=1))
    gain = length[:, :1] - length[:, 1:]
    lost = on_steps(plan, gain[:, 0], case.grid.steps) * 1e9
    share = case.share(lost)
    if share.value < SMALLEST_SHARE:
        return [], own_s
    alone = np.argsort(-gain[:, 1:].mean(axis=0), kind="stable")
    rank_of = plan.table["rank"][np.unique(plan.table.worker, return_index=True)[1]]
    ranks = rank_of[np.concatenate([slow[alone], slow[levels.ASKED :]])].tolist()
    late = case.delays.cells(Cause.WORK) & np.isin(case.grid.ranks, ranks)
    case.claims.cells(late)
    case.claims.rest(lost)
    first = int(slow[alone[0]])
    mine, others = _spent(plan, own_s, first, factor[first])
    evidence = [Evidence(f"compute_of_rank_{ranks[0]}", round(mine), round(others), "ns")]
    steps = throughout(case.grid.steps)
    return [_of_workers(case, "stage", ranks, share, (mine, others), steps, evidence)], mended[0]


def steps_by_replay(case: Case, plan: OperationJob) -> tuple[list[Finding], Array]:
    """Workers that are slow in single steps, if any, and the durations without that.

    Long data is long in all stages of a pipeline: what only one worker of it takes longer for than
    it usually does is the worker's own.
    """
    table = plan.table
    mean = _means(plan, plan.own_s)
    factor = np.ones(mean.shape)
    dp_rank = table.dp_rank[np.unique(table.worker, return_index=True)[1]]
    if len(mean) >= recurrence.FEWEST_STEPS and (mean > 0).all():
        for number in np.unique(dp_rank):
            ratio = (mean / np.median(mean, axis=0))[:, dp_rank == number]
            factor[:, dp_rank == number] = ratio / (ratio - above_others(ratio))
    noise = MAD_SIGMA * np.median(np.abs(factor - 1))
    slow = factor >= 1 + max(levels.NAMED, levels.SIGMAS * noise)
    chosen = np.where(slow, factor, 1.0)[np.searchsorted(plan.steps, table.step), table.worker]
    mended = np.where(np.isin(table.role, COMPUTES), plan.own_s / chosen, plan.own_s)
    length = replayed(plan, np.stack([plan.own_s, mended], axis=1))
    lost = on_steps(plan, length[:, 0] - length[:, 1], case.grid.steps) * 1e9
    share = case.share(lost)
    if not slow.any() or share.value < SMALLEST_SHARE:
        return [], plan.own_s
    workers = np.searchsorted(np.unique(table["rank"]), case.grid.ranks)
    cells = slow[np.searchsorted(plan.steps, case.grid.steps)][:, workers]
    case.claims.cells(case.delays.cells(Cause.WORK) & cells)
    case.claims.rest(lost)
    ranks = case.grid.ranks[cells.any(axis=0)].tolist()
    spent = tuple(float(each[chosen > 1].sum()) / slow.sum() * 1e9 for each in (plan.own_s, mended))
    evidence = [Evidence("compute_in_slow_steps", round(spent[0]), round(spent[1]), "ns")]
    at = recurrence.when(cells, case.grid.steps)
    return [_of_workers(case, "steps", ranks, share, (spent[0], spent[1]), at, evidence)], mended


def _without_whole_pipelines(plan: OperationJob, factor: Array) -> Array:
    first = np.unique(plan.table.worker, return_index=True)[1]
    dp_rank = np.unique(plan.table.dp_rank[first], return_inverse=True)[1].reshape(-1)
    members, slow = np.bincount(dp_rank), np.bincount(dp_rank, weights=factor > 1.0)
    return np.where(((members > 1) & (slow == members))[dp_rank], 1.0, factor)


def factors(plan: OperationJob, own_s: Array) -> Array:
    """How many times as long as the others' of its stage each worker's computes are.

    1 for workers that are not slower in most steps, and for those alone on their stage.
    """
    mean = _means(plan, own_s)
    stage = plan.table.stage[np.unique(plan.table.worker, return_index=True)[1]]
    found = np.ones(len(stage))
    for number in np.unique(stage):
        mine = np.flatnonzero((stage == number) & (mean > 0).any(axis=0))
        whole = mean[:, mine][(mean[:, mine] > 0).all(axis=1)]
        if len(mine) < 2 or not len(whole):
            continue
        ratio = whole / (whole - above_others(whole))
        middle = np.median(ratio, axis=0)
        noise = MAD_SIGMA * np.median(np.abs(ratio - middle), axis=0)
        error = noise * np.sqrt(np.pi / 2 / len(ratio))  # of a median, normal distribution
        slower = np.quantile(ratio, 1 - CHRONIC_STEPS, axis=0) >= 1 + levels.NAMED
        found[mine] = np.where(slower & (middle - 1 > levels.ERRORS * error), middle, 1.0)
    return found


def _means(plan: OperationJob, own_s: Array) -> Array:
    """Mean compute of each worker in each step (steps, workers), seconds; 0 where it has none."""
    table = plan.table
    rows = np.flatnonzero(np.isin(table.role, COMPUTES))
    workers, steps = int(table.worker.max()) + 1, len(plan.steps)
    cell = np.searchsorted(plan.steps, table.step[rows]) * workers + table.worker[rows]
    count = np.bincount(cell, minlength=steps * workers)
    spent = np.bincount(cell, weights=own_s[rows], minlength=steps * workers)
    return np.asarray(spent / np.maximum(count, 1)).reshape(steps, workers)


def _mended(plan: OperationJob, own_s: Array, factor: Array, workers: Array) -> Array:
    chosen = np.ones(len(factor))
    chosen[workers] = factor[workers]
    computes = np.isin(plan.table.role, COMPUTES)
    return np.where(computes, own_s / chosen[plan.table.worker], own_s)


def _spent(plan: OperationJob, own_s: Array, worker: int, factor: float) -> tuple[float, float]:
    """Compute of a worker in a step, and what it would be at the others' speed, in ns."""
    mine = (plan.table.worker == worker) & np.isin(plan.table.role, COMPUTES)
    spent_ns = float(own_s[mine].sum()) / len(plan.steps) * 1e9
    return spent_ns, spent_ns / factor


def _of_workers(
    case: Case, form: str, ranks: list[int], share: Share, spent_ns: tuple[float, float],
    at: When, evidence: list[Evidence],
) -> Finding:  # fmt: skip
    mine, others = spent_ns
    return worded(
        f"straggler.{form}",
        share,
        numbers={
            "who": case.named(ranks), "those": ranks, "mine": mine, "others": others,
            "more": mine - others, "place": "in forward and backward",
        },
        where=case.where(ranks),
        when=at,
        projected=recurrence.constant(share, len(case.grid.ranks)),
        options={"compare" if form == "stage" else "share": share},
        evidence=evidence,
    )  # fmt: skip


# -- of any trace with pipeline groups -------------------------------------------------------------


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
    even = 1 - 1 / stage.stages  # of the excess: the rest comes back with the moved work
    spread = Share(*(value * even for value in share))
    work_evidence = Evidence(
        "work_of_the_stage", round(stage.work_ns), round(stage.others_ns), "ns"
    )
    evidence = [work_evidence, *case.wait_evidence(cells)]
    return [replace(_finding(case, stage, share, spread, evidence), change=case.relieved(cells))]


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
    case: Case, stage: Stage, share: Share, spread: Share, evidence: list[Evidence]
) -> Finding:
    where = case.where(stage.ranks)
    replay = "replay with the computes of all stages equally long"
    shared = "the stage's excess shared out among all stages"
    return worded(
        "workload_imbalance.stage",
        share,
        numbers={
            "name": stage.name,
            "mine": stage.work_ns,
            "others": stage.others_ns,
            "longer": stage.longer,
            "stage": stage.number,
            "method": shared if case.trace.operations is None else replay,
        },
        where=Where(where.ranks, where.nodes, (), [f"stage {stage.number}"]),
        when=throughout(case.grid.steps),
        projected=recurrence.constant(share, len(case.grid.ranks)),
        options={"move": spread},
        evidence=evidence,
    )
