"""The diagnosis: all modes asked, findings attributed and ranked, and summary and verdict."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from math import factorial
from typing import Any, TypeVar

import numpy as np

from evenstep import words
from evenstep.diagnose.finding import TERMINAL, Diagnosis, Effect, Finding, Option, Projection
from evenstep.diagnose.graph.replay import Change
from evenstep.diagnose.lateness.case import INNER_PHASES, Case, open_case
from evenstep.diagnose.lateness.delays import Cause
from evenstep.diagnose.lateness.dynamics import blame_summary, path_summary
from evenstep.diagnose.levels import FEW_STEPS, MOST, NAMED, SEVERAL, SMALLEST_SHARE
from evenstep.diagnose.measure.attempts import PREEMPTED, attempts_of
from evenstep.diagnose.measure.culprits import with_probe, with_stacks
from evenstep.diagnose.measure.effects import account, checkpoints, effects_of_actions, pacing
from evenstep.diagnose.measure.grid import StepGrid
from evenstep.diagnose.measure.overview import regimes, summary, throughput
from evenstep.diagnose.modes import async_staleness, endings
from evenstep.diagnose.modes.catalog import MODES
from evenstep.diagnose.modes.synchronization import slow_together
from evenstep.diagnose.modes.workload_imbalance import stages_of
from evenstep.diagnose.predict.published import job, published_results
from evenstep.diagnose.sentences import say, verdict
from evenstep.statistics.interval import Share
from evenstep.trace.columns import Array
from evenstep.trace.spool.layout import Flag, Kind
from evenstep.trace.trace import Trace

_Told = TypeVar("_Told", Option, Projection)


def diagnose(run: Trace | Case) -> Diagnosis:
    """Diagnose a trace or an opened case: what it lost, to which rank, why, and what would help."""
    case = run if isinstance(run, Case) else open_case(run)
    trace, findings = case.trace, find(case)
    stages = max(stages_of(case).values(), default=-1) + 1
    numbers = summary(trace, case.grid) | dynamics(case) | {"stages": stages or None}
    numbers = {"verdict": str(verdict(findings, numbers, _fabric(case, numbers))), **numbers}
    numbers["unexplained"] = case.unexplained
    numbers["regimes"] = regimes(case.grid)
    numbers |= {"pacing": pacing(trace), "acted": effects_of_actions(trace)}
    if trace.operations is not None:
        numbers["stragglers"] = published_results(job(trace.operations, trace.names))
    return Diagnosis(_run(trace), numbers, findings, _limits(case))


def find(case: Case) -> list[Finding]:
    """The findings of all modes, each with its part of the loss, in the order of the verdict."""
    found: list[Finding] = []
    for mode in MODES:
        if len(case.grid.steps) or mode.without_steps:
            found += mode.find(case)
    in_order = rank_findings(attribute(case, found))
    told = [_with_places(case, with_probe(case.trace, one)) for one in in_order]
    complete = case.trace.elapsed_known and case.trace.hiding_known and not case.grid.unseen
    return [replace(one if complete else _at_most(one), change=None) for one in told]


def _with_places(case: Case, finding: Finding) -> Finding:
    """The finding with the places in the code that its culprits, or its slow steps, were in."""
    cells = None
    if finding.mode == "synchronization_oscillation" and (seen := slow_together(case)):
        cells = np.broadcast_to(seen.slow[:, None], case.grid.shape)
    elif finding.mode == "straggler" and np.isin(case.grid.ranks, finding.where.ranks).all():
        cells = case.delays.cells(Cause.WORK)  # each is late in some steps, and waits in others
    return with_stacks(case.trace, finding, case.grid, cells)


def _at_most(finding: Finding) -> Finding:
    """The finding with shares as upper bounds, as only part of the elapsed time is recorded, or
    nothing of what hides waits."""
    options = [one if one.gain is None else replace(one, low=0.0) for one in finding.options]
    projected = [replace(one, low=0.0) for one in finding.effect.projected]
    effect = replace(finding.effect, projected=projected)
    sure = min(finding.confidence, round(Share(finding.severity, 0.0, 1.0).confidence, 3))
    return replace(finding, options=options, effect=effect, confidence=sure)


def rank_findings(findings: Sequence[Finding]) -> list[Finding]:
    """Findings that ended the job first, then the costliest, with what else a mode says of the same
    ranks; but behind causes worth naming stand noise of up to twice their cost and, where they have
    culprits, jitter of hosts and cores of up to `SEVERAL` times theirs."""
    noise = "synchronization_amplification"
    causes = [one for one in findings if one.severity >= NAMED and one.mode != noise]
    named = [one.severity for one in causes if one.where.ranks and one.mode not in TERMINAL]

    def place(finding: Finding) -> tuple[bool, float, bool]:
        mine = set(finding.where.ranks)
        same = [one for one in findings if one.mode == finding.mode and one.where.ranks]
        weight = sum(one.severity for one in same if mine.issuperset(one.where.ranks))
        weight = max(weight, finding.severity)
        if causes and finding.mode == noise:
            weight *= MOST
        elif finding.mode == "runtime_jitter" and not finding.where.ranks:
            weight = min([weight, *(one for one in named if SEVERAL * one >= weight)])
        return finding.mode not in TERMINAL, -weight, not finding.where.ranks

    return sorted(findings, key=place)


def dynamics(case: Case) -> dict[str, Any]:
    """Dynamics for the summary: critical path, blame, effects of checkpoints, asynchrony."""
    if not len(case.grid.steps):
        return dict.fromkeys(("critical_path", "blame", "checkpoints", "asynchrony"))
    return {
        "critical_path": path_summary(case),
        "blame": blame_summary(case),
        "checkpoints": checkpoints(case.grid, attempts_of(case.trace.run)),
        "asynchrony": async_staleness.summary(case),
    }


def _run(trace: Trace) -> dict[str, Any]:
    run = {key: value for key, value in trace.run.items() if key != "environment"}
    return {
        **run,
        "world": trace.world,
        "attempt": trace.attempt,
        "ranks": sorted(trace.ranks),
        "nodes": list(trace.nodes),
    }


# -- the verdict -----------------------------------------------------------------------------------


def _fabric(case: Case, numbers: dict[str, Any]) -> str:
    """A sentence on the fabric's part: exposed transfer, where it is known apart from waits."""
    shares = numbers.get("shares")
    if not shares or case.stuck or not _collectives_seen(case.trace):
        return ""
    transfer = shares["exposed_communication"]
    share = words.percent(transfer)
    if not case.waits_known:
        return f"Transfer and waiting, not told apart, take {share}" if transfer >= NAMED else ""
    if transfer < NAMED:
        return "" if case.trace.one_host else "The fabric is not at fault"
    if not case.trace.hiding_known:
        return f"Transfers take up to {share}: what of them compute hides is unknown"
    return f"Exposed transfer is {share} of step time"


