"""One `evenstep watch` of 4,096 ranks on 512 nodes: processor time per look, looks per second."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from benchmarks.measure import Row
from benchmarks.ranks import JobError, environment

COMMAND = "python -m benchmarks watch_scale"
LOOKS = 15
FIRST_LOOKS = 2  # not counted: imports, and what is read once
BAR_S = 1.0  # of one core, each second
PATIENCE_S = 120.0


class Watched(NamedTuple):
    """What watching came to."""

    cpu_s: float  # each look
    between_s: float  # the longest time between two looks
    ranks: int
    late: list[int]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark."""
    parser.add_argument("--ranks", type=int, default=4096)


def run(args: argparse.Namespace) -> list[Row]:
    """Ranks that write, nodes that sum up, one that watches."""
    with tempfile.TemporaryDirectory(prefix="watch-") as name:
        folder = Path(name)
        places = ["--run", str(folder / "run"), "--disks", str(folder / "disks")]
        places += ["--ranks", str(args.ranks)]
        writer = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.jobs.live_nodes", *places],
            env=environment(),
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            node_s = _begun(writer)
            found = _watched(folder / "run")
        finally:
            writer.kill()
            writer.communicate()
    right = found.ranks == args.ranks and found.late == [args.ranks // 3]
    return [
        Row(
            f"live view of {args.ranks:,} ranks (simulated writers), refreshed each second",
            f"< {BAR_S:.0f} core",
            f"{found.cpu_s:.2f} s of processor time each look, at most {found.between_s:.2f} s "
            f"between looks; {found.ranks:,} ranks seen, the late one "
            f"{'named' if right else 'not named'}; a node spends {1e3 * node_s:.1f} ms a second",
            right and found.cpu_s < BAR_S,
            COMMAND,
        )
    ]


def _begun(writer: subprocess.Popen[str]) -> float:
    """Wait until every node has written; what one spends on that, in s."""
    if writer.stdout is None or not writer.stdout.readline():
        raise JobError("the writers ended before their first round")
    return float(writer.stdout.readline())


def _watched(run: Path) -> Watched:
    watcher = subprocess.Popen(
        [sys.executable, "-m", "evenstep", "watch", str(run), "--json"],
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        moments, cpu, picture = [], [], ""
        started = time.monotonic()
        while len(moments) < FIRST_LOOKS + LOOKS:
            picture = watcher.stdout.readline() if watcher.stdout else ""
            if not picture or time.monotonic() - started > PATIENCE_S:
                raise JobError("evenstep watch ended, or took too long")
            moments.append(time.monotonic())
            cpu.append(_cpu_s(watcher.pid))
    finally:
        watcher.kill()
        watcher.communicate()
    told = json.loads(picture)
    between = [later - earlier for earlier, later in pairwise(moments[FIRST_LOOKS:])]
    late = [finding["ranks"] for finding in told["findings"] if finding["mode"] == "straggler"]
    spent = (cpu[-1] - cpu[FIRST_LOOKS]) / (LOOKS - 1)
    return Watched(spent, max(between), int(told["ranks_seen"]), late[0] if late else [])


def _cpu_s(pid: int) -> float:
    """Processor time of a process so far (proc(5), stat, fields 14 and 15)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
