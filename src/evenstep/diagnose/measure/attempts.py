"""The attempts of a run, and how they ended: which death led to the others.

Attempts are told from the step summaries of a few of their ranks. Summaries are merged, never lost,
so that an attempt of a week is read as fast as one of a minute. Times are wall-clock seconds, as
attempts may have run on different hosts.

A rank records the exception that ended its script, and a heartbeat several times a second; the
launcher records how each process of its machine ended. Both order the ends of a job's ranks, so
that the first is told from those that followed from it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from evenstep import words
from evenstep.diagnose.measure.grid import warm_up_steps
from evenstep.diagnose.measure.stuck import LONG, Stuck, limit_ns, long_enough, stuck, title
from evenstep.errors import TraceError
from evenstep.statistics.interval import BLOCK_STEPS
from evenstep.trace.clocks.clocks import Clocks, align
from evenstep.trace.columns import Array
from evenstep.trace.loading import load
from evenstep.trace.reader import SpoolContents, read_spool
from evenstep.trace.spool.folder import RunFolder
from evenstep.trace.spool.layout import Kind, Phase
from evenstep.trace.spools import spools_in
from evenstep.trace.trace import RankInfo, Trace

KEY = "attempts"  # in `Trace.run`, like the next two
PREEMPTED = "preempted"
PRICE = "price_per_rank_hour"
RANKS_READ = 4  # of each attempt, evenly spread
WINDOW = 4 * BLOCK_STEPS  # at most so many steps, and at least a block, give a variation
PROGRESS = ("global_step", "step", "iteration", "iter")  # names of logged counts of steps
ENERGY = "gpu.energy_joules"


@dataclass(slots=True, frozen=True, kw_only=True)
class Attempt:
    """One start of a run. None is unknown; steps are counted from the attempt's own start."""

    number: int
    ranks: int
    started_s: float
    ended_s: float
    steps: int
    step_ns: float  # mean
    checkpoints: int = 0
    checkpoint_ns: float | None = None  # mean time one takes
    steps_since_checkpoint: int  # after the last checkpoint, or all of them
    since_checkpoint_ns: float  # their run time
    first_progress: int | None = None  # the script's own count of steps, where logged
    last_progress: int | None = None
    cv_at_start: float | None
    cv_at_end: float | None
    rate_at_start: float | None  # steps per second
    rate_at_end: float | None
    energy_joules: float | None = None  # of all ranks
    samples: float = 0.0  # of a rank in a step; 0 where the batch is unknown
    preempted: str | None = None  # the signal of its preemption
    finished: bool = False  # its launcher saw all processes read end well, and nobody preempted it
    failure: str = ""  # who ended it, and how: of the attempt before the last restart


def load_run(path: Path) -> Trace:
    """The trace of a run's last attempt, with its other attempts. Raises `TraceError`."""
    return with_attempts(load(path), path)


def with_attempts(trace: Trace, path: Path, *, price_per_rank_hour: float | None = None) -> Trace:
    """The trace with all attempts of its run in `run["attempts"]`, if there are several.

    `path` is what the trace was read from; only a run's folder has attempts.
    """
    if not path.is_dir():
        return trace
    run, limits, numbers = dict(trace.run), trace.limits, RunFolder(path).attempts()
    found = read_attempts(path) if len(numbers) > 1 else []
    if notice := RunFolder(path).preemption(trace.attempt):
        run[PREEMPTED] = notice
    before = max((number for number in numbers if number < trace.attempt), default=-1)
    if failure := _failure(path, before) if before >= 0 else "":
        if len(found) > 1 and found[-2].number == before:
            found[-2] = replace(found[-2], failure=failure)
        else:
            limits = [*limits, f"attempt {before} finished no step: {failure}"]
    if len(found) > 1:
        run[KEY] = [asdict(one) for one in found]
        if price_per_rank_hour is not None:
            run[PRICE] = price_per_rank_hour
    return replace(trace, run=run, limits=limits)


def _failure(folder: Path, number: int) -> str:
    """Who ended an attempt, and how; "" where nobody failed, or its trace cannot be read."""
    try:
        trace = load(folder, attempt=number)
    except TraceError:
        return ""
    trace = on_one_wall_clock(trace, align(trace))
    steps_ns = trace.summaries["step_sum_ns"] / np.maximum(trace.summaries["count"], 1)
    places, dead = stuck(trace), deaths(trace)
    if hung := hung_first(trace, places, dead, steps_ns):
        return title(max(hung, key=lambda place: place.since_ns))
    first = first_of(dead, [rank for place in places for rank in place.missing])
    those = words.ranks([death.rank for death in first])
    return f"{those} died: {words.how_ended(first[0].facts)}" if first else ""


