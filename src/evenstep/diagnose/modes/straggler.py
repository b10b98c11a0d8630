"""`straggler`: one rank's own work, or a few ranks', is longer and everybody waits for it."""

from __future__ import annotations

import numpy as np

from evenstep import words
from evenstep.diagnose.finding import Evidence, Finding, When
from evenstep.diagnose.graph.replay import Change
from evenstep.diagnose.lateness.case import Array, Case
from evenstep.diagnose.lateness.delays import WORK_PHASES, Cause
from evenstep.diagnose.lateness.thresholds import BY_CHANCE, standing_out
from evenstep.diagnose.levels import ASKED, DOMINANT, MINOR, MOST, NAMED, SEVERAL, SMALLEST_SHARE
from evenstep.diagnose.measure.places import layouts
from evenstep.diagnose.measure.recurrence import pattern_of
from evenstep.diagnose.modes.intervention import found, late
from evenstep.trace.call_sites import waited_at
from evenstep.trace.spool.layout import Phase

#: What a straggler does longer than its peers, by the place of it.
LATE = {
    words.PLACES[Phase.FORWARD]: "slow forward",
    words.PLACES[Phase.BACKWARD]: "slow backward",
    words.PLACES[Phase.OPTIMIZER]: "slow optimizer",
    words.PLACES[Phase.INPUT]: "late batches",
    words.PLACES[Phase.EVALUATION]: "slow evaluation",
    words.PLACES[Phase.OTHER]: "delay in the training loop",
    words.BEFORE_BACKWARD: "delay before backward",
}


def find(case: Case) -> list[Finding]:
    """Chronic ranks as one finding; single delays, bursts and rotation as others. Stops that hit
    all ranks alike hit a chronic one, too."""
    cells = case.claims.cells(case.delays.cells(Cause.WORK))
    beyond = cells & case.delays.beyond
    single = beyond if _all_alike(case, beyond) else cells & ~case.delays.chronic[None, :]
    parts = (_worth_mending(case, cells & ~single), *_by_cost(case, single))
    return [*_brought_in(case), *(one for part in parts if part.any() for one in _late(case, part))]


def _worth_mending(case: Case, cells: Array) -> Array:
    """Cells of the ranks without which nobody else's mending is worth it: once they are like the
    others, and nothing on record makes anybody wait, the rest of the late ones would give back less
    than is worth a finding. Beside the latest, none that is no slower than ranks are by nature."""
    behind = np.where(cells, case.delays.late_ns[Cause.WORK], 0.0).sum(axis=0)
    apart = standing_out(np.median(case.program_ns, axis=0))
    cells = cells & (apart | (behind == behind.max()))
    behind = np.where(apart | (behind == behind.max()), behind, 0.0)
    ranks = np.argsort(-behind, kind="stable")[: np.count_nonzero(behind)]
    if not 1 < len(ranks) <= ASKED:
        return cells
    alone = [cells & np.isin(np.arange(len(behind)), ranks[:last]) for last in range(1, len(ranks))]
    on_record = _nothing_on_record(case)
    changes = [case.together([case.relieved(part), on_record]) for part in (*alone, cells)]
    gains = case.all_saved(changes)
    left = [case.share(gains[-1] - gain).value for gain in gains[:-1]]
    return next((p for p, rest in zip(alone, left, strict=True) if rest < SMALLEST_SHARE), cells)


def _nothing_on_record(case: Case) -> Change:
    """Nobody late with what is on record, and all of the input there, which hides lateness of work:
    a batch that is not ready is waited for by whoever comes early."""
    causes = [one for one in Cause if one not in (Cause.WORK, Cause.INPUT)]
    held = [case.relieved(cells, one) for one in causes if (cells := case.delays.cells(one)).any()]
    return case.together([case.taken(case.grid.phase_ns[Phase.INPUT], Cause.INPUT), *held])


