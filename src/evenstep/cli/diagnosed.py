"""One trace diagnosed, here or by a worker: what is printed of it, ready to be printed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from evenstep.cli import progress
from evenstep.importers.opening import Bundle, InputPaths, open_bundle, sort_out

if TYPE_CHECKING:
    from evenstep.diagnose.finding import Diagnosis
    from evenstep.export.anonymise import Scrubber
    from evenstep.trace.trace import Trace

    Opened = tuple[Trace, Scrubber | None]  # and what hides names in what is said of it


RECORDS_A_SECOND = 700_000  # one core, 640,000 to 910,000 in runs of 128 and 1,024 ranks


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


def carried_out(task: DiagnosisTask) -> DiagnosedTrace:
    """Read and diagnose one trace, quietly."""
    given = sort_out([task.folder / path for path in task.paths])
    return diagnose_task(open_given(given, given.bundles[task.number], task), task)


def diagnose_task(opened: Opened, task: DiagnosisTask) -> DiagnosedTrace:
    """Diagnose a trace."""
    from evenstep.diagnose.engine import diagnose

    trace, scrub = opened
    about_s = len(trace.events) / RECORDS_A_SECOND
    with progress.ticking(f"diagnosing {trace.world:,} ranks", about_s):
        diagnosis = diagnose(trace)
    if scrub is not None:
        diagnosis = scrub.value(diagnosis)
    return DiagnosedTrace(task.number, trace.world, diagnosis, render(diagnosis, trace, task))


def open_given(
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


def opened_with_progress(given: InputPaths, task: DiagnosisTask) -> Iterable[Opened]:
    """All given traces, one after the other, with a bar for those that take long."""
    for bundle in given.bundles:
        size = sum(source.path.stat().st_size for source in bundle.sources)
        with progress.reading_progress(size) as report:
            found = open_given(given, bundle, task, report)
        yield found


def render(diagnosis: Diagnosis, trace: Trace, task: DiagnosisTask) -> Any:
    """What is printed of a diagnosis and its what-ifs: an object for JSON, or text."""
    from evenstep.diagnose.what_if.what_if import added, answers

    if task.form == "json":
        return added(diagnosis.to_json(), trace, task.what_if)
    from evenstep.report import markdown
    from evenstep.report.terminal import brief, terminal
    from evenstep.report.terminal.what_if import render as render_answers

    render = {"verbose": terminal.render, "markdown": markdown.render}.get(task.form, brief.render)
    parts = (render(diagnosis), render_answers(answers(trace, task.what_if)))
    return "\n\n".join(text.rstrip() for text in parts if text)


def diagnose_sizes(runs: Sequence[tuple[Trace, Diagnosis]]) -> tuple[Trace, Diagnosis]:
    """What runs of different sizes say together, with the largest of them."""
    from evenstep.diagnose.modes.several import diagnose_together

    largest = max((trace for trace, _ in runs), key=lambda trace: trace.world)
    return largest, diagnose_together(runs)
