"""Actions switched a thousand times under load: after how many steps every rank has followed."""

from __future__ import annotations

import argparse
import mmap
import os
import re
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np

import evenstep
from benchmarks.measure import Row
from benchmarks.ranks import JobError, environment, free_port, last_object, place
from evenstep.agent.actions.board import FOLDER, LinkBoard, board_path
from evenstep.agent.settings import request
from evenstep.pacing.token import LOOK_STEPS, MOST_WAIT
from evenstep.trace.spool.layout import Actuator, Flag, Kind

COMMAND = "python -m benchmarks toggles"
BAR_STEPS = 10
BETWEEN_STEPS = 12  # a change is in force on all ranks before the next is asked for
WARM_UP_STEPS = 64
PATIENCE_S = 60.0  # without a step: a deadlock
STARTING_S = 600.0  # before the first and after the last, with torch, on a machine others fill
RUN_ID = "toggles"
MODES = ("on", "off", "observe")
ACTS = ("gc,token,cores,pace,power", "off", "gc,cores", "token", "gc", "pace,token")
ALONE, TOGETHER, ACTING = "deciding each alone", "deciding together", "all actions"
JOB, HOLDER, SERVER = "one of them killed", "one killed on the link", "their server killed"
KILLED_AFTER = 400  # steps of both, and as many of the other since
LOOKS, BETWEEN_LOOKS_S = 10_000, 0.0005  # at who is on the link
_ASKED = re.compile(r"asked to: (\w+)")


