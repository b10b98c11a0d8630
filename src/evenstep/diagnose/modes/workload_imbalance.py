"""`workload_imbalance`: ranks have more work than others, by the model or by the data.

Two forms. A pipeline stage that is longer than the others: its ranks are chronically late, and the
run gains what it saves with the stage as short as its peers. Moving layers gains less, as the other
stages take what is moved: a replay of its own.

And sequences of different lengths: attention grows with the square of the length, so that the rank
with the longest is late, another rank in each step. Then forward and backward of the same data are
long together: their correlation is .9 or more (Lin et al., OSDI 2025, section 5.3). Where the
optimizer is long with them, the machine is slower, and the data is not the cause.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import comb
from typing import NamedTuple

import numpy as np

from evenstep.diagnose.finding import Finding
from evenstep.diagnose.graph.peers import (
    MicroBatches,
    beginning,
    in_hand,
    message_ends,
    micro_batches,
)
from evenstep.diagnose.graph.replay import Change
from evenstep.diagnose.graph.structure import Graph, by_step_and_lane
from evenstep.diagnose.lateness.case import Case
from evenstep.diagnose.lateness.cost import Costs
from evenstep.diagnose.lateness.delays import Cause
from evenstep.diagnose.lateness.thresholds import FEWEST_STEPS, above_others
from evenstep.diagnose.levels import MINOR, MOST, NAMED, SMALLEST_SHARE, SURE
from evenstep.diagnose.modes.intervention import Gain, by_noise, constant, finding_of, throughout
from evenstep.statistics.interval import z
from evenstep.statistics.trend import linear, rank_values
from evenstep.trace.columns import Array
from evenstep.trace.spool.layout import Phase

COMPUTE_PHASES = (Phase.FORWARD, Phase.BACKWARD)
LONGEST = 1000  # steps in which turns are looked for
VARYING = 0.03  # deviation of a rank's compute, as a share of it, below which nothing is imbalanced


def find(case: Case) -> list[Finding]:
    """Longer stages, and sequences of different lengths."""
    return [*_slow_stages(case), *_uneven_sequences(case)]


def rotating(spent: Array) -> bool:
    """Whether ranks are slow in most steps (steps × ranks), drawn anew each time rather from all of
    them than from half (by the pairs of steps with the same ones, Simpson 1949), in no order: data
    is dealt out to all, while slow machines stay the same or take turns. Slow are those at least
    half as far behind as the last: all that share its data."""
    behind = spent - np.median(spent, axis=1, keepdims=True)
    long = behind[behind.max(axis=1) >= VARYING / 2]
    if len(long) < MOST * len(spent):
        return False
    slow = long >= MOST * long.max(axis=1, keepdims=True)
    drawn = slow / slow.sum(axis=1, keepdims=True)
    same = float((drawn.sum(axis=0) ** 2).sum() - (drawn**2).sum()) / 2
    of_all = len(long) * (len(long) - 1) / 2 / spent.shape[1]  # of half: twice as many
    return same <= 1.5 * of_all + of_all**0.5 and not _recurs(spent.argmax(axis=1)[:LONGEST])


def _recurs(drawn: Array) -> bool:
    """Whether after some number of steps more of these are the same again than of independent draws
    (binomial test, Boole's bound over these numbers)."""
    from scipy.special import bdtrc  # when first asked: .1 s

    chance, lags = ((np.bincount(drawn) / len(drawn)) ** 2).sum(), np.arange(1, len(drawn) // 2 + 1)
    again = np.array([np.count_nonzero(drawn[lag:] == drawn[:-lag]) for lag in lags])
    return bool(len(lags) * bdtrc(again - 1, len(drawn) - lags, chance).min(initial=1.0) < SURE)


def _dealt_out(cells: Array) -> bool:
    """Whether as few ranks have such cells (steps × ranks) as do by chance: that all of these steps
    hit the same ones, whichever (Boole's bound)."""
    times, ranks = (int(np.count_nonzero(cells.any(axis=axis))) for axis in (1, 0))
    return comb(cells.shape[1], ranks) * float(ranks / cells.shape[1]) ** times > SURE


# -- sequences of different lengths ----------------------------------------------------------------


def _uneven_sequences(case: Case) -> list[Finding]:
    """Micro-batches of different lengths, or forward and backward, or all stretches of a step's
    work, that are long together, on another rank in each step."""
    if len(case.grid.steps) < FEWEST_STEPS or case.grid.shape[1] < 2:
        return []
    batches = micro_batches(case.costs.graph)
    if batches is not None and _varies(batches):
        work: MicroBatches | WorkVariation = batches
        evened: Callable[[Change], Change] = partial(_without_lengths, case.costs, batches)
    else:
        phases, stretches = _forward_and_backward(case), _stretches(case)
        spent = phases or stretches
        if phases and stretches:  # parts that do not all follow lengths have less in common
            spent = phases._replace(noise=min(phases.noise, stretches.noise))
        if spent is None or not _varies(spent) or not rotating(spent.spent):
            return []
        # what is left varies as much as the noise alone
        evened = partial(case.costs.even_amounts, part=1 - float(np.sqrt(spent.noise)))
        work = spent
    # unlike other lateness, long batches are work that remains, shared evenly by all ranks
    late = case.delays.cells(Cause.WORK) & ~case.delays.chronic[None, :]
    late &= ~_late_at_even_lengths(case, batches)
    theirs = _dealt_out(late)
    others = case.all_relieved(case.delays.any, but=late if theirs else None)
    saved, even = case.all_saved([others, evened(others)])
    share = case.share(even - saved)
    if share.value < SMALLEST_SHARE:
        return []
    if theirs:
        case.claims.claim(late)
    return finding_of(
        case, "workload_imbalance.lengths", Gain(share, evened),
        numbers={
            "deviation": work.deviation, "correlation": work.correlation,
            "chronic": case.delays.chronic.sum(),
        },
        at=throughout(case.grid.steps, "rotating"), projected=by_noise,
        options={"squares": share, "bucket": None},
    )  # fmt: skip


def _varies(work: MicroBatches | WorkVariation) -> bool:
    return work.deviation >= VARYING and work.correlation >= MOST


def _without_lengths(costs: Costs, batches: MicroBatches, base: Change) -> Change:
    """The change to micro-batches as long as the mean one, on top of another change."""
    own = costs.own_ns(base)
    own[batches.rows] /= batches.common
    return costs.change_to(own, base)


def _late_at_even_lengths(case: Case, batches: MicroBatches | None) -> Array:
    """Cells that keep most of their excess with all micro-batches as long as the mean one; without
    micro-batches, those whose excess is mostly outside the recorded forward and backward."""
    left, computing = np.zeros(case.grid.shape), [case.grid.phase_ns[p] for p in COMPUTE_PHASES]
    if batches is not None:
        own = case.costs.graph.own_ns.copy()
        own[batches.rows] /= batches.common
        left[case.grid.sampled] = above_others(by_step_and_lane(case.costs.graph, own))
    elif all(phase.all() for phase in computing):
        left = case.delays.excess_ns - above_others(computing[0] + computing[1])
    return np.asarray((left > 0) & (left >= MOST * case.delays.excess_ns))


class WorkVariation(NamedTuple):
    """How work varies from step to step on each rank."""

    spent: Array  # (steps, ranks): work over the usual
    correlation: float  # of the parts of a step's work
    deviation: float  # as a share of the work
    noise: float  # share of the variance that is the parts' own


def _forward_and_backward(case: Case) -> WorkVariation | None:
    """Variation of the recorded phases; None where forward or backward is missing somewhere."""
    phases = [case.grid.phase_ns[phase] for phase in (*COMPUTE_PHASES, Phase.OPTIMIZER)]
    if not (phases[0].all() and phases[1].all()):
        return None
    over = np.stack([_relative(phase) for phase in phases[:2]], axis=2)
    forward = float(np.median(phases[0] / (phases[0] + phases[1])))
    spent, noise = _weighted_sum(over, np.array([forward, 1 - forward]))
    deviation = _usual_deviation(spent)
    shared = max(_alike(spent, _relative(phases[2])), 0.0) if phases[2].all() else 0.0
    if shared**2 > MOST:  # of the variance
        return WorkVariation(spent, 0.0, deviation, 0.0)
    noise = 1 - (1 - noise) * (1 - shared**2)
    correlation = _alike(over[:, :, 0], over[:, :, 1])
    return WorkVariation(spent, correlation, deviation, noise)


def _stretches(case: Case) -> WorkVariation | None:
    """Variation of the own work in stretches of about a tenth; None without several long ones."""
    own = max(case.costs.parts, key=lambda part: part.rows.size).by_place(case.costs.graph.own_ns)
    done = own.mean(axis=(0, 1)).cumsum()
    first = np.flatnonzero(np.diff(done // max(MINOR * done[-1], 1.0), prepend=-1.0))
    own = np.add.reduceat(own, first, axis=2)
    usual = np.median(own, axis=0)
    long = (usual > NAMED * usual.sum(axis=1, keepdims=True)).all(axis=0)
    if own.shape[1] < 2 or np.count_nonzero(long) < 2:
        return None
    weight = usual[:, long].mean(axis=0)
    weight = weight / weight.sum()
    over = _as_in_step(own[:, :, long] / usual[None, :, long])
    spent, noise = _weighted_sum(over, weight)
    others = (spent[:, :, None] - weight * over) / (1 - weight)
    correlation = np.median([_alike(over[:, :, at], others[:, :, at]) for at in range(len(weight))])
    deviation = _usual_deviation(spent) * float(np.sqrt(1 - noise))
    return WorkVariation(spent, float(correlation), deviation, noise)


# by quartiles and by ranks, which a few late cells do not move: lengths differ in all batches


def _usual_deviation(spent: Array) -> float:
    return float(np.diff(np.quantile(spent, [0.25, 0.75]))[0]) / (2 * z(0.75))


def _alike(one: Array, other: Array) -> float:
    return linear(rank_values(one), rank_values(other))


def _weighted_sum(over: Array, weight: Array) -> tuple[Array, float]:
    """The weighted sum of parts (steps, ranks, parts), and the share of its variance that these do
    not have in common: by one factor, as a batch's length, on which all depend alike, so that any
    two have its variance in common; where one varies less than that, in proportion to how much each
    varies, so that noise is as large a part of all."""
    spent, each = over @ weight, over.reshape(-1, len(weight)).var(axis=0)
    whole, own = max(float(spent.var()), 1e-12), float(each @ weight**2)
    shared, largest = max(whole - own, 0.0), float(weight @ np.sqrt(each)) ** 2
    common = shared / (1 - float(weight @ weight))
    if common > each.min():
        common = largest * shared / max(largest - own, 1e-12)
    return spent, 1 - min(common / whole, 1.0)


def _relative(phase: Array) -> Array:
    """Each cell over its rank's median, beside all ranks in its step."""
    return _as_in_step(phase / np.median(phase, axis=0))


def _as_in_step(over: Array) -> Array:
    """Values over the usual ones (steps, ranks, …) without what all ranks of a step have more: a
    difference, which keeps what depends on lengths in proportion to them."""
    return np.asarray(1 + over - np.median(over, axis=1, keepdims=True))


# -- a longer stage --------------------------------------------------------------------------------


def _slow_stages(case: Case) -> list[Finding]:
    """The only stage all of whose ranks are chronically late, where stages are known; or first and
    last, the longer one first: only these have layers of their own, others may share a machine."""
    stages, chronic = stages_of(case), case.delays.chronic
    number = np.array([stages.get(int(rank), -1) for rank in case.grid.ranks])
    work = np.median(case.program_ns, axis=0)
    slow = [int(s) for s in np.unique(number[number >= 0]) if chronic[number == s].all()]
    if len(slow) > 1 and slow != [0, number.max()]:
        return []
    slow.sort(key=lambda stage: -float(work[number == stage].mean()))
    return [one for stage in slow for one in _slow_stage(case, number, stage, work)]


def _slow_stage(case: Case, number: Array, stage: int, work: Array) -> list[Finding]:
    """One slow stage; `number` is the stage of each rank, `work` the usual own work of each."""
    mine, last = number == stage, int(number.max())
    late = case.delays.cells(Cause.WORK) & case.delays.chronic[None, :] & mine
    own_ns, others_ns = float(work[mine].mean()), float(work[~mine].mean())
    longer = own_ns / others_ns if others_ns > 0 else 1.0
    share = case.share(case.loss(case.claims.unclaimed(late)))
    if last < 1 or longer < 1 + NAMED or share.value < SMALLEST_SHARE:
        return []
    if case.idles(late) and case.main_phase(late) not in COMPUTE_PHASES:
        return []  # layers compute: this stage waits for something
    computed = np.median(case.grid.computed_ns, axis=0)
    if computed[mine].mean() - computed[~mine].mean() < MOST * (own_ns - others_ns):
        return []
    cells = case.claims.claim(late)
    relieved = case.relieved(cells)
    moved = case.share(case.saved(_even_out_stages(case, relieved, mine, last + 1)))
    place = "the last" if stage == last else f"{stage + 1}"
    return finding_of(
        case, "workload_imbalance.stage", Gain(share, relieved),
        numbers={
            "name": f"pipeline stage {stage} ({place} of {last + 1})", "stage": stage,
            "mine": own_ns, "others": others_ns, "longer": longer, **case.waits(cells),
        },
        where=replace(case.where(case.grid.ranks[mine].tolist()), groups=[f"stage {stage}"]),
        projected=constant,
        options={"shorten": share, "move": moved},
    )  # fmt: skip


def _even_out_stages(case: Case, relieved: Change, mine: Array, stages: int) -> Change:
    """The change that shares the excess of a stage out evenly among all stages."""
    graph = case.costs.graph
    own, others = graph.own_ns.copy(), ~mine[graph.rows.lane]
    excess = own[relieved.rows] - relieved.own_ns
    own[relieved.rows] -= excess * (1 - 1 / stages)
    given = excess.sum() / stages * np.count_nonzero(~mine) / np.count_nonzero(mine)
    own[others] *= 1 + given / max(float(own[others].sum()), 1.0)
    return Change.of_work(np.arange(len(own)), own)


def stages_of(case: Case) -> dict[int, int]:
    """Stage of each rank, by the messages that pass work on; else its place in its pipeline group,
    where groups have such names. A rank without messages has the stage of one of its groups."""
    groups, number = case.trace.groups, stages_passed(case.grid.graph)
    found = {int(case.grid.ranks[at]): int(number[at]) for at in np.flatnonzero(number >= 0)}
    for group in groups if found else ():
        theirs = {found[rank] for rank in group.ranks if rank in found}
        if len(theirs) == 1:
            found |= dict.fromkeys(group.ranks, theirs.pop())
    if found:
        return found
    named = [one.ranks for one in groups if one.name.lower().startswith(("pp", "pipe"))]
    return {r: place for ranks in named if len(ranks) > 1 for place, r in enumerate(ranks)}


def stages_passed(graph: Graph) -> Array:
    """Stage of each lane, -1 none: the lanes that send first in a step are the first stage, and the
    lanes they send to before they receive from them the next, of those that work with a message in
    hand. All -1 where stages differ in their number of lanes: that is no pipeline."""
    table, lanes = graph.operations, len(graph.ranks)
    none = np.full(lanes, -1)
    if not table.message.any():
        return none
    source, target = (ends[:-1] for ends in message_ends(graph))
    passed = np.flatnonzero((source >= 0) & (target >= 0))
    step = np.searchsorted(graph.steps, table.step[passed])
    way, channel = np.unique(source[passed] * lanes + target[passed], return_inverse=True)
    turned = way % lanes * lanes + way // lanes
    back = np.where(np.isin(turned, way), np.searchsorted(way, turned), len(way))
    gone = np.full((len(graph.steps), len(way) + 1), np.inf)  # when the first of a step was sent
    np.minimum.at(gone, (step, channel.reshape(-1)), table.last_ns[passed])
    onward = (gone[:, :-1] < gone[:, back]).mean(axis=0) > MOST
    works = in_hand(graph) > MINOR
    stage = np.where(beginning(graph) & works, 0, none)
    for place in range(1, lanes):
        reached = (way % lanes)[onward & (stage[way // lanes] == place - 1)]
        reached = reached[(stage[reached] < 0) & works[reached]]
        if not len(reached):
            break
        stage[reached] = place
    even = len(np.unique(np.bincount(stage[stage >= 0]))) == 1
    return stage if even and stage.max() > 0 else none
