"""Findings in the latest steps of a running job, by simple rules, worst first.

Each rule compares durations of ranks only. Causes, and who ended a job, are found in the whole
trace, by its diagnosis.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from evenstep import lateness
from evenstep.trace.columns import Array
from evenstep.trace.spool.layout import Phase
from evenstep.watch.frame import LiveFinding, lateness_ns, queued_ns
from evenstep.watch.run import FEWEST_STEPS, WINDOW_STEPS, FollowedRun, RankWindow, SeenRank
from evenstep.words import duration, how_ended, percent, plural, printable
from evenstep.words import ranks as named

TURNS = 0.05  # smallest share of a step lost to ranks that are late in turns
PAUSES = 0.02
INPUT = 0.10
KEPT = 5  # past findings that are still shown


def live_findings(run: FollowedRun) -> list[LiveFinding]:
    window = run.window
    found = [*_died(run.states), *_silent(run.states), *_failed_ranks(run.states)]
    if run.unread:
        first, *others = run.unread
        more = f"; and {plural(len(others), 'more file')}" if others else ""
        found.append(LiveFinding("agent", (), None, f"left out: {printable(first)}{more}"))
    if run.lost_nodes:
        first, *others = sorted(run.lost_nodes)
        nodes = printable(first) + (f" and {len(others)} more" if others else "")
        text = f"no summary of {nodes} for {duration(1e9 * max(run.lost_nodes.values()))}: "
        text += "evenstep watch --aggregate has ended there"
        found.append(LiveFinding("agent", (), None, text))
    if run.attempts > 1:
        text = f"the run was restarted: {plural(run.attempts, 'attempt')} so far"
        found.append(LiveFinding("restart_amplification", (), None, text))
    rated = list(_late(run))
    if len(window.counts) and window.counts.min() >= FEWEST_STEPS:
        rated += [*([] if rated else _turns(run)), *_spent(window)]
    return found + sorted(rated, key=lambda finding: -(finding.share or 0.0))


def _died(states: Sequence[SeenRank]) -> Iterator[LiveFinding]:
    """Ranks that died. Who ended first, and made the others fail, is for the diagnosis to tell."""
    dead = [state for state in states if state.failed]
    if len(dead) == 1:
        known = "ended" in dead[0].facts or "raised" in dead[0].facts
        how = printable(how_ended(dead[0].facts)) if known else "no such process now"
        yield LiveFinding("rank_failed", (), None, f"{named(_ranks(dead))} has died: {how}")
    elif dead:
        yield LiveFinding("rank_failed", (), None, f"{named(_ranks(dead))} have died")


def _silent(states: Sequence[SeenRank]) -> Iterator[LiveFinding]:
    silent = [state for state in states if state.silent_s and not state.gone]
    if not silent:
        return
    longest = duration(1e9 * max(state.silent_s for state in silent))
    waiting = [state for state in silent if state.inside]
    absent = [state for state in silent if not state.inside]
    if waiting and absent:
        ranks = _ranks(absent)
        others = named(_ranks(waiting))
        text = f"{named(ranks)} did not enter: no step for {longest}; {others} {_inside(waiting)}"
        yield LiveFinding("hang", ranks, None, text)
        return
    culprits = () if len(silent) == len(states) else _ranks(silent)
    text = f"{named(_ranks(silent))}: no step for {longest}"
    yield LiveFinding("hang", culprits, None, text + (f"; {_inside(waiting)}" if waiting else ""))


def _inside(states: Sequence[SeenRank]) -> str:
    operations = sorted({state.inside.op for state in states if state.inside})
    return f"{'waits' if len(states) == 1 else 'wait'} in {', '.join(operations)}"


def _failed_ranks(states: Sequence[SeenRank]) -> Iterator[LiveFinding]:
    if failed := [state for state in states if "failure" in state.facts]:
        ranks = _ranks(failed)
        why = printable(failed[0].facts["failure"])
        yield LiveFinding("agent", ranks, None, f"{named(ranks)} not recorded any more: {why}")


def _late(run: FollowedRun) -> Iterator[LiveFinding]:
    """Ranks that are late, beyond what the scatter of their steps and of the others' explains."""
    window = run.window
    if not len(window.counts) or window.counts.min() < lateness.FEWEST:
        return
    late, step_ns = lateness_ns(run), float(np.median(window.step_ns))
    work, blocked = window.work_ns.tolist(), window.sync_ns.tolist()
    chosen = lateness.late(work, blocked, step_ns, queued=queued_ns(run))
    if chosen and _is_certain(window, late, chosen):
        largest = float(late.max())
        ranks = tuple(int(rank) for rank in window.ranks[chosen])
        verb = "is" if len(ranks) == 1 else "are"
        text = f"{named(ranks)}{_host(run, ranks)} {verb} late by {duration(largest)}, "
        text += f"{percent(largest / step_ns)} of a step; {_waiting(window, len(ranks))}"
        yield LiveFinding("straggler", ranks, largest / step_ns, text)


