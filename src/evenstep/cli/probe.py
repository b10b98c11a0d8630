"""`evenstep probe`: what ranks and links can do, measured before a job starts."""

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

HELP = """Measure for about a minute what each rank and each link can do, and name those that are
slower than the noise allows: matrix products and memory on every rank, all-reduces by size, and
pairs of nodes (of ranks, on one node) in a round-robin tournament.

Start it on all ranks as the job will be (torchrun --no-python … evenstep probe, srun evenstep
probe, mpiexec evenstep probe), or let it start ranks here with --nproc. --floors writes what
`evenstep diagnose` holds a trace against, --scenario a machine for `evenstep simulate`. The exit
code is 1 where somebody is slow or did not come."""

_SECONDS, _TIMEOUT_S = 60.0, 60.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `evenstep probe`."""
    add = parser.add_argument
    add("--nproc", metavar="N", type=whole(1024), help="start N ranks on this machine")
    add(
        "--seconds",
        metavar="S",
        type=seconds(0.1, 86_400),
        default=_SECONDS,
        help="to measure for, 60",
    )
    add("--timeout", metavar="S", type=seconds(0.1, 86_400), default=_TIMEOUT_S,
        help="to wait for ranks that do not come or fall silent, 60")  # fmt: skip
    add(
        "--device", choices=("auto", "cpu", "cuda"), default="auto", help="GPUs where there are any"
    )
    add("--backend", choices=("auto", "gloo", "nccl"), default="auto",
        help="nccl on GPUs, gloo elsewhere")  # fmt: skip
    add_json(parser, "everything")
    add_files(parser, floors="write what the fabric reaches", scenario="write it as a scenario")
    add("--part", action="store_true", help=argparse.SUPPRESS)  # of --nproc


def main(args: argparse.Namespace) -> int:
    """Measure, and on the rank that gathers say what came of it."""
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
        os._exit(code)  # a thread may be held in a collective that never ends
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
    """Where it stands, for who is looking; nothing in a pipe."""
    if sys.stderr.isatty():
        say(text)
