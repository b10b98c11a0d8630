"""`evenstep diagnose`: who was waited for, how much, why, and what to do."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from evenstep.cli import files, progress, traces
from evenstep.cli.arguments import add_engine, add_files, add_json, engine_of, price, severity
from evenstep.cli.terminal import print_json, say, tell_written
from evenstep.errors import UsageError
from evenstep.importers.opening import EXPECTED, Bundle, InputPaths, is_run, open_bundle, sort_out
from evenstep.trace.spool.folder import RUNS

if TYPE_CHECKING:
    from evenstep.diagnose.finding import Diagnosis
    from evenstep.export.anonymise import Scrubber
    from evenstep.trace.trace import Trace

    Opened = tuple[Trace, Scrubber | None]  # and what hides names in what is said of it

HELP = f"""Say who a run was waiting for, how much, why, and what to do about it.

Without a TRACE the latest run in ./evenstep-runs is opened; a folder of runs is listed. Fifteen
lines; --verbose prints everything, --html FILE draws it.

A TRACE is {EXPECTED}; one file per rank or a folder of them, also compressed, told apart by
content. Files of one format are one trace, folders are one trace each, and so are spools of one
attempt; several traces are diagnosed one by one, runs of different sizes also together, and --json
prints a list. Logs of nccl-tests or with NCCL_DEBUG=INFO beside a trace say what its fabric can do.

The exit code is 1 where a finding's severity (its share of the step time) is above --fail-above.
--workers and --engine ray diagnose several traces at once; one trace is never divided."""

THRESHOLD = 0.05


class DiagnosisTask(NamedTuple):
    """A trace to diagnose, as a worker is told: which one of those that were given."""

    paths: tuple[Path, ...]
    folder: Path  # that relative ones begin at
    number: int
    price_per_rank_hour: float | None
    what_if: tuple[str, ...]
    form: str  # brief, verbose, markdown or json
    anonymise: bool


class DiagnosedTrace(NamedTuple):
    """What a trace's diagnosis is and how it is shown. `shown` is an object, or text."""

    number: int
    world: int
    diagnosis: Diagnosis
    shown: Any


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `evenstep diagnose`."""
    add = parser.add_argument
    add("traces", metavar="TRACE", nargs="*", type=Path)
    form = parser.add_mutually_exclusive_group()
    add_json(form, "the diagnosis")
    form.add_argument("--verbose", "-v", action="store_true", help="print all that is known")
    form.add_argument("--markdown", action="store_true", help="print it for a chat or an issue")
    add_files(parser, html="write a page as well")
    add(
        "--anonymise", action="store_true",
        help="hosts become node-0, node-1 …, paths and users are left out: to be shown around",
    )  # fmt: skip
    add("--fail-above", metavar="SHARE", type=severity, default=THRESHOLD,
        help="exit with 1 above this severity, 0.05 unless given")  # fmt: skip
    add(
        "--floors", metavar="FILE", type=Path, action="append", default=[],
        help="what evenstep probe or nccl-tests measured on these nodes, to hold the trace against",
    )  # fmt: skip
    add("--price-per-rank-hour", metavar="MONEY", type=price,
        help="tell what is lost, to waiting or to restarts, in this money too")  # fmt: skip
    add("--what-if", metavar="SPEC", action="append", default=[],
        help="say what a change would give back: rank:3=median, op:all_reduce=floor, gc=off …; "
        "several are answered one by one and together")  # fmt: skip
    add_engine(parser, workers="1; each diagnoses a trace of its own")


def main(args: argparse.Namespace) -> int:
    """Diagnose every trace and say so in the form asked for."""
    from evenstep.diagnose.what_if.spec import parse
    from evenstep.workers.engines import Local

    for text in args.what_if:
        parse(text)  # what is misunderstood is said before the work is done
    if len(args.traces) < 2 and (listed := _run_meant(args)):
        print("\n".join(listed))
        return 0
    carrier = engine_of(args, workers=1)
    given = sort_out([*args.traces, *args.floors])
    files.check_free(args.html, force=args.force)
    tasks = _tasks(args, len(given.bundles))
    read: list[Trace] = []
    if len(tasks) > 1 and not (isinstance(carrier, Local) and carrier.workers == 1):
        results = sorted(carrier.carried(tasks, carried_out), key=lambda one: one.number)
    else:
        opened = list(_opened_with_progress(given, tasks[0]))
        results = [diagnose_task(one, task) for one, task in zip(opened, tasks, strict=True)]
        read = [trace for trace, _ in opened]
    if joint := len({one.world for one in results}) > 1:
        read = read or [trace for trace, _ in _opened_with_progress(given, tasks[0])]
        together = _diagnose_sizes(read, results, tasks[0])
        read.append(max(read, key=lambda trace: trace.world))
        results.append(together)
    one_page = len(results) == 1 or joint
    if args.html is not None and one_page:  # before anything is printed: its reader may leave early
        _write_page(args, read[-1], results[-1].diagnosis)
    parts = [one.shown for one in results]
    if args.json:
        print_json(parts[0] if len(parts) == 1 else parts)
    else:
        print("\n\n".join(parts))
    if args.html is not None:
        if not one_page:
            raise UsageError("--html writes one page: give one trace, or runs of different sizes")
        tell_written(args.html)
    return int(worst(one.diagnosis for one in results) > args.fail_above)


def _run_meant(args: argparse.Namespace) -> list[str]:
    """Put the run that was meant into `args.traces`; of a folder of runs, the lines that list it.

    Raises `UsageError` where there is none, or a list is no answer to what was asked for.
    """
    place = args.traces[0] if args.traces else Path()
    if args.traces and (is_run(place) or not place.is_dir()):
        return []
    if args.traces and (held := traces.inside(place)):
        if args.json or args.markdown or args.html is not None:
            raise UsageError(f"{place} holds {len(held)} runs; name one of them, as {held[0]}")
        return list(traces.listed(place))
    found = traces.latest(place)
    if found is not None:
        say(f"the latest run: {found}")
        args.traces = [found]
    elif not args.traces:
        raise UsageError(
            f"there is no run in ./{RUNS}: name a trace, or record one with "
            "`evenstep run -- COMMAND`"
        )
    return []


def _tasks(args: argparse.Namespace, number: int) -> list[DiagnosisTask]:
    """A task for each of so many traces."""
    form = next((name for name in ("json", "verbose", "markdown") if getattr(args, name)), "brief")
    first = DiagnosisTask(
        (*args.traces, *args.floors), Path.cwd(), 0, args.price_per_rank_hour,
        tuple(args.what_if), form, args.anonymise,
    )  # fmt: skip
    return [first._replace(number=each) for each in range(number)]


# -- one trace, here or by a worker ----------------------------------------------------------------


def carried_out(task: DiagnosisTask) -> DiagnosedTrace:
    """Read and diagnose one trace, quietly."""
    given = sort_out([task.folder / path for path in task.paths])
    return diagnose_task(_opened(given, given.bundles[task.number], task), task)


def diagnose_task(opened: Opened, task: DiagnosisTask) -> DiagnosedTrace:
    """Diagnose a trace."""
    trace, scrub = opened
    diagnosis = traces.judge(trace)
    if scrub is not None:
        diagnosis = scrub.value(diagnosis)
    return DiagnosedTrace(task.number, trace.world, diagnosis, _rendered(diagnosis, trace, task))


def _opened(
    given: InputPaths,
    bundle: Bundle,
    task: DiagnosisTask,
    report: Callable[[str, int, int], None] | None = None,
) -> Opened:
    """One of the given traces, with what its run's other attempts say."""
    from evenstep.diagnose.measure.attempts import with_attempts

    trace = open_bundle(bundle, given, progress=report)
    trace = with_attempts(trace, bundle.path, price_per_rank_hour=task.price_per_rank_hour)
    if not task.anonymise:
        return trace, None
    from evenstep.export.anonymise import anonymised

    return anonymised(trace, task.paths)