def _brought_in(case: Case) -> list[Finding]:
    """Ranks that came late into the first traced step, and that the others then waited for."""
    behind = case.late_start_ns
    waited = case.waited_for_ns[0] if len(behind) else behind
    ranks = np.flatnonzero((behind >= NAMED * case.grid.total_ns) & (waited > 0))
    ranks = ranks[waited[ranks] >= MINOR * waited.sum()]
    if not len(ranks) or case.costs is None:
        return []
    graph = case.costs.graph
    ranks = ranks[np.argsort(-behind[ranks], kind="stable")]
    first = np.array([int(np.flatnonzero(graph.rows.lane == lane)[0]) for lane in ranks])
    sooner = Change.none()._replace(rows=first, own_ns=graph.own_ns[first] - behind[ranks])
    culprits = case.grid.ranks[ranks].tolist()
    step, more = int(case.grid.steps[0]), float(behind[ranks[0]])
    return found(
        case,
        "straggler.entry",
        sooner,
        numbers={"who": case.named(culprits), "those": culprits, "more": more},
        where=case.where(culprits),
        at=When([(step, step)], "transient"),
        options=["before"],
        evidence=[Evidence("late_into_the_first_step", more, 0, "ns")],
    )


def _by_cost(case: Case, cells: Array) -> tuple[Array, ...]:
    """Cells of the ranks that most is lost to, and those of others that are late now and then."""
    if pattern_of(cells) == "rotating" or _all_alike(case, cells):
        return (cells,)
    cost = np.where(cells, case.delays.loss_ns[Cause.WORK], 0.0).sum(axis=0)
    large = cost >= MINOR * cost.max(initial=0)
    return cells & large, cells & ~large


def _all_alike(case: Case, cells: Array) -> bool:
    """Whether several ranks are late now and then, and nobody more often than chance has one of as
    many who all stop alike (binomial, Bonferroni); nor so much longer that the rest do not count.
    """
    cost = np.where(cells, case.delays.loss_ns[Cause.WORK], 0.0).sum(axis=0)
    if cost.max(initial=0) > DOMINANT * cost.sum():
        return False
    often = cells.sum(axis=0)
    times, most = int(often.sum()), int(often.max(initial=0))
    steps = np.count_nonzero(cells.any(axis=1))  # in a few nobody is seen to be late again
    if steps < SEVERAL or most in (steps, times):
        return False
    from scipy.special import bdtrc  # when first asked: .1 s

    return bool(len(often) * bdtrc(most - 1, times, 1 / len(often)) > BY_CHANCE)


def _late(case: Case, cells: Array) -> list[Finding]:
    ranks, phase = case.culprits(cells), case.main_phase(cells)
    pattern = pattern_of(cells & np.isin(case.grid.ranks, ranks))
    turning, place = pattern == "rotating", case.place(phase)
    more, many = case.mean_excess_ns(cells), len(ranks) > words.RUNS_LISTED  # of names
    often = {"transient": " now and then", "bursty": " for stretches of steps"}.get(
        pattern or "", ""
    )
    enters = "enters" if len(ranks) == 1 else "enter"
    nodes = case.where(ranks).nodes
    several = nodes and len(case.trace.nodes) > 1
    alike = not turning and pattern != "chronic" and _all_alike(case, cells)
    variant = ".turns" if turning else ".anyone" if alike else ""
    variant = variant or (".everywhere" if _everywhere(case, cells) else "")
    everybody = pattern != "chronic" or len(ranks) == len(case.grid.ranks)
    return late(
        case,
        f"straggler{variant}",
        cells,
        layer="runtime" if alike else _layer(case, ranks, phase),
        nobody=alike,
        numbers={
            "waiting": case.waiting(cells) + waited_at(case.trace, case.victims(cells)[0]),
            "lead": f"{case.named(ranks)} {enters} last{often}",
            "turns": f"{len(ranks):,} ranks" if many else words.ranks(ranks),
            "more": more,
            "place": "in a step" if alike else place,
            "there": "" if place == words.SOMEWHERE else f" {place}",
            "slow": LATE.get(place, "slow steps"),
            "why": _other_hardware(case, ranks) or _hint(case, cells, words.duration(more)),
            "target": f"node {', '.join(nodes)}" if several else "it",
        },
        options=["share" if turning or alike else "find", *([] if everybody else ["drain"])],
        evidence=[*_phase_evidence(case, cells, ranks), *_peer_evidence(case, ranks[0])],
    )