def attempts_of(run: Mapping[str, Any]) -> list[Attempt]:
    return [Attempt(**one) for one in run.get(KEY) or []]


def read_attempts(folder: Path) -> list[Attempt]:
    """Every attempt of the last job that finished a step, in order; unreadable spools are skipped.
    What is started after an attempt that finished is another job, no restart, unless the script's
    own count of steps goes on, as where a job ends itself before its time is up and is queued anew.
    Steps are inferred where no attempt marks any: else one without a step ended before its first.
    """
    numbers = RunFolder(folder).attempts()
    for read in (_marked, _inferred):
        found = [one for number in numbers if (one := read(folder, number)) is not None]
        if found:
            break
    pairs = enumerate(pairwise(found), 1)
    over = [at for at, (one, then) in pairs if one.finished and not _goes_on(one, then)]
    return found[max(over, default=0) :]


def _goes_on(before: Attempt, after: Attempt) -> bool:
    begun = before.first_progress, after.first_progress
    return begun[0] is not None and begun[1] is not None and begun[0] < begun[1]


def _marked(folder: Path, number: int) -> Attempt | None:
    """An attempt by some of its ranks, its steps those of the rank with most; None without a step
    that something marked."""
    spools, (files, _) = [], spools_in(folder / f"attempt-{number:03d}")
    for pick in np.linspace(0, len(files) - 1, min(RANKS_READ, len(files))).astype(int):
        with suppress(TraceError):
            spools.append(read_spool(files[pick]))
    spools = [spool for spool in spools if len(spool.summaries)]
    if not spools or any("steps" in spool.facts for spool in spools):
        return None
    main = max(spools, key=lambda spool: int(spool.summaries["count"].sum()))
    rows = main.summaries
    steps = int(rows["count"].sum())
    logged = (_values(main, Kind.MARKER, name) for name in PROGRESS)
    progress = next((each for each in logged if len(each)), None)  # the script's own count of steps
    paused = rows["phase_ns"][:, [Phase.CHECKPOINT, Phase.EVALUATION]].any(axis=1)
    single = rows["step_sum_ns"][(rows["count"] == 1) & ~paused].astype(float)
    energy = [values for spool in spools if len(values := _values(spool, Kind.SAMPLE, ENERGY)) > 1]
    world = max(int(spool.identity.get("world", 1)) for spool in spools)
    tables = (spool.summaries for spool in spools)
    saves = max((t[t["phase_ns"][:, Phase.CHECKPOINT] > 0] for t in tables), key=len)
    again = rows["first_step"].astype(np.int64) > max(saves["last_step"].tolist(), default=-1)
    samples = [s.summaries["samples"].sum() / s.summaries["count"].sum() for s in spools]
    return Attempt(
        number=number, ranks=world,
        started_s=min(_wall_s(spool.summaries[0], "start_ns") for spool in spools),
        ended_s=max(_wall_s(spool.summaries[-1], "end_ns") for spool in spools), steps=steps,
        step_ns=float(rows["step_sum_ns"].sum()) / max(steps, 1), checkpoints=len(saves),
        checkpoint_ns=float(saves["phase_ns"][:, Phase.CHECKPOINT].mean()) if len(saves) else None,
        steps_since_checkpoint=int(rows["count"][again].sum()),
        since_checkpoint_ns=float(rows["step_sum_ns"][again].sum()),
        first_progress=None if progress is None else int(progress.min()),
        last_progress=None if progress is None else int(progress.max()), **_windows(single),
        energy_joules=float(np.mean([*map(np.ptp, energy)])) * world if energy else None,
        samples=float(np.mean(samples)), **_end(folder, number, [spool.facts for spool in spools]),
    )  # fmt: skip


