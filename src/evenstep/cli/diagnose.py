"""`evenstep diagnose`: who was waited for, how much, why, and what to do."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evenstep.agent.values import share
from evenstep.cli import progress
from evenstep.errors import MissingExtra, UsageError
from evenstep.importers.opening import Given, open_bundle, sort_out

if TYPE_CHECKING:
    from evenstep.trace.trace import Trace

HELP = """Say who a run was waiting for, how much, why, and what to do about it.

A TRACE is a run's folder, one of its attempts or a spool, or what another tool has written: a
Kineto trace, a flight recorder dump, an Nsight Systems export, an operation table, a log of the
NCCL Inspector; one file per rank or a folder of them, also compressed, told apart by content.
Files of one format are one trace, folders are one trace each, and so are spools of one attempt;
several traces are diagnosed one by one, runs of different sizes also together, and --json prints a
list. Logs of nccl-tests or with NCCL_DEBUG=INFO beside a trace say what its fabric can do. The exit
code is 1 where a finding's severity (its share of the step time) is above --fail-above."""

THRESHOLD = 0.05
#: Packages a diagnosis may need, and the extra each comes with.
EXTRAS = {"numpy": "analyze", "rich": "analyze", "msgspec": "analyze", "jinja2": "report"}


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
    parser.add_argument(
        "--price-per-rank-hour", metavar="MONEY", type=_price,
        help="tell what is lost, to waiting or to restarts, in this money too",
    )  # fmt: skip
    parser.add_argument(
        "--what-if", metavar="SPEC", action="append", default=[],
        help="say what a change would give back: rank:3=median, op:all_reduce=floor, gc=off …; "
        "several are answered one by one and together",
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
    from evenstep.diagnose.what_if_spec import parse

    for text in args.what_if:
        parse(text)  # what is misunderstood is said before the work is done
    given = sort_out(args.traces)
    _check_page(args.html, force=args.force)
    results = list(_diagnosed(given, args.price_per_rank_hour))
    joint = _together(results)
    alone = len(results) == 1
    results += joint
    from evenstep.diagnose.what_if import added, answers

    if args.json:
        shown = [added(found.to_json(), trace, args.what_if) for trace, found in results]
        print(json.dumps(shown[0] if len(results) == 1 else shown, indent=2, allow_nan=False))
    else:
        from evenstep.report.terminal import render
        from evenstep.report.what_if import render as render_answers

        parts = [
            (render(found), render_answers(answers(trace, args.what_if)))
            for trace, found in results
        ]
        print("\n\n".join(text.rstrip() for part in parts for text in part if text))
    if args.html is not None:
        from evenstep.report.html import write

        if not (alone or joint):
            raise UsageError("--html writes one page: give one trace, or runs of different sizes")
        trace, diagnosis = results[-1]
        write(
            diagnosis, trace, args.html, force=args.force,
            answers=answers(trace, args.what_if), price_per_rank_hour=args.price_per_rank_hour,
        )  # fmt: skip
        print(f"Wrote {args.html}", file=sys.stderr)
    return int(worst(diagnosis for _, diagnosis in results) > args.fail_above)


def worst(diagnoses: Iterable[Any]) -> float:
    """The highest severity of any finding."""
    severities = (finding.severity for item in diagnoses for finding in item.findings)
    return max((severity for severity in severities if severity is not None), default=0.0)


def _together(results: Sequence[tuple[Trace, Any]]) -> list[tuple[Trace, Any]]:
    """What runs of different sizes say together, with the largest of them."""
    from evenstep.diagnose.several import diagnose_together

    if len({trace.world for trace, _ in results}) < 2:
        return []
    largest = max((trace for trace, _ in results), key=lambda trace: trace.world)
    return [(largest, diagnose_together(results))]


def _diagnosed(given: Given, price: float | None) -> Iterable[tuple[Trace, Any]]:
    from evenstep.diagnose.attempts import with_attempts
    from evenstep.diagnose.engine import diagnose

    for bundle in given.bundles:
        size = sum(source.path.stat().st_size for source in bundle.sources)
        with progress.shown(size) as report:
            trace = open_bundle(bundle, given, progress=report)
        trace = with_attempts(trace, bundle.path, price_per_rank_hour=price)
        yield trace, diagnose(trace)


def _check_page(page: Path | None, *, force: bool) -> None:
    """Refuse before the work is done what would be refused after it."""
    if page is not None and page.exists() and not force:
        raise UsageError(f"{page} exists; choose another FILE or overwrite it with --force")


def _price(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a price such as 2.5, found {text!r}")
    return value


def _severity(text: str) -> float:
    kind = share(1.0, whole=True)
    try:
        return float(kind.parse(text))
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be {kind.expects}, found {text!r}") from None
