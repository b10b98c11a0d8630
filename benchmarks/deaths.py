"""Is what broke the headline? Jobs that end badly in a known way, diagnosed as a user would.

Each runs under `evenstep run` and torchrun on gloo; its last rank is the culprit. What was asked to
stand still is ended from outside, as a scheduler would: SIGKILL to every rank.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.jobs.ending import DEATHS
from benchmarks.measure import Row
from benchmarks.ranks import JobError, environment, free_port
from evenstep.attachment.attempts import header

JOB = "benchmarks.jobs.ending"
COMMAND = "python -m benchmarks deaths"
PATIENCE_S = 120.0
TOLD_BAR_S = 15.0


class Case(NamedTuple):
    """A way to end, and what must be found."""

    way: str
    mode: str
    stop_s: float = 0.0  # it stands still, and is ended after so long


CASES = (
    *(Case(way, "rank_failed") for way in DEATHS),
    Case("stopped", "hang", 2.0),
    Case("asleep", "hang", 10.0),
    Case("asleep", "hang", 40.0),
    Case("loop", "hang", 2.0),
    Case("loop", "hang", 15.0),
    Case("mismatch", "hang"),
    Case("skipped", "hang"),
)


class Outcome(NamedTuple):
    """What came of a job."""

    mode: str | None  # of the first finding
    ranks: list[int]
    told_s: float | None  # after it happened, the job's own terminal named it
    stacks: list[str]  # innermost frames of the first finding's
    said: str  # the lines in which it did

    def right(self, case: Case, world: int) -> bool:
        """Whether the first finding is the cause, and the culprit is named alone; of two ranks
        with different calls nothing tells which is wrong, so that both are to be named."""
        alone = case.way != "mismatch" or world > 2
        return self.mode == case.mode and self.ranks == [*range(world)][alone * (world - 1) :]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark."""
    parser.add_argument("--worlds", type=int, nargs="*", default=[2, 4])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--ways", nargs="*", help="only these")


def run(args: argparse.Namespace) -> list[Row]:
    """The rows."""
    found: list[tuple[Case, int, Outcome]] = []
    for case in CASES:
        if args.ways and case.way not in args.ways:
            continue
        for world in args.worlds:
            for _ in range(args.repeats):
                outcome = ended(case, world)
                found.append((case, world, outcome))
                say(case, world, outcome)
    return rows(found)


def rows(found: list[tuple[Case, int, Outcome]]) -> list[Row]:
    """Deaths and hangs apart, and how soon they were told."""
    result = []
    for mode, name in (("rank_failed", "deaths"), ("hang", "hangs")):
        of = [(case, world, outcome) for case, world, outcome in found if case.mode == mode]
        if not of:
            continue
        right = sum(outcome.right(case, world) for case, world, outcome in of)
        text = f"{right} of {len(of)}"
        what = f"{name}: the first finding is the cause and names the last rank alone"
        result.append(Row(what, "100 %", text, right == len(of), COMMAND))
        due = [outcome.told_s for case, _, outcome in of if not 0 < case.stop_s < TOLD_BAR_S]
        known = [told for told in due if told is not None]
        if due:
            measured = f"{len(known)} of {len(due)}, after {max(known, default=0.0):.1f} s at most"
            met = len(known) == len(due) and max(known) <= TOLD_BAR_S
            what = f"{name}: said in the job's own terminal"
            result.append(Row(what, f"≤ {TOLD_BAR_S:.0f} s", measured, met, COMMAND))
    return result


def say(case: Case, world: int, outcome: Outcome) -> None:
    """A line of progress."""
    verdict = "right" if outcome.right(case, world) else "WRONG"
    told = "never" if outcome.told_s is None else f"{outcome.told_s:.1f} s"
    print(
        f"{case.way} {case.stop_s:g} s, {world} ranks: {verdict}: {outcome.mode} {outcome.ranks}, "
        f"told after {told} ({outcome.said}); {outcome.stacks}",
        file=sys.stderr, flush=True,
    )  # fmt: skip


def ended(case: Case, world: int) -> Outcome:
    """Run a case. Raises `JobError` where it does not end or leaves nothing."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as name:
        folder = Path(name)
        command = [
            sys.executable, "-m", "evenstep", "run", "--out", str(folder / "run"), "--",
            sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(world),
            "--master-port", str(free_port()), "-m", JOB, str(folder), case.way,
            "--stop", "1000",
        ]  # fmt: skip
        process = subprocess.Popen(
            command, env=environment(EVENSTEP_VERDICT="0"), text=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip
        lines: list[tuple[float, str]] = []
        watch(process, lines, folder, case.stop_s)
        happened = float((folder / "began").read_text()) / 1e9
        since = [(at - happened, line) for at, line in lines]
        first = str(world - 1) if case.mode == "rank_failed" else r"\d+"
        return judged(folder / "run", since, first)


def watch(
    process: subprocess.Popen[str], lines: list[tuple[float, str]], folder: Path, stop_s: float
) -> None:
    """Until the job has ended; one that stands still is ended after `stop_s`."""
    assert process.stderr is not None
    os.set_blocking(process.stderr.fileno(), False)
    deadline = time.monotonic() + PATIENCE_S
    began = folder / "began"
    while process.poll() is None:
        new = iter(process.stderr.readline, "")
        lines.extend((time.monotonic(), line.strip()) for line in new)
        happened = float(began.read_text() or "inf") / 1e9 if began.exists() else math.inf
        if stop_s and time.monotonic() > happened + stop_s:
            kill_ranks(folder / "run")
        if time.monotonic() > deadline:
            kill_ranks(folder / "run")
            process.kill()
            raise JobError(f"not finished after {PATIENCE_S:.0f} s")
        time.sleep(0.05)
    lines += [(time.monotonic(), line.strip()) for line in process.stderr.readlines()]


def kill_ranks(run_folder: Path) -> None:
    """As a scheduler does whose patience is over."""
    for path in sorted(run_folder.glob("attempt-*/rank-*.spool")):
        with suppress(ProcessLookupError):
            os.kill(int((header(path) or {})["pid"]), signal.SIGKILL)


def judged(run_folder: Path, lines: list[tuple[float, str]], who: str) -> Outcome:
    """The first finding, and when the terminal said what broke, with the rank `who` as the first;
    where calls differ gloo itself ends the job, and any rank may be the first that it ends."""
    diagnose = [sys.executable, "-m", "evenstep", "diagnose", str(run_folder), "--json"]
    done = subprocess.run(diagnose, env=environment(), capture_output=True, text=True, check=False)
    if not done.stdout:
        raise JobError(done.stderr[-2000:])
    found: list[dict[str, Any]] = json.loads(done.stdout)["findings"]
    first = found[0] if found else {"mode": None, "where": {"ranks": []}, "stacks": []}
    named = re.compile(
        rf"evenstep: (rank {who} \(process \d+\) (died|raised|ended)|no step|nothing heard)"
    )
    told = [(at, line) for at, line in lines if named.search(line)]
    return Outcome(
        first["mode"],
        first["where"]["ranks"],
        told[0][0] if told else None,
        [stack["frames"][0] for stack in first["stacks"]],
        told[0][1] if told else "",
    )
