"""Actions switched a thousand times under load: after how many steps every rank has followed."""

from __future__ import annotations

import argparse
import mmap
import re
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

import evenstep
from benchmarks.measure import Row
from benchmarks.ranks import JobError, environment, free_port, last_object, place
from evenstep.agent.settings import request
from evenstep.trace.spool.layout import Actuator, Flag, Kind

COMMAND = "python -m benchmarks toggles"
BAR_STEPS = 10
BETWEEN_STEPS = 12  # a change is in force on all ranks before the next is asked for
WARM_UP_STEPS = 64
PATIENCE_S = 60.0  # without a step: a deadlock
STARTING_S = 600.0  # before the first: four imports of torch on a machine that others fill
RUN_ID = "toggles"
MODES = ("on", "off", "observe")
ACTS = ("gc,token,cores,pace,power", "off", "gc,cores", "token", "gc", "pace,token")
ALONE, TOGETHER, ACTING = "deciding each alone", "deciding together", "all actions"
_ASKED = re.compile(r"asked to: (\w+)")


class Toggled(NamedTuple):
    """What came of one job."""

    asked: list[int]  # steps that had ended when each change was written
    steps: np.ndarray  # [rank, change]: the first step decided by it
    held: int  # steps in which a rank was held
    total: int
    left: bool  # something of a process was not as before


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark."""
    parser.add_argument("--toggles", type=int, default=1000)
    parser.add_argument("--ranks", type=int, default=4)
    kinds = (ALONE, TOGETHER, ACTING)
    parser.add_argument("--only", choices=kinds, nargs="+", default=list(kinds))


def run(args: argparse.Namespace) -> list[Row]:
    """A job whose ranks decide alone, one whose ranks pace together, and one of all actions."""
    return [_row(args, how) for how in args.only]


def _row(args: argparse.Namespace, how: str) -> Row:
    with tempfile.TemporaryDirectory(prefix="toggles-") as name:
        found = _toggled(Path(name), args.ranks, args.toggles, how)
    after = found.steps - np.asarray(found.asked)
    slowest = after.max(axis=0)
    apart = int((np.ptp(found.steps, axis=0) > 0).sum())
    measured = (
        f"in force on all ranks after {np.median(slowest):.0f} steps (longest {slowest.max()}), "
        f"no deadlock; {apart} times not in the same step on all; "
        f"{found.held:,} of {found.total:,} steps held; "
        f"{'SOMETHING LEFT CHANGED' if found.left else 'nothing left changed'}"
    )
    what = f"{args.toggles:,} changes of pacing, {args.ranks} gloo ranks, {how}"
    met = bool(slowest.max() <= BAR_STEPS) and not found.left
    return Row(what, f"<= {BAR_STEPS} steps", measured, met, COMMAND)


def _toggled(folder: Path, world: int, toggles: int, how: str) -> Toggled:
    """Start the ranks, change their pacing again and again, and read what they recorded."""
    out, counter, stop = folder / "run", folder / "counter", folder / "stop"
    counter.write_bytes(struct.pack("q", 0))
    command = [sys.executable, "-m", "benchmarks.jobs.toggled", "--out", str(out)]
    command += ["--counter", str(counter), "--stop", str(stop), *["--together"] * (how == TOGETHER)]
    port, outputs = free_port(), [folder / f"rank-{rank}" for rank in range(world)]
    ranks = []
    for rank, output in enumerate(outputs):
        environ = environment(**place(rank, world, port), EVENSTEP_RUN_ID=RUN_ID)
        with output.open("wb") as file:
            ranks.append(
                subprocess.Popen(command, env=environ, stdout=file, stderr=subprocess.STDOUT)
            )
    try:
        try:
            asked = list(_changes(out, counter, toggles, ranks, how))
        except JobError as error:
            said = "; ".join(output.read_text(errors="replace")[-800:] for output in outputs)
            raise JobError(f"{error}: {said}") from error
        stop.touch()
        codes = [rank.wait(PATIENCE_S) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    ends = [last_object(output.read_text()) for output in outputs]
    if any(codes) or any(end["failure"] for end in ends):
        raise JobError(f"ranks ended with {codes}: {ends}")
    return _read(out, asked, world)._replace(left=any(end["left"] for end in ends))


def _changes(
    out: Path, counter: Path, toggles: int, ranks: list[subprocess.Popen[bytes]], how: str
) -> Iterator[int]:
    """Ask for one change after the other; the steps that had ended before each."""
    with counter.open("r+b") as file:
        shared = mmap.mmap(file.fileno(), struct.calcsize("q"))
        due = WARM_UP_STEPS
        for number in range(1, toggles + 1):
            _until(shared, due, ranks)
            if how == ACTING:
                change = request.SettingsChange(number, None, act=ACTS[number % len(ACTS)])
            else:
                change = request.SettingsChange(number, MODES[number % len(MODES)], 0.01, 0.2)
            before = int(struct.unpack_from("q", shared)[0])
            request.write(out, change, RUN_ID)
            yield before
            due = before + BETWEEN_STEPS + 2
        _until(shared, due, ranks)


def _until(shared: mmap.mmap, steps: int, ranks: list[subprocess.Popen[bytes]]) -> None:
    seen, since = -1, time.monotonic()
    while (now := struct.unpack_from("q", shared)[0]) < steps:
        if now != seen:
            seen, since = now, time.monotonic()
        if any(rank.poll() is not None for rank in ranks):
            raise JobError(f"a rank has ended at step {now}")
        if time.monotonic() - since > (PATIENCE_S if now else STARTING_S):
            raise JobError(f"the job stands still at step {now}")
        time.sleep(0.001)


def _read(out: Path, asked: list[int], world: int) -> Toggled:
    trace = evenstep.load(out)
    rows = trace.of_kind(Kind.PACING)
    rows = rows.select(rows.op == int(Actuator.NONE))
    says = [bool(_ASKED.match(trace.names[name])) for name in rows.name]
    changes = rows.select(np.asarray(says, bool))
    steps = [changes.step[changes.rank == rank] for rank in range(world)]
    if any(len(each) != len(asked) for each in steps):
        raise JobError(f"of {len(asked)} changes ranks followed {[len(each) for each in steps]}")
    held = trace.of_kind(Kind.PACING)
    applied = int(((held.flags & int(Flag.APPLIED)) != 0).sum())
    total = int(trace.summaries["count"].sum())
    return Toggled(asked, np.array(steps), applied, total, left=False)
