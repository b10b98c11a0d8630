"""`python -m lab`: jobs that really run on links that are really shared, paced and not."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar

from evenstep.cli import files
from evenstep.cli.progress import counting
from evenstep.errors import UsageError

if TYPE_CHECKING:
    from lab.run import Record
    from lab.scenario import Scenario

Found = TypeVar("Found")

HELP = """Run real processes on an emulated fabric, and compare what controllers do to them.

  python -m lab run -f two-jobs.toml --out runs/two          one arm; leaves a trace of each job
  python -m lab compare baseline paper slack -f two-jobs.toml gain and CV of each, with intervals
  python -m lab predict -f two-jobs.toml                     the simulator's answer beside it
  python -m lab fields                                       what a scenario may say
  python -m lab clean                                        remove what a killed run left behind

Arms are baseline and the controllers; slack+sharing lets ranks share a plan, slack+unguarded takes
the guard away. Blocks of all arms take turns in one run, and the baseline runs twice, so that the
interval of no difference stands beside the others."""

ACTIONS = ("run", "compare", "predict", "fields", "clean")
INTERRUPTED = 130
BLOCKS = "measured {} of {} blocks"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `python -m lab`."""
    parser.add_argument("action", metavar="ACTION", choices=ACTIONS, help=", ".join(ACTIONS))
    parser.add_argument("arms", metavar="ARM", nargs="*", default=[], help="of compare and run")
    parser.add_argument("-f", "--file", metavar="SCENARIO", type=Path, help="the scenario")
    parser.add_argument("--fabric", metavar="TIER", help="fair, tcp or mpi, instead of its own")
    parser.add_argument(
        "--set", metavar="NAME=VALUE", action="append", default=[], help="change one field"
    )
    parser.add_argument("--out", metavar="DIR", type=Path, help="keep the traces here")
    parser.add_argument("--html", metavar="FILE", type=Path, help="write a page to look at")
    parser.add_argument(
        "--force", action="store_true", help="replace an earlier run in DIR, or FILE"
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def main(args: argparse.Namespace) -> int:
    """Do what was asked and say what came of it."""
    if args.html is not None and args.action in ("fields", "clean"):
        raise UsageError(f"{args.action} writes no page; --html is of run, compare and predict")
    if args.arms and args.action in ("fields", "clean"):
        raise UsageError(f"{args.action} takes no arm, found {args.arms[0]!r}")
    files.check_free(args.html, force=args.force)
    if args.out is not None:
        files.check_folder(args.out)
    return _ACTIONS[args.action](args)


def _scenario(args: argparse.Namespace) -> Scenario:
    from lab import scenario

    if args.file is None:
        raise UsageError(f"name a scenario: python -m lab {args.action} -f SCENARIO")
    fabric = [] if args.fabric is None else [f"fabric={args.fabric}"]
    return scenario.load(args.file, [*args.set, *fabric])


def _compare(args: argparse.Namespace) -> int:
    from lab import page
    from lab.outcome import compared

    asked = _scenario(args)
    names = args.arms or ["baseline", "slack"]
    with _folder(args) as folder:
        with counting(BLOCKS) as progress:
            record, outcomes = compared(asked, names, folder, progress)
        found = page.document(asked, record, outcomes, asked.run.rounds)
        drawn = partial(_drawn_comparison, asked, names, record, folder, found)
        _show(args, folder, found, page.text, drawn)
    return _end(args, record)


def _run(args: argparse.Namespace) -> int:
    from lab import single

    asked = _scenario(args)
    if len(args.arms) > 1:
        raise UsageError(f"run takes one arm, found {len(args.arms)}; use compare for several")
    arm = (args.arms or ["baseline"])[0]
    with _folder(args) as folder:
        with counting(BLOCKS) as progress:
            record = single.carried(asked, arm, folder, progress)
        found = single.document(asked, arm, record, folder, kept=args.out is not None)
        drawn = partial(_drawn_jobs, asked, arm, record, folder, found)
        _show(args, folder, found, single.text, drawn)
    return _end(args, record)


def _predict(args: argparse.Namespace) -> int:
    from lab import prediction, validation

    asked = _scenario(args)
    gains = {
        name: prediction.predicted_gains(asked, name) for name in args.arms if name != "baseline"
    }
    with _folder(args) as folder:
        with counting(BLOCKS) as progress:
            record, compared = validation.validated(asked, folder, progress)
        found = validation.document(asked, record, compared, gains)
        drawn = partial(_drawn_jobs, asked, "baseline", record, folder, found)
        _show(args, folder, found, validation.text, drawn)
    return _end(args, record)


def _fields(args: argparse.Namespace) -> int:
    from evenstep.cli import listing
    from lab.scenario import Scenario

    if args.json:
        print(json.dumps(listing.document(Scenario), indent=2, ensure_ascii=False))
    else:
        print(listing.describe_fields(Scenario), end="")
    return 0


class CleanedDocument(TypedDict):
    """What `python -m lab clean --json` prints."""

    schema: Literal["evenstep.lab.clean/1"]
    removed: list[str]


def _clean(args: argparse.Namespace) -> int:
    from lab import run

    removed = run.clean()
    if args.json:
        found: CleanedDocument = {"schema": "evenstep.lab.clean/1", "removed": removed}
        print(json.dumps(found, indent=2))
    else:
        print("\n".join(f"removed {what}" for what in removed) or "nothing was left behind")
    return 0


_ACTIONS = {
    "run": _run,
    "compare": _compare,
    "predict": _predict,
    "fields": _fields,
    "clean": _clean,
}


def _folder(args: argparse.Namespace) -> Any:
    from lab import run

    return run.folder_for(args.out, force=args.force)


def _show(
    args: argparse.Namespace,
    folder: Path,
    found: Found,
    text: Callable[[Found], str],
    drawn: Callable[[], str],
) -> None:
    """Print the result, which also stands beside its traces where these are kept, and draw it."""
    from lab.run import RESULT

    written = json.dumps(found, indent=2, allow_nan=False)
    try:
        print(written if args.json else text(found), flush=True)
    finally:  # its reader may have left: what was asked for is kept all the same
        if args.out is not None:
            (folder / RESULT).write_text(written + "\n")
        if args.html is not None:
            files.write(args.html, drawn())


def _drawn_comparison(*drawn: Any) -> str:
    from lab.drawing import of_comparison

    return of_comparison(*drawn)


def _drawn_jobs(*drawn: Any) -> str:
    from lab.drawing import of_jobs

    return of_jobs(*drawn)


def _end(args: argparse.Namespace, record: Record) -> int:
    from lab.run import INTERRUPTED as STOPPED

    if args.out is not None:
        print(f"Wrote {args.out}", file=sys.stderr)
    return INTERRUPTED if record.ended == STOPPED else 0
