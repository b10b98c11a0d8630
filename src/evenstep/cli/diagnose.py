"""`evenstep diagnose`: who was waited for, how much, why, and what to do."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evenstep.agent.values import share
from evenstep.errors import MissingExtra, TraceError, UsageError

if TYPE_CHECKING:
    from evenstep.trace.trace import Trace

HELP = """Say who a run was waiting for, how much, why, and what to do about it.

A TRACE is a run's folder, one of its attempts, or a single spool. Several spools of one attempt
are read together, the whole attempt then; anything else is diagnosed one by one, and --json prints
a list. The exit code is 1 where a finding's severity (its share of the step time) is above
--fail-above."""

THRESHOLD = 0.05
#: Packages a diagnosis may need, and the extra each comes with.
EXTRAS = {"numpy": "analyze", "rich": "analyze", "jinja2": "report"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `evenstep diagnose`."""
    parser.add_argument("traces", metavar="TRACE", nargs="+", type=Path)
    parser.add_argument("--json", action="store_true", help="print the diagnosis as JSON")
    parser.add_argument("--html", metavar="FILE", type=Path, help="write a page as well")
    parser.add_argument("--force", action="store_true", help="overwrite FILE")
    parser.add_argument(
        "--fail-above", metavar="SHARE", type=_severity, default=THRESHOLD,
        help="exit with 1 above this severity, 0.05 unless given",
    )  # fmt: skip


def main(args: argparse.Namespace) -> int:
    """Diagnose every trace and say so in the form asked for."""
    try:
        return _main(args)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        raise MissingExtra(package, extra=EXTRAS[package], purpose="a diagnosis") from error


def _main(args: argparse.Namespace) -> int:
    paths = together(args.traces)
    _check_page(args.html, paths, force=args.force)
    results = list(_diagnosed(paths))
    if args.json:
        shown = [diagnosis.to_json() for _, diagnosis in results]
        print(json.dumps(shown[0] if len(paths) == 1 else shown, indent=2, allow_nan=False))
    else:
        from evenstep.report.terminal import render

        print("\n\n".join(render(diagnosis).rstrip() for _, diagnosis in results))
    if args.html is not None:
        from evenstep.report.html import write

        trace, diagnosis = results[0]
        write(diagnosis, trace, args.html, force=args.force)
        print(f"Wrote {args.html}", file=sys.stderr)
    return int(worst(diagnosis for _, diagnosis in results) > args.fail_above)


def together(paths: Sequence[Path]) -> list[Path]:
    """What to read: spools of one attempt become that attempt, each path comes once."""
    for path in paths:
        if not path.exists():
            raise TraceError(f"there is no {path}; give a run's folder, an attempt or a spool")
    spools = [path for path in paths if path.suffix == ".spool"]
    siblings = [path.absolute().parent for path in spools]
    merged = (
        path.parent if path in spools and siblings.count(path.absolute().parent) > 1 else path
        for path in paths
    )
    return list(dict.fromkeys(merged))


def worst(diagnoses: Iterable[Any]) -> float:
    """The highest severity of any finding."""
    severities = (finding.severity for item in diagnoses for finding in item.findings)
    return max((severity for severity in severities if severity is not None), default=0.0)


def _diagnosed(paths: Sequence[Path]) -> Iterable[tuple[Trace, Any]]:
    from evenstep.diagnose.engine import diagnose
    from evenstep.trace.trace import load

    for path in paths:
        trace = load(path)
        yield trace, diagnose(trace)


def _check_page(page: Path | None, paths: Sequence[Path], *, force: bool) -> None:
    """Refuse before the work is done what would be refused after it."""
    if page is None:
        return
    if len(paths) > 1:
        raise UsageError(f"--html writes one page, but there are {len(paths)} traces; give one")
    if page.exists() and not force:
        raise UsageError(f"{page} exists; choose another FILE or overwrite it with --force")


def _severity(text: str) -> float:
    kind = share(1.0, whole=True)
    try:
        return float(kind.parse(text))
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be {kind.expects}, found {text!r}") from None
