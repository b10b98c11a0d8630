"""A campaign: blocks in turn, until all are done, time is up, or somebody has had enough.

Whatever ends it, what was measured is kept, and no process, link or scratch file is left.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from evenstep.cli.terminal import say
from evenstep.errors import UsageError
from evenstep.scenario import schema
from evenstep.trace.spool.files import write_whole
from evenstep.trace.spool.folder import RunFolder
from lab import realtime
from lab import tier as tiers
from lab.arms import AGAIN, BASELINE, FEWEST_STEPS, Arm, Schedule, arm
from lab.board import OVER, Board
from lab.fair.jobs import ring_bytes
from lab.scenario import Scenario
from lab.tier import LOG, Running, Tier, Trial

POLL_S = 0.1
RECORD, RESULT = "lab.json", "result.json"
SCHEMA = "lab/1"
INTERRUPTED, UNFINISHED = "interrupted", "not finished"
SCRATCH = "evenstep-lab-"
BOARD = ".board"
OWN_LOGS = ("traffic.log", "hog.log")  # of what tiers start beside ranks; these have JOB-RANK.log
SCRATCH_FILES = (BOARD, ".trial", "..trial.", ".pulse-", ".order-", ".store-", f".{RECORD}.")

Progress = Callable[[int, int], None]  # told the number of finished blocks, and of all


@dataclass(frozen=True, slots=True)
class Record:
    """When each block was on, by the monotonic clock, and how the campaign ended."""

    starts_ns: tuple[int, ...]  # of block 0, 1, …
    end_ns: int  # of the last one
    whole: int  # blocks that were on for their full length: all, or all but the last
    ended: str = ""  # why before the last block: interrupted, time limit, not finished; "" in full
    real_time: bool = False  # sleeping ranks and links ran before ordinary work


def arms_for(
    names: Sequence[str], own: Sequence[str] = (), *, again: bool = True
) -> tuple[Arm, ...]:
    """The arms of a comparison: the baseline first, and once more beside it."""
    others = [name for name in dict.fromkeys(names) if name not in (BASELINE, AGAIN)]
    chosen = [BASELINE, *([AGAIN] if again else []), *others]
    return tuple(arm(name, own) for name in chosen)


def schedule_of(scenario: Scenario, names: Sequence[str]) -> Schedule:
    """Whose turn each block of a comparison is."""
    arms, run = arms_for(names, tiers.tier(scenario.fabric).ARMS), scenario.run
    return Schedule(arms, run.rounds, run.warm_up_rounds, scenario.seed)


def carry_out(
    scenario: Scenario,
    schedule: Schedule,
    folder: Path,
    progress: Progress | None = None,
) -> Record:
    """Run a scenario in `folder`, which exists. Raises `UsageError` where its tier cannot run here,
    `LabError` where a process fails."""
    scenario = lengthened(scenario)
    made = tiers.tier(scenario.fabric)
    lacking = made.missing(scenario)
    if lacking:
        raise UsageError(f"fabric {scenario.fabric} cannot be used here: {lacking}")
    board_path = folder / BOARD
    run_id = f"lab-{os.getpid()}-{folder.name}"
    trial = Trial(scenario, schedule, folder, board_path, run_id)
    write(folder, trial, Record((), time.monotonic_ns(), 0, UNFINISHED))
    with closing(Board.create(board_path)) as board, _stepping(made, trial, board) as running:
        found = _blocks(trial, board, running, progress)
    write(folder, trial, found)
    return found


def lengthened(scenario: Scenario) -> Scenario:
    """The same with blocks that hold enough steps of the slowest job to count, where they do not.

    A step is taken to be its compute and the exchanges of all jobs, one after the other.
    """
    run, link = scenario.run, scenario.network.link_gBps * 1e9
    exchanges = sum(ring_bytes(job.gradient_bytes, job.ranks) for job in scenario.jobs) / link
    longest_s = max(job.compute_ms for job in scenario.jobs) / 1e3 + exchanges
    least_s = run.settle_s + FEWEST_STEPS * longest_s
    if run.block_s >= least_s:
        return scenario
    say(f"blocks of {run.block_s:g} s hold too few steps: they are {least_s:.1f} s long")
    limit_s = max(run.limit_s, least_s)
    return replace(scenario, run=replace(run, block_s=least_s, limit_s=limit_s))


@contextmanager
def _stepping(made: Tier, trial: Trial, board: Board) -> Iterator[Running]:
    """The processes of a trial, which are gone afterwards, whatever happens."""
    running: Running | None = None
    try:
        running = made.start(trial)
        yield running
    finally:
        with _undisturbed():
            _end(trial, board, running)


def _end(trial: Trial, board: Board, running: Running | None) -> None:
    board.show(OVER)
    if running is not None:
        running.end()
    trial.board_path.unlink(missing_ok=True)


def _blocks(trial: Trial, board: Board, running: Running, progress: Progress | None) -> Record:
    """Show one block after the other, as many as fit into the limit."""
    run, blocks = trial.scenario.run, trial.schedule.blocks
    fitting = min(blocks, int(run.limit_s / run.block_s))
    ended = "time limit" if fitting < blocks else ""
    starts: list[int] = []
    whole = 0
    begin = time.monotonic()
    if progress is not None:
        progress(0, fitting)
    try:
        for block in range(fitting):
            board.show(block)
            starts.append(time.monotonic_ns())
            _wait(begin + (block + 1) * run.block_s, running)
            whole += 1
            if progress is not None:
                progress(whole, fitting)
    except KeyboardInterrupt:
        ended = INTERRUPTED
    real_time = trial.scenario.real_time and realtime.permitted()
    return Record(tuple(starts), time.monotonic_ns(), whole, ended, real_time)


def _wait(until: float, running: Running) -> None:
    """Sleep, looking after the processes."""
    while (left := until - time.monotonic()) > 0:
        time.sleep(min(left, POLL_S))
        running.check()


@contextmanager
def _undisturbed() -> Iterator[None]:
    """A second Ctrl-C waits until everything has been taken down."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def write(folder: Path, trial: Trial, record: Record) -> Path:
    """Put down beside the traces what was run, and when."""
    schedule = trial.schedule
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "run_id": trial.run_id,
        "scenario": schema.plain(trial.scenario),
        "arms": [one.name for one in schedule.arms],
        "blocks": [
            {"arm": schedule.arms[schedule.arm_at(block)].name, "start_ns": start_ns}
            for block, start_ns in enumerate(record.starts_ns)
        ],
        "end_ns": record.end_ns,
        "whole_blocks": record.whole,
        "ended": record.ended,
        "real_time": record.real_time,
    }
    path = folder / RECORD
    write_whole(path, json.dumps(document, indent=2) + "\n")
    return path


