"""`straggler`: the own work of one rank, or of a few, is longer, and all ranks wait for it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection

import numpy as np

from evenstep import words
from evenstep.diagnose.finding import Evidence, Finding, When
from evenstep.diagnose.graph.replay import Change
from evenstep.diagnose.lateness.case import Case
from evenstep.diagnose.lateness.delays import WORK_PHASES, Cause
from evenstep.diagnose.lateness.oscillation import oscillation
from evenstep.diagnose.lateness.thresholds import BY_CHANCE, above_others, standing_out
from evenstep.diagnose.levels import DOMINANT, MINOR, MOST, NAMED, SEVERAL, SMALLEST_SHARE
from evenstep.diagnose.measure.hosts import hardware
from evenstep.diagnose.measure.transfers import tokens
from evenstep.diagnose.modes.intervention import finding_of, finding_of_late, pattern_of
from evenstep.diagnose.sentences import say
from evenstep.trace.columns import Array
from evenstep.trace.spool.layout import Kind, Op, Phase
from evenstep.trace.trace import Trace

#: Titles by the place of a straggler's excess.
TITLES = {
    words.PLACES[Phase.FORWARD]: "slow forward",
    words.PLACES[Phase.BACKWARD]: "slow backward",
    words.PLACES[Phase.OPTIMIZER]: "slow optimizer",
    words.PLACES[Phase.INPUT]: "late batches",
    words.PLACES[Phase.EVALUATION]: "slow evaluation",
    words.PLACES[Phase.OTHER]: "delay in the training loop",
    words.BEFORE_BACKWARD: "delay before backward",
    words.BESIDE_BACKWARD: "delay outside backward",
    words.IN_KERNELS: "slow kernels",
    words.IDLE_DEVICE: "idle device",
}
MOST_RECORDS = 1_000_000  # records examined; of a larger trace those of its middle steps
_NEEDED = {Kind.COLLECTIVE: ("name", "op", "enter_ns", "exit_ns")}


def find(case: Case) -> list[Finding]:
    """Late entry, chronically late ranks, and single delays, bursts or rotation. Stops that hit all
    ranks alike hit a chronically late rank, too."""
    cells = case.claims.claim(case.delays.cells(Cause.WORK))
    beyond = cells & case.delays.beyond
    single = beyond if _all_alike(case, beyond) else cells & ~case.delays.chronic[None, :]
    chronic = _worth_mending(case, cells & ~single)
    parts = (*_by_phase(case, chronic), *_by_cost(case, single))
    return [*_late_entry(case), *(one for part in parts if part.any() for one in _late(case, part))]


def _worth_mending(case: Case, cells: Array) -> Array:
    """Late cells of the fewest ranks, or nodes whose ranks are alike late, that are worth mending:
    with these like the others, and no lateness of a recorded cause, mending the rest would gain
    less than a finding needs. Of the ranks within the natural spread only the latest counts."""
    behind = np.where(cells, case.delays.late_ns[Cause.WORK], 0.0).sum(axis=0)
    apart = standing_out(np.median(case.program_ns, axis=0))
    cells = cells & (apart | (behind == behind.max()))
    behind = np.where(apart | (behind == behind.max()), behind, 0.0)
    unit = _units(case, behind)
    late = list(dict.fromkeys(unit[np.argsort(-behind, kind="stable")[: np.count_nonzero(behind)]]))
    if len(late) < 2:
        return cells
    # input hides lateness of work: only ranks that come early wait for a batch that is not ready
    causes = [one for one in Cause if one not in (Cause.WORK, Cause.INPUT)]
    held = [case.relieved(each, one) for one in causes if (each := case.delays.cells(one)).any()]
    loading = case.without(case.grid.phase_ns[Phase.INPUT], Cause.INPUT)
    on_record = case.costs.combined([loading, *held])

    def saved(part: Array) -> Array:
        return case.saved(case.costs.combined([case.relieved(part), on_record]))

    def is_enough(last: int) -> bool:
        return case.share(whole - saved(cells & np.isin(unit, late[:last]))).value < SMALLEST_SHARE

    whole, fewer = saved(cells), range(1, len(late))
    return np.asarray(cells & np.isin(unit, late[: 1 + bisect_left(fewer, True, key=is_enough)]))


def _by_phase(case: Case, cells: Array) -> list[Array]:
    """The cells of ranks whose excess lies mostly in the same phases, for each such group."""
    late, more = np.flatnonzero(cells.any(axis=0)), np.maximum(case.delays.by_phase_ns, 0.0)
    share, group = more / np.maximum(more.sum(axis=0), 1.0), np.arange(cells.shape[1])
    for latest in late[np.argsort(more.sum(axis=0)[late], kind="stable")]:  # has the last word
        group[np.minimum(share, share[:, [latest]]).sum(axis=0) > MOST] = latest
    return [cells & (group == each) for each in np.unique(group[late])]


def _units(case: Case, behind: Array) -> Array:
    """A number for each rank, the same for those of a node that are all about as late."""
    unit = np.arange(len(behind))
    names = np.array([case.trace.ranks[int(rank)].node for rank in case.grid.ranks])
    for name in set(names.tolist()) - {""}:
        mine = np.flatnonzero(names == name)
        if behind[mine].min() > MOST * behind[mine].max():
            unit[mine] = mine[0]
    return unit


def _late_entry(case: Case) -> list[Finding]:
    """Ranks that enter the first traced step late and are waited for there."""
    behind = case.late_start_ns
    waited = case.waited_for_ns[0] if len(behind) else behind
    ranks = np.flatnonzero((behind >= NAMED * case.grid.total_ns) & (waited > 0))
    ranks = ranks[waited[ranks] >= MINOR * waited.sum()]
    if not len(ranks):
        return []
    graph = case.costs.graph
    ranks = ranks[np.argsort(-behind[ranks], kind="stable")]
    first = np.array([int(np.flatnonzero(graph.rows.lane == lane)[0]) for lane in ranks])
    sooner = Change.none()._replace(rows=first, own_ns=graph.own_ns[first] - behind[ranks])
    culprits = case.grid.ranks[ranks].tolist()
    step, more = int(case.grid.steps[0]), float(behind[ranks[0]])
    return finding_of(
        case, "straggler.entry", sooner,
        numbers={"who": case.ranks_in_words(culprits), "those": culprits, "more": more},
        where=case.where(culprits), at=When([(step, step)], "transient"), options=["before"],
    )  # fmt: skip


def _by_cost(case: Case, cells: Array) -> tuple[Array, ...]:
    """The cells of the ranks that cost most, and those of the other ranks."""
    if pattern_of(cells) == "rotating" or _all_alike(case, cells):
        return (cells,)
    cost = np.where(cells, case.delays.loss_ns[Cause.WORK], 0.0).sum(axis=0)
    large = cost >= MINOR * cost.max(initial=0)
    return cells & large, cells & ~large


def _all_alike(case: Case, cells: Array) -> bool:
    """Whether ranks are late now and then, none more often than chance explains of ranks that all
    stop alike (binomial, Bonferroni), and none for so long that the rest do not count."""
    cost = np.where(cells, case.delays.loss_ns[Cause.WORK], 0.0).sum(axis=0)
    if cost.max(initial=0) > DOMINANT * cost.sum():
        return False
    often = cells.sum(axis=0)
    times, most = int(often.sum()), int(often.max(initial=0))
    steps = np.count_nonzero(cells.any(axis=1))  # too few do not show a rank that is late again
    if steps < SEVERAL or most in (steps, times):
        return False
    from scipy.special import bdtrc  # when first asked: .1 s

    return bool(len(often) * bdtrc(most - 1, times, 1 / len(often)) > BY_CHANCE)


def _late(case: Case, cells: Array) -> list[Finding]:
    ranks, phase = case.culprits(cells), case.main_phase(cells)
    pattern = pattern_of(cells & np.isin(case.grid.ranks, ranks))
    turning, excess, told = pattern == "rotating", case.mean_excess_ns(cells), _told(case, cells)
    # who is late in one place and early in another is waited for as if it were only late
    more = max(case.mean_excess_ns(told), float(case.delays.loss_ns[Cause.WORK][told].mean()))
    place, many = _place(case, cells, phase, excess), len(ranks) > words.RUNS_LISTED  # of names
    nodes = case.where(ranks).nodes
    several = nodes and len(case.trace.nodes) > 1
    alike = not turning and pattern != "chronic" and _all_alike(case, cells)
    kind = "turns" if turning else "anyone" if alike else ""
    kind = kind or "everywhere" * (place != words.IN_KERNELS and _everywhere(case, cells, excess))
    outside = place in (words.PLACES[Phase.OPTIMIZER], words.PLACES[Phase.OTHER])  # of experts
    received = 0.0 if turning or alike or outside else _received(case, cells, ranks, excess)
    kind = "experts" if received else kind
    elsewhere = pattern == "chronic" and len(ranks) < len(case.grid.ranks) and not received
    return finding_of_late(
        case, f"straggler.{kind}".rstrip("."), cells,
        layer="runtime" if alike else "model" if received else _layer(case, ranks, phase),
        nobody=alike,
        numbers={
            "waiting": case.waiting_in_words(cells) + waited_at(case.trace, case.victims(cells)[0]),
            "often": _often(case, told, pattern),
            "turns": f"{len(ranks):,} ranks" if many else words.ranks(ranks), "more": more,
            "place": "in a step" if alike else place,
            "there": f" {place}",
            "slow": TITLES.get(place, "slow steps"),
            "why": _other_hardware(case, ranks) or _computing(case, cells, ranks, more),
            "target": f"node {', '.join(nodes)}" if several else "it", "received": received,
        },
        options=[_remedy(case, cells, kind, place)] + ["drain"] * elsewhere,
        evidence=_phase_evidence(case, cells, ranks),
    )  # fmt: skip


def _told(case: Case, cells: Array) -> Array:
    """The cells that are told: all, or those at least half as late as those that half of the
    lateness is in, where the ranks are hardly late besides."""
    late = case.delays.late_ns[Cause.WORK]
    each = np.sort(late[cells])
    usual = each[np.searchsorted(each.cumsum(), MOST * each.sum())]
    most = np.asarray(cells & (late >= MOST * usual))
    rest, told = late[cells & ~most], late[most]
    hardly = told.sum() >= DOMINANT * each.sum() and rest.sum() < MINOR * told.mean() * len(rest)
    return most if hardly else cells


def _remedy(case: Case, cells: Array, kind: str, place: str) -> str:
    """The first option: whose place is not known may have a slow machine, unless it idles."""
    unplaced = place == words.SOMEWHERE and not case.idles(cells)
    usual = "kernels" if place == words.IN_KERNELS else "compare" if unplaced else "find"
    known = {"turns": "share", "anyone": "share", "experts": "experts", "everywhere": "compare"}
    return known.get(kind, usual)


def _often(case: Case, cells: Array, pattern: str | None) -> str:
    """In which steps, unless in nearly all: those of one stretch, or with which period, or in how
    many."""
    steps, late = case.grid.steps, cells.any(axis=1)
    hit = np.flatnonzero(late)
    few = len(hit) < (1 - MINOR) * len(cells)
    if few and len(hit) >= (1 - MINOR) * (np.ptp(hit) + 1):
        first, last = steps[hit[[0, -1]]].tolist()
        if last == steps[-1] > first:
            return f" from step {first} on"
        if first == steps[0] < last:
            return f" up to step {last}"
        return f" in step{'s' * (len(hit) > 1)} {words.ranges([(first, last)])}"
    whole = few and pattern != "rotating" and np.ptp(steps) < len(steps)
    if whole and (seen := oscillation(late.astype(float))) and seen.peak:
        period = seen.peak.period
        often = round(period * len(hit) / len(steps))
        return (
            f" in {often} of every {period:.0f} steps" if often > 1 else f" {words.every(period)}"
        )
    if pattern == "chronic" and few:
        return f" in {words.percent(len(hit) / len(steps))} of the steps"
    return {"transient": " now and then", "bursty": " for stretches of steps"}.get(str(pattern), "")


def _received(case: Case, cells: Array, ranks: list[int], more_ns: float) -> float:
    """How many times the mean late ranks receive in all-to-alls, if mostly they receive most and
    are late for no longer than that explains, with all work in proportion to it; else 0."""
    found = tokens(case.trace, case.grid)
    if found is None or found["imbalance"] < 1 + NAMED or case.idles(cells):
        return 0.0
    theirs = sum(each["share"] for each in found["fullest"] if each["rank"] in ranks)
    times, size = float(found["imbalance"]), len(case.grid.ranks)
    beside = times * (size - 1) / (size - times) if times < size else np.inf  # the other ranks
    usual_ns = float(np.median(case.program_ns))
    return times if theirs > MOST and more_ns <= (beside - 1) * usual_ns else 0.0


def _place(case: Case, cells: Array, phase: Phase, more_ns: float) -> str:
    """Where in the step the excess lies: by phases, or by what the devices computed."""
    place, computed = case.phase_in_words(phase), case.grid.device_ns
    if place != words.SOMEWHERE or not computed.any(axis=0).all() or cells.all():
        return place
    part = float(np.median(above_others(computed)[cells])) / max(more_ns, 1.0)
    return words.IN_KERNELS if part > MOST else words.IDLE_DEVICE if part < MINOR else place


def _everywhere(case: Case, cells: Array, more_ns: float) -> bool:
    """Whether the late cells take longer in several phases in proportion to the work, as on a
    slower processor, and most of the excess lies there."""
    if cells.all():
        return False  # no cell is left to compare with
    lengths = [case.grid.phase_ns[phase] for phase in WORK_PHASES[:-1]]
    usual, mine = (np.array([np.median(one[of]) for one in lengths]) for of in (~cells, cells))
    if (mine - usual).sum() < MOST * more_ns:
        return False
    counts = usual > MINOR * usual.sum()
    slower = mine[counts] / usual[counts] - 1
    return len(slower) > 1 and bool(slower.min() > MOST * slower.max())


def _layer(case: Case, ranks: list[int], phase: Phase) -> str:
    """The layer of late ranks: the node where all ranks of one are late, else by rank and phase."""
    nodes = {case.trace.ranks[rank].node for rank in ranks}
    on_it = {rank for rank, info in case.trace.ranks.items() if info.node in nodes}
    if len(nodes) == 1 < len(case.trace.nodes) and len(on_it) > 1 and on_it <= set(ranks):
        return "node"
    return "framework" if phase is Phase.OTHER else "node" if len(ranks) == 1 else "model"


def _other_hardware(case: Case, ranks: list[int]) -> str:
    """A clause for ranks on hardware that no other rank has: slower by make, not by fault."""
    names = hardware(case.trace)
    theirs = {names.get(rank, "") for rank in ranks}
    others = {name for rank, name in names.items() if rank not in ranks}
    if not all(theirs) or not all(others) or not others or theirs & others:
        return ""
    have = "it has" if len(ranks) == 1 else "they have"
    return f"; {have} {' and '.join(sorted(theirs))}, the others {' and '.join(sorted(others))}"


def _computing(case: Case, cells: Array, ranks: list[int], more: float) -> str:
    """A clause that says whether the processes compute during the excess."""
    idles = case.idles(cells)
    sentence = f"straggler.{'idle' if idles else 'computing'}"
    return "" if idles is None else say(sentence, those=ranks, more=more)


def _phase_evidence(case: Case, cells: Array, ranks: list[int]) -> list[Evidence]:
    """Each phase that is clearly longer on the first culprit than on the other ranks."""
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


def waited_at(trace: Trace, ranks: Collection[int]) -> str:
    """Where these ranks spend most time in collectives, as a clause of a sentence or "": ", longest
    in the all_reduce of train.py:31 router_statistics"."""
    if not trace.names:
        return ""
    if len(trace.events) > MOST_RECORDS:
        numbers, enough = trace.table.step_numbers(), int(MOST_RECORDS / trace.table.per_step())
        first = int(numbers[max(len(numbers) - enough, 0) // 2])
        trace = trace.window(first, first + max(enough, 1), _NEEDED)
    events = trace.of_kind(Kind.COLLECTIVE)
    named = (events.name > 0) & (events.exit_ns > 0)
    rows = events.select(named & np.isin(events["rank"], list(ranks)))
    if not len(rows):
        return ""
    spent_ns = np.bincount(rows.name, weights=(rows.exit_ns - rows.enter_ns).astype(float))
    name = int(spent_ns.argmax())
    first = int(np.flatnonzero(rows.name == name)[0])
    return f", longest in the {Op(int(rows.op[first])).name.lower()} of {trace.names[name]}"
