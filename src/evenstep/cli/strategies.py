"""`evenstep strategies`: compare strategies, algorithms and layouts on one cluster."""

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

HELP = """Simulate every synchronization strategy, collective algorithm and layout on a scenario's
cluster and recommend one.

  evenstep strategies job.toml --limit cv=.1 --limit p99=250ms

Limits: cv, p99 (step time; ms, s or us, else milliseconds), efficiency (at least) and staleness
(mean updates). The default is CV at most 0.1. Margins tell how many ranks, how much jitter,
oversubscription and other load an option tolerates before CV or efficiency crosses its limit.
--write saves those settings of the recommendation that the agent can apply."""

AXES = ("ranks", "jitter", "oversubscription", "load")
#: The field of `Limits` and the type of each limit.
LIMITS = {
    "cv": ("cv", measures.RATIO),
    "p99": ("p99_ns", measures.STEP_TIME),
    "efficiency": ("efficiency", measures.SHARE),
    "staleness": ("staleness", measures.NUMBER),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("scenario", metavar="SCENARIO", type=Path)
    add_set(parser)
    add("--limit", metavar="NAME=VALUE", action="append", default=[],
        help="only accept options within this limit")  # fmt: skip
    add("--margins", metavar="AXIS,…", type=several(values.choice((*AXES, "none"))),
        default=",".join(AXES),
        help="margins to compute: " + ", ".join(AXES) + "; or none")  # fmt: skip
    add_workers(parser)
    add_files(parser, write="write settings for the agent")
    add_json(parser, "the table")


def main(args: argparse.Namespace) -> int:
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # the workers use all cores already
    from evenstep.scenario import scenario
    from evenstep.simulate.study.decision import compare
    from evenstep.workers.engines import usable_cores

    limits, axes = limits_of(args.limit), tuple(name for name in args.margins if name in AXES)
    files.check_free(args.write, force=args.force)
    asked, workers = scenario.load(args.scenario, args.set), args.workers or usable_cores()
    with progress.counting("compared {} of {} options") as report:
        table = compare(
            asked, limits, axes=axes, workers=workers, progress=report,
            estimate=lambda seconds: progress.announce("every strategy", seconds / workers),
        )  # fmt: skip
    from evenstep.report.terminal import decision as decision_table

    show(table.to_json(), lambda: decision_table.render(table), as_json=args.json)
    if args.write is not None:
        files.write(args.write, decision_table.settings(table))
    return 0


def limits_of(texts: list[str]) -> Limits:
    """Parse limits such as `cv=.1` and `p99=250ms`; the last of a name counts."""
    from evenstep.simulate.study.decision import Limits

    found: dict[str, float] = {}
    for text in texts:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not equals or name not in LIMITS:
            expected = f"NAME=VALUE with NAME one of {', '.join(LIMITS)}"
            raise UsageError(f"--limit takes {expected}, found {text!r}")
        field, kind = LIMITS[name]
        try:
            found[field] = kind.parse(value)
        except ValueError as error:
            raise UsageError(f"--limit {name}: {error}") from None
    return Limits(**found)