def _everywhere(case: Case, cells: Array) -> bool:
    """Whether the late cells take longer in each of several phases, in none of those that count by
    far less than in another: in proportion to the work, as on a slower processor."""
    if cells.all():
        return False  # slower than nobody
    lengths = [case.grid.phase_ns[phase] for phase in WORK_PHASES[:-1]]
    usual, mine = (np.array([np.median(one[of]) for one in lengths]) for of in (~cells, cells))
    counts = usual > MINOR * usual.sum()
    slower = mine[counts] / usual[counts] - 1
    return len(slower) > 1 and bool(slower.min() > MOST * slower.max())


def _layer(case: Case, ranks: list[int], phase: Phase) -> str:
    """A whole node that is slow is the node's; else it is what runs there."""
    nodes = {case.trace.ranks[rank].node for rank in ranks}
    if len(nodes) == 1 and len(case.trace.nodes) > 1:
        node = next(iter(nodes))
        on_it = [rank for rank, info in case.trace.ranks.items() if info.node == node]
        if len(on_it) > 1 and set(on_it) <= set(ranks):
            return "node"
    return "framework" if phase is Phase.OTHER else "node" if len(ranks) == 1 else "model"


def _other_hardware(case: Case, ranks: list[int]) -> str:
    """That these ranks compute on something no other rank has: slower by make, not by fault."""
    names = {rank: place.hardware[0] for rank, place in layouts(case.trace).items()}
    theirs = {names.get(rank, "") for rank in ranks}
    others = {name for rank, name in names.items() if rank not in ranks}
    if not all(theirs) or not all(others) or not others or theirs & others:
        return ""
    have = "it has" if len(ranks) == 1 else "they have"
    return f"; {have} {' and '.join(sorted(theirs))}, the others {' and '.join(sorted(others))}"


def _hint(case: Case, cells: Array, more: str) -> str:
    """Whether the process was computing or standing still during the excess."""
    idles = case.idles(cells)
    if idles is None:
        return ""
    who = "its process is" if len(case.culprits(cells)) == 1 else "their processes are"
    if idles:
        return f"; {who} not computing during these {more} (sleeping, or waiting for I/O)"
    return f"; {who} computing all the while"


def _phase_evidence(case: Case, cells: Array, ranks: list[int]) -> list[Evidence]:
    """Each phase of the first culprit that is clearly longer than the other ranks'."""
    column = int(np.searchsorted(case.grid.ranks, ranks[0]))
    rows = cells[:, column] if cells[:, column].any() else cells.any(axis=1)
    items = []
    for phase in (Phase.INPUT, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER):
        values = case.grid.phase_ns[phase][rows]
        mine = float(np.median(values[:, column]))
        others = float(np.median(np.delete(values, column, axis=1)))
        if mine > (1 + NAMED) * others and mine - others > 0.1 * case.mean_excess_ns(cells):
            name = f"{phase.name.lower()}_of_rank_{ranks[0]}"
            items.append(Evidence(name, mine, others, "ns"))
    return items


def _peer_evidence(case: Case, rank: int) -> list[Evidence]:
    """The first culprit's own work beside that of ranks on the same hardware."""
    places = layouts(case.trace)
    peers = [
        other
        for other, place in places.items()
        if rank in places and other != rank and place.hardware[0] == places[rank].hardware[0]
    ]
    columns = np.isin(case.grid.ranks, peers)
    if not columns.any() or columns.sum() == len(case.grid.ranks) - 1:
        return []
    work = np.median(case.grid.work_ns, axis=0)
    mine = work[np.searchsorted(case.grid.ranks, rank)]
    name = "work_beside_peers_of_the_same_hardware"
    return [Evidence(name, mine, np.median(work[columns]), "ns")]