class Toggled(NamedTuple):
    """What came of one job."""

    asked: list[int]  # steps that had ended when each change was written
    steps: np.ndarray  # [rank, change]: the first step decided by it; NaN where the next came first
    held: int  # steps in which a rank was held
    total: int
    left: str  # what of a process was not as before


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark."""
    parser.add_argument("--toggles", type=int, default=1000)
    parser.add_argument("--ranks", type=int, default=4)
    kinds = (ALONE, TOGETHER, ACTING, JOB, HOLDER, SERVER)
    parser.add_argument("--only", choices=kinds, nargs="+", default=list(kinds))


def run(args: argparse.Namespace) -> list[Row]:
    """Jobs whose ranks decide alone, together, with all actions; and two of which one dies."""
    deaths = (JOB, HOLDER, SERVER)
    return [_killed(args, how) if how in deaths else _row(args, how) for how in args.only]


def _row(args: argparse.Namespace, how: str) -> Row:
    with tempfile.TemporaryDirectory(prefix="toggles-") as name:
        found = _toggled(Path(name), args.ranks, args.toggles, how)
    after = found.steps - np.asarray(found.asked)
    missed = np.isnan(after)
    slowest = np.nanmax(after, axis=0)
    apart = int((np.ptp(found.steps, axis=0) > 0).sum())
    measured = (
        f"in force on all ranks after {np.median(slowest):.0f} steps (longest {slowest.max()}), "
        f"no deadlock; {apart} times not in the same step on all; {missed.sum()} of "
        f"{missed.size:,} times a rank saw only the next change; "
        f"{found.held:,} of {found.total:,} steps held; "
        f"{_said(found.left)}"
    )
    what = f"{args.toggles:,} changes of pacing, {args.ranks} gloo ranks, {how}"
    met = bool(slowest.max() <= BAR_STEPS) and not missed.any() and not found.left
    return Row(what, f"<= {BAR_STEPS} steps", measured, met, COMMAND)


def _said(left: str) -> str:
    return f"LEFT CHANGED: {left}" if left else "nothing left changed"


class _Job:
    """Ranks that train until they are told to stop. A context: none is left."""

    def __init__(self, folder: Path, world: int, *options: str, group: str = "host") -> None:
        self.out, self._stop = folder / "run", folder / "stop"
        counter = folder / "counter"
        folder.mkdir(exist_ok=True)
        counter.write_bytes(struct.pack("q", 0))
        with counter.open("r+b") as file:
            self._steps = mmap.mmap(file.fileno(), struct.calcsize("q"))
        command = [sys.executable, "-m", "benchmarks.jobs.toggled", "--out", str(self.out)]
        command += ["--counter", str(counter), "--stop", str(self._stop), *options]
        port, self.ranks = free_port(), []
        self._outputs = [folder / f"rank-{rank}" for rank in range(world)]
        for rank, output in enumerate(self._outputs):
            named = {"EVENSTEP_RUN_ID": RUN_ID, "EVENSTEP_LINK_GROUP": group}
            environ = environment(**place(rank, world, port), **named)
            with output.open("wb") as file:
                self.ranks.append(
                    subprocess.Popen(command, env=environ, stdout=file, stderr=subprocess.STDOUT)
                )

    def __enter__(self) -> _Job:
        return self

    def __exit__(self, *_: object) -> None:
        for rank in self.ranks:
            rank.kill()
            rank.wait()

    @property
    def steps(self) -> int:
        """How many have ended."""
        return int(struct.unpack_from("q", self._steps)[0])

    def until(self, steps: int) -> None:
        """Wait for so many steps. Raises `JobError` with what the ranks said."""
        seen, since = -1, time.monotonic()
        while (now := self.steps) < steps:
            if now != seen:
                seen, since = now, time.monotonic()
            ended = any(rank.poll() is not None for rank in self.ranks)
            if ended or time.monotonic() - since > (PATIENCE_S if now else STARTING_S):
                said = [output.read_text(errors="replace")[-800:] for output in self._outputs]
                how = "a rank has ended" if ended else "the job stands still"
                raise JobError(f"{how} at step {now}: {'; '.join(said)}")
            time.sleep(0.001)

    def end(self) -> str:
        """Have it stop; what of its processes was not as before. Raises `JobError`."""
        self._stop.touch()
        codes = [rank.wait(STARTING_S) for rank in self.ranks]
        ends = [last_object(output.read_text()) for output in self._outputs]
        if any(codes) or any(end["failure"] for end in ends):
            raise JobError(f"ranks ended with {codes}: {ends}")
        return "; ".join(each for end in ends for each in end["left"])


def _toggled(folder: Path, world: int, toggles: int, how: str) -> Toggled:
    """Start the ranks, change their pacing again and again, and read what they recorded."""
    with _Job(folder, world, *["--together"] * (how == TOGETHER)) as job:
        asked = list(_changes(job, toggles, how))
        left = job.end()
    return _read(job.out, asked, world)._replace(left=left)


def _killed(args: argparse.Namespace, how: str) -> Row:
    """Two jobs hold the token of one link; one is killed, or its server. What the other waits."""
    group = f"toggles-{os.getpid()}"  # none of another job that runs here
    group += f"@127.0.0.1:{free_port()}" if how == SERVER else ""
    with tempfile.TemporaryDirectory(prefix="toggles-") as name, ExitStack() as all_of_it:
        server = all_of_it.enter_context(_served(group)) if how == SERVER else None
        link = Path(name) / "link"
        link.write_bytes(bytes(2))
        one, other = (
            all_of_it.enter_context(
                _Job(Path(name) / each, args.ranks, "--link", str(link), "--job", each, group=group)
            )
            for each in "01"
        )
        for job in (one, other):
            job.until(WARM_UP_STEPS)
            request.write(job.out, request.SettingsChange(1, None, act="token"), RUN_ID)
        for job in (one, other):
            job.until(job.steps + KILLED_AFTER)
        if how == HOLDER:
            _stop_on_link(one, board_path(f"{group}-link"))
        for process in [server] if server is not None else one.ranks:
            process.kill()
            process.wait()
        if server is None:
            with link.open("r+b") as file:  # what was on it is gone
                file.write(bytes(1))
        at = other.steps
        other.until(at + KILLED_AFTER)
        left = other.end()
        if server is not None:
            left += one.end()
        left += ", ".join(map(str, FOLDER.glob(f"evenstep-*-{group}-*")))
        trace = evenstep.load(other.out)
    steps, waits, shares, own = _waits(trace)
    since = steps > at
    measured = (
        f"{len(waits)} waits, the longest {waits.max(initial=0) / 1e6:.1f} ms, at most "
        f"{shares.max(initial=0):.3f} of a step of then ({own.max(initial=0):.3f} without the time "
        f"it was kept from a core); {since.sum()} in the {other.steps - at} steps since, at most "
        f"{shares[since].max(initial=0):.3f} of one; {_said(left)}"
    )
    what = f"two jobs of {args.ranks} gloo ranks on one link, {how}"
    met = bool(shares.max(initial=0) <= MOST_WAIT) and not left if len(waits) else None
    return Row(what, f"no step's waits beyond {MOST_WAIT} of it", measured, met, COMMAND)


def _waits(trace: evenstep.Trace) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Of each step that waited for the token: its number, its ns of wait, those over the median of
    the steps before it, and the same less the time for which the rank was ready without a core."""
    held, steps = trace.of_kind(Kind.PACING), trace.of_kind(Kind.STEP)
    held = held.select(held.op == int(Actuator.BEFORE_EXCHANGE))
    steps = steps.select(steps["rank"] == 0).sorted_by("step")
    took = steps.exit_ns - steps.enter_ns
    numbers, which = np.unique(held.step, return_inverse=True)
    waits = np.bincount(which, held.held_ns, len(numbers))
    usual = np.array([np.median(took[max(1, n - LOOK_STEPS) : n]) for n in numbers])
    kept_ns = np.array([steps.parent[steps.step == n].sum() for n in numbers]) * 1000
    return numbers, waits, waits / usual, np.maximum(waits - kept_ns, 0) / usual


