"""`runtime_jitter`: the interpreter or the operating system stops ranks at different times."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from evenstep import words
from evenstep.diagnose.finding import CallStack, Finding, Where
from evenstep.diagnose.graph.build import BUSY, of_hosts
from evenstep.diagnose.graph.entries import entered_on_device
from evenstep.diagnose.graph.replay import Change
from evenstep.diagnose.graph.streams import LAUNCH_NS, TELLING
from evenstep.diagnose.graph.structure import Graph, TimeLine, overlap, seen_later
from evenstep.diagnose.lateness.case import Case
from evenstep.diagnose.lateness.delays import WORK_PHASES, Cause
from evenstep.diagnose.lateness.thresholds import FEWEST_STEPS
from evenstep.diagnose.levels import FEWEST, LOW, MINOR, MOST, NEARLY_ALL, SEVERAL, SMALLEST_SHARE
from evenstep.diagnose.measure.effects import effects_of_actions
from evenstep.diagnose.measure.grid import WARM_UP_STEPS, during
from evenstep.diagnose.measure.hosts import Contention, growth, metric_samples
from evenstep.diagnose.modes.intervention import (
    Gain,
    constant,
    finding_of,
    finding_of_late,
    gain_of,
    when,
)
from evenstep.diagnose.modes.synchronization import of_slow_steps, slow_together
from evenstep.diagnose.sentences import say
from evenstep.statistics.interval import Estimate, Share, share_of
from evenstep.trace.columns import Array, begins, positions_by_key, rows_by_key, running_maximum
from evenstep.trace.spool.layout import Flag, Kind, Phase

RETRIES = "allocator.retries_count"
#: Remedies while `--act gc` acts, by what its trial has shown.
_AWAY = {"pays": "acts", "on trial": "tried", "untested": "tried"}


def find(case: Case) -> list[Finding]:
    """Stalls of all ranks, stopped processes, the collector, competition for cores, the allocator,
    and devices that wait for hosts."""
    found = [*_stalls(case), *_stopped(case), *_collector(case), *_cores(case)]
    return [*found, *_allocator(case), *_late_issue(case)]


def _stalls(case: Case) -> list[Finding]:
    """Few steps, at no steady interval, in which most ranks have much more work than usual;
    not only those with which a run begins: so it starts up, whatever else came later."""
    seen, steps = slow_together(case), case.grid.steps
    if seen is None or seen.peak is not None or steps[seen.slow].max() < WARM_UP_STEPS:
        return []
    count, ranks = int(seen.slow.sum()), case.grid.ranks
    alone = f"rank {ranks[0]} has" if case.trace.world > 1 else "the job has"
    once = f"step {steps[seen.slow][0]}"
    return of_slow_steps(
        case, "runtime_jitter.stalls", seen,
        numbers={
            "count": words.plural(count, "step"), "slowed": count, "steps": len(seen.slow),
            "which": once if count == 1 else "few steps, at no steady interval",
            "place": case.phase_in_words(_longer(case, seen.slow)),
            "title": once if count == 1 else "steps now and then",
            "who": "most ranks together have" if len(ranks) > 1 else alone,
        },
        at=when(seen.slow[:, None], case.grid), options=["stalls"],
    )  # fmt: skip


def _longer(case: Case, slow: Array) -> Phase:
    """The phase with most of what the slow steps work longer."""
    parts = [case.grid.phase_ns[phase] for phase in WORK_PHASES[:-1]]
    lengths = (np.median(each, axis=1) for each in (*parts, case.grid.work_ns))
    *rise, whole = (np.median(each[slow]) - np.median(each[~slow]) for each in lengths)
    return WORK_PHASES[int(np.argmax(rise))] if max(rise) >= MOST * whole else Phase.OTHER


def _stopped(case: Case) -> list[Finding]:
    """Processes of which no thread ran while other ranks waited; one stop may be in two steps."""
    cells, stood = case.delays.cells(Cause.STOP), float(case.delays.late_ns[Cause.STOP].sum())
    stops = case.trace.of_kind(Kind.STOP)
    mine = case.grid.cell(stops)[1] & np.isin(stops["rank"], case.culprits(cells, Cause.STOP))
    number = max(int(mine.sum()), 1)
    return finding_of_late(
        case, "runtime_jitter.stopped", cells, Cause.STOP,
        numbers={
            "times": "once, for" if number == 1 else f"{number} times, in the mean for",
            "stood": stood / number, "whole": stood,
        },
        options=["stopped"],
    )  # fmt: skip


# -- garbage collection ----------------------------------------------------------------------------


def _collector(case: Case) -> list[Finding]:
    cells = case.delays.cells(Cause.COLLECTOR)
    if not cells.any():
        return []
    share = case.share(case.loss(cells, Cause.COLLECTOR))
    acted = next((each for each in effects_of_actions(case.trace) if each["action"] == "gc"), {})
    ended = acted.get("note") or acted.get("word", "")
    longest, called, stacks = _collections(case, cells)
    lines = words.seen_by((each.rank, each.frames) for each in stacks)
    away = "fewer_calls" if called else _AWAY.get(ended, "away")
    live = f"; --act gc has ended: {ended}" if ended else ", or as it runs: evenstep run --act gc"
    line = say("runtime_jitter.line", lines=lines) if lines else ""
    tried = {"gain": acted.get("gain"), "pairs": acted.get("pairs"), "live": live, "line": line}
    pause, paused = float(case.grid.pause_ns[cells].mean()), np.any(cells, axis=1)
    pauses = case.grid.pause_ns[paused]
    at_once = np.quantile(pauses, LOW, axis=1, method="lower")  # of nearly all ranks
    if at_once.sum() > MOST * pauses.max(axis=1).sum():  # no rank waits, but the pauses take time
        return finding_of(
            case, "runtime_jitter.aligned", Gain(share, case.relieved(cells, Cause.COLLECTOR)),
            numbers={"steps": float(paused.mean()), "pause": pause, **tried},
            at=when(paused[:, None], case.grid), options={away: share, "freeze": None},
            stacks=stacks,
        )  # fmt: skip
    aligned = case.share(case.saved(aligned_pauses(case)))
    first = (away, "align") if share.value >= aligned.value else ("align", away)
    gains = {away: share, "align": aligned}
    return finding_of_late(
        case, "runtime_jitter.collector", cells, Cause.COLLECTOR,
        numbers={
            "pause": pause, "longest": longest, **tried,
            "place": case.phase_in_words(case.main_phase(cells)),
        },
        options={**{name: gains[name] for name in first}, "freeze": None},
        layer="model" if called else "", stacks=stacks,  # of the script, whose line is told
    )  # fmt: skip


def _collections(case: Case, cells: Array) -> tuple[float, bool, list[CallStack]]:
    """Of the collections in these cells: the longest, ns; whether the script called most of them,
    by time; and the line that called most of it of each rank, where lines are recorded."""
    pauses, names = case.trace.of_kind(Kind.PAUSE), case.trace.names
    cell, inside = case.grid.cell(pauses)
    inside[inside] = cells.reshape(-1)[cell[inside]]
    pauses = pauses.select(inside)
    length = pauses.exit_ns - pauses.enter_ns
    asked = length * ((pauses.flags & int(Flag.CALLED)) != 0)
    of_rank = {int(pauses["rank"][rows[0]]): rows for rows in rows_by_key(pauses["rank"])}
    stacks = []
    for rank in case.culprits(cells, Cause.COLLECTOR):
        by_line = np.bincount(pauses.name[of_rank[rank]], asked[of_rank[rank]])
        line = int(by_line.argmax())
        if names[line]:
            stacks.append(CallStack(rank, round(by_line[line] / by_line.sum(), 3), [names[line]]))
    return length.max(initial=0), bool(2 * asked.sum() > length.sum()), stacks


def aligned_pauses(case: Case) -> Change:
    """The change to the n-th pauses of all ranks in one step, which hold up as long as the longest
    of them does."""
    grid, pauses = case.grid, case.trace.of_kind(Kind.PAUSE).sorted_by("rank", "step")
    without = case.without(grid.pause_ns, Cause.COLLECTOR)
    own, (cell, inside) = case.costs.own_ns(without), grid.cell(pauses)
    length, cell = (pauses.exit_ns - pauses.enter_ns)[inside], cell[inside]
    whole = np.maximum(np.bincount(cell, length, grid.pause_ns.size), 1)
    length = length * (grid.pause_ns.reshape(-1) / whole)[cell]
    step, rank = np.divmod(cell, len(grid.ranks))
    turn, cost = positions_by_key(rank), np.zeros(len(grid.steps))
    for number in range(int(turn.max(initial=-1)) + 1):
        here = turn == number
        cost[int(np.median(step[here]))] += length[here].max()
    for part in case.costs.parts:  # in the first row of each cell
        own[part.rows[:, :, 0]] += cost[grid.sampled][part.segments][:, None]
    return case.costs.change_to(own, without)


# -- competition for cores -------------------------------------------------------------------------


def _cores(case: Case) -> list[Finding]:
    """Threads without a core: on all ranks where there are too few cores, else on a few, whose
    cores a daemon, another job, a bad affinity, or the job's other ranks have taken."""
    cells, scheduler = case.delays.cells(Cause.CONTENTION), case.scheduler
    if case.contended and scheduler is not None:
        return _too_few(case, scheduler, cells)
    delay = float(case.grid.run_delay_ns[cells].mean()) if cells.any() else 0.0
    own = scheduler is not None and scheduler.ranks > scheduler.cores
    sizes = {"ranks": scheduler.ranks, "cores": scheduler.cores} if scheduler is not None else {}
    why = say(f"runtime_jitter.scheduler.{'own' if own else 'others'}", **sizes)
    return finding_of_late(
        case, "runtime_jitter.scheduler", cells, Cause.CONTENTION,
        numbers={"delay": delay, "why": why}, options=["fewer" if own else "bind"],
    )  # fmt: skip


