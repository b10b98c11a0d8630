"""`evenstep probe`: measure the speed of ranks and links before a job starts."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

from evenstep.cli import files
from evenstep.cli.terminal import say, show
from evenstep.errors import TraceError
from evenstep.probe import preflight
from evenstep.probe.document import document, floors, render
from evenstep.probe.findings import Judgement, judge
from evenstep.probe.outcome import ProbeResult
from evenstep.probe.preflight import Ended, ProbePlan


def main(args: argparse.Namespace) -> int:
    files.check_free(args.floors, args.scenario, force=args.force)
    plan = ProbePlan(args.seconds, args.timeout, args.device, args.backend)
    ended = _run(args, plan)
    code = _report(ended.outcome, args) if ended.outcome is not None else 0
    if ended.signal:
        code = 128 + ended.signal
    if args.nproc is None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # a thread may hang in a collective
    return code


def _run(args: argparse.Namespace, plan: ProbePlan) -> Ended:
    if args.nproc is None:
        return preflight.as_rank(plan, os.environ, _progress, reports=not args.part)
    command = [sys.executable, "-m", "evenstep", "probe", "--part"]
    command += ["--seconds", str(args.seconds), "--timeout", str(args.timeout)]
    command += ["--device", args.device, "--backend", args.backend]
    return preflight.with_ranks(args.nproc, plan, command, os.environ, _progress)


def _report(outcome: ProbeResult, args: argparse.Namespace) -> int:
    judged = judge(outcome)
    found = document(outcome, judged, seconds=args.seconds)
    show(found, lambda: render(found), as_json=args.json)
    wanted: dict[Path | None, Callable[[], str]] = {
        args.floors: lambda: json.dumps(floors(outcome), indent=2, allow_nan=False) + "\n",
        args.scenario: lambda: _scenario(outcome, judged),
    }
    for path, text in wanted.items():
        if path is not None:
            try:
                files.write(path, text())
            except TraceError as error:
                say(f"{path} was not written: {error}")
    return int(bool(judged.findings))


def _scenario(outcome: ProbeResult, judged: Judgement) -> str:
    from evenstep.probe.scenario import to_toml

    return to_toml(outcome, judged)


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        say(text)
