"""A run followed through its spools while ranks start, end and die.

Only the latest attempt is followed; a new attempt replaces it as soon as one of its ranks starts.
The latest steps are kept as numbers, per rank and per step. Both can be merged, so that a node can
compute them for its own ranks and pass on nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from evenstep.errors import TraceError
from evenstep.trace.columns import Array
from evenstep.trace.spool.folder import Meeting, RunFolder, is_gone, is_here, read_facts
from evenstep.trace.spool.identity import boot_id
from evenstep.trace.spool.layout import Phase
from evenstep.watch.spool import Inside, SpoolTail

WINDOW_STEPS = 32  # most steps of a rank; all values but the curve are computed from these, …
WINDOW_NS = 10_000_000_000  # … without older ones, …
FEWEST_STEPS = 8  # … unless fewer would be left
SILENT_S = 10.0  # a rank is silent without a step for this time, and …
SILENT_STEPS = 20  # … for the time of so many usual steps
GONE_S = 3.0  # after this time without a step, check whether the process exists
MOST_INSPECTED = 64  # silent ranks whose ring is read in one refresh


@dataclass(slots=True)
class RankWindow:
    """Means over the window of every rank that has finished a step, one value per rank."""

    ranks: Array
    step_ns: Array
    work_ns: Array  # step without waiting, transfer and pacing
    error_ns: Array  # standard error of work_ns beside the others'; NaN for a single step
    sync_ns: Array
    wait_ns: Array  # NaN if unknown
    held_ns: Array
    pause_ns: Array
    phase_ns: Array  # (ranks, phases)
    last_step: Array
    counts: Array  # number of steps of each rank

    @classmethod
    def merged(cls, windows: Sequence[RankWindow]) -> RankWindow:
        columns = {
            field.name: np.concatenate([getattr(window, field.name) for window in windows])
            for field in fields(cls)
        }
        order = np.argsort(columns["ranks"], kind="stable")
        return cls(**{name: values[order] for name, values in columns.items()})


class StepTable(NamedTuple):
    """The latest steps, ascending, with statistics over ranks."""

    step: Array
    ranks: Array  # number of ranks that have finished it
    time_ns: Array  # median over ranks
    work_ns: Array  # median of the step without waiting, transfer and pacing
    most_work_ns: Array  # maximum of that


NO_STEPS = StepTable(np.zeros(0, np.int64), np.zeros(0, np.int64), *([np.zeros(0)] * 3))


def rank_window(steps: Mapping[int, Array]) -> RankWindow:
    """Means over the latest steps of each rank; `steps` has at least one row per rank, oldest
    first, as kept by `evenstep.watch.spool`."""
    tails = [_window(rows) for rows in steps.values()]
    counts = np.array([len(rows) for rows in tails], np.int64)
    rows: Array = np.concatenate(tails) if tails else np.empty(0)
    begins = np.cumsum(counts) - counts

    def mean(values: Array) -> Array:
        total = np.add.reduceat(values.astype(np.float64), begins, axis=0)
        return np.asarray(total / (counts[:, None] if total.ndim > 1 else counts))

    if not tails:
        nothing = {field.name: np.zeros(0) for field in fields(RankWindow)}
        return RankWindow(**nothing | {"phase_ns": np.zeros((0, len(Phase)))})
    phases, step, held = (mean(rows[name]) for name in ("phase_ns", "step_sum_ns", "held_ns"))
    known, wait = mean(rows["wait_known"]), mean(rows["wait_ns"])
    sync = phases[:, int(Phase.SYNC)]
    work = np.maximum(step - sync - held, 0.0)
    blocked = rows["phase_ns"][:, int(Phase.SYNC)].astype(np.float64) + rows["held_ns"]
    apart = _not_shared(rows, rows["step_sum_ns"] - blocked - np.repeat(work, counts))
    with np.errstate(invalid="ignore", divide="ignore"):
        waits = np.where(known > 0, np.minimum(wait / known, sync), np.nan)
        error = np.sqrt(mean(apart**2) / (counts - 1))
    return RankWindow(
        ranks=np.array(list(steps), np.int64), step_ns=step, work_ns=work, error_ns=error,
        sync_ns=sync, wait_ns=waits, held_ns=held, pause_ns=mean(rows["pause_ns"]), phase_ns=phases,
        last_step=np.array([int(rows_["first_step"][-1]) for rows_ in tails], np.int64),
        counts=counts,
    )  # fmt: skip


def _not_shared(rows: Array, apart: Array) -> Array:
    """What each rank's step differs by from its mean, without what the ranks share in that step (as
    of steps of two kinds), which makes none of them late; as wide as if the mean were known."""
    _, step = np.unique(rows["first_step"], return_inverse=True)
    ranks = np.bincount(step)
    shared = np.where(ranks > 1, np.bincount(step, apart) / ranks, 0.0)
    known = np.where(ranks > 1, (ranks - 1) / ranks, 1.0)  # a rank alone shares nothing
    return np.asarray((apart - shared[step]) / np.sqrt(known)[step])


def _in_the_loop(steps: Array) -> Array:
    """Drop a rank's step 0, which includes everything before the training loop."""
    return steps[int(len(steps) > 1 and not steps["first_step"][0]) :]