def _collectives_seen(trace: Trace) -> bool:
    """Whether any collective was recorded and not only inferred."""
    calls = trace.of_kind(Kind.COLLECTIVE)
    if len(calls) and not trace.table.flagged(Kind.COLLECTIVE, Flag.INFERRED):
        return True
    return bool(((calls.flags & int(Flag.INFERRED)) == 0).any())


# -- limits ----------------------------------------------------------------------------------------


def _limits(case: Case) -> list[str]:
    """What the trace cannot tell: limits of its parts, then what holds of `[limits]`."""
    trace, grid, device = case.trace, case.grid, bool(case.grid.graph.device.any())
    steps, late, recorded = len(grid.steps), case.late_start_ns, trace.of_kind(Kind.PHASE)
    late_ns = float(late.max()) if len(late) else 0.0
    known = any(grid.phase_ns[phase].any() for phase in INNER_PHASES)
    of_hosts = not known and bool(np.isin(recorded.op, INNER_PHASES).any())
    partial, met = _count_unmatched(grid)
    going_on, alone_steps = _uneven(case)
    attempts = attempts_of(trace.run)
    holding = {  # those that hold, with what stands for `it` in their sentences
        "restarts": len(attempts) > 1 and account(attempts).unsure_steps,
        "preempted": trace.run.get(PREEMPTED),
        "few": steps < FEW_STEPS and steps,
        "unmarked": len(trace.of_kind(Kind.COLLECTIVE)) and not len(trace.of_kind(Kind.STEP)),
        "unexplained": (case.unexplained or 0.0) > SMALLEST_SHARE and case.unexplained,
        "brought": late_ns >= NAMED * grid.total_ns and late_ns,
        "alone": len(trace.ranks) < 2,
        "aligned": grid.clocks.error_ns,
        "unplaced": [rank for rank in grid.clocks.unplaced if rank not in grid.ranks],
        f"phases{'_of_hosts' * of_hosts}": steps and not known,
        f"device{'_alone' * (device and not (grid.graph.host >= 0).any())}": device,
        "partial": partial,
        "apart": len(trace.ranks) > 1 and not met,
        "batches": bool(grid.samples.any()) and throughput(trace, grid)["unit"] == "steps/s",
        "uneven": alone_steps,
    }
    numbers = {
        "last": int(grid.ranks[int(late.argmax())]) if len(late) else None,
        "hosts": len({info.clock for info in trace.ranks.values()}),
        "unseen": "input" if device else "compute and input",
        "going_on": going_on,
    }
    own = [say(f"limits.{name}", it=it, **numbers) for name, it in holding.items() if it]
    return [*trace.limits, *grid.limits, *endings.endings(trace), *_facts(trace), *own]


