"""Further evidence of a finding's culprits: call stacks, and the speed of their machines.

A place in the code that takes as long on other ranks is no reason for being late. So a place that
stack samples (`Kind.STACK`) saw counts by the time it takes of a step beyond the median of the
other ranks. Machines are compared by the probe inside the job (`--probe-every`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from evenstep import words
from evenstep.diagnose import levels
from evenstep.diagnose.finding import TERMINAL, CallStack, Evidence, Finding
from evenstep.diagnose.measure.grid import StepGrid
from evenstep.diagnose.measure.hosts import hardware, metric_samples, node_of
from evenstep.diagnose.sentences import say
from evenstep.statistics.outliers import Series, standing
from evenstep.trace.columns import Array, Columns
from evenstep.trace.frames import SEPARATOR, distance, own_place
from evenstep.trace.spool.layout import Kind, Phase
from evenstep.trace.trace import Trace

PlaceOf = Callable[[Sequence[str]], str]
#: The phase of a mode: a place mostly seen elsewhere is none of the mode's, if any was seen in it,
#: and one mostly seen in it none of late work. An evaluation is known by its end, and unseen.
PHASES = {"input_pipeline": int(Phase.INPUT), "checkpoint_stall": int(Phase.CHECKPOINT)}


class StackSamples(NamedTuple):
    """The stack samples of one rank."""

    total: int
    places: Mapping[str, Counter[str]]  # samples of each stack, by its place
    step_ns: float  # mean step of the rank without the collector's pauses; 1 where none is known
    bursts: Sequence[Counter[str]]  # samples of each place in each burst

    def error_ns(self, place: str) -> float:
        """Standard error of `more_ns` (ratio estimator over bursts); 0 of a single burst."""
        off = [burst[place] - self.share(place) * burst.total() for burst in self.bursts]
        if len(off) < 2:
            return 0.0
        return self.step_ns * float(np.std(off, ddof=1) * np.sqrt(len(off))) / max(self.total, 1)

    def share(self, place: str, line: str = "") -> float:
        """Share of the samples in a place, or in a line of it."""
        seen = self.places.get(place, {}).items()
        looks = sum(n for text, n in seen if line in ("", text.partition(SEPARATOR)[0]))
        return looks / max(self.total, 1)

    def more_ns(self, others: Sequence[StackSamples], place: str, line: str = "") -> float:
        """Time of a step in there, above the median of the other ranks."""
        usual = [one.step_ns * one.share(place, line) for one in others]
        return self.step_ns * self.share(place, line) - float(np.median(usual or [0.0]))


def with_stacks(
    trace: Trace, finding: Finding, grid: StepGrid, cells: Array | None = None
) -> Finding:
    """The finding with the call stacks of its culprits: of late ranks the places they were in
    longer than others, of what all ranks have now and then those they were in longer than at other
    times (`cells`, a mask of steps and ranks; else in other steps), of a hang the last stack of
    every rank, of a death that of its end. What the interpreter or the system does is not due to
    the line it happens to interrupt."""
    ends = ((rank, _end(trace, rank)) for rank in finding.where.ranks)
    ended = [CallStack(rank, 1.0, frames) for rank, frames in ends if frames]
    if finding.mode == "rank_failed":
        return replace(finding, stacks=ended)
    every = trace.of_kind(Kind.STACK)
    rows = every.select(every.bytes_in > 0)
    if finding.mode in TERMINAL:
        return _with_last_stacks(trace, finding, rows, ended)
    ours = finding.layer in ("model", "framework")
    everybody = not finding.where.ranks and cells is None
    told = bool(finding.stacks) or (not ours and (finding.mode == "runtime_jitter" or everybody))
    numbers = trace.of_kind(Kind.STEP).step
    rows = rows.select(rows.step <= numbers.max()) if len(numbers) else rows  # none after them
    if told or not len(rows):
        return finding
    within = [(rows.step >= one) & (rows.step <= end) for one, end in finding.when.steps]
    inside = np.any(within or [np.ones(len(rows), bool)], axis=0)
    if cells is not None:
        cell, known = grid.cell(rows)
        inside = np.isin(cell, np.flatnonzero(cells)) & known
    apart = cells is None and finding.where.ranks
    of_it = inside, np.isin(rows["rank"], apart, invert=True) if apart else ~inside
    stacks = _of_late(trace, rows, finding, of_it, _function)
    most = max([0.0, *(stack.share for stack in stacks)])
    lines = _of_late(trace, rows, finding, of_it, own_place) if most < levels.MOST else []
    if lines and lines[0].share * levels.MOST > most:  # what a line calls is spread over functions
        stacks, most = lines, lines[0].share
    beside = [_beside(trace, every, rank) for rank in finding.where.ranks[: levels.LISTED]]
    stacks = [*(each for each in beside if each.share > most), *stacks]
    if not stacks:
        return finding
    first = stacks[0]
    of = f" of the looks at rank {first.rank}"
    seen = f"; in {words.percent(first.share)}{of} it was in {words.seen_at(first.frames)}"
    options = list(finding.options)
    if first in beside and options:
        action, cost = say("straggler.thread"), say("straggler.thread_cost")
        options[0] = replace(options[0], action=action, cost=cost)
    return replace(finding, stacks=stacks, cause=finding.cause + seen, options=options)


def _end(trace: Trace, rank: int) -> list[str]:
    """The frames of what ended a rank: its exception, `sys.exit` or `os._exit`; [] unknown."""
    facts = trace.ranks[rank].facts if rank in trace.ranks else {}
    return list((facts.get("raised") or facts.get("left") or {}).get("frames") or ())


def _with_last_stacks(
    trace: Trace, finding: Finding, rows: Columns, ended: list[CallStack]
) -> Finding:
    """The finding with the stacks that `ended` ranks, and of the others the last from its last step
    on, or from the last that the rank began: a missing rank may be in an earlier one."""
    step = finding.when.steps[-1][1] if finding.when.steps else 0
    steps = trace.of_kind(Kind.STEP)
    own = {rank: (steps.step[steps["rank"] == rank] + 1).max(initial=0) for rank in trace.ranks}
    begun = [min(step, own[int(rank)]) for rank in rows["rank"]]
    rows = rows.select(rows.step >= begun).sorted_by("exit_ns")
    last = {
        int(rank): trace.names[name] for rank, name in zip(rows["rank"], rows.name, strict=True)
    }
    others = sorted(last.keys() - {one.rank for one in ended})
    stacks = [*(CallStack(rank, 1.0, last[rank].split(SEPARATOR)) for rank in others), *ended]
    theirs = [each for each in stacks if each.rank in finding.where.ranks]
    place = words.seen_by((each.rank, each.frames) for each in theirs)
    told = not theirs or place in finding.cause
    were = "" if told else f"; {'they were' if len(theirs) > 1 else 'it was'} in {place}"
    return replace(finding, stacks=stacks, cause=finding.cause + were)


def _function(frames: Sequence[str]) -> str:
    """The innermost function of a stack, without its line: a loop is one place."""
    file, _, rest = frames[0].rpartition(":")
    return f"{file} {rest.partition(' ')[2]}"


def _of_late(
    trace: Trace, rows: Columns, finding: Finding, of_it: tuple[Array, Array], place_of: PlaceOf
) -> list[CallStack]:
    """Stacks of the places in which the culprits were longer in the finding's rows than the others
    usually are, the longest first. `of_it`: masks of its rows, and of those of the others."""
    ranks, sampled = finding.where.ranks[: levels.LISTED], np.unique(rows["rank"]).tolist()
    inside, outside = of_it
    work = [phase for phase in Phase if phase not in PHASES.values()]
    of = work if finding.mode == "straggler" else [PHASES.get(finding.mode, -1)]
    theirs = inside & np.isin(rows.op, of)
    if not ranks:  # all are late together: each beside its own other steps
        ranks = sampled[: levels.LISTED]
        rare = finding.when.pattern == "transient"  # and long: in others nobody may have looked
        if not (rare or outside.any() or theirs.any()):  # devices wait for the script's own calls
            own = np.array([not distance(name) for name in trace.names])
            theirs = own[rows.name] & (finding.mode == "runtime_jitter")
            if not theirs.any():
                return []
    theirs = theirs if theirs.any() else inside
    there: Counter[str] = Counter()  # looks in a place, less those beside the phase
    looks = np.where(theirs, 1, -1) * rows.payload.astype(int)
    for index in np.flatnonzero(inside).tolist():
        there[place_of(trace.names[rows.name[index]].split(SEPARATOR))] += int(looks[index])
    others = [_samples(trace, rows, rank, outside, place_of) for rank in sampled]
    others = [each for each in others if each.total]
    found = []
    for rank in (each for each in ranks if each in sampled):
        mine = _samples(trace, rows, rank, inside, place_of)
        excess = {place: mine.more_ns(others, place) for place in mine.places}
        sure = {place: more - mine.error_ns(place) for place, more in excess.items()}
        worst = sorted((p for p in +there if excess.get(p, 0) > 0), key=lambda p: (-sure[p], p))
        for place in worst[: levels.SEVERAL]:
            longer, seen = _longer_lines(mine, others, place), mine.places[place]
            share = sum(mine.share(place, line) for line in longer)
            texts = [text for text in sorted(seen) if text.partition(SEPARATOR)[0] == longer[0]]
            text = max(texts, key=lambda each: seen[each])
            if mine.share(place) >= levels.MINOR:
                found.append(CallStack(rank, round(share, 3), text.split(SEPARATOR)))
    return found


def _beside(trace: Trace, rows: Columns, rank: int) -> CallStack:
    """The stack of a thread that computed in Python while a rank trained, in so large a share of
    the looks beyond other ranks': each holds the interpreter's lock from the other."""
    share, found = {rank: 0.0}, [""]
    for each in np.unique(rows["rank"]).tolist():
        mine = rows.select(rows["rank"] == each)
        count = mine.payload * (mine.bytes_in == 0)
        share[each] = float(count.sum() / max((mine.payload - count).sum(), 1))
        if each == rank and share[rank]:
            found = trace.names[int(mine.name[count.argmax()])].split(SEPARATOR)
    usual = np.median([value for each, value in share.items() if each != rank] or [0.0])
    place = f"{own_place(found)} in another thread"
    return CallStack(rank, round(share[rank] - float(usual), 3), [place, *found])


def _longer_lines(mine: StackSamples, others: Sequence[StackSamples], place: str) -> list[str]:
    """Lines of a place in which a rank is longer than the others, the longest first: they may have
    something else to do in the same function, as in a script without any."""
    lines = {text.partition(SEPARATOR)[0] for text in mine.places[place]}
    more = {line: mine.more_ns(others, place, line) for line in lines}
    most = sorted(more, key=lambda line: (-more[line], line))
    return [line for line in most if more[line] > 0] or most[:1]


def _samples(trace: Trace, rows: Columns, rank: int, counted: Array, of: PlaceOf) -> StackSamples:
    """A rank's samples, of the rows that are `counted`."""
    mine = rows["rank"] == rank
    rows, counted = rows.select(mine), counted[mine]
    places: dict[str, Counter[str]] = defaultdict(Counter)
    bursts: list[Counter[str]] = []
    whole = looks = 0
    columns = rows.name, rows.payload, rows.bytes_in, counted
    for name, count, total, counts in zip(*columns, strict=True):
        if looks >= whole or total != whole:
            bursts.append(Counter())
            whole, looks = int(total), 0
        looks += int(count)
        if counts:
            text = trace.names[int(name)]
            place = of(text.split(SEPARATOR))
            places[place][text] += int(count)
            bursts[-1][place] += int(count)
    steps = trace.summaries[trace.summary_rank == rank]
    count = int(steps["count"].sum()) if len(steps) else 0
    running_ns = float((steps["step_sum_ns"] - steps["pause_ns"]).sum()) if count else 1.0
    total, step_ns = int(rows.payload[counted].sum()), running_ns / max(count, 1)
    return StackSamples(total, places, step_ns, [*filter(None, bursts)])