def _too_few(case: Case, scheduler: Contention, cells: Array) -> list[Finding]:
    # a wait for a core is as likely within a pause, which has a name, as outside
    outside = 1 - np.minimum(case.grid.pause_ns / np.maximum(case.grid.duration_ns, 1), 1)
    waited = case.without(case.delays.waits_ns * outside, Cause.CONTENTION)
    others = [one for one in Cause if one is not Cause.CONTENTION]
    held = [case.relieved(case.delays.cells(one), one) for one in others]
    calm = case.costs.combined([waited, *held])
    saved, left, even = case.all_saved([waited, calm, case.costs.even(calm)])
    rest = case.claims.rest_ns  # transports wait for cores, too: as much as ranks are known to
    case.claims.rest_ns = np.minimum(rest, 2 * (even - left) - rest)
    interval = max(case.share(saved), case.share(case.loss(cells, Cause.CONTENTION)))
    # transports without a core look like slow transfer, for no longer than what ranks lose
    step, exposed = case.grid.step_ns, case.grid.blocked_ns - case.grid.wait_ns
    if interval.value * step.sum() >= MOST * np.maximum(exposed, 0).mean(axis=1).sum():
        case.claims.slow_ns += interval.value * step
    several = [scheduler.node] if scheduler.node and len(case.trace.nodes) > 1 else []
    each = case.grid.run_delay_ns.sum(axis=0) / case.grid.duration_ns.sum(axis=0)
    mode = "runtime_jitter.oversubscribed"
    needs = {name: getattr(scheduler, name) for name in ("own", "children", "cores", "runnable")}
    return finding_of(
        case, mode, Gain(interval, lambda base: _scaled(case.costs.graph, base, waited)),
        confidence=min(interval.confidence, 0.5 + scheduler.run_delay_share * 4),
        numbers={
            **needs, "delay": scheduler.run_delay_share, "longest": float(each.max()),
            "rank": int(case.grid.ranks[each.argmax()]),
            "variation": float(step.std() / step.mean()),
            "crowd": say(
                f"{mode}.{'many' if scheduler.runnable > scheduler.cores else 'briefly'}",
                node=f" of node {scheduler.node}" if scheduler.node else "", **needs,
            ),
            "switches": scheduler.switches_per_step, "place": scheduler.node or "this host",
            "theirs": say(f"{mode}.{scheduler.due_to}", **needs),
        },
        where=Where(nodes=several), projected=constant, options=[scheduler.due_to],
    )  # fmt: skip


