"""What one device can show: the cost of observing it, its stamps beside Kineto's, and known waits.

Where there is no device the row says so. Several ranks share the device: see `jobs/device_job.py`.
"""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import evenstep
from benchmarks.measure import Row, paired_ratio
from benchmarks.ranks import JobError, run_ranks

JOB, WAITS_JOB = "benchmarks.jobs.device_steps", "benchmarks.jobs.device_job"
COMMAND = "python -m benchmarks gpu"
COST_BAR, STAMP_BAR_US, WAIT_BAR = 1.003, 20.0, 0.1
COST = "step of about 20 ms on one device, with evenstep ÷ without"
STAMPS = "ends of collectives on the device beside Kineto's, 95 % of them"
LATE_MS = 20.0
JOB_LIMIT_S = 60.0
BY_KINETO = "by Kineto"


class Known(NamedTuple):
    """A job on one device, and where its last rank loses `LATE_MS` a step."""

    way: str
    backend: str
    world: int
    where: str  # "stream" or "loader"
    profiled: bool = False  # its Kineto profile is diagnosed, too

    def named(self) -> str:
        """The row's name."""
        return f"{self.way} on {self.world} ranks, {self.backend}: the last one's {self.where} late"


KNOWN = (
    Known("ddp", "nccl", 2, "stream", profiled=True),
    Known("ddp", "nccl", 2, "loader", profiled=True),
    Known("fsdp", "nccl", 2, "stream", profiled=True),
    Known("pipeline", "nccl", 2, "stream", profiled=True),
    Known("ring", "nccl", 3, "stream", profiled=True),
    Known("ddp", "gloo", 2, "stream"),
    Known("ddp", "gloo", 4, "stream"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark."""
    parser.add_argument("--blocks", type=int, default=20, help="pairs of blocks of fifty steps")
    parser.add_argument("--python", default=sys.executable, help="interpreter with another torch")
    parser.add_argument("--only", choices=("cost", "waits"), help="one half")
    parser.add_argument("--keep", type=Path, help="keep the recorded runs in this folder")


def run(args: argparse.Namespace) -> Iterator[Row]:
    """Cost, stamps and known waits; one row with the reason where there is no device."""
    reason = unusable(args.python)
    if reason:
        yield Row("what one device can show", "", f"skipped: {reason}", None, COMMAND)
        return
    if args.only != "waits":
        yield from costs(args)
    if args.only != "cost":
        with tempfile.TemporaryDirectory(prefix="benchmark-") as scratch:
            for known in KNOWN:
                yield from waits(known, args.keep or Path(scratch), args.python)


def costs(args: argparse.Namespace) -> list[Row]:
    """Steps with and without evenstep."""
    found = run_ranks(JOB, "--blocks", str(args.blocks), world=1, python=args.python)
    ratio = paired_ratio(found["on"], found["off"])
    text = f"{ratio.value:.4f} ({ratio.low:.4f} to {ratio.high:.4f}) on {found['device']}"
    return [Row(COST, f"upper end ≤ {COST_BAR}", text, ratio.high <= COST_BAR, COMMAND)]


def stamps(known: Known, run: Path, kineto: Path) -> Row:
    """Ends of collectives, as recorded and as Kineto has NCCL's kernels, of both the last ones.

    The two clocks differ, so intervals between ends are compared.
    """
    events = evenstep.load(run).events
    apart: list[float] = []
    for rank in range(known.world):
        with gzip.open(kineto / f"rank{rank}.json.gz") as file:
            found = json.load(file)["traceEvents"]
        kernels = (each for each in found if each.get("cat") == "kernel")
        theirs = sorted(each["ts"] + each["dur"] for each in kernels if "nccl" in each["name"])
        ours = events.device_exit_ns[(events.rank == rank) & (events.device_exit_ns > 0)] / 1e3
        apart += abs(np.diff(np.sort(ours)[-len(theirs) :]) - np.diff(theirs)).tolist()
    worst = float(np.percentile(apart, 95))
    text = f"{worst:.1f} µs of {len(apart)} intervals"
    what = f"{known.way} on {known.world} ranks: {STAMPS}"
    return Row(what, f"≤ {STAMP_BAR_US:g} µs", text, worst <= STAMP_BAR_US, COMMAND)


def waits(known: Known, folder: Path, python: str) -> list[Row]:
    """What the run and its profiles say of the last rank, beside the steps without its delay."""
    name = f"{known.way}-{known.backend}-{known.world}-{known.where}"
    options = [known.way, "--backend", known.backend]
    late = ["--late-rank", str(known.world - 1), f"--{known.where}-ms", str(LATE_MS)]
    kineto = folder / f"{name}-kineto"
    if known.profiled:
        late += ["--kineto", str(kineto)]
    took = []
    try:
        for run, more in ((f"{name}-none", []), (name, late)):
            place = str(folder / run)
            found = run_ranks(
                WAITS_JOB, *options, *more, "--out", place,
                world=known.world, python=python, timeout_s=JOB_LIMIT_S,
            )  # fmt: skip
            took.append(found["step_ms"])
    except JobError as error:
        return [Row(known.named(), "", f"not measured: {str(error)[-400:]}", None, COMMAND)]
    rows = [judged(known.named(), folder / name, known.world - 1, *took)]
    if known.profiled:
        rows.append(judged(f"{known.named()}, {BY_KINETO}", kineto, known.world - 1, *took))
        if known.way in ("ddp", "fsdp"):
            rows.append(stamps(known, folder / name, kineto))
    return rows


def judged(what: str, path: Path, late_rank: int, without_ms: float, with_ms: float) -> Row:
    """The first finding of a trace beside what the delay really costs."""
    cost_ms = with_ms - without_ms
    diagnosis: Any = evenstep.diagnose(evenstep.load(path))
    bar = f"it is named, its cost within {WAIT_BAR:.0%}"
    text = f"{without_ms:.1f} → {with_ms:.1f} ms a step"
    if not diagnosis.findings:
        return Row(what, bar, f"nothing is found; {text}", False, COMMAND)
    first = diagnosis.findings[0]
    found_ms = first.severity * diagnosis.summary["step_time"]["mean_ns"] / 1e6
    text = f"{first.mode} {list(first.where.ranks)}, {found_ms:.1f} of {cost_ms:.1f} ms; {text}"
    right = list(first.where.ranks) == [late_rank] and abs(found_ms - cost_ms) <= WAIT_BAR * cost_ms
    return Row(what, bar, text, right, COMMAND)


def unusable(python: str) -> str:
    """Why this interpreter's torch cannot use a device; "" where it can."""
    code = "import torch; print(torch.cuda.is_available(), torch.__version__)"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    usable, _, version = done.stdout.strip().partition(" ")
    return "" if usable == "True" else f"torch {version or '?'} sees no CUDA device"