def _window(steps: Array) -> Array:
    steps = _in_the_loop(steps)
    recent = int(np.count_nonzero(steps["start_ns"] >= steps["end_ns"][-1] - WINDOW_NS))
    return steps[-min(max(recent, FEWEST_STEPS), WINDOW_STEPS) :]


def step_table(steps: Sequence[Array]) -> StepTable:
    if not steps:
        return NO_STEPS
    rows = np.concatenate([_in_the_loop(each) for each in steps])
    step, time = rows["first_step"].astype(np.int64), rows["step_sum_ns"].astype(np.float64)
    work = time - (rows["phase_ns"][:, int(Phase.SYNC)].astype(np.float64) + rows["held_ns"])
    return merge_steps([StepTable(step, np.ones(len(step), np.int64), time, work, work)])


def merge_steps(tables: Sequence[StepTable]) -> StepTable:
    """Merge tables of several nodes; medians are those of the nodes' medians, weighted by ranks."""
    tables = [table for table in tables if len(table.step)]
    if not tables:
        return NO_STEPS
    step, ranks, time, work, most = map(np.concatenate, zip(*tables, strict=True))
    order = np.argsort(step, kind="stable")
    numbers, begins = np.unique(step[order], return_index=True)
    return StepTable(
        numbers, np.add.reduceat(ranks[order], begins), _weighted_median(step, time, ranks, begins),
        _weighted_median(step, work, ranks, begins), np.maximum.reduceat(most[order], begins),
    )  # fmt: skip


def _weighted_median(step: Array, values: Array, weights: Array, begins: Array) -> Array:
    order = np.lexsort((values, step))
    reached = np.cumsum(weights[order])
    before = reached[begins] - weights[order][begins]
    total = np.add.reduceat(weights[order], begins)
    low = np.searchsorted(reached, before + total / 2, side="left")
    high = np.searchsorted(reached, before + total / 2, side="right")
    return np.asarray((values[order][low] + values[order][high]) / 2)


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
    """Return when a new rank last ended a step, of other hosts as if its latest heartbeat were now:
    their clocks cannot be compared."""
    if not len(tail.steps):
        return now
    here = tail.identity.get("boot_id") == boot_id() != ""
    read_ns = time.monotonic_ns() if here else tail.heartbeat_ns
    return now - max(read_ns - int(tail.steps["end_ns"][-1]), 0) * 1e-9


def read_request(folder: Path) -> dict[str, Any]:
    """Return the last request of `evenstep ctl`; {} without a valid one."""
    try:
        return read_facts(folder / "control.json")
    except TraceError:
        return {}
