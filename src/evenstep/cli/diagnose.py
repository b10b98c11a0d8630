"""`evenstep diagnose`: who was waited for, how much, why, and what to do."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from evenstep.cli import files, progress, traces
from evenstep.cli.arguments import engine_of
from evenstep.cli.terminal import print_json, say, tell_written
from evenstep.diagnose.finding import TERMINAL, Diagnosis
from evenstep.diagnose.measure.attempts import with_attempts
from evenstep.diagnose.modes.scaling_collapse import diagnose_together
from evenstep.diagnose.predict.scaling import ScalingPoint, scaling_point
from evenstep.diagnose.predict.what_if import WhatIfGain, answers, parse
from evenstep.errors import UsageError
from evenstep.export.anonymise import Scrubber, anonymise_trace
from evenstep.importers.opening import Bundle, InputPaths, is_run, open_bundle, sort_out
from evenstep.report.terminal import brief, terminal
from evenstep.trace.spool.folder import RUNS
from evenstep.trace.trace import Trace
from evenstep.words import printable, some
from evenstep.workers import Local


class OpenedTrace(NamedTuple):
    """A trace, what hides names in what is said of it, and how long it took to read (s)."""

    trace: Trace
    scrub: Scrubber | None = None
    read_s: float = 0.0


class DiagnosisTask(NamedTuple):
    """One of the given traces, as it is sent to a worker."""

    paths: tuple[Path, ...]
    folder: Path  # base of relative paths
    number: int  # index of the trace among those given
    price_per_rank_hour: float | None
    what_if: tuple[str, ...]
    form: str  # brief, verbose, markdown or json
    anonymise: bool
    alone: bool


class DiagnosedTrace(NamedTuple):
    """The diagnosis of a trace and its output: `shown` is an object for JSON, or text."""

    number: int
    diagnosis: Diagnosis
    point: ScalingPoint | None  # where several traces are given
    answers: Sequence[WhatIfGain]
    shown: Any


def main(args: argparse.Namespace) -> int:
    for text in args.what_if:
        parse(text)  # report a bad --what-if before the work
    if len(args.traces) < 2 and (listed := _default_run(args)):
        print("\n".join(listed))
        return 0
    engine = engine_of(args, workers=1)
    given = sort_out([*args.traces, *args.floors])
    files.check_free(args.html, force=args.force)
    tasks = _tasks(args, len(given.bundles))
    local = isinstance(engine, Local) and engine.workers == 1
    opened: list[OpenedTrace] = []
    if args.html is None and len(tasks) > 1 and not local:
        results = sorted(engine.carried(tasks, diagnose_in_worker), key=lambda one: one.number)
    else:  # a page needs the traces here
        opened += _opened_with_progress(given, tasks[0])
        if args.html is not None and len(opened) > 1 == len({trace.world for trace, *_ in opened}):
            raise UsageError("--html writes one page: give one trace, or runs of different sizes")
        results = [diagnose_task(one, task) for one, task in zip(opened, tasks, strict=True)]
    points = [one.point for one in results if one.point is not None]
    if len({point.ranks for point in points}) > 1:  # together, shown with the largest of them
        together = diagnose_together(points)
        largest = results[max(range(len(points)), key=lambda at: points[at].ranks)]
        shown = _render(together, largest.answers, tasks[0].form)
        results.append(largest._replace(diagnosis=together, shown=shown))
    if args.html is not None:  # before printing: the reader may close the pipe early
        _write_page(args, results[-1], opened[results[-1].number][0])
    _print(args, given.bundles, [one.shown for one in results])
    if args.html is not None:
        tell_written(args.html)
    return int(worst(one.diagnosis for one in results) > args.fail_above)


def _print(args: argparse.Namespace, bundles: Sequence[Bundle], parts: Sequence[Any]) -> None:
    """Print what is shown of each trace; of several below its name, and last of all together."""
    if args.json:
        print_json(parts[0] if len(parts) == 1 else parts)
    elif len(parts) == 1:
        print(parts[0])
    else:
        places = enumerate(bundles, start=1)
        names = [f"{n}." + f" {printable(each.path)}" * (not args.anonymise) for n, each in places]
        names += ["Together"] * (len(parts) - len(names))
        head = "## {}\n\n{}" if args.markdown else "{}\n{}"
        print("\n\n".join(map(head.format, names, parts)))


def _write_page(args: argparse.Namespace, told: DiagnosedTrace, trace: Trace) -> None:
    from evenstep.report.page import html, sheet

    more = {"answers": told.answers, "price_per_rank_hour": args.price_per_rank_hour}
    sheet.write(args.html, html.render(told.diagnosis, trace, **more))


def _default_run(args: argparse.Namespace) -> list[str]:
    """Put the latest run into `args.traces`; of a folder of several, return the lines that list it.
    Raises `UsageError` if there is none, or the format needs a single one."""
    place = args.traces[0] if args.traces else Path()
    if args.traces and (is_run(place) or not place.is_dir()):
        return []
    held = traces.inside(place) if args.traces else []
    if len(held) > 1:
        if args.json or args.markdown or args.html is not None:
            raise UsageError(f"{place} holds {len(held)} runs; name one of them, such as {held[0]}")
        return list(traces.list_runs(place))
    found, later = (held[0], []) if held else traces.latest(place)
    if found is not None:
        say(f"the {'only' if held else 'latest'} run: {found}")
        if later:
            whose = "is later, but has" if len(later) == 1 else "are later, but have"
            say(f"{some(list(map(str, later)))} {whose} no rank's trace that can be read")
        args.traces = [found]
    elif not args.traces:
        raise UsageError(
            f"there is no run in ./{RUNS}: name a trace, or record one with "
            "`evenstep run -- COMMAND`"
        )
    return []


def _tasks(args: argparse.Namespace, number: int) -> list[DiagnosisTask]:
    form = next((name for name in ("json", "verbose", "markdown") if getattr(args, name)), "brief")
    first = DiagnosisTask(
        (*args.traces, *args.floors), Path.cwd(), 0, args.price_per_rank_hour,
        tuple(args.what_if), form, args.anonymise, number == 1,
    )  # fmt: skip
    return [first._replace(number=each) for each in range(number)]


# -- one trace, in this process or a worker --------------------------------------------------------


def diagnose_in_worker(task: DiagnosisTask) -> DiagnosedTrace:
    """Read and diagnose one trace without showing progress."""
    given = sort_out([task.folder / path for path in task.paths])
    return diagnose_task(_open(given, given.bundles[task.number], task), task)


def diagnose_task(opened: OpenedTrace, task: DiagnosisTask) -> DiagnosedTrace:
    trace, scrub, read_s = opened
    diagnosis = traces.judge(trace, read_s)
    if scrub is not None:
        diagnosis = scrub.value(diagnosis)
    asked = answers(trace, task.what_if)
    point = None if task.alone else scaling_point(trace, diagnosis)
    shown = _render(diagnosis, asked, task.form)
    return DiagnosedTrace(task.number, diagnosis, point, asked, shown)


def _open(given: InputPaths, bundle: Bundle, task: DiagnosisTask) -> OpenedTrace:
    """Open one trace, with the facts of its run's other attempts."""
    trace = open_bundle(bundle, given)
    trace = with_attempts(trace, bundle.path, price_per_rank_hour=task.price_per_rank_hour)
    return OpenedTrace(*(anonymise_trace(trace, task.paths) if task.anonymise else (trace,)))


def _opened_with_progress(given: InputPaths, task: DiagnosisTask) -> Iterable[OpenedTrace]:
    for bundle in given.bundles:
        with progress.reading(bundle.path) as passed_s:
            found = _open(given, bundle, task)._replace(read_s=passed_s())
        yield found


def _render(diagnosis: Diagnosis, asked: Sequence[WhatIfGain], form: str) -> Any:
    """Render a diagnosis and answers to what-ifs: an object for JSON, or text."""
    if form == "json":
        told = {"what_if": [one.to_json() for one in asked]} if asked else {}
        return {**diagnosis.to_json(), **told}
    render = {"verbose": terminal.render, "markdown": brief.markdown}.get(form, brief.render)
    parts = (render(diagnosis), terminal.render_answers(asked))
    return "\n\n".join(text.rstrip() for text in parts if text)


def worst(diagnoses: Iterable[Any]) -> float:
    """Return the highest severity of any finding; 1 if a finding ended the job."""
    found = [finding for item in diagnoses for finding in item.findings]
    costs = (1.0 if each.mode in TERMINAL else each.severity or 0.0 for each in found)
    return max(costs, default=0.0)
