"""A run followed from outside, attempt after attempt, while ranks come, end and die.

Only the latest attempt is followed; a new one takes its place as soon as a rank of it has begun.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from evenstep.errors import TraceError
from evenstep.trace.spool.folder import RunFolder, read_facts
from evenstep.trace.spool.identity import boot_id, hostname
from evenstep.watch.spool import Inside, SpoolTail
from evenstep.watch.window import RankWindow, StepTable, rank_window, step_table

SILENT_S = 10.0  # without a step for so long, and so many steps, a rank is asked what it is in
SILENT_STEPS = 20
GONE_S = 3.0  # after so long without a step it is asked whether the process exists
MOST_ASKED = 64  # silent ranks asked in one look


class SeenRank(Protocol):
    """What the live view is told of a rank."""

    @property
    def rank(self) -> int: ...
    @property
    def host(self) -> str: ...
    @property
    def facts(self) -> Mapping[str, Any]: ...
    @property
    def closed(self) -> bool: ...
    @property
    def silent_s(self) -> float: ...
    @property
    def inside(self) -> Inside | None: ...
    @property
    def gone(self) -> bool: ...


class FollowedRun(Protocol):
    """A run that is followed, by whatever way."""

    attempts: int

    @property
    def path(self) -> Path: ...
    @property
    def attempt(self) -> int | None: ...
    @property
    def world(self) -> int: ...
    @property
    def ended(self) -> bool: ...
    @property
    def states(self) -> Sequence[SeenRank]: ...
    @property
    def orders(self) -> Mapping[str, Any]: ...
    @property
    def unheard(self) -> Mapping[str, float]: ...

    def refresh(self) -> None: ...
    def window(self) -> RankWindow: ...
    def step_table(self) -> StepTable: ...


@dataclass(slots=True)
class RankState:
    """A rank as it was at the last look."""

    tail: SpoolTail
    heard_s: float  # when a step was last seen to end, by the watcher's clock
    silent_s: float = 0.0  # how long ago that is; 0 while steps come as they should
    inside: Inside | None = None  # while it is silent
    gone: bool = False  # its process does not exist any more and it never closed its trace

    @property
    def rank(self) -> int:
        """Its global rank."""
        return int(self.tail.identity["rank"])

    @property
    def host(self) -> str:
        """The machine it runs on."""
        return str(self.tail.identity.get("hostname", ""))

    @property
    def facts(self) -> dict[str, Any]:
        """What the rank has said of itself so far."""
        return self.tail.facts

    @property
    def closed(self) -> bool:
        """Whether it has ended its trace itself."""
        return self.tail.closed


@dataclass(slots=True)
class LiveRun:
    """The run in a folder; `refresh` looks again. The folder need not exist yet."""

    path: Path
    clock: Callable[[], float] = time.monotonic
    attempt: int | None = None
    attempts: int = 0
    states: list[RankState] = field(default_factory=list)  # of the attempt, by rank
    orders: dict[str, Any] = field(default_factory=dict)  # what `evenstep ctl` last asked for
    here: bool = False  # follow the ranks of this machine alone
    _tails: dict[str, SpoolTail] = field(default_factory=dict)
    _known: dict[str, RankState] = field(default_factory=dict)
    _foreign: set[str] = field(default_factory=set)  # spools of other machines, where `here`

    @property
    def world(self) -> int:
        """Ranks the attempt has, by what they say of it; 0 before the first."""
        return max((int(s.tail.identity.get("world", 1)) for s in self.states), default=0)

    @property
    def ended(self) -> bool:
        """Whether every rank of the attempt has closed its trace."""
        return 0 < self.world <= len(self.states) and all(s.tail.closed for s in self.states)

    @property
    def unheard(self) -> Mapping[str, float]:
        """Nodes that nothing is heard of: every spool is looked at here."""
        return {}

    def window(self) -> RankWindow:
        """The latest steps of each rank."""
        return rank_window(self.states)

    def step_table(self) -> StepTable:
        """The latest steps."""
        return step_table(self.states)

    def refresh(self) -> None:
        """Look again: new attempts, new ranks, new steps."""
        self._find_spools()
        now = self.clock()
        asked, ended = 0, self.ended  # where all has ended, another run may take its place
        for name, tail in self._tails.items():
            if tail.closed and name in self._known and not ended:
                self._known[name].silent_s = 0.0
                continue
            stepped = tail.refresh()
            if not tail.identity:
                self._known.pop(name, None)
                continue
            if self.here and not _is_here(tail.identity):
                self._foreign.add(name)
                continue
            state = self._known.get(name)
            if state is None:
                state = self._known[name] = RankState(tail, _last_heard(tail, now))
            elif stepped:
                state.heard_s = now
            asked += self._judge(state, now, ask=asked < MOST_ASKED)
        for name in self._foreign & self._tails.keys():
            del self._tails[name]
        self.states = sorted(self._known.values(), key=lambda state: state.rank)
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

    def _judge(self, state: RankState, now: float, *, ask: bool) -> bool:
        """Whether a rank makes no progress, and then what it is in; whether that was asked."""
        silent = now - state.heard_s
        patience = max(SILENT_S, SILENT_STEPS * _usual_step_s(state.tail))
        state.silent_s = 0.0 if state.tail.closed or silent < patience else silent
        quiet = silent > GONE_S and not state.tail.closed
        state.gone = quiet and _is_gone(state.tail.identity)
        if not (state.silent_s or state.gone):
            state.inside = None
            return False
        if ask:
            state.inside = state.tail.inside()
        return ask


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
