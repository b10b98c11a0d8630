"""`runtime_jitter`: the interpreter or the operating system stops ranks at different moments."""

from __future__ import annotations

import numpy as np

from evenstep import words
from evenstep.diagnose.finding import (
    Evidence,
    Finding,
    Option,
    Projection,
    When,
    Where,
)
from evenstep.diagnose.lateness.case import SMALLEST_SHARE, Array, Case, found
from evenstep.diagnose.lateness.delays import Cause
from evenstep.diagnose.measure.patterns import when
from evenstep.diagnose.measure.samples import Contention
from evenstep.diagnose.modes import projection
from evenstep.diagnose.modes.allocator import retrying
from evenstep.diagnose.modes.launch import late_issue
from evenstep.diagnose.modes.mode import Mode
from evenstep.statistics.interval import Share, share_of
from evenstep.trace.spool.layout import Kind


def find(case: Case) -> list[Finding]:
    """The collector, competition for cores, the allocator, and devices that wait for hosts."""
    findings = [_collector(case), _cores(case), retrying(case), late_issue(case)]
    return [finding for finding in findings if finding and finding.severity >= SMALLEST_SHARE]


# -- garbage collection ----------------------------------------------------------------------------


def _collector(case: Case) -> Finding | None:
    cells = case.delays.cells(Cause.COLLECTOR)
    if not cells.any():
        return None
    share = case.share(case.loss(cells, Cause.COLLECTOR))
    at_once = int(np.count_nonzero(np.all(cells, axis=1))) * cells.shape[1]
    if at_once > np.count_nonzero(cells) / 2:
        return _aligned(case, cells, share)
    ranks = case.culprits(cells, Cause.COLLECTOR)
    recurrence = when(cells, case.grid.steps)
    pause = float(np.median(case.grid.pause_ns[cells]))
    verb = "collects" if len(ranks) == 1 else "collect"
    return found(
        "runtime_jitter",
        "runtime",
        share,
        observation=case.waiting(cells),
        cause=(
            f"garbage collection: {case.named(ranks)} {verb} for {words.duration(pause)} "
            f"{case.place(case.main_phase(cells))} while the others are ready"
        ),
        where=case.where(ranks),
        when=recurrence,
        projected=_growth(case, cells, share, len(ranks)),
        options=_collector_options(case, cells, share),
        evidence=[*case.wait_evidence(cells), *_pause_evidence(case, ranks)],
        change=case.relieved(cells, Cause.COLLECTOR),
    )


def _aligned(case: Case, cells: Array, share: Share) -> Finding:
    """Pauses that all ranks make at once: nobody waits, but they cost what they take."""
    pause = float(np.median(case.grid.pause_ns[cells]))
    paused = np.any(cells, axis=1)
    return found(
        "runtime_jitter",
        "runtime",
        share,
        observation=(
            f"in {words.percent(float(paused.mean()))} of the steps all ranks collect "
            f"garbage for {words.duration(pause)} at the same time"
        ),
        cause="garbage collection, aligned between ranks: nobody waits for it, but it takes time",
        where=Where(),
        when=when(paused[:, None], case.grid.steps),
        options=[_away(share), _frozen()],
        change=case.relieved(cells, Cause.COLLECTOR),
    )


def _growth(case: Case, cells: Array, share: Share, culprits: int) -> list[Projection]:
    ranks = len(case.grid.ranks)
    if culprits == 1:
        return projection.constant(share, ranks)
    hits = share_of(cells.any(axis=1).astype(float), np.ones(len(cells)))
    return projection.by_chance(share, ranks, hits)


def aligned_share(pauses_ns: Array) -> float:
    """Part of the pauses' cost that goes when all ranks pause at once. `pauses_ns`: (steps, ranks).

    The j-th pauses of all ranks then cost their longest, instead of each its own.
    """
    whole = float(pauses_ns.sum())
    columns = [column[column > 0] for column in pauses_ns.T]
    rounds = np.zeros(max((len(column) for column in columns), default=0))
    for column in columns:
        rounds[: len(column)] = np.maximum(rounds[: len(column)], column)
    return 1 - float(rounds.sum()) / whole if whole > 0 else 0.0


def _collector_options(case: Case, cells: Array, share: Share) -> list[Option]:
    part = aligned_share(np.where(cells, case.grid.pause_ns, 0))
    gain = Share(*(value * part for value in share)).rounded()
    replay = "the j-th pauses of all ranks laid on one another: the longest of each remains"
    options = [
        _away(share),
        Option(
            "collect at the same step on every rank: gc.disable() once, and gc.collect() every "
            "N steps right after optimizer.step()",
            *gain,
            "two lines in the script; memory held by cycles grows between collections",
            replay,
        ),
        _frozen(),
    ]
    return sorted(options, key=lambda option: -(option.gain or 0))


def _away(share: Share) -> Option:
    return Option(
        "keep collections out of the steps, with gc.freeze() and gc.disable(), or as it runs: "
        "evenstep run --act gc",
        *share.rounded(),
        "two lines in the script, none with --act gc; memory held by cycles grows meanwhile",
        "replay of the trace without these pauses",
    )


def _frozen() -> Option:
    return Option(
        "gc.freeze() alone, after the model and the loaders are built: full collections then skip "
        "what lives for the whole run",
        None,
        None,
        None,
        "one line in the script",
        "how much of the heap is permanent is not traced",
    )