def _count_unmatched(grid: StepGrid) -> tuple[int, bool]:
    """Number of collectives not recorded on every member; whether any of several members is."""
    if not len(grid.steps):
        return 0, True
    seen = grid.graph.operations
    seen = seen.select(~seen.message & (seen.group >= 0))
    return int(np.count_nonzero(~seen.whole)), bool((seen.whole & (seen.members > 1)).any())


def _uneven(case: Case) -> tuple[list[int], int]:
    """Ranks that went on after another had ended its last step in order, and for how many steps,
    where that is worth naming: batches that ran out, say."""
    steps, last = case.trace.of_kind(Kind.STEP), case.grid.steps[-1:]
    if not len(last) or case.dead or case.stuck:
        return [], 0
    later = steps.select(steps.step > last[0])
    more = int(later.step.max(initial=last[0]) - last[0])
    over = all(case.trace.ranks[rank].closed for rank in case.trace.ranks)
    named = over and more >= NAMED * len(case.grid.steps)
    return (np.unique(later["rank"]).tolist(), more) if named else ([], 0)


#: Facts in which an agent states what it could not see or do.
LIMITING_FACTS = (
    "spool", "pacing", "sharing", "nccl", "background", "callback", "framework", "stack", "steps",
)  # fmt: skip


def _facts(trace: Trace) -> list[str]:
    """What the agents could not see or do, each once with its ranks."""
    lines: dict[str, list[int]] = defaultdict(list)
    for rank, info in trace.ranks.items():
        facts = info.facts
        limits = {f"{k}: ": facts[k] for k in LIMITING_FACTS if isinstance(facts.get(k), str)}
        absent = dict(facts.get("absent") or {})
        if trace.one_host:  # which needs no adapter
            absent.pop("infiniband", None)
        missing = [f"{name}: {why}" for name, why in absent.items()]
        unseen = ", ".join((facts.get("hooks") or {}).get("unseen") or ())
        limits |= {
            "evenstep failed and stopped observing: ": facts.get("failure"),
            "operations this torch does not show: ": unseen,
            "not sampled: ": "; ".join(missing),
            "the ring has overwritten the oldest records": info.dropped and " ",
        }
        for text, what in limits.items():
            if what:
                lines[f"{text}{what}".rstrip()].append(rank)
    return [
        text if len(ranks) == len(trace.ranks) else f"{words.ranks(ranks)}: {text}"
        for text, ranks in lines.items()
    ]


# -- attribution of the loss -----------------------------------------------------------------------
# The part of a finding is its Shapley value: what its change saves, averaged over all orders of
# making the changes. Parts add up to what all changes save, and the order of the modes has no
# effect. The gain of a finding is what its change saves once those of larger parts are made. Beyond
# `ORDERED` findings the smaller ones are made last, in order of size; changes that depend on all
# others come at the very end.

