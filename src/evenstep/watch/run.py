"""A run followed from outside, attempt after attempt, while ranks come, end and die.

Only the latest attempt is followed; a new one takes its place as soon as a rank of it has begun.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evenstep.errors import TraceError
from evenstep.trace.spool.folder import RunFolder, read_facts
from evenstep.trace.spool.identity import boot_id, hostname
from evenstep.watch.spool import Inside, SpoolTail
from evenstep.watch.window import NO_STEPS, Array, RankWindow, StepTable, rank_window, step_table

SILENT_S = 10.0  # without a step for so long, and so many steps, a rank is asked what it is in
SILENT_STEPS = 20
GONE_S = 3.0  # after so long without a step it is asked whether the process exists
MOST_ASKED = 64  # silent ranks asked in one look


@dataclass(slots=True)
class SeenRank:
    """A rank as it was at the last look."""

    rank: int
    host: str  # the machine it runs on
    facts: Mapping[str, Any]  # what it has said of itself so far
    closed: bool = False  # it has ended its trace itself
    silent_s: float = 0.0  # since when no step was seen to end; 0 while they come as they should
    inside: Inside | None = None  # while it is silent
    gone: bool = False  # its process does not exist any more and it never closed its trace


@dataclass(slots=True)
class FollowedRun:
    """A run that is followed, by whatever way; `refresh` looks again. It need not exist yet."""

    path: Path
    clock: Callable[[], float] = time.monotonic
    attempt: int | None = None
    attempts: int = 0
    world: int = 0  # ranks the attempt has, by what they say of it; 0 before the first
    states: Sequence[SeenRank] = ()  # of the attempt, by rank
    orders: Mapping[str, Any] = field(default_factory=dict)  # what `evenstep ctl` last asked for
    unheard: Mapping[str, float] = field(default_factory=dict)  # nodes, for how many seconds

    @property
    def ended(self) -> bool:
        """Whether every rank of the attempt has closed its trace."""
        return 0 < self.world <= len(self.states) and all(state.closed for state in self.states)

    def refresh(self) -> None:
        """Look again: new attempts, new ranks, new steps."""

    def window(self) -> RankWindow:
        """The latest steps of each rank."""
        return rank_window({})

    def step_table(self) -> StepTable:
        """The latest steps."""
        return NO_STEPS


@dataclass(slots=True)
class _Followed:
    """A rank and the spool it is seen through."""

    tail: SpoolTail
    seen: SeenRank
    heard_s: float  # when a step was last seen to end, by the watcher's clock


@dataclass(slots=True)
class LiveRun(FollowedRun):
    """The run in a folder, by its spools."""

    here: bool = False  # follow the ranks of this machine alone
    _tails: dict[str, SpoolTail] = field(default_factory=dict)
    _known: dict[str, _Followed] = field(default_factory=dict)
    _foreign: set[str] = field(default_factory=set)  # spools of other machines, where `here`

    @property
    def run_id(self) -> str:
        """The name the ranks know the run by; "" before the first."""
        return next((str(one.tail.identity.get("run_id", "")) for one in self._known.values()), "")

    def window(self) -> RankWindow:
        """The latest steps of each rank."""
        return rank_window(self._steps())

    def step_table(self) -> StepTable:
        """The latest steps."""
        return step_table(list(self._steps().values()))

    def _steps(self) -> dict[int, Array]:
        known = sorted(self._known.values(), key=lambda one: one.seen.rank)
        return {one.seen.rank: one.tail.steps for one in known if len(one.tail.steps)}

    def refresh(self) -> None:
        """Look again: new attempts, new ranks, new steps."""
        self._find_spools()
        now = self.clock()
        asked, ended = 0, self.ended  # where all has ended, another run may take its place
        for name, tail in self._tails.items():
            if tail.closed and name in self._known and not ended:
                self._known[name].seen.silent_s = 0.0
                continue
            stepped = tail.refresh()
            if not tail.identity:
                self._known.pop(name, None)
                continue
            if self.here and not _is_here(tail.identity):
                self._foreign.add(name)
                continue
            one = self._known.get(name)
            if one is None:
                one = self._known[name] = _Followed(tail, _seen(tail), _last_heard(tail, now))
            elif stepped:
                one.heard_s = now
            one.seen.facts, one.seen.closed = tail.facts, tail.closed
            asked += self._judge(one, now, ask=asked < MOST_ASKED)
        for name in self._foreign & self._tails.keys():
            del self._tails[name]
        known = self._known.values()
        self.states = sorted((one.seen for one in known), key=lambda seen: seen.rank)
        self.world = max((int(one.tail.identity.get("world", 1)) for one in known), default=0)
        self.orders = orders(self.path)

    def _find_spools(self) -> None:
        known = -1 if self.attempt is None else self.attempt
        attempts = RunFolder(self.path).attempts()
        attempts = [number for number in attempts if number <= known or self._begun(number)]
        self.attempts = len(attempts)
        if attempts and attempts[-1] != self.attempt:
            self.attempt = attempts[-1]
            self._tails, self._known, self._foreign = {}, {}, set()
        found = len(self._tails) + len(self._foreign)
        if self.attempt is None or (self._tails and found >= self.world > 0):
            return
        for entry in self._entries():
            spool = entry.name.startswith("rank-") and entry.name.endswith(".spool")
            if spool and entry.name not in self._foreign:
                self._tails.setdefault(entry.name, SpoolTail(Path(entry.path)))

    def _entries(self) -> list[os.DirEntry[str]]:
        try:
            return list(os.scandir(self._folder(self.attempt or 0)))
        except OSError:  # it has been removed, for another run to take its place
            self.attempt, self._tails, self._known = None, {}, {}
            return []

    def _folder(self, attempt: int) -> Path:
        return RunFolder(self.path).spool_path(attempt, 0).parent

    def _begun(self, attempt: int) -> bool:
        return any(self._folder(attempt).glob("rank-*.spool"))

    def _judge(self, one: _Followed, now: float, *, ask: bool) -> bool:
        """Whether a rank makes no progress, and then what it is in; whether that was asked."""
        silent, seen, tail = now - one.heard_s, one.seen, one.tail
        patience = max(SILENT_S, SILENT_STEPS * _usual_step_s(tail))
        seen.silent_s = 0.0 if tail.closed or silent < patience else silent
        seen.gone = silent > GONE_S and not tail.closed and _is_gone(tail.identity)
        if not (seen.silent_s or seen.gone):
            seen.inside = None
            return False
        if ask:
            seen.inside = tail.inside()
        return ask


def _seen(tail: SpoolTail) -> SeenRank:
    identity = tail.identity
    return SeenRank(int(identity["rank"]), str(identity.get("hostname", "")), tail.facts)


def _last_heard(tail: SpoolTail, now: float) -> float:
    """When a rank seen for the first time last ended a step, where its clock can be compared."""
    if not len(tail.steps) or tail.identity.get("boot_id") != boot_id() or not boot_id():
        return now
    return now - max(time.monotonic() - float(tail.steps["end_ns"][-1]) * 1e-9, 0.0)


def _usual_step_s(tail: SpoolTail) -> float:
    steps = tail.steps["step_sum_ns"]
    return float(sorted(steps)[len(steps) // 2]) * 1e-9 if len(steps) else 0.0


def _is_here(identity: dict[str, Any]) -> bool:
    return identity.get("boot_id") == boot_id() and identity.get("hostname") == hostname()


def _is_gone(identity: dict[str, Any]) -> bool:
    """Whether the process of a rank on this machine exists no more."""
    return (
        _is_here(identity) and bool(boot_id()) and not Path(f"/proc/{identity.get('pid')}").exists()
    )


def orders(folder: Path) -> dict[str, Any]:
    """What `evenstep ctl` has written; {} where it has not, or what is there is no such thing."""
    try:
        return read_facts(folder / "control.json")
    except TraceError:
        return {}