def _inferred(folder: Path, number: int) -> Attempt | None:
    """An attempt by the steps of its lowest rank, as `load` infers them from the calls of all."""
    try:
        trace = load(folder, attempt=number)
    except TraceError:
        return None
    steps = trace.of_kind(Kind.STEP)
    if not len(steps):
        return None
    rank = int(steps["rank"].min())
    steps = steps.select(steps["rank"] == rank)
    lengths = (steps.exit_ns - steps.enter_ns).astype(float)
    moments = (int(steps.enter_ns[0]), int(steps.exit_ns[-1]))
    started_s, ended_s = (wall_ns(trace.ranks[rank], each) / 1e9 for each in moments)
    return Attempt(
        number=number, ranks=trace.world, started_s=started_s, ended_s=ended_s, steps=len(steps),
        step_ns=float(lengths.mean()), steps_since_checkpoint=len(steps),
        since_checkpoint_ns=float(lengths.sum()), **_windows(lengths),
        **_end(folder, number, [info.facts for info in trace.ranks.values()]),
    )  # fmt: skip


def _end(folder: Path, number: int, facts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """How an attempt ended, by what is known of some of its ranks."""
    signal = RunFolder(folder).preemption(number).get("signal")
    well = all((each.get("ended") or {}).get("exit_code") == 0 for each in facts)
    return {"preempted": signal, "finished": well and signal is None}


def _wall_s(row: Any, name: str) -> float:
    """A monotonic stamp of a summary on the wall clock; both clocks were read at its end."""
    return float(int(row["realtime_ns"]) - int(row["end_ns"]) + int(row[name])) / 1e9


def _windows(single: Array) -> dict[str, Any]:
    """CV and rate over the first steps after warm-up, and over the last ones."""
    steady = single[warm_up_steps(single) :]
    found: dict[str, float | None] = {}
    for name, part in (("start", steady[:WINDOW]), ("end", steady[-WINDOW:])):
        enough = len(part) >= BLOCK_STEPS
        found[f"cv_at_{name}"] = cv_of(part) if enough else None
        found[f"rate_at_{name}"] = float(1e9 / np.median(part)) if enough else None
    return found


def cv_of(step_ns: Array) -> float:
    """Coefficient of variation of the middle 90 % of the steps."""
    low, high = np.quantile(step_ns, [0.05, 0.95])
    kept = step_ns[(step_ns >= low) & (step_ns <= high)]
    return float(kept.std() / kept.mean()) if kept.mean() > 0 else 0.0


def _values(spool: SpoolContents, kind: Kind, name: str) -> Array:
    """The values that a rank recorded under a name."""
    number = {text: number for number, text in spool.names.items()}.get(name, -1)
    chosen = (spool.records["kind"] == int(kind)) & (spool.records["name"] == number)
    return np.ascontiguousarray(spool.records["bytes_in"][chosen]).view(np.float64)


# -- deaths ----------------------------------------------------------------------------------------

RESOLUTION_NS = 500_000_000  # ends closer together than two heartbeats need other evidence
SILENT_NS = 2 * RESOLUTION_NS  # without a heartbeat for so long, a rank stood still
INTERRUPTED = "KeyboardInterrupt"
#: In messages of gloo, of NCCL's watchdog, of `monitored_barrier` and of torch's store; a script's
#: own (a request that timed out) have none of these words.
TIMEOUT = re.compile(
    r"timed out (?:waiting \d+ ?ms|in blocking wait|after \d+ seconds waiting for clients)"
    r"|wait timeout after \d+ ?ms"
    r"|collective operation timeout|timeout caused pair closure|failed to pass monitoredBarrier",
    re.IGNORECASE,
)
#: The same of a connection whose other end is gone.
LOST = re.compile(
    r"gloo/\S+\] (?:(?:read|write) error \S+ connection reset|connection closed) by peer"
    r"|remote process exited",
    re.IGNORECASE,
)


class Death(NamedTuple):
    """The wrong end of a rank."""

    rank: int
    at_ns: int  # on the wall clock; where unknown, its last heartbeat
    facts: dict[str, Any]  # of the rank: `ended`, `raised`, `closed`


def deaths(trace: Trace) -> list[Death]:
    """The ranks that ended wrongly, in the order of their ends.

    Ends that follow one on request do not count: Ctrl-C reaches some ranks, the others lose a peer.
    """
    found = [
        Death(rank, wall_ns(info, ended_ns(info) or 0), info.facts)
        for rank, info in trace.ranks.items()
        if _wrong(info)
    ]
    within = _ended_within(trace) if found else set()
    asked = [info for rank, info in trace.ranks.items() if rank in within or _was_stopped(info)]
    first_ns = min((wall_ns(info, ended_ns(info) or 0) for info in asked), default=math.inf)
    found = [death for death in found if death.at_ns < first_ns - RESOLUTION_NS]
    if all(_was_interrupted(death.facts) for death in found):
        return []
    if found:  # the job is over: a rank that did not close its trace died, too
        known = {death.rank for death in found}
        cut = {rank: info for rank, info in trace.ranks.items() if _was_cut(info)}
        found += [
            Death(rank, wall_ns(info, ended_ns(info) or info.facts["heartbeat_ns"]), info.facts)
            for rank, info in cut.items()
            if rank not in known
        ]
    return sorted(found, key=lambda death: death.at_ns)


def first_of(found: Sequence[Death], awaited: Iterable[int]) -> list[Death]:
    """The deaths that led to the others: one, and those that raised the same error at its place.

    A killed process closes its connections a moment before it has ended, and its peers may raise
    within that moment. So of ends close together the first is that of a rank the others waited for
    (`awaited`), else that of a process that was gone before the others.
    """
    if not found:
        return []
    close = [death for death in found if death.at_ns - found[0].at_ns < RESOLUTION_NS]
    wanted = set(awaited)
    waited_for = [death for death in close if death.rank in wanted]
    gone = [death for death in close if _gone_ns(death) < _gone_ns(close[0])]
    silent = [death for death in gone if "raised" not in death.facts]
    first = next(iter(waited_for or silent or close))
    raised = _exception_of(first)
    alike = [
        each for each in found if raised and _exception_of(each) == raised and each is not first
    ]
    return [first, *alike]


def hung_first(
    trace: Trace, places: Sequence[Stuck], found: Sequence[Death], steps_ns: Array
) -> list[Stuck]:
    """The operations in which the job hung, whatever ended it later: a timeout, a person, a
    scheduler. Steps of the job took `steps_ns`.

    An operation whose missing ranks (or, without any, a waiting one) had died or been stopped
    before it was in flight for long enough, or a waiting one gave up, is no hang; but a missing
    process without heartbeats before it ended is one. Where ranks died, so are differing calls and
    missing ranks that had left in order.
    """
    hung, step_ns = [], float(np.quantile(steps_ns, LONG)) if len(steps_ns) else 0.0
    for place in places:
        if place.pause_ns is not None:  # a dump, whose processes are alive
            hung += [place] if long_enough(place, step_ns) else []
            continue
        entered_ns = wall_ns(trace.ranks[place.waiting[0]], place.entered_ns)
        gave_up_ns = min(_gave_up_ns(trace.ranks[rank]) for rank in place.waiting)
        soon_ns = min(entered_ns + limit_ns(place, step_ns), gave_up_ns)
        over = {rank: info for rank, info in trace.ranks.items() if _over(info, soon_ns)}
        stopped = {rank for rank, info in over.items() if _was_stopped(info)}
        left = {
            rank for rank, info in over.items() if not (_wrong(info) or _was_cut(info))
        } - stopped
        died = {death.rank for death in found if death.at_ns < soon_ns} | stopped
        awaited = set(place.missing)
        mismatched = place.different or (awaited and awaited <= left)
        bereft = awaited <= died if awaited else not died.isdisjoint(place.waiting)
        frozen = any(_stood_still(trace, rank) for rank in place.missing)
        long = long_enough(place, step_ns) or gave_up_ns < math.inf
        if (found and mismatched) or (long and not bereft) or frozen:
            hung.append(place)
    return hung


def gave_up(facts: Mapping[str, Any]) -> bool:
    """Whether a timeout ended a rank: what it waited for did not come."""
    return TIMEOUT.search((facts.get("raised") or {}).get("message", "")) is not None


def lost_peer(facts: Mapping[str, Any]) -> bool:
    """Whether a rank ended as another one was gone."""
    return LOST.search((facts.get("raised") or {}).get("message", "")) is not None


def _gave_up_ns(info: RankInfo) -> float:
    """When a rank gave up, on the wall clock of its host; inf where it did not."""
    at_ns = (info.facts.get("raised") or {}).get("monotonic_ns")
    return wall_ns(info, int(at_ns)) if at_ns and gave_up(info.facts) else math.inf


def _stood_still(trace: Trace, rank: int) -> bool:
    """Whether a process had no heartbeats for `SILENT_NS` before it raised, closed its trace or
    died, nor for the longest of its collections, which let nothing beat; after that it is silent,
    and leaving may take seconds."""
    info, pauses = trace.ranks[rank], trace.of_kind(Kind.PAUSE)
    longest_ns = (pauses.exit_ns - pauses.enter_ns)[pauses["rank"] == rank].max(initial=0)
    beat_ns = int(info.facts.get("heartbeat_ns", 0))
    return bool(beat_ns) and (ended_ns(info) or 0) - beat_ns > SILENT_NS + longest_ns


def _over(info: RankInfo, by_ns: float) -> bool:
    """Whether a rank is known to have ended by then."""
    ended = ended_ns(info)
    return ended is not None and wall_ns(info, ended) <= by_ns


def on_one_wall_clock(trace: Trace, clocks: Clocks) -> Trace:
    """The trace with the wall clocks of hosts, which may be seconds apart, as far from that of the
    reference as operations of their ranks say at the end."""
    ranks = dict(trace.ranks)
    first = next(info for info in ranks.values() if info.clock == clocks.reference)
    for rank, info in ranks.items():
        offset, end_ns = clocks.by_rank[rank], ended_ns(info) or info.facts.get("heartbeat_ns")
        if offset is None or not end_ns or offset.error_at(np.array([end_ns]))[0] > RESOLUTION_NS:
            continue
        apart = wall_ns(first, int(offset.shift(np.array([end_ns]))[0])) - wall_ns(info, end_ns)
        real_ns = _anchor_ns(info, "realtime") + apart
        ranks[rank] = replace(info, identity={**info.identity, "anchor_realtime_ns": real_ns})
    return replace(trace, ranks=ranks)


def wall_ns(info: RankInfo, monotonic_ns: int) -> int:
    """A moment of a rank's own clock on the wall clock of its host."""
    return _anchor_ns(info, "realtime") - _anchor_ns(info, "monotonic") + monotonic_ns


def _anchor_ns(info: RankInfo, clock: str) -> int:
    """When a rank's trace began by this clock, as its description says; 0 if that is no number."""
    found = info.identity.get(f"anchor_{clock}_ns", 0)
    return found if isinstance(found, int) else 0


def ended_ns(info: RankInfo) -> int | None:
    """When a rank raised, closed its trace or died, whichever is first, on its own clock."""
    facts = (info.facts.get(name) or {} for name in ("raised", "closed", "ended"))
    moments = [int(each["monotonic_ns"]) for each in facts if "monotonic_ns" in each]
    return min(moments, default=None)


def _wrong(info: RankInfo) -> bool:
    """Whether the recorded end is a death."""
    ended, raised = info.facts.get("ended") or {}, info.facts.get("raised") or {}
    if _was_stopped(info):
        return False
    failed = ended.get("signal") or ended.get("exit_code") or raised
    return bool(failed) or ("ended" in info.facts and not info.closed and "exit_code" not in ended)


def _was_stopped(info: RankInfo) -> bool:
    """Whether a person or a scheduler ended it, by its launcher, or without one by itself."""
    ended = info.facts.get("ended")
    return bool(ended.get("asked")) if ended else _was_interrupted(info.facts)


def _ended_within(trace: Trace) -> set[int]:
    """Ranks that closed their trace in order within a backward pass. That returns to the script at
    its end only: a signal ended them."""
    phases = trace.of_kind(Kind.PHASE)
    last = phases.select(np.diff(phases["rank"], append=-1) != 0)
    within = last["rank"][(last.op == int(Phase.BACKWARD)) & (last.exit_ns == 0)].tolist()
    return {rank for rank in within if trace.ranks[rank].closed and not _wrong(trace.ranks[rank])}


def _was_interrupted(facts: dict[str, Any]) -> bool:
    return (facts.get("raised") or {}).get("type") == INTERRUPTED


def _was_cut(info: RankInfo) -> bool:
    """Whether its trace was not closed, though it had heartbeats and was not asked to end."""
    ended = info.facts.get("ended") or {}
    return not info.closed and not ended.get("asked") and "heartbeat_ns" in info.facts


def _gone_ns(death: Death) -> float:
    """When a launcher saw that its process had ended; else inf."""
    return float((death.facts.get("ended") or {}).get("realtime_ns", math.inf))


def _exception_of(death: Death) -> tuple[str, str] | None:
    """Type and innermost frame of the exception raised."""
    raised = death.facts.get("raised") or {}
    return (raised["type"], raised["frames"][0]) if raised.get("frames") else None