def _is_certain(window: RankWindow, late: Array, chosen: Sequence[int]) -> bool:
    mine = np.isin(np.arange(len(window.ranks)), chosen)
    error = np.hypot(window.error_ns[mine], window.error_ns[~mine].max(initial=0.0))
    sure = lateness.student(int(window.counts.min()) - 1)
    least = late[mine] - sure * error
    return bool((least > lateness.LATE * np.median(window.step_ns)).all())


def _turns(run: FollowedRun) -> Iterator[LiveFinding]:
    """If no rank is always late: the mean excess of the slowest rank's work over the median, beyond
    what the latest rank has in the mean, as a share of a step."""
    window, table = run.window, run.steps
    if len(window.ranks) < 2:
        return
    last = int(window.last_step.min())
    common = (table.ranks == len(window.ranks)) & (table.step <= last)
    common &= table.step > last - WINDOW_STEPS
    if np.count_nonzero(common) < FEWEST_STEPS:
        return
    excess = (table.most_work_ns - table.work_ns)[common]
    lost = float((excess.mean() - lateness_ns(run).max()) / np.median(window.step_ns))
    if lost > TURNS:
        text = f"ranks are late in turns, which costs {percent(lost)} of a step"
        yield LiveFinding("synchronization_amplification", (), lost, text)


def _waiting(window: RankWindow, late: int) -> str:
    """Describe the other ranks: they wait, or their waits are hidden."""
    if float(np.median(window.sync_ns / np.maximum(window.step_ns, 1.0))) <= lateness.LATE:
        return "the others' waits are hidden behind their work"
    others = len(window.ranks) - late
    who = "the other waits" if others == 1 else f"the other {others:,} wait"
    return f"{who} for {'it' if late == 1 else 'them'}"


def _spent(window: RankWindow) -> Iterator[LiveFinding]:
    given, saved = (window.phase_ns[:, int(one)] for one in (Phase.INPUT, Phase.CHECKPOINT))
    for mode, spent_ns, limit, words in (
        ("runtime_jitter", window.pause_ns, PAUSES, "garbage collection takes"),
        ("input_pipeline", given, INPUT, "waiting for input takes"),
        ("checkpoint_stall", saved, lateness.STOPPED, "checkpoints take"),
    ):
        share = spent_ns / np.maximum(window.step_ns, 1.0)
        chosen = share > limit
        if chosen.any():
            ranks = () if chosen.all() else tuple(map(int, window.ranks[chosen]))
            where = named(ranks) if ranks else "every rank"
            worst = float(share.max())
            text = f"{words} {percent(worst)} of a step on {where}"
            yield LiveFinding(mode, ranks, worst, text)


def _ranks(states: Sequence[SeenRank]) -> tuple[int, ...]:
    return tuple(state.rank for state in states)


def _host(run: FollowedRun, ranks: Sequence[int]) -> str:
    if len({state.host for state in run.states}) < 2 or len(ranks) > 1:
        return ""
    return next(f" ({printable(state.host)})" for state in run.states if state.rank == ranks[0])


@dataclass(slots=True)
class Journal:
    """First steps of current findings, and past findings."""

    now: dict[tuple[str, tuple[int, ...]], tuple[int | None, str]] = field(default_factory=dict)
    past: list[str] = field(default_factory=list)  # the latest KEPT, oldest first
    looked: bool = False  # findings of the first refresh may have begun at any time

    def note(self, findings: Sequence[LiveFinding], step: int | None) -> list[LiveFinding]:
        """Add the current findings and return the new ones."""
        current = {(finding.mode, finding.ranks): finding for finding in findings}
        for key in [key for key in self.now if key not in current]:
            since, text = self.now.pop(key)
            first, last = ("?" if one is None else f"{one}" for one in (since, step))
            self.past.append(f"steps {first}-{last}: {text}")
        del self.past[:-KEPT]
        new = [finding for key, finding in current.items() if key not in self.now]
        begun, self.looked = step if self.looked else None, True
        for key, finding in current.items():
            self.now[key] = (self.now.get(key, (begun, ""))[0], finding.text)
        return new

    def since(self, finding: LiveFinding) -> int | None:
        return self.now.get((finding.mode, finding.ranks), (None, ""))[0]