ORDERED = 4  # findings of which all orders are replayed


def attribute(case: Case, findings: Sequence[Finding]) -> list[Finding]:
    """The findings, the costliest first, each with its part of what all of them cost; those whose
    part is smaller than the smallest share worth telling, or the error of the replay, left out."""
    largest = sorted(findings, key=lambda finding: -finding.severity)
    changing = [one for one in largest if isinstance(one.change, Change)]
    last = [one for one in findings if callable(one.change)]
    parts: dict[int, tuple[Array, Array]] = {}
    changes = [one.change for one in changing]
    if changing or last:
        parts = dict(zip(map(id, changing), _values(case, changes), strict=True))
        after = [case.costs.combined(changes)]  # then those whose change depends on all others
        for finding in last:
            after.append(finding.change(after[-1]))
        left = np.diff(np.stack(case.all_saved(after)), axis=0)
        parts |= dict(zip(map(id, last), zip(left, left, strict=True), strict=True))
    scaled = [_scale(case, one, *parts[id(one)]) if id(one) in parts else one for one in largest]
    least = max(SMALLEST_SHARE, case.unexplained or 0.0)
    worth = [one for one in scaled if one.severity >= least or one.mode in TERMINAL]
    return sorted(worth, key=lambda finding: -finding.severity)


def _values(case: Case, changes: Sequence[Change]) -> list[tuple[Array, Array]]:
    """Each change's part of what all save of a step, and what it saves on top of larger ones."""
    few = range(min(len(changes), ORDERED))
    sets = [chosen for size in range(len(few) + 1) for chosen in combinations(few, size)]
    sets += [tuple(range(last + 1)) for last in range(len(few), len(changes))]
    asked = [case.costs.combined([changes[i] for i in chosen]) for chosen in sets]
    saved = dict(zip(sets, case.all_saved(asked), strict=True))
    parts = [_shapley(saved, number, len(few)) for number in few]
    gains = list(parts)
    made: tuple[int, ...] = ()
    for number in sorted(few, key=lambda one: -float(parts[one].sum())):
        before, made = made, tuple(sorted((*made, number)))
        gains[number] = saved[made] - saved[before]
    rest = range(len(few), len(changes))
    later = [saved[tuple(range(last + 1))] - saved[tuple(range(last))] for last in rest]
    return list(zip([*parts, *later], [*gains, *later], strict=True))


def _shapley(saved: dict[tuple[int, ...], Array], number: int, count: int) -> Array:
    """Shapley (1953): what a change adds to those before it, averaged over all orders."""
    total: Array = np.zeros_like(saved[()])
    for chosen, value in saved.items():
        if number in chosen and max(chosen) < count:
            others = tuple(one for one in chosen if one != number)
            orders = factorial(len(others)) * factorial(count - len(chosen)) / factorial(count)
            total = total + orders * (value - saved[others])
    return total


def _scale(case: Case, finding: Finding, part_ns: Array, saved_ns: Array) -> Finding:
    """The finding with its part as severity; effect and options scaled to what it saves in turn."""
    part, saved = (round(case.share(each).value, 4) for each in (part_ns, saved_ns))
    if abs(saved - part) < SMALLEST_SHARE:
        saved = part  # one number for one loss
    scale = saved / finding.severity if finding.severity >= SMALLEST_SHARE else None
    projected = [_scaled(one, scale, saved, "share") for one in finding.effect.projected]
    return replace(
        finding, severity=part, effect=Effect(max(saved, 0.0), projected),
        options=[_scaled(option, scale, saved, "gain") for option in finding.options],
    )  # fmt: skip


def _scaled(one: _Told, scale: float | None, saved: float, value: str) -> _Told:
    """An option or projection with its value and interval scaled, or with what is saved in turn
    where the finding saves nothing alone."""
    shares: dict[str, Any] = {
        name: each and round(min(max(saved if scale is None else each * scale, 0.0), 1.0), 4)
        for name, each in ((name, getattr(one, name)) for name in (value, "low", "high"))
    }
    return replace(one, **shares)
