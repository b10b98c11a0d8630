"""`evenstep strategies`: every strategy, algorithm and layout on one cluster, and which to take."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from evenstep import values
from evenstep.cli import files, progress
from evenstep.cli.arguments import add_files, add_json, add_set, add_workers, several
from evenstep.cli.terminal import show
from evenstep.errors import UsageError
from evenstep.explain import measures

if TYPE_CHECKING:
    from evenstep.simulate.study.decision import Limits

HELP = """Run every strategy, collective algorithm and layout on a scenario's cluster and say which to take.

  evenstep strategies job.toml --limit cv=.1 --limit p99=250ms

Limits: cv, p99 (step time; ms, s or us, else milliseconds), efficiency (at least) and staleness
(mean updates). Without any, CV is at most 0.1. Margins say how many ranks, how much jitter,
oversubscription and other load each option bears before CV or efficiency crosses its limit. --write
puts what the agent can apply of the recommendation into a settings file."""  # noqa: E501

AXES = ("ranks", "jitter", "oversubscription", "load")
#: By name: the field of `Limits`, and how its value is read.
LIMITS = {
    "cv": ("cv", measures.RATIO),
    "p99": ("p99_ns", measures.STEP_TIME),
    "efficiency": ("efficiency", measures.SHARE),
    "staleness": ("staleness", measures.NUMBER),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `evenstep strategies`."""
    add = parser.add_argument
    add("scenario", metavar="SCENARIO", type=Path)
    add_set(parser)
    add("--limit", metavar="NAME=VALUE", action="append", default=[], help="keep to it")
    add("--margins", metavar="AXIS,…", type=several(values.choice((*AXES, "none"))),
        default=",".join(AXES),
        help="what margins are looked for: " + ", ".join(AXES) + "; or none")  # fmt: skip
    add_workers(parser)
    add_files(parser, write="settings for the agent")
    add_json(parser, "the table")


def main(args: argparse.Namespace) -> int:
    """Compare, print, and write the settings asked for."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # processes share the cores already
    from evenstep.scenario import scenario
    from evenstep.simulate.study.decision import compare

    limits, axes = limits_of(args.limit), tuple(name for name in args.margins if name in AXES)
    files.check_free(args.write, force=args.force)
    asked, workers = scenario.load(args.scenario, args.set), args.workers
    with progress.counting("compared {} of {} options") as tell:
        workers = workers or len(os.sched_getaffinity(0))
        table = compare(
            asked, limits, axes=axes, workers=workers, progress=tell,
            told=lambda seconds: progress.announce("every strategy", seconds / workers),
        )  # fmt: skip
    from evenstep.report.terminal import decision as decision_table

    show(table.to_json(), lambda: decision_table.render(table), as_json=args.json)
    if args.write is not None:
        files.write(args.write, decision_table.settings(table))
    return 0


def limits_of(texts: list[str]) -> Limits:
    """Limits from `cv=.1` and `p99=250ms`; the last of a name counts."""
    from evenstep.simulate.study.decision import Limits

    found: dict[str, float] = {}
    for text in texts:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not equals or name not in LIMITS:
            raise UsageError(
                f"--limit takes name=value with a name of {', '.join(LIMITS)}, found {text!r}"
            )
        field, kind = LIMITS[name]
        try:
            found[field] = kind.parse(value)
        except ValueError as error:
            raise UsageError(f"--limit {name}: {error}") from None
    return Limits(**found)