def _scaled(graph: Graph, base: Change, waited: Change) -> Change:
    """The change `base` without waits for a core: what is left of a row's work has as large a part
    of them as the row had."""
    own, kept = graph.own_ns.copy(), np.ones(len(graph.own_ns))
    own[base.rows] = base.own_ns
    kept[waited.rows] = waited.own_ns / np.maximum(graph.own_ns[waited.rows], 1.0)
    return base._replace(rows=np.arange(len(own)), own_ns=own * kept)


# -- the allocator ---------------------------------------------------------------------------------


def _allocator(case: Case) -> list[Finding]:
    """Late cells with retries of the allocator, of ranks that are late there at least twice as
    often as elsewhere: else the retries are coincidence."""
    retried = growth(case.trace, case.grid, RETRIES)
    if not retried.any():
        return []
    late = case.claims.unclaimed(case.delays.cells(Cause.WORK))
    hit = ~np.isclose(retried, 0.0)  # samples reach a little into the next step
    inside = (late & hit).sum(axis=0) / np.maximum(hit.sum(axis=0), 1)
    outside = (late & ~hit).sum(axis=0) / np.maximum((~hit).sum(axis=0), 1)
    cells = case.claims.claim(late & hit & (inside > 2 * outside)[None, :])
    return finding_of_late(
        case, "runtime_jitter.allocator", cells,
        numbers={"more": case.mean_excess_ns(cells), "retries": float(retried.sum())},
        options=["memory"],
    )  # fmt: skip


