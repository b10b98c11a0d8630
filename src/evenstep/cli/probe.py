"""`evenstep probe`: measure the speed of ranks and links before a job starts."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from evenstep.cli import files
from evenstep.cli.arguments import add_files, add_json, seconds, whole
from evenstep.cli.terminal import say, show
from evenstep.errors import TraceError

if TYPE_CHECKING:
    from evenstep.probe.outcome import ProbeResult
    from evenstep.probe.preflight import Ended
    from evenstep.probe.rank import ProbePlan

HELP = """Measure the speed of every rank and link for about a minute and name those that are slower
than noise explains: matrix products and memory on every rank, all-reduces of several sizes, and
pairs of nodes (on one node: of ranks) in a round-robin schedule.

Start it on all ranks as the job will be (torchrun --no-python … evenstep probe, srun evenstep
probe, mpiexec evenstep probe), or start ranks on this machine with --nproc. --floors writes the
speeds that `evenstep diagnose --floors` compares a trace with, --scenario a cluster for `evenstep
simulate`. The exit code is 1 if a rank or link is slow or a rank is missing."""

_SECONDS, _TIMEOUT_S = 60.0, 60.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--nproc", metavar="N", type=whole(1024), help="start N ranks on this machine")
    add("--seconds", metavar="S", type=seconds(0.1, 86_400), default=_SECONDS,
        help="duration of the measurement (60)")  # fmt: skip
    add("--timeout", metavar="S", type=seconds(0.1, 86_400), default=_TIMEOUT_S,
        help="time to wait for missing or silent ranks (60)")  # fmt: skip
    devices, backends = ("auto", "cpu", "cuda"), ("auto", "gloo", "nccl")
    add("--device", choices=devices, default="auto", help="auto: GPUs if there are any")
    add("--backend", choices=backends, default="auto", help="auto: nccl on GPUs, else gloo")
    add_json(parser, "all measurements")
    add_files(parser, floors="write the measured speeds", scenario="write a cluster scenario")
    add("--part", action="store_true", help=argparse.SUPPRESS)  # of --nproc


def main(args: argparse.Namespace) -> int:
    from evenstep.probe.rank import ProbePlan

    files.check_free(args.floors, args.scenario, force=args.force)
    plan = ProbePlan(args.seconds, args.timeout, args.device, args.backend)
    ended = _run(args, plan)
    code = _reported(ended.outcome, args) if ended.outcome is not None else 0
    if ended.signal:
        code = 128 + ended.signal
    if args.nproc is None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # a thread may hang in a collective
    return code


def _run(args: argparse.Namespace, plan: ProbePlan) -> Ended:
    from evenstep.probe import preflight

    if args.nproc is None:
        return preflight.as_rank(plan, os.environ, _progress, reports=not args.part)
    command = [sys.executable, "-m", "evenstep", "probe", "--part"]
    command += ["--seconds", str(args.seconds), "--timeout", str(args.timeout)]
    command += ["--device", args.device, "--backend", args.backend]
    return preflight.with_ranks(args.nproc, plan, command, os.environ, _progress)


def _reported(outcome: ProbeResult, args: argparse.Namespace) -> int:
    from evenstep.probe.document import document, floors, render
    from evenstep.probe.findings import judge
    from evenstep.probe.scenario import to_toml

    judged = judge(outcome)
    found = document(outcome, judged, seconds=args.seconds)
    show(found, lambda: render(found), as_json=args.json)
    wanted: dict[Path | None, Callable[[], str]] = {
        args.floors: lambda: json.dumps(floors(outcome), indent=2, allow_nan=False) + "\n",
        args.scenario: lambda: to_toml(outcome, judged),
    }
    for path, text in wanted.items():
        if path is not None:
            try:
                files.write(path, text())
            except TraceError as error:
                say(f"{path} was not written: {error}")
    return int(bool(judged.findings))


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        say(text)
