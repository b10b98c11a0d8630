"""`evenstep compare`: what changed between runs, with intervals, and whether it is better."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from evenstep.cli import files, progress, traces
from evenstep.cli.terminal import say, show, tell_written
from evenstep.diagnose.compare.comparison import Account, account, compare
from evenstep.diagnose.compare.result import (
    SCHEMA,
    Comparison,
    normalised_json,
    parse_conditions,
    reason_met,
)
from evenstep.errors import UsageError
from evenstep.report.page import sheet
from evenstep.report.terminal import comparison as words
from evenstep.report.terminal.comparison import render


def main(args: argparse.Namespace) -> int:
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
    failed = [
        why for item in found for condition in conditions if (why := reason_met(condition, item))
    ]
    _show(args, accounts, found, failed)
    for reason in failed:
        say(reason)
    return 1 if failed else 0


def _accounts(paths: Sequence[Path]) -> list[Account]:
    """Read and diagnose every run; name each by the part of its path that differs."""
    read = {path: traces.read(path) for path in dict.fromkeys(paths)}
    found = []
    with progress.counting("diagnosed {} of {} runs") as report:
        for name, path in zip(short_names(paths), paths, strict=True):
            found.append(account(name, read[path]))
            report(len(found), len(paths))
    return found


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
        drawn = page(baseline.name, found, normalised=args.normalised)
        sheet.write(args.html, drawn)
    document = _document(accounts, found, failed, args.normalised)
    text = partial(render, baseline.name, found, normalised=args.normalised)
    show(document, text, as_json=args.json)
    if args.html is not None:
        tell_written(args.html)


def _document(
    accounts: Sequence[Account], found: Sequence[Comparison], failed: Sequence[str], bare: bool
) -> dict[str, Any]:
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


def page(baseline: str, comparisons: Sequence[Comparison], *, normalised: bool = False) -> str:
    """Render the page. Raises `MissingExtra` without jinja2."""
    known = {change.metric for item in comparisons for change in item.changes}
    labels = {name: label for name, label in words.LABELS.items() if name in known}
    template = sheet.template("comparison.html.j2", "the page of a comparison", words=words)
    shown = {"comparisons": comparisons, "normalised": normalised, "labels": labels}
    return str(template.render(baseline=baseline, **shown))
