"""A run followed through its spools while ranks start, end and die.

Only the latest attempt is followed; a new attempt replaces it as soon as one of its ranks starts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from evenstep.errors import TraceError
from evenstep.trace.spool.folder import Meeting, RunFolder, is_gone, is_here, read_facts
from evenstep.trace.spool.identity import boot_id
from evenstep.watch.spool import Inside, SpoolTail
from evenstep.watch.window import NO_STEPS, RankWindow, StepTable, rank_window, step_table

SILENT_S = 10.0  # a rank is silent without a step for this time, and …
SILENT_STEPS = 20  # … for the time of so many usual steps
GONE_S = 3.0  # after this time without a step, check whether the process exists
MOST_INSPECTED = 64  # silent ranks whose ring is read in one refresh


@dataclass(slots=True)
class SeenRank:
    """The state of a rank at the last refresh."""

    rank: int
    host: str
    facts: Mapping[str, Any]  # of its spool
    closed: bool = False  # it has closed its trace itself
    silent_s: float = 0.0  # time without a finished step; 0 while it makes progress
    inside: Inside | None = None  # the operation that a silent rank is in
    gone: bool = False  # its process does not exist any more and it never closed its trace

    @property
    def failed(self) -> bool:
        """Whether it died, and no signal to the launcher asked for it."""
        end = self.facts.get("ended") or {}
        wrong = self.gone or "raised" in self.facts or "signal" in end or end.get("exit_code")
        return bool(wrong) and not end.get("asked")


@dataclass(slots=True)
class FollowedRun:
    """A followed run, which need not exist yet; `refresh` reads its state again."""

    path: Path
    clock: Callable[[], float] = time.monotonic
    attempt: int | None = None
    attempts: int = 0
    world: int = 0  # number of ranks of the attempt; 0 before the first rank
    states: Sequence[SeenRank] = ()  # of the attempt, in order of rank
    window: RankWindow = field(default_factory=lambda: rank_window({}))  # latest steps by rank
    steps: StepTable = NO_STEPS  # the latest steps
    request: Mapping[str, Any] = field(default_factory=dict)  # the last of `evenstep ctl`
    unread: Sequence[str] = ()  # why files are no spools, in words
    lost_nodes: Mapping[str, float] = field(default_factory=dict)  # age of their summaries (s)
    meeting: Meeting | None = None  # of ranks that have not attached yet

    @property
    def ended(self) -> bool:
        """Whether every rank of the attempt has closed its trace."""
        return self.over and all(state.closed for state in self.states)

    @property
    def over(self) -> bool:
        """Whether every rank of the attempt has closed its trace, or its process is gone."""
        there = 0 < self.world <= len(self.states)
        return there and all(state.closed or state.gone for state in self.states)

    @property
    def paces(self) -> dict[int, Mapping[str, Any]]:
        """What each rank reports of its pacing; without those that report nothing."""
        facts = {state.rank: state.facts.get("pace") for state in self.states}
        return {rank: pace for rank, pace in facts.items() if isinstance(pace, Mapping)}

    def refresh(self) -> None:
        """Read new attempts, ranks and steps."""


@dataclass(slots=True)
class _Followed:
    """A rank and its spool."""

    tail: SpoolTail
    seen: SeenRank
    last_step_s: float  # when its last step ended, by the watcher's clock
    last_step: int = -1  # of a silent rank, by its ring: summaries of the last steps may be missing


@dataclass(slots=True)
class LiveRun(FollowedRun):
    """A run followed through the spools in its folder."""

    here: bool = False  # follow only ranks of this machine
    _tails: dict[str, SpoolTail] = field(default_factory=dict)
    _known: dict[str, _Followed] = field(default_factory=dict)
    _foreign: set[str] = field(default_factory=set)  # spools of other machines, if `here`

    @property
    def run_id(self) -> str:
        """The run id that the ranks recorded; "" before the first rank."""
        return next((str(one.tail.identity.get("run_id", "")) for one in self._known.values()), "")

    def refresh(self) -> None:
        self._find_spools()
        now = self.clock()
        asked, ended = 0, self.ended  # once all ranks have ended, another run may replace this one
        for name, tail in self._tails.items():
            if tail.closed and name in self._known and not ended:
                self._known[name].seen.silent_s = 0.0
                continue
            stepped = tail.refresh()
            if not tail.identity:
                self._known.pop(name, None)
                continue
            if self.here and not is_here(tail.identity):
                self._foreign.add(name)
                continue
            one = self._known.get(name)
            if one is None:
                who = int(tail.identity["rank"]), str(tail.identity.get("hostname", ""))
                seen = SeenRank(*who, tail.facts)
                one = self._known[name] = _Followed(tail, seen, _last_step_s(tail, now))
            elif stepped:
                one.last_step_s = now
            one.seen.facts, one.seen.closed = tail.facts, tail.closed
            asked += self._update_progress(one, now, ask=asked < MOST_INSPECTED)
        for name in self._foreign & self._tails.keys():
            del self._tails[name]
        known = sorted(self._known.values(), key=lambda one: one.seen.rank)
        self.states = [one.seen for one in known]
        self.unread = [tail.damage for tail in self._tails.values() if tail.damage]
        self.world = max((int(one.tail.identity.get("world", 1)) for one in known), default=0)
        latest = {one.seen.rank: one for one in known if len(one.tail.steps)}
        steps = {rank: one.tail.steps for rank, one in latest.items()}
        last = [one.last_step for one in latest.values()]
        self.window, self.steps = rank_window(steps), step_table(list(steps.values()))
        self.window.last_step = np.maximum(self.window.last_step, last)
        self.request = read_request(self.path)

    def _find_spools(self) -> None:
        known, folder = -1 if self.attempt is None else self.attempt, RunFolder(self.path)
        attempts = [n for n in folder.attempts() if n <= known or folder.spools(n)]
        self.attempts = len(attempts)
        self.meeting = None if attempts else folder.meeting()
        if attempts and attempts[-1] != self.attempt:
            self.attempt = attempts[-1]
            self._tails, self._known, self._foreign = {}, {}, set()
        found = len(self._tails) + len(self._foreign)
        if self.attempt is None or (self._tails and found >= self.world > 0):
            return
        for path in folder.spools(self.attempt):
            if path.name not in self._foreign:
                self._tails.setdefault(path.name, SpoolTail(path))
        if not attempts:  # removed, perhaps to be replaced by another run
            self.attempt, self._tails, self._known = None, {}, {}

    def _update_progress(self, one: _Followed, now: float, *, ask: bool) -> bool:
        """Update whether a rank is silent or gone, and its operation; whether its ring was read."""
        silent, seen, tail = now - one.last_step_s, one.seen, one.tail
        steps_ns = sorted(tail.steps["step_sum_ns"])
        usual_s = float(steps_ns[len(steps_ns) // 2]) * 1e-9 if steps_ns else 0.0
        patience = max(SILENT_S, SILENT_STEPS * usual_s)
        seen.silent_s = 0.0 if tail.closed or silent < patience else silent
        over = "ended" in tail.facts  # the launcher has seen it end
        over = over or (silent > GONE_S and is_gone(tail.identity, tail.heartbeat_ns))
        seen.gone = over and not tail.closed
        if not (seen.silent_s or seen.gone):
            seen.inside, one.last_step = None, -1
            return False
        if ask:
            seen.inside, one.last_step = tail.inside(), (tail.current_step() or 0) - 1
        return ask


def _last_step_s(tail: SpoolTail, now: float) -> float:
    """Return when a new rank last ended a step; now if its clock cannot be compared."""
    if not len(tail.steps) or tail.identity.get("boot_id") != boot_id() or not boot_id():
        return now
    return now - max(time.monotonic() - float(tail.steps["end_ns"][-1]) * 1e-9, 0.0)


def read_request(folder: Path) -> dict[str, Any]:
    """Return the last request of `evenstep ctl`; {} without a valid one."""
    try:
        return read_facts(folder / "control.json")
    except TraceError:
        return {}