@contextmanager
def _served(group: str) -> Iterator[subprocess.Popen[bytes]]:
    """The server of a link group, while it lives."""
    command = [sys.executable, "-m", "evenstep", "link", group]
    server = subprocess.Popen(command, env=environment(), stderr=subprocess.DEVNULL)
    try:
        yield server
    finally:
        server.kill()
        server.wait()


def _stop_on_link(job: _Job, path: Path) -> None:
    """Stop the ranks of a job while its exchange is on the link. Raises `JobError`."""
    mine = {rank.pid for rank in job.ranks}
    with closing(LinkBoard(path)) as board:
        for _ in range(LOOKS):
            for rank in job.ranks:
                rank.send_signal(signal.SIGSTOP)
            if any(
                post.entered_ns for _, pid, post in board._slots(time.monotonic_ns()) if pid in mine
            ):
                return
            for rank in job.ranks:
                rank.send_signal(signal.SIGCONT)
            time.sleep(BETWEEN_LOOKS_S)
    raise JobError("its exchange was never on the link")


def _changes(job: _Job, toggles: int, how: str) -> Iterator[int]:
    """Ask for one change after the other; the steps that had ended before each."""
    due = WARM_UP_STEPS
    for number in range(1, toggles + 1):
        job.until(due)
        if how == ACTING:
            change = request.SettingsChange(number, None, act=ACTS[number % len(ACTS)])
        else:
            change = request.SettingsChange(number, MODES[number % len(MODES)], 0.01, 0.2)
        before = job.steps
        request.write(job.out, change, RUN_ID)
        yield before
        due = before + BETWEEN_STEPS + 2
    job.until(due)


def _followed(asked: list[int], steps: np.ndarray) -> np.ndarray:
    """Of each change, the first of a rank's steps after it and not after the next; NaN: none."""
    first = np.searchsorted(steps, asked)
    after = np.append(steps, np.nan)[first]
    return np.where(after <= np.append(asked[1:], np.inf), after, np.nan)


def _read(out: Path, asked: list[int], world: int) -> Toggled:
    trace = evenstep.load(out)
    rows = trace.of_kind(Kind.PACING)
    rows = rows.select(rows.op == int(Actuator.NONE))
    says = [bool(_ASKED.match(trace.names[name])) for name in rows.name]
    changes = rows.select(np.asarray(says, bool))
    steps = [_followed(asked, changes.step[changes.rank == rank]) for rank in range(world)]
    held = trace.of_kind(Kind.PACING)
    applied = int(((held.flags & int(Flag.APPLIED)) != 0).sum())
    total = int(trace.summaries["count"].sum())
    return Toggled(asked, np.array(steps), applied, total, left="")
