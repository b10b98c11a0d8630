"""`evenstep strategies`: compare strategies, algorithms and layouts on one cluster."""

from __future__ import annotations

import argparse
import os
import textwrap
from collections.abc import Iterator
from typing import Any

from evenstep.cli import files, progress
from evenstep.cli.syntax.predict import AXES
from evenstep.cli.terminal import say, show
from evenstep.errors import UsageError
from evenstep.explain import topic
from evenstep.report.terminal.style import PLAIN, precise
from evenstep.scenario import scenario, schema
from evenstep.simulate.result import without_effect
from evenstep.simulate.simulation import set_up
from evenstep.simulate.study.decision import DecisionTable, Limits, compare
from evenstep.simulate.study.decision_options import AGENT
from evenstep.simulate.study.margin import Margin
from evenstep.workers import usable_cores

#: The field of `Limits` and the type of each limit.
LIMITS = {
    "cv": ("cv", topic.RATIO),
    "p99": ("p99_ns", topic.STEP_TIME),
    "efficiency": ("efficiency", topic.SHARE),
    "staleness": ("staleness", topic.NUMBER),
}
MODE_OFF = "observe"
SHORT = {"oversubscription": "oversubs."}  # column headings
#: Fields of a scenario's strategy and the corresponding agent settings.
SETTINGS = {
    "strategy.controller": "controller",
    "strategy.objective": "objective",
    "strategy.max_delay": "max_delay",
    "strategy.imbalance": "threshold",
    "strategy.sharing": "sharing",
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
    show(table.to_json(), lambda: render(table), as_json=args.json)
    if args.write is not None:
        files.write(args.write, settings(table))
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


# -- as text ---------------------------------------------------------------------------------------


def render(table: DecisionTable) -> str:
    """Render every option, its margins, and the recommendation with its reason."""
    return "\n".join(_lines(table)) + "\n"


def _lines(table: DecisionTable) -> Iterator[str]:
    scenario, first = table.scenario, table.rows[0]
    yield f"{scenario.name or 'scenario'}: {scenario.ranks} ranks, {scenario.run.steps} steps each"
    yield ""
    unit = first.unit
    yield (
        f"  {'':27}{unit:>11}{'gain':>8}{'CV':>7}{'p99':>10}{'stale':>7}"
        + (f"{'J each':>8}" if first.joules_per_unit else "")
    )
    for row in table.rows:
        mark = "*" if row.option.training else " "
        energy = f"{row.joules_per_unit:8.3g}" if row.joules_per_unit else ""
        gain = 100 * (row.throughput / first.throughput - 1)
        yield (
            f" {mark}{row.option.name:27}{row.throughput:11.5g}{gain:+7.1f}%{row.cv:7.3f}"
            f"{precise(row.p99_ns):>10}{row.staleness:7.3g}{energy}"
        )
        if broken := table.limits.excess(row):
            yield f"    breaks {', '.join(broken)}"
    if any(row.option.training for row in table.rows):
        yield "  * what is trained differs from waiting for every gradient"
    if any(row.margins for row in table.rows):
        yield ""
        yield from _margins(table)
    yield ""
    yield from _advice(table)


def _margins(table: DecisionTable) -> Iterator[str]:
    edges = table.limits.edges
    yield f"  margins (CV at most {edges.cv:g}, efficiency at least {edges.efficiency:g});"
    yield "  limited by e: efficiency, c: CV"
    axes = list(table.rows[0].margins)
    yield f"  {'':27}" + "".join(f"{SHORT.get(axis, axis):>12}" for axis in axes)
    for row in table.rows:
        cells = "".join(f"{_cell(axis, row.margins[axis]):>12}" for axis in axes)
        yield f"  {row.option.name:27}{cells}"
    notes = {
        f"{axis}: {found.note}"
        for row in table.rows
        for axis, found in row.margins.items()
        if found.note and found.crosses is None
    }
    yield from PLAIN.items(sorted(notes))


def _cell(axis: str, found: Margin) -> str:
    """Render a margin, or how far it was searched."""
    if found.crosses is None:
        return "-" if found.note else f"> {_amount(axis, found.tried)}"
    if found.value == found.now:
        return f"crossed {found.crosses[0]}"
    return f"{_amount(axis, found.value or 0.0)} {found.crosses[0]}"


def _amount(axis: str, value: float) -> str:
    if axis == "ranks":
        return f"{value:.0f}"
    return f"{value:.3g}:1" if axis == "oversubscription" else f"{100 * value:.3g} %"


def _advice(table: DecisionTable) -> Iterator[str]:
    choice = table.choice
    yield f"recommended: {choice.row.option.name}, applied by {choice.row.option.by}"
    arguments = (f"--set {text}".replace(" ", "\u00a0") for text in choice.row.option.sets)
    for text in filter(None, (choice.reason, " ".join(arguments))):
        yield from PLAIN.wrap(text, first="  ", indent=2)
    yield from PLAIN.items(table.notes)


def settings(table: DecisionTable) -> str:
    """`evenstep.toml` with the settings that the agent can apply, pacing only where it is
    recommended; others are comments."""
    row = table.choice.row
    lines = [f"# {row.option.name}: recommended for {table.scenario.name or 'this scenario'}"]
    lines += [f"# {text}" for text in textwrap.wrap(table.choice.reason, 78)]
    pace: dict[str, Any] = {"mode": "on"}
    if row.option.by == AGENT:
        pairs = (text.partition("=") for text in row.option.sets)
        pace |= {SETTINGS[name]: schema.parse(v) for name, _, v in pairs if name in SETTINGS}
    else:
        pace = {"mode": MODE_OFF}
        lines.append(f"# Applied by {row.option.by}, not by the agent, which only observes:")
        lines += [f"#   {text}" for text in row.option.sets or ("no change",)]
    return "\n".join(lines) + "\n" + schema.to_toml({"pace": pace})