def _pause_evidence(case: Case, ranks: list[int]) -> list[Evidence]:
    pauses = case.trace.of_kind(Kind.PAUSE)
    mine = pauses.select(np.isin(pauses["rank"], ranks))
    longest = float((mine.exit_ns - mine.enter_ns).max()) if len(mine) else 0.0
    oldest = int(mine.op.max()) if len(mine) else 0
    per_step = case.grid.pause_ns.mean(axis=0)
    column = int(np.searchsorted(case.grid.ranks, ranks[0]))
    others = np.delete(per_step, column)
    return [
        Evidence("collector_pause_longest", round(longest), 0, "ns"),
        Evidence(
            f"collector_pause_per_step_of_rank_{ranks[0]}",
            round(float(per_step[column])),
            round(float(np.median(others))) if len(others) else 0,
            "ns",
        ),
        Evidence("collector_generation", oldest, 0, "generation"),
    ]


# -- competition for cores -------------------------------------------------------------------------


def _cores(case: Case) -> Finding | None:
    """Threads without a core: everybody's where there are too few, else one rank's."""
    cells = case.delays.cells(Cause.CONTENTION)
    if case.contended and case.scheduler is not None:
        return _too_few(case, case.scheduler, cells)
    return _taken_away(case, cells) if cells.any() else None


def _too_few(case: Case, scheduler: Contention, cells: Array) -> Finding:
    lost_ns = case.loss(cells, Cause.CONTENTION) + case.claims.rest_ns
    case.claims.rest(case.claims.rest_ns)
    share = case.share(lost_ns)
    others = (case.loss(case.delays.any, cause) for cause in Cause if cause != Cause.CONTENTION)
    attributed = case.share(np.sum(list(others), axis=0))
    room = max(0.0, 1.0 - attributed.value)
    severity = min(max(share.value, scheduler.recoverable_share), room)
    interval = Share(severity, min(share.low, severity), max(share.high, severity))
    # what ranks lose beyond their lateness: transports without a core look like slow transfer
    case.claims.slow_ns += severity * case.grid.step_ns
    steps = case.grid.steps
    node = f" of node {scheduler.node}" if scheduler.node else ""
    return found(
        "runtime_jitter",
        "runtime",
        interval,
        confidence=min(0.99, 0.5 + scheduler.run_delay_share * 4),
        observation=(
            f"training threads wait {words.percent(scheduler.run_delay_share)} of the time for a "
            f"core, and step times vary by {words.percent(_variation(case))} (CV)"
        ),
        cause=(
            f"CPU oversubscription: {scheduler.runnable:.3g} runnable tasks on "
            f"{scheduler.cores:.3g} {'core' if scheduler.cores == 1 else 'cores'}{node}, "
            f"{scheduler.switches_per_step:.3g} involuntary context switches a step"
        ),
        where=Where(nodes=[scheduler.node] if scheduler.node and len(case.trace.nodes) > 1 else []),
        when=When([(int(steps[0]), int(steps[-1]))], "chronic"),
        projected=projection.by_noise(interval, len(case.grid.ranks)),
        options=[
            Option(
                "fewer ranks or threads per node, or more cores for them (affinity, cgroup quota, "
                "OMP_NUM_THREADS, DataLoader workers)",
                *interval.rounded(),
                "a restart with another placement",
                "time spent waiting for a core, from the scheduler's counters",
            )
        ],
        evidence=[
            Evidence("run_queue_delay", round(scheduler.run_delay_share, 4), 0.0, "share"),
            Evidence("runnable_tasks", round(scheduler.runnable, 2), scheduler.cores, "tasks"),
            Evidence(
                "involuntary_switches_per_step",
                round(scheduler.switches_per_step, 2),
                0.0,
                "switches",
            ),
        ],
    )


def _taken_away(case: Case, cells: Array) -> Finding:
    """Something else runs where a rank should: a daemon, another job, a bad affinity."""
    share = case.share(case.loss(cells, Cause.CONTENTION))
    ranks = case.culprits(cells, Cause.CONTENTION)
    delay = float(np.median(case.grid.run_delay_ns[cells]))
    verb = "is" if len(ranks) == 1 else "are"
    return found(
        "runtime_jitter",
        "node",
        share,
        observation=case.waiting(cells),
        cause=(
            f"scheduler: {case.named(ranks)} {verb} ready but without a core for "
            f"{words.duration(delay)} in those steps: something else runs there"
        ),
        where=case.where(ranks),
        when=when(cells, case.grid.steps),
        projected=_growth(case, cells, share, len(ranks)),
        options=[
            Option(
                "find what else runs on that node (daemons, other jobs, DataLoader workers) and "
                "move it, or bind ranks to cores of their own",
                *share.rounded(),
                "a change of affinity",
                "replay of the trace without the time spent waiting for a core",
            )
        ],
        evidence=[
            *case.wait_evidence(cells),
            Evidence("run_queue_delay_per_step", round(delay), 0, "ns"),
        ],
        change=case.relieved(cells, Cause.CONTENTION),
    )


def _variation(case: Case) -> float:
    step = case.grid.step_ns
    return float(step.std() / step.mean()) if len(step) else 0.0


MODE = Mode(
    name="runtime_jitter",
    layer="runtime",
    symptom="Step times vary although every rank computes the same: another rank pauses each time.",
    look_at=(
        "pauses of the garbage collector beside the steps in which the others wait",
        "time the training thread was ready but had no core, and involuntary context switches",
        "retries of the caching allocator (each gives memory back to the driver and waits for it)",
    ),
    remedy=(
        "collect garbage at the same step on every rank, or freeze what lives for the whole run",
        "give every rank cores of its own, and fewer helper threads",
        "keep the allocator from retrying: expandable segments, a smaller batch, less "
        "fragmentation",
    ),
    confirm="Call gc.disable() and pin ranks to cores for a hundred steps: the waits go away.",
    find=find,
)