# -- launches --------------------------------------------------------------------------------------

COMPUTING = 0.8  # of the most there may be, taken to be compute: a guess, and the finding says so
EXPECTATIONS = 100  # of work that an idle device hides: steps of the estimate


class _LateIssues(NamedTuple):
    """What devices were idle for in their own time, as hosts issued their work late: by row, ns."""

    seen: str  # what tells it: a profile, samples of the driver, other steps, or a guess
    late_ns: Array  # without a record, where the device came to the entry as soon as it was issued
    idle_ns: Array  # expected
    ends_ns: tuple[Array, Array]  # at least and at most


def _issues(case: Case) -> _LateIssues:
    graph = case.costs.graph
    lane, own = graph.rows.lane, graph.own_ns
    entered = np.isin(graph.ranks, entered_on_device(case.trace))  # that hides when it was issued
    profiled = graph.device & entered & case.grid.device_ns.any(axis=0)
    # after long work a launch may take longer than most, and still the device was idle
    longest = np.clip(TELLING * own, LAUNCH_NS, SEVERAL * LAUNCH_NS)
    slack = graph.rows.slack_ns
    late = graph.rows.idle | ((slack >= 0) & (slack <= longest))
    late &= (graph.device & ~entered)[lane]
    free_ns = _unrecorded_ns(case)
    if profiled.any():
        free_ns *= np.where(profiled[lane], 1.0, late)
        return _LateIssues("idle", free_ns * late, free_ns, (free_ns, free_ns))
    # behind such an entry it may have been idle, too, until its host had issued the next
    behind = np.append(False, late[:-1]) & ~begins(lane) & ~late & (slack >= 0)
    hidden, issuing = late | behind, _issuing_ns(case)
    host_ns = np.clip(graph.took_ns[graph.host], 0.0, issuing)
    busy_ns = (own - free_ns) * hidden
    free_ns = np.minimum(free_ns, issuing) * hidden
    most_ns = np.where(behind, np.clip(own - slack, 0.0, free_ns), free_ns)
    work = _work_when_late(case, late, behind, host_ns)
    told, rest = hidden & ~np.isnan(work), hidden & np.isnan(work)
    idle = np.where(told, np.clip(own - work, 0.0, most_ns), 0.0)

    def at_pace(pace: float) -> Array:
        """Idle time of devices that need so much of the time in which their hosts issue work."""
        return np.asarray(idle + np.clip(free_ns - pace * host_ns, 0.0, most_ns) * rest)

    if rest.any() and (sampled := _sampled_idle_ns(case)) is not None:
        # kernels of operations in flight run beside: there it is known of no other
        rows = graph.rows.select(graph.rows.enter >= 0)
        flying = overlap(graph, rows.lane, rows.at_ns, graph.operations.over_ns[rows.enter])
        alone = 1 - flying / np.maximum(own, 1.0)
        left = np.array(sampled) - ((busy_ns + idle) * alone).sum()
        whole_ns, issuing_ns = ((each * alone)[rest].sum() for each in (free_ns, host_ns))
        paces = (whole_ns - np.clip(left, 0.0, whole_ns)) / max(issuing_ns, 1.0)
        expected, low, high = (at_pace(pace) for pace in paces)
        ends = idle + (low - idle) * alone, high * alone + at_pace(0.0) * (1 - alone)
        return _LateIssues("sampled", free_ns * late, expected, ends)
    pace = COMPUTING * _most_pace(own[rest], host_ns[rest]) if rest.any() else 1.0
    if host_ns[told].sum() > MINOR * host_ns[hidden].sum():
        pace = work[told].sum() / host_ns[told].sum()
    seen = "issued" if own[told].sum() >= MOST * own[hidden].sum() else "guessed"
    return _LateIssues(seen, free_ns * late, at_pace(pace), (idle, at_pace(0.0)))


