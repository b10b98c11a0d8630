"""`evenstep strategies`: compare strategies, algorithms and layouts on one cluster."""

from __future__ import annotations

import argparse
import os

from evenstep.cli import files, progress
from evenstep.cli.syntax.predict import AXES
from evenstep.cli.terminal import say, show
from evenstep.errors import UsageError
from evenstep.explain import topic
from evenstep.report.terminal import decision as decision_table
from evenstep.scenario import scenario
from evenstep.simulate.result import without_effect
from evenstep.simulate.simulation import set_up
from evenstep.simulate.study.decision import Limits, compare
from evenstep.workers.engines import usable_cores

#: The field of `Limits` and the type of each limit.
LIMITS = {
    "cv": ("cv", topic.RATIO),
    "p99": ("p99_ns", topic.STEP_TIME),
    "efficiency": ("efficiency", topic.SHARE),
    "staleness": ("staleness", topic.NUMBER),
}


def main(args: argparse.Namespace) -> int:
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # the workers use all cores already
    limits, axes = limits_of(args.limit), tuple(name for name in args.margins if name in AXES)
    files.check_free(args.write, force=args.force)
    asked, workers = scenario.load(args.scenario, args.set), args.workers or usable_cores()
    with scenario.named(args.scenario):
        for sentence in without_effect(asked, set_up(asked).flows):
            if not sentence.startswith("strategy."):  # options have other strategies
                say(sentence)
        with progress.counting("compared {} of {} options") as report:
            table = compare(
                asked, limits, axes=axes, workers=workers, progress=report,
                estimate=lambda seconds: progress.announce("every strategy", seconds / workers),
            )  # fmt: skip
    show(table.to_json(), lambda: decision_table.render(table), as_json=args.json)
    if args.write is not None:
        files.write(args.write, decision_table.settings(table))
    return 0


def limits_of(texts: list[str]) -> Limits:
    """Parse limits such as `cv=.1` and `p99=250ms`; the last of a name counts."""
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
