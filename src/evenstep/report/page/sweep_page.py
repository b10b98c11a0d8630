"""A sweep as one HTML file: all combinations as matrices, curves and a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from evenstep.report.page import sheet
from evenstep.words import duration, number, percent

SCRIPTS = (
    *("quantities.js", "canvas.js", "cells.js", "sortable.js"),
    *("sweep_view.js", "sweep_cells.js", "sweep_lines.js", "sweep.js"),
)

Document = Mapping[str, Any]


class Measure(NamedTuple):
    """A measure of a combination; `more` is 1 if more is better, -1 if worse, 0 if neither."""

    name: str
    label: str
    kind: str  # number, duration or share
    more: int


MEASURES = (
    Measure("throughput", "throughput", "number", 1),
    Measure("efficiency", "efficiency", "share", 1),
    Measure("step_mean_ns", "step time, mean", "duration", -1),
    Measure("step_p50_ns", "step time, p50", "duration", -1),
    Measure("step_p99_ns", "step time, p99", "duration", -1),
    Measure("step_cv", "variation (CV)", "share", -1),
    Measure("share_compute", "compute", "share", 0),
    Measure("share_exposed_communication", "communication", "share", -1),
    Measure("share_wait", "wait", "share", -1),
    Measure("share_input", "input", "share", -1),
    Measure("share_held", "pacing delays", "share", 0),
    Measure("joules_per_unit", "energy per unit, J", "number", -1),
    Measure("cost_per_unit", "cost per unit", "number", -1),
    Measure("goodput", "goodput over weeks", "share", 1),
)
THROUGHPUT = MEASURES[0].name
#: Measures whose best combination is named at the top.
NAMED = ("throughput", "efficiency", "step_cv", "cost_per_unit")


def render(document: Document, name: str) -> str:
    """Render the JSON document of a sweep as a page. Raises `MissingExtra` without jinja2."""
    combinations = document["combinations"]
    known = [one for one in MEASURES if any(row[one.name] for row in combinations)]
    template = sheet.template(
        "sweep.html.j2", "the page of a sweep", SCRIPTS, said=format_measure, short=short
    )
    text: str = template.render(
        name=name,
        document=document,
        measures=known,
        unit=combinations[0]["unit"] if combinations else "",
        verdict=_verdict(combinations, name),
        swings={field: swing(combinations, field) for field in document["vary"]},
        best=[(one, row) for one in known if one.name in NAMED for row in _best(one, combinations)],
        sweep=sheet.embed(document),
        facts=sheet.embed([one._asdict() for one in known]),
    )
    return text


def format_measure(measure: Measure, value: float | None) -> str:
    if measure.kind == "duration":
        return duration(value)
    return percent(value) if measure.kind == "share" else number(value)


def short(field: str) -> str:
    """Return the last part of a field's name: nodes of cluster.nodes."""
    return field.rpartition(".")[2]


def swing(rows: Sequence[Mapping[str, Any]], field: str) -> float | None:
    """Return the largest relative difference of throughput between combinations that differ in
    this field only; None if there are no such combinations."""
    alike: dict[str, list[float]] = {}
    for row in rows:
        if row[THROUGHPUT] is not None:
            others = {name: value for name, value in row["varied"].items() if name != field}
            alike.setdefault(repr(others), []).append(float(row[THROUGHPUT]["value"]))
    pairs = [max(each) / min(each) - 1 for each in alike.values() if len(each) > 1 and min(each)]
    return max(pairs, default=None)


def _verdict(rows: Sequence[Mapping[str, Any]], name: str) -> str:
    """Name the combination of highest throughput; the name of the sweep if there is only one."""
    for row in _best(MEASURES[0], rows):
        value = number(row[THROUGHPUT]["value"], row["unit"])
        with_ = ", ".join(f"{short(field)} {at}" for field, at in row["varied"].items())
        return f"Throughput is highest with {with_}: {value}"
    return name


def _best(measure: Measure, rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the best combination of a measure, if at least two have it."""
    known = [row for row in rows if row[measure.name] is not None]
    if len(known) < 2:
        return []
    return [max(known, key=lambda row: measure.more * float(row[measure.name]["value"]))]