def _opened_with_progress(given: InputPaths, task: DiagnosisTask) -> Iterable[Opened]:
    """All given traces, one after the other."""
    for bundle in given.bundles:
        if bundle.format is None:  # our own: columns that are mapped, no stream with a position
            with progress.ticking(f"reading {bundle.path}"):
                found = _opened(given, bundle, task)
        else:
            size = sum(source.path.stat().st_size for source in bundle.sources)
            with progress.reading_progress(size) as report:
                found = _opened(given, bundle, task, report)
        yield found


def _rendered(diagnosis: Diagnosis, trace: Trace, task: DiagnosisTask) -> Any:
    """What is printed of a diagnosis and its what-ifs: an object for JSON, or text."""
    from evenstep.diagnose.what_if.what_if import added, answers

    if task.form == "json":
        return added(diagnosis.to_json(), trace, task.what_if)
    from evenstep.report import markdown
    from evenstep.report.terminal import brief, terminal

    render = {"verbose": terminal.render, "markdown": markdown.render}.get(task.form, brief.render)
    parts = (render(diagnosis), terminal.render_answers(answers(trace, task.what_if)))
    return "\n\n".join(text.rstrip() for text in parts if text)


def _diagnose_sizes(
    read: Sequence[Trace], results: Sequence[DiagnosedTrace], task: DiagnosisTask
) -> DiagnosedTrace:
    """What runs of different sizes say together, shown with the largest of them."""
    from evenstep.diagnose.modes.scaling_collapse import diagnose_together

    pairs = [(trace, one.diagnosis) for trace, one in zip(read, results, strict=True)]
    largest, together = max(read, key=lambda trace: trace.world), diagnose_together(pairs)
    shown = _rendered(together, largest, task)
    return DiagnosedTrace(len(results), largest.world, together, shown)


def _write_page(args: argparse.Namespace, trace: Trace, diagnosis: Diagnosis) -> None:
    from evenstep.diagnose.what_if.what_if import answers
    from evenstep.report.page.html import write

    price, asked = args.price_per_rank_hour, answers(trace, args.what_if)
    more = {"answers": asked, "price_per_rank_hour": price}
    write(diagnosis, trace, args.html, force=args.force, **more)


def worst(diagnoses: Iterable[Any]) -> float:
    """The highest severity of any finding; 1 where something ended the job."""
    from evenstep.diagnose.finding import TERMINAL

    found = [finding for item in diagnoses for finding in item.findings]
    costs = (1.0 if each.mode in TERMINAL else each.severity or 0.0 for each in found)
    return max(costs, default=0.0)