def _most_pace(own_ns: Array, host_ns: Array) -> float:
    """How much of the time in which its host issues work the device needs at most for it: as much
    of it as was not spent waiting, where that is least."""
    part = own_ns / np.maximum(host_ns, 1.0)
    order = np.argsort(part)
    time = np.cumsum(host_ns[order])
    return float(min(part[order][np.searchsorted(time, LOW * time[-1])], 1.0))


def _sampled_idle_ns(case: Case) -> Estimate | None:
    """For how long devices had no kernel to execute in these steps, all lanes together, by samples
    of what their driver says (`nvmlUtilization_t`); None where these are too few."""
    rows = metric_samples(case.trace, "gpu.busy_percent").sorted_by("rank", "at_ns")
    last = np.diff(rows["rank"], append=-1) != 0
    held = np.where(last, 0, np.diff(rows.at_ns, append=0))  # what does not change is told seldom
    kept = np.isin(rows.step, case.grid.steps) & (held > 0)
    step = np.unique(rows.step[kept], return_inverse=True)[1]
    if len(step) < FEWEST:
        return None
    whole, busy = (np.bincount(step, (each * held)[kept]) for each in (1.0, rows.value / 100))
    in_steps_ns = float(case.grid.duration_ns[case.grid.sampled].sum())
    return Estimate(*(in_steps_ns * each for each in share_of(whole - busy, whole)))


def _issuing_ns(case: Case) -> Array:
    """How long each row's host had been in phases of its program without a break when it issued the
    entry, (rows,), ns: in a break it may have waited for its device, which was busy until then.
    Unlimited where no phases are recorded."""
    graph, phases = case.costs.graph, case.grid.records.of_kind(Kind.PHASE)
    rows, phases = graph.rows, phases.select(phases.op != int(Phase.SYNC))
    found = of_hosts(phases, case.grid.clocks, case.grid.ranks, graph.ahead)
    if not len(found.cell):
        return np.full(len(rows), np.inf)
    lane, start, end = (one[np.lexsort([found.start, found.cell])] for one in found)
    reach = running_maximum(end, lane)
    breaks = begins(lane) | (start > np.append(0, reach[:-1]) + LAUNCH_NS)
    since = start[np.maximum.accumulate(np.where(breaks, np.arange(len(lane)), 0))]
    issued = rows.at_ns - np.maximum(rows.slack_ns, 0)
    last = TimeLine(lane, start).before(rows.lane, issued) - 1
    inside = (last >= 0) & (lane[last] == rows.lane) & (issued <= reach[last] + LAUNCH_NS)
    return np.where(inside, issued - since[last], np.where(np.isin(rows.lane, lane), 0.0, np.inf))