# -- speed of machines, by the probe ---------------------------------------------------------------


MEASURED = {
    "compute": "computes",
    "memory": "copies memory",
    "host_copy": "copies between host and device",
}


class SlowMachine(NamedTuple):
    """A rank whose machine is slow in one measurement of the probe, ns."""

    rank: int
    measured: str
    median_ns: float
    usual_ns: float

    @property
    def slower(self) -> float:
        """Excess over the usual time, as a share of it."""
        return self.median_ns / self.usual_ns - 1


def with_probe(trace: Trace, finding: Finding) -> Finding:
    """The finding with the machines of its culprits that the probe found slow in its steps."""
    ranks = finding.where.ranks
    if not ranks or finding.mode in TERMINAL or not finding.when.steps:
        return finding
    slow = slow_machines(trace, (finding.when.steps[0][0], finding.when.steps[-1][1]))
    late = [one for one in slow if one.rank in ranks[: levels.LISTED]]
    if not late:
        return finding
    evidence = [
        Evidence(f"probe_{one.measured}_of_rank_{one.rank}",
                 round(one.median_ns), round(one.usual_ns), "ns")
        for one in late
    ]  # fmt: skip
    cause = finding.cause + _sentence(trace, late[0], [one.rank for one in slow], len(ranks))
    return replace(finding, cause=cause, evidence=[*finding.evidence, *evidence])


