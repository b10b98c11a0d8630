"""`evenstep diagnose`: who was waited for, how much, why, and what to do."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evenstep.cli import diagnosed, engine, files, runs
from evenstep.cli.arguments import price, severity
from evenstep.cli.terminal import say
from evenstep.errors import UsageError
from evenstep.importers.opening import sort_out
from evenstep.trace.spool.folder import RUNS, RunFolder

if TYPE_CHECKING:
    from evenstep.diagnose.finding import Diagnosis
    from evenstep.trace.trace import Trace

HELP = """Say who a run was waiting for, how much, why, and what to do about it.

Without a TRACE the latest run in ./evenstep-runs is opened; a folder of runs is listed. Fifteen
lines; --verbose prints everything, --html FILE draws it.

A TRACE is a run's folder, one of its attempts or a spool, or what another tool has written: a
Kineto trace, a flight recorder dump, an Nsight Systems export, an operation table, a log of the
NCCL Inspector; one file per rank or a folder of them, also compressed, told apart by content.
Files of one format are one trace, folders are one trace each, and so are spools of one attempt;
several traces are diagnosed one by one, runs of different sizes also together, and --json prints a
list. Logs of nccl-tests or with NCCL_DEBUG=INFO beside a trace say what its fabric can do. The exit
code is 1 where a finding's severity (its share of the step time) is above --fail-above. --workers
and --engine ray diagnose several traces at once; one trace is never divided."""

THRESHOLD = 0.05


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `evenstep diagnose`."""
    parser.add_argument("traces", metavar="TRACE", nargs="*", type=Path)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print the diagnosis as JSON")
    form.add_argument("--verbose", "-v", action="store_true", help="print all that is known")
    form.add_argument("--markdown", action="store_true", help="print it for a chat or an issue")
    parser.add_argument("--html", metavar="FILE", type=Path, help="write a page as well")
    parser.add_argument("--force", action="store_true", help="overwrite FILE")
    parser.add_argument(
        "--anonymise", action="store_true",
        help="hosts become node-0, node-1 …, paths and users are left out: to be shown around",
    )  # fmt: skip
    parser.add_argument(
        "--fail-above", metavar="SHARE", type=severity, default=THRESHOLD,
        help="exit with 1 above this severity, 0.05 unless given",
    )  # fmt: skip
    parser.add_argument(
        "--floors", metavar="FILE", type=Path, action="append", default=[],
        help="what evenstep probe or nccl-tests measured on these nodes, to hold the trace against",
    )  # fmt: skip
    parser.add_argument(
        "--price-per-rank-hour", metavar="MONEY", type=price,
        help="tell what is lost, to waiting or to restarts, in this money too",
    )  # fmt: skip
    parser.add_argument(
        "--what-if", metavar="SPEC", action="append", default=[],
        help="say what a change would give back: rank:3=median, op:all_reduce=floor, gc=off …; "
        "several are answered one by one and together",
    )  # fmt: skip
    engine.add_arguments(parser, workers="1; each diagnoses a trace of its own")


def main(args: argparse.Namespace) -> int:
    """Diagnose every trace and say so in the form asked for."""
    from evenstep.diagnose.what_if_spec import parse

    for text in args.what_if:
        parse(text)  # what is misunderstood is said before the work is done
    if not args.traces:
        args.traces = [_latest()]
    elif _is_folder_of_runs(args.traces):
        print("\n".join(runs.listed(args.traces[0])))
        return 0
    carrier = engine.chosen(args, workers=1)
    given = sort_out([*args.traces, *args.floors])
    files.check_free(args.html, force=args.force)
    tasks = _tasks(args, len(given.bundles))
    traces: list[Trace] = []
    if len(tasks) > 1 and not engine.is_here(carrier):
        results = sorted(carrier.carried(tasks, diagnosed.carried_out), key=lambda one: one.number)
    else:
        opened = list(diagnosed.opened_with_progress(given, tasks[0]))
        results = [
            diagnosed.diagnose_task(one, task) for one, task in zip(opened, tasks, strict=True)
        ]
        traces = [trace for trace, _ in opened]
    joint = len({one.world for one in results}) > 1
    if joint:
        traces = traces or [trace for trace, _ in diagnosed.opened_with_progress(given, tasks[0])]
        pairs = [(trace, one.diagnosis) for trace, one in zip(traces, results, strict=True)]
        largest, together = diagnosed.diagnose_sizes(pairs)
        shown = diagnosed.render(together, largest, tasks[0])
        results.append(diagnosed.DiagnosedTrace(len(results), largest.world, together, shown))
        traces.append(largest)
    one_page = len(results) == 1 or joint
    if args.html is not None and one_page:  # before anything is printed: its reader may leave early
        _write_page(args, traces[-1], results[-1].diagnosis)
    parts = [one.shown for one in results]
    if args.json:
        print(json.dumps(parts[0] if len(parts) == 1 else parts, indent=2, allow_nan=False))
    else:
        print("\n\n".join(parts))
    if args.html is not None:
        if not one_page:
            raise UsageError("--html writes one page: give one trace, or runs of different sizes")
        print(f"Wrote {args.html}", file=sys.stderr)
    return int(worst(one.diagnosis for one in results) > args.fail_above)


def _is_folder_of_runs(traces: Sequence[Path]) -> bool:
    return len(traces) == 1 and not RunFolder(traces[0]).exists() and bool(runs.inside(traces[0]))


def _latest() -> Path:
    """The run to open where none was named. Raises `UsageError` where there is none."""
    found = runs.latest()
    if found is None:
        raise UsageError(
            f"there is no run in ./{RUNS}: name a trace, or record one with "
            "`evenstep run -- COMMAND`"
        )
    say(f"the latest run: {found}")
    return found


def _tasks(args: argparse.Namespace, number: int) -> list[diagnosed.DiagnosisTask]:
    """A task for each of so many traces."""
    paths, folder, specs = (*args.traces, *args.floors), Path.cwd(), tuple(args.what_if)
    forms = (("json", args.json), ("verbose", args.verbose), ("markdown", args.markdown))
    form = next((name for name, asked in forms if asked), "brief")
    return [
        diagnosed.DiagnosisTask(
            paths, folder, each, args.price_per_rank_hour, specs, form, args.anonymise
        )
        for each in range(number)
    ]


def _write_page(args: argparse.Namespace, trace: Trace, diagnosis: Diagnosis) -> None:
    from evenstep.diagnose.what_if.what_if import answers
    from evenstep.report.page.html import write

    write(
        diagnosis, trace, args.html, force=args.force,
        answers=answers(trace, args.what_if), price_per_rank_hour=args.price_per_rank_hour,
    )  # fmt: skip


def worst(diagnoses: Iterable[Any]) -> float:
    """The highest severity of any finding; 1 where something ended the job."""
    from evenstep.diagnose.finding import TERMINAL

    found = [finding for item in diagnoses for finding in item.findings]
    costs = (1.0 if each.mode in TERMINAL else each.severity or 0.0 for each in found)
    return max(costs, default=0.0)
