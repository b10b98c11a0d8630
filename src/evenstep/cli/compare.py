"""`evenstep compare`: what changed between runs, with intervals, and whether it is better."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evenstep.cli import files, progress, traces
from evenstep.cli.arguments import add_files, add_json
from evenstep.cli.terminal import say, show, tell_written
from evenstep.errors import UsageError

if TYPE_CHECKING:
    from evenstep.diagnose.compare.comparison import Account
    from evenstep.diagnose.compare.result import Comparison

HELP = """Report what changed between runs, with confidence intervals, and whether it is better.

The first TRACE is the baseline; every other one is compared with it: throughput, step time, CV and
percentiles, shares of step time, and each finding, all with 95 % intervals. A change whose interval
includes zero (or 0.1 %) is reported as "no evidence". The difference of the mean step is split into
parts that add up to it: compute, floor (transfers as in quiet steps), contention, wait, locality,
input, other.

--fail-if NAME:LIMIT exits with 1 if a run is worse than the baseline by more than LIMIT and noise
alone does not explain it: slower:2%, p99:10%, cv:20% are relative; wait:3%, communication:3%,
input:3% and finding:3% are percentage points of step time. Repeat the option or separate several
with commas."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("traces", metavar="TRACE", nargs="+", type=Path)
    add_json(parser, "the comparison")
    add_files(parser, html="also write the comparison as a page")
    add("--normalised", action="store_true",
        help="show ratios to the baseline only, no absolute numbers")  # fmt: skip
    add(
        "--fail-if", metavar="NAME:LIMIT", action="append", default=[],
        help="exit with 1 if a run is worse by more: slower:2%%, p99:10%%, finding:3%% …",
    )  # fmt: skip


def main(args: argparse.Namespace) -> int:
    from evenstep.diagnose.compare.comparison import compare
    from evenstep.diagnose.compare.result import met, parse_conditions

    if len(args.traces) < 2:
        held = traces.inside(args.traces[0])
        two = f": evenstep compare {held[1]} {held[0]}" if len(held) > 1 else ""
        what = "compare needs a baseline and at least one other run"
        raise UsageError(f"{what}: give two traces{two}")
    files.check_free(args.html, force=args.force)
    conditions = [condition for text in args.fail_if for condition in parse_conditions(text)]
    accounts = _accounts(args.traces)
    baseline, *others = accounts
    with progress.ticking("comparing"):
        found = [compare(baseline, other) for other in others]
    failed = [why for item in found for condition in conditions if (why := met(condition, item))]
    _show(args, accounts, found, failed)
    for reason in failed:
        say(reason)
    return 1 if failed else 0


def _accounts(paths: Sequence[Path]) -> list[Account]:
    """Read and diagnose every run; name each by the part of its path that differs."""
    from evenstep.diagnose.compare.comparison import account

    read = {path: traces.read(path) for path in dict.fromkeys(paths)}
    named = zip(short_names(paths), paths, strict=True)
    with progress.ticking("diagnosing"):
        return [account(name, read[path]) for name, path in named]


def short_names(paths: Sequence[Path]) -> list[str]:
    """Return the shortest distinct end of each path; equal paths are numbered."""
    for depth in range(1, 1 + max(len(path.absolute().parts) for path in paths)):
        names = ["/".join(path.absolute().parts[-depth:]) for path in paths]
        if len(set(names)) == len(set(paths)):
            break
    return [
        name if names.count(name) == 1 else f"{name} ({names[: at + 1].count(name)})"
        for at, name in enumerate(names)
    ]


def _show(
    args: argparse.Namespace,
    accounts: Sequence[Account],
    found: Sequence[Comparison],
    failed: Sequence[str],
) -> None:
    baseline = accounts[0]
    if args.html is not None:  # before printing: the reader may close the pipe early
        from evenstep.report.page import comparison_page, sheet

        page = partial(comparison_page.render, baseline.name, found, normalised=args.normalised)
        sheet.write(args.html, page, force=args.force)
    from evenstep.report.terminal.comparison import render

    document = _document(accounts, found, failed, args.normalised)
    text = partial(render, baseline.name, found, normalised=args.normalised)
    show(document, text, as_json=args.json)
    if args.html is not None:
        tell_written(args.html)


def _document(
    accounts: Sequence[Account], found: Sequence[Comparison], failed: Sequence[str], bare: bool
) -> dict[str, Any]:
    from evenstep.diagnose.compare.result import SCHEMA, normalised_json

    shown = [normalised_json(item) if bare else item.to_json() for item in found]
    first, *others = [_run(run, normalised=bare) for run in accounts]
    return {
        "schema": SCHEMA,
        "baseline": first,
        "comparisons": [{**item, "run": run} for item, run in zip(shown, others, strict=True)],
        "failed": list(failed),
    }


def _run(run: Account, *, normalised: bool) -> dict[str, Any]:
    """Return the facts that identify a run."""
    known = {"name": run.name, "run_id": run.diagnosis.run.get("run_id"), "ranks": run.world,
             "nodes": run.nodes, "steps": run.steps}  # fmt: skip
    return known if normalised else {**known, "summary": run.diagnosis.summary}