def slow_machines(trace: Trace, steps: tuple[int, int]) -> list[SlowMachine]:
    """Ranks slower in the probe between two steps than peers of their hardware, slowest first."""
    made, found = hardware(trace), []
    for measured in MEASURED:
        numbers = metric_samples(trace, f"probe.{measured}_ns")
        numbers = numbers.select((numbers.step >= steps[0]) & (numbers.step <= steps[1]))
        values = {r: numbers.value[numbers.rank == r].tolist() for r in np.unique(numbers.rank)}
        enough = {int(r): each for r, each in values.items() if len(each) >= levels.SEVERAL}
        series = {rank: Series(tuple(each)) for rank, each in enough.items()}
        for name in sorted({made.get(rank, "") for rank in series}):
            peers = {rank: one for rank, one in series.items() if made.get(rank, "") == name}
            outliers = standing(peers, least=levels.NAMED)
            found += [
                SlowMachine(rank, measured, peers[rank].median_ns, outliers.usual_ns)
                for rank in outliers.factors
            ]
    return sorted(found, key=lambda one: -one.slower)


def _sentence(trace: Trace, first: SlowMachine, slow: list[int], culprits: int) -> str:
    """The end of a cause: the machine is slow, and whether its whole host is."""
    node = node_of(trace, first.rank)
    who = "its own machine" if culprits == 1 else f"rank {first.rank}'s own machine"
    on_it = [rank for rank, info in trace.ranks.items() if info.node == node]
    whole = len(on_it) > 1 and len(trace.nodes) > 1 and set(on_it) <= set(slow)
    host = f" (as all {len(on_it)} ranks of {node})" if whole else f" ({node})" if node else ""
    does, by = MEASURED[first.measured], words.percent(first.slower)
    return f"; {who}{host} {does} {by} slower than its peers in the probe"