def _late_issue(case: Case) -> list[Finding]:
    """Devices that are idle in their own time, as hosts issue their work too late: most of them, or
    a few that the others wait for while their own hosts are as slow.

    A profile shows it: nothing ran, and no record explains the host's delay. Without one, a stream
    that enters a collective as soon as it is issued was idle before: for what it took beyond the
    work at that place where hosts were ahead; elsewhere for as long as drivers say, or as the pace
    of devices at such places has it; for an unknown time where nothing tells."""
    graph, few = case.costs.graph, len(case.grid.steps) < FEWEST_STEPS
    told = case.trace.elapsed_known and case.trace.hiding_known
    if few or not graph.device.any() or not told:
        return []
    lane, own, issues = graph.rows.lane, graph.own_ns, _issues(case)
    whole = np.maximum(np.bincount(lane, own, len(graph.ranks)), 1)
    idle, ended = (
        np.bincount(lane, ns, len(graph.ranks)) / whole for ns in (issues.idle_ns, issues.late_ns)
    )
    if not idle.any():
        return _late_hosts(case, ended > MOST)
    lanes, gain = idle >= MINOR * idle.max(), _gain_of_issues(case, issues)
    theirs = gain.share.value < SMALLEST_SHARE
    if not theirs and np.count_nonzero(lanes) < np.count_nonzero(graph.device) / 2:
        saved = case.saved(_at_once(graph, own - issues.idle_ns * lanes[lane], lanes[lane]))
        theirs = case.share(saved).value >= MOST * gain.share.value
    if theirs:
        return _late_hosts(case, ended > MOST)
    measured, mode = issues.seen in ("idle", "sampled"), "runtime_jitter.launch"
    share = float(np.median((idle if measured else ended)[lanes]))
    sure = issues.seen != "guessed"
    return finding_of(
        case, mode, gain, confidence=None if sure else 0.5,
        numbers={
            "seen": say(f"{mode}.{'idle' if measured else 'issued'}", part=share),
            "unsure": "" if sure else say(f"{mode}.guess", most=gain.share.high),
            "basis": say(f"{mode}.basis_{issues.seen}"), "part": share,
        },
        projected=constant, options=["launches"],
    )  # fmt: skip


def _gain_of_issues(case: Case, issues: _LateIssues) -> Gain:
    """What hosts that issue at once would save, on top of other changes."""
    own = case.costs.graph.own_ns
    change = _at_once(case.costs.graph, own - issues.idle_ns)
    gain = gain_of(case, change)
    saved = (case.saved(_at_once(case.costs.graph, own - idle)) for idle in issues.ends_ns)
    least, most = (case.share(each).value for each in saved)
    share = gain.share
    return gain._replace(
        share=Share(share.value, min(share.low, least), max(share.high, most)),
        change=lambda base: case.costs.combined([base, change]),
    )


def _at_once(graph: Graph, own_ns: Array, theirs: Array | bool = True) -> Change:
    """The change to hosts that issue these rows (a mask) at once, and to this own work of all."""
    issues = np.unique(graph.host[theirs & (graph.host >= 0)])
    return Change(np.arange(len(own_ns)), own_ns, issues, np.minimum(graph.took_ns[issues], 0.0))


def _work_when_late(case: Case, late: Array, behind: Array, issued: Array) -> Array:
    """The device's work in each row's own time, nan where nothing tells it. An entry issued `late`
    tells only the host's, one `behind` it, too, if it took longer than others at the same place:
    these tell it, whose hosts were ahead. `issued`: how long the host issued it."""
    graph = case.costs.graph
    own, issues = graph.own_ns, graph.rows.slack_ns >= 0
    issues[np.unique(graph.rows.lane, return_index=True)[1]] = False  # beginnings are not recorded
    work = np.full(len(own), np.nan)
    for part in case.costs.parts:
        for place, rows in enumerate(np.moveaxis(part.rows, 2, 0)):
            rows = rows[part.there[:, :, place]]
            clear = own[rows[(issues & ~late & ~behind)[rows]]]
            longer = late[rows] | (behind[rows] & (own[rows] > clear.max(initial=0.0)))
            hidden, seen = rows[longer], rows[~longer & issues[rows]]
            work[seen] = own[seen]
            if len(hidden) and len(seen) >= FEWEST:
                rows = np.append(hidden, seen)
                above = np.arange(len(rows)) < len(hidden)
                found = _likely_work(own[rows], above, issued[rows], graph.rows.lane[rows])
                if np.median(found) >= own[seen].min():  # that is no extrapolation
                    work[rows] = found
            elif len(hidden) and own[seen].max(initial=0) < NEARLY_ALL * np.median(own[hidden]):
                work[hidden] = np.median(own[seen]) if len(seen) else np.nan  # not just as late
    return work


