"""Are steps and culprit right where nothing, or something unusual, marks the steps?

Real jobs on gloo, each diagnosed as a user would; the last rank is late in every step.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from benchmarks.jobs.unmarked import LOOPS, STEPS
from benchmarks.measure import Row
from benchmarks.ranks import JobError, environment, free_port

JOB = "benchmarks.jobs.unmarked"
COMMAND = "python -m benchmarks unmarked"
SLACK_STEPS = 4  # the first are set aside, and the end may look like one


class Diagnosed(NamedTuple):
    """What was said of a job."""

    steps: int
    mode: str
    ranks: list[int]

    def right(self, world: int) -> bool:
        """Whether the steps are those of the loop, and the last rank alone is named first."""
        return abs(self.steps - STEPS) <= SLACK_STEPS and self.ranks == [world - 1]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark."""
    parser.add_argument("--worlds", type=int, nargs="*", default=[2, 4])
    parser.add_argument("--loops", nargs="*", choices=LOOPS, default=list(LOOPS))


def run(args: argparse.Namespace) -> list[Row]:
    """A row of each loop."""
    rows = []
    for loop in args.loops:
        found = {world: diagnosed(loop, world) for world in args.worlds}
        said = "; ".join(
            f"{world} ranks: {one.steps} steps, {one.mode} {one.ranks}"
            for world, one in found.items()
        )
        right = all(one.right(world) for world, one in found.items())
        what = f"{loop}: {STEPS} steps, the last rank late in each"
        rows.append(Row(what, "steps and culprit right", said, right, COMMAND))
    return rows


def diagnosed(loop: str, world: int) -> Diagnosed:
    """Run a job and diagnose it. Raises `JobError`."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as name:
        folder = Path(name) / "run"
        evenstep = [sys.executable, "-m", "evenstep"]
        job = [
            *evenstep, "run", "--out", str(folder), "--",
            sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(world),
            "--master-port", str(free_port()), "-m", JOB, loop,
        ]  # fmt: skip
        for command in (job, [*evenstep, "diagnose", str(folder), "--json"]):
            done = subprocess.run(
                command, env=environment(EVENSTEP_VERDICT="0"), capture_output=True, text=True,
                timeout=300, check=False,
            )  # fmt: skip
            if done.returncode not in (0, 1):
                raise JobError(done.stderr[-2000:])
        report = json.loads(done.stdout)
        first = (report["findings"] or [{"mode": "nothing", "where": {"ranks": []}}])[0]
        return Diagnosed(report["summary"]["steps"], first["mode"], first["where"]["ranks"])