# -- folders ---------------------------------------------------------------------------------------


@contextmanager
def folder_for(out: Path | None, *, force: bool = False) -> Iterator[Path]:
    """Where a run goes: `out`, or a scratch folder that is gone afterwards.

    Raises `UsageError` where something is there already and `force` does not say to replace it.
    """
    if out is None:
        scratch = Path(tempfile.mkdtemp(prefix=f"{SCRATCH}{os.getpid()}-"))
        try:
            yield scratch
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        return
    if (out / RECORD).exists() and force:
        _clear(out)
    elif out.exists() and (not out.is_dir() or any(out.iterdir())):
        held = "holds a run of the laboratory; --force replaces it"
        other = "exists and is no run of the laboratory; choose another folder"
        raise UsageError(f"{out} {held if (out / RECORD).exists() else other}")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot create {out}: {error.strerror}; choose another folder") from error
    yield out.absolute()


def _clear(folder: Path) -> None:
    """Remove the files of a run, finished or not; nothing goes where anything else is beside."""
    jobs = _jobs(folder)
    held = sorted(folder.iterdir())
    other = next((path for path in held if not _is_of_a_run(path, jobs)), None)
    if other is not None:
        raise UsageError(
            f"{folder} holds more than a run ({other.name}); move it, or choose another folder"
        )
    for path in held:
        if not path.is_dir():
            path.unlink()
            continue
        shutil.rmtree(path)  # nothing but a job's trace, as seen above


def _jobs(folder: Path) -> set[str]:
    """Names of the jobs of the run that was here: those it wrote down, and those with traces."""
    traced = {trace.parent.name for trace in folder.glob("*/attempt-*")}
    try:
        written = json.loads((folder / RECORD).read_text())["scenario"]["jobs"]
        return traced | {str(job["name"]) for job in written}
    except (OSError, ValueError, LookupError, TypeError):
        return traced


def _is_of_a_run(path: Path, jobs: Collection[str]) -> bool:
    """Whether a run has left it: traces, results, what processes said, scratch of one that died."""
    name = path.name
    if path.is_dir():
        job = RunFolder(path)
        traces = set(job.files())
        only_these = all(one.is_dir() or one in traces for one in job.path.rglob("*"))
        return name in jobs and only_these and not path.is_symlink()
    if name in (RECORD, RESULT, LOG, *OWN_LOGS) or name.startswith(SCRATCH_FILES):
        return True
    stem = path.stem
    return path.suffix == ".log" and (stem in jobs or stem.rpartition("-")[0] in jobs)


def clean() -> list[str]:
    """Remove what runs have left behind whose processes are gone; what it was, in words."""
    removed = []
    for path in sorted(Path(tempfile.gettempdir()).glob(f"{SCRATCH}*-*")):
        owner = path.name.removeprefix(SCRATCH).partition("-")[0]
        if owner.isdecimal() and not Path(f"/proc/{owner}").exists():
            shutil.rmtree(path, ignore_errors=True)
            removed.append(f"folder {path}")
    for name in tiers.MODULES:
        removed += tiers.tier(name).clean()
    return removed