def _likely_work(own: Array, late: Array, issued: Array, lane: Array) -> Array:
    """Likely work in each of these gaps, of which those that ended `late` are only an upper bound:
    a regression on the time of issue with normal errors, censored (Tobin 1958), by expectation and
    maximization, no further beyond the issues seen than these lie apart. As operations wait for
    the last rank, each gap has an error: those of its lane that are seen, in turn."""
    from scipy.special import ndtr, ndtri  # when first asked: .1 s

    seen, work, unknown = ~late, own, np.zeros(len(own))
    low, high = issued[seen].min(), issued[seen].max()
    issued = np.clip(issued, low, 2 * high - low)
    for _ in range(EXPECTATIONS):
        middle = issued[seen].mean()
        spread = issued[seen] - middle
        slope = max(float(work[seen] @ spread) / max(float(spread @ spread), 1.0), 0.0)
        mean = work[seen].mean() + slope * (issued - middle)
        variance = ((work - mean)[seen] ** 2 + unknown[seen]).mean()
        error = max(float(np.sqrt(variance)), 1.0)
        above = (own - mean) / error
        below = np.maximum(ndtr(above), 1e-300)
        tail = np.exp(-above * above / 2) / np.sqrt(2 * np.pi) / below
        work = np.where(late, np.minimum(mean - error * tail, own), own)
        unknown = np.where(late, np.maximum(1 - above * tail - tail * tail, 0.0), 0) * error**2
        seen = np.ones(len(own), bool)  # at first, only what is known
    part, known = np.zeros(len(own)), np.flatnonzero(~late)
    part[known[np.argsort(above[known])]] = (np.arange(len(known)) + 0.5) / len(known)
    for one in np.unique(lane[late]):
        mine, theirs = np.flatnonzero(late & (lane == one)), known[lane[known] == one]
        part[mine] = part[np.resize(theirs if len(theirs) else known, len(mine))]
    likely = mean + error * ndtri(np.maximum(part * below, 1e-300))
    return np.asarray(np.where(late, np.minimum(likely, own), own))


def _late_hosts(case: Case, lanes: Array) -> list[Finding]:
    """A few late ranks whose devices, unlike the others', mostly begin what is issued at once: it
    is their hosts that are late."""
    cells = case.claims.claim(case.delays.cells(Cause.WORK) & lanes)
    numbers = {"more": case.mean_excess_ns(cells)}
    return finding_of_late(case, "runtime_jitter.issue", cells, numbers=numbers, options=["host"])


def _unrecorded_ns(case: Case) -> Array:
    """Each row's own time without recorded compute of its device, outside of few slow steps, and
    that no record explains, nor an operation that ends later for it than for others."""
    records, seen, graph = case.grid.records, slow_together(case), case.costs.graph
    spans, phases = records.of_kind(Kind.SPAN), records.of_kind(Kind.PHASE)
    known = [
        spans.select((spans.flags & int(Flag.ON_DEVICE)) != 0),
        phases.select(np.isin(phases.op, BUSY)),
        records.of_kind(Kind.PAUSE),
    ]
    busy = np.sum([during(case.grid, rows) for rows in known], axis=0)
    in_flight = seen_later(graph, np.append(graph.operations.over_ns, 0)[graph.rows.wait])
    free_ns = np.maximum(graph.own_ns - busy - np.roll(in_flight, 1), 0.0)
    if seen is not None and seen.peak is None:
        free_ns *= ~np.isin(graph.rows.step, case.grid.steps[seen.slow])
    return np.asarray(free_ns)
