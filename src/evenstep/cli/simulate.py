"""`evenstep simulate`: run a scenario and report its step time and throughput."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from evenstep.cli import files, progress, traces
from evenstep.cli.terminal import say, show, tell_written
from evenstep.errors import UsageError
from evenstep.report.terminal.simulation import off_by, render
from evenstep.scenario import scenario
from evenstep.scenario.scenario import Scenario
from evenstep.simulate import simulation
from evenstep.simulate.result import Result, without_effect
from evenstep.trace.spool.folder import RunFolder


def main(args: argparse.Namespace) -> int:
    if args.scenario is None:
        raise UsageError("give a SCENARIO file, or list the fields of one with --fields")
    asked = scenario.load(args.scenario, args.set)
    files.check_free(args.html, force=args.force)
    with _folder(args) as folder:
        with scenario.named(args.scenario):
            result = _simulate(asked, args, folder)
        if args.html is not None and folder is not None:
            _draw(args, result, folder)
    from evenstep.reproduce.published.table import estimate

    error = estimate(asked)
    document = result.to_json() | {"error_estimate": error and asdict(error)}
    show(document, lambda: render(result) + off_by(error), as_json=args.json)
    for written in filter(None, (args.html, args.out)):
        tell_written(written)
    return progress.INTERRUPTED if result.partial else 0


@contextmanager
def _folder(args: argparse.Namespace) -> Iterator[Path | None]:
    """Yield the folder of the trace: RUN, a scratch folder if only a page is written, or None."""
    if args.out is not None or args.html is None:
        yield args.out
        return
    with tempfile.TemporaryDirectory(prefix="evenstep-simulate-") as scratch:
        yield Path(scratch) / "run"


def _draw(args: argparse.Namespace, result: Result, folder: Path) -> None:
    """Write the report page of the simulated trace, with the load of the simulated links."""
    from evenstep.report.page import html, sheet

    (trace, read_s), mapped = traces.read_timed(folder), result.fabric_map()
    shown = sheet.Chart({"links": mapped.bundles}, mapped.facts())
    page = html.render(
        traces.judge(trace, read_s), trace, links=result.to_json()["links"], link_map=shown
    )
    sheet.write(args.html, page)


def _simulate(asked: Scenario, args: argparse.Namespace, folder: Path | None) -> Result:
    setup = simulation.set_up(asked)
    for sentence in without_effect(asked, setup.flows):
        say(sentence)
    _, seconds = simulation.estimate_run(setup)
    progress.announce(f"{asked.run.steps:,} steps to simulate", seconds)
    if folder is not None:
        files.check_folder(folder)
        if RunFolder(folder).exists() and not args.force:
            raise UsageError(f"{folder} already holds a run; choose another or give --force")
        RunFolder(folder).clear()
    with progress.counting("simulated {} of {} steps") as report:
        if folder is None:
            return simulation.simulate(asked, progress=report)
        try:
            return simulation.simulate_to(folder, asked, progress=report)
        except OSError as error:
            RunFolder(folder).remove()
            raise UsageError(f"cannot write {folder}: {error.strerror}; name another") from error
