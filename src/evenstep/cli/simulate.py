"""`evenstep simulate`: run a scenario and report its step time and throughput."""

from __future__ import annotations

import argparse
import tempfile
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from operator import attrgetter
from pathlib import Path

from evenstep.cli import files, progress, traces
from evenstep.cli.terminal import say, show, tell_written
from evenstep.errors import UsageError
from evenstep.report.terminal.style import DIGITS, exact, precise
from evenstep.reproduce.published.table import ErrorEstimate, estimate
from evenstep.scenario import scenario
from evenstep.scenario.scenario import Scenario
from evenstep.simulate import simulation
from evenstep.simulate.result import CollectiveUse, Result, without_effect
from evenstep.trace.spool.folder import RunFolder
from evenstep.words import plural, size

WIDTH, LABEL = 80, 15  # columns of a line, and of its label
_LOSSES = (
    ("writing", "checkpoints"),
    ("lost", "repeated work"),
    ("restarting", "restarts"),
    ("waiting", "no node"),
    ("slowed", "slow nodes"),
)


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


# -- as text ---------------------------------------------------------------------------------------


def render(result: Result) -> str:
    step, shares = result.step_time, result.shares
    title = result.name or "simulation"
    share = "" if result.mfu is None else f", MFU {exact(result.mfu)}"
    flops = f", {result.tflops_per_gpu:.4g} TFLOP/s a GPU{share}" if result.tflops_per_gpu else ""
    lines = [
        f"{title}: {plural(result.ranks, 'rank')} on {plural(result.nodes, 'node')}, "
        f"{plural(result.steps, 'step')}" + (", interrupted" if result.partial else ""),
        f"  throughput   {result.throughput:.4g} {result.unit}, "
        f"{exact(result.efficiency)} of compute alone{flops}",
        f"  step time    {precise(step.mean_ns)} on average, CV {step.cv:.3f}, "
        f"median {precise(step.p50_ns)}, p99 {precise(step.p99_ns)}",
        f"  time spent   compute {exact(shares.compute)}, "
        f"exposed communication {exact(shares.exposed_communication)}, "
        f"waiting for others {exact(shares.wait)}, input {exact(shares.input)}"
        + (f", pacing {exact(shares.held)}" if shares.held else ""),
    ]
    alike: dict[tuple[object, ...], list[CollectiveUse]] = {}
    for use in result.collectives:
        alike.setdefault((use.operation, use.algorithm, use.bytes, use.size), []).append(use)
    for uses in alike.values():
        use = max(uses, key=attrgetter("alone_ns"))
        least, most = precise(min(one.alone_ns for one in uses)), precise(use.alone_ns)
        alone = most if least == most else f"{least} to {most}"
        bus = f", bus bandwidth {use.busbw_gBps:.4g} GB/s" if use.busbw_gBps is not None else ""
        lines.append(
            f"  {use.operation:12} {size(use.bytes, digits=DIGITS)} among {use.size} ranks by "
            f"{use.algorithm}: {alone} alone{bus}"
        )
    lines += [
        f"  busiest link {link.link}: {exact(link.utilisation)} of {link.capacity_gBps:.4g} GB/s"
        for link in result.links[:3]
    ]
    lines += [*_converges(result), *_uses(result), *_lasts(result)]
    if result.pacing is not None:
        lines.append(f"  pacing       {result.pacing['verdict']}")
    return "".join(map(_fold, lines))


def off_by(error: ErrorEstimate | None) -> str:
    """Render the expected error, from simulations of measured systems."""
    if error is None:
        return "  error        unknown: there is no measured system like this one\n"
    how = "calibrated on other rows" if error.calibrated else "with nothing calibrated"
    return _fold(
        f"  error        {exact(error.median)} (median), {exact(error.worst)} at worst, of "
        f"{error.rows} measured rows of kind {error.kind}, {how}"
    )


def _fold(line: str) -> str:
    """Wrap a line; continuation lines are indented by the label."""
    folded = textwrap.wrap(line, WIDTH, subsequent_indent=" " * LABEL, break_long_words=False)
    return "".join(f"{one}\n" for one in (folded if len(line) > WIDTH else [line]))


def _converges(result: Result) -> Iterator[str]:
    """Describe staleness, local steps and discarded gradients."""
    found = result.convergence
    if found is None:
        return
    if (age := found.staleness) is not None:
        yield (
            f"  staleness    {age.mean:.3g} updates on average, p99 {age.p99:.3g}; largest stable "
            f"step size {found.stable_step_share:.2g} of that of fresh gradients (a quadratic; "
            "says nothing about accuracy)"
        )
    if found.local_steps > 1:
        yield f"  exchange     every {found.local_steps} steps; models differ in between"
    if found.discarded_share:
        yield f"  gradients    {exact(found.discarded_share)} are discarded"


def _uses(result: Result) -> Iterator[str]:
    """Render energy and cost per unit."""
    found = result.energy
    if found is None:
        return
    one = result.unit.removesuffix("s/s")
    each, cost = found["joules_per_unit"] or 0.0, found["cost_per_unit"] or 0.0
    useful, paid = found.get("joules_per_useful_unit"), found.get("cost_per_useful_unit")
    more = f", {useful:.4g} J and {paid:.3g} with failures and checkpoints" if useful else ""
    yield f"  energy       {each:.4g} J a {one}, cost {cost:.3g} a {one}{more}"


def _lasts(result: Result) -> Iterator[str]:
    """Render goodput over weeks with failures."""
    weeks = result.goodput
    if weeks is None:
        return
    useful = weeks["useful"]
    yield (
        f"  over weeks   {exact(useful)} of the time is useful work "
        f"({result.throughput * useful:.4g} {result.unit}), "
        f"{weeks['interruptions_per_day']:.3g} interruptions a day"
    )
    lost = ", ".join(f"{word} {exact(weeks[name])}" for name, word in _LOSSES if weeks[name])
    yield f"               lost: {lost}"
    yield f"               a checkpoint every {precise(weeks['checkpoint_interval_ns'])}"
