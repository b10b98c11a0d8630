"""A decision table as text, and the agent settings of its recommendation."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

from evenstep.report.terminal.style import PLAIN, precise
from evenstep.scenario import schema
from evenstep.simulate.study.decision import DecisionTable
from evenstep.simulate.study.decision_options import AGENT
from evenstep.simulate.study.margin import Margin

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
