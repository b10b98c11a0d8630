"""Throughput by number of ranks, simulated or measured, as text of at most 80 columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from evenstep.report.terminal.style import PLAIN, exact, precise, table
from evenstep.words import is_known, number, percent


def page(document: dict[str, Any]) -> Iterator[str]:
    points = document["points"]
    if not points:
        yield "no simulation finished"
        return
    title = document["name"] or "scaling"
    yield f"{title}: {document['scaling']} scaling, throughput in {points[0]['unit']}"
    yield ""
    yield from table(_rows(document))
    yield ""
    yield from PLAIN.wrap(verdict(document))
    if document["control"]:
        yield ""
        changes = ", ".join(document["control"])
        yield from PLAIN.wrap(f"With {changes}, as ratios to without:")
        yield from table(_ratio_rows(points))
    if document["outlay"]:
        yield ""
        yield from _outlay(document["outlay"], points[0]["unit"])
    yield ""
    yield from PLAIN.items(document["limits"])


def _rows(document: dict[str, Any]) -> list[list[str]]:
    rows = [["ranks", "ideal", "bandwidth", "predicted", "per rank", "step", "CV", "p99"]]
    failing = document["points"][0]["goodput"] is not None
    if failing:
        rows[0].append("useful")
    for point in document["points"]:
        cells = [
            f"{point['ranks']:,}",
            f"{point['ideal']:.4g}",
            f"{point['bandwidth_only']:.4g}",
            f"{point['throughput']['value']:.4g}",
            exact(point["efficiency"]),
            precise(point["step_ns"]["value"]),
            f"{point['cv']['value']:.3f}",
            precise(point["p99_ns"]["value"]),
        ]
        rows.append([*cells, exact(point["goodput"])] if failing else cells)
    return rows


def verdict(document: dict[str, Any]) -> str:
    """Describe where throughput peaks, and why."""
    points, peak = document["points"], document["peak"]
    last = points[-1]
    if len(points) == 1:
        return "One size does not show how the job scales; give several with --ranks."
    if peak["inside"]:
        head = f"Throughput is highest at {peak['ranks']:,} ranks and falls beyond."
    else:
        head = (
            f"Throughput still rises at {last['ranks']:,} ranks, the largest size here; a rank has "
            f"{exact(last['effective_efficiency'])} of what it has at {points[0]['ranks']:,}."
        )
    grown = peak["grown_ns"]
    if grown is not None and grown <= 0.001 * last["step_ns"]["value"]:
        return head
    reason = f" From {peak['from_ranks']:,} to {peak['to_ranks']:,} ranks: {peak['why']}"
    if grown is not None and peak["share"] is not None:
        reason += f", {precise(grown)} a step, {exact(peak['share'])} of what is lost"
    missed = last["bandwidth_only"] / last["throughput"]["value"]
    seen = f" Bandwidth alone would allow {missed:.2f} times the throughput predicted there."
    return f"{head}{reason}.{seen}"


def _ratio_rows(points: list[dict[str, Any]]) -> list[list[str]]:
    names = [n for n in points[0]["control"] if points[0]["control"][n] is not None]
    heads = {"joules_per_unit": "energy", "cost_per_unit": "cost"}
    rows = [["ranks", *(heads.get(name, name) for name in names)]]
    for point in points:
        ratios = (point["control"][name] for name in names)
        cells = ("-" if ratio is None else f"{ratio:.3f}" for ratio in ratios)
        rows.append([f"{point['ranks']:,}", *cells])
    return rows


def _outlay(outlay: dict[str, Any], unit: str) -> Iterator[str]:
    yield f"To {outlay['target']:.4g} {unit.removesuffix('/s')}:"
    rows = [["ranks", "hours", "GPU hours", "cost", "kWh"]]
    for size in outlay["sizes"]:
        numbers = (size[name] for name in ("hours", "rank_hours", "cost", "kilowatt_hours"))
        rows.append([f"{size['ranks']:,}", *("-" if n is None else f"{n:,.4g}" for n in numbers)])
    yield from table(rows)
    within = f" within {outlay['deadline_hours']:g} hours" if outlay["deadline_hours"] else ""
    if outlay["cheapest"] is None:
        yield f"No size is fast enough{within}."
    else:
        yield f"Cheapest{within}: {outlay['cheapest']:,} ranks."


# -- measured --------------------------------------------------------------------------------------

HEADS = ("ranks", "throughput", "efficiency", "law")


def measured_table(scaling: Mapping[str, Any]) -> list[str]:
    """Render the measured sizes; efficiency is throughput per rank ÷ that of the smallest run."""
    rows = [HEADS]
    for row in scaling["points"]:
        rate, law = number(row["throughput"], scaling["unit"]), number(row["fitted"])
        rows.append((f"{row['ranks']:,}", rate, percent(row["efficiency"]), law))
    return table(rows)


def measured_notes(scaling: Mapping[str, Any]) -> Iterator[str]:
    """Describe the fitted law, its knee and peak, and the last doubling."""
    law = scaling.get("law") or {}
    contention, coherency = law.get("contention") or {}, law.get("coherency") or {}
    if is_known(contention.get("value")) and is_known(coherency.get("value")):
        yield (
            f"{law['name']}: contention {percent(contention['value'])}, "
            f"coherency {coherency['value']:.2g}"
        )
    for name, text in (
        ("knee", "an added rank brings half as much as the first one from about"),
        ("peak", "throughput is highest at about"),
    ):
        if is_known((law.get(name) or {}).get("value")):
            most = max(row["ranks"] for row in scaling["points"])
            guess = f", extrapolated from {most:,} ranks" if law[name]["value"] > most else ""
            yield f"{text} {_ranks(law[name])}{guess}"
    if last := scaling.get("last_doubling"):
        first, second = last["ranks"]
        yield f"from {first:,} to {second:,} ranks throughput grows by {percent(last['gain'])}"
    if scaling.get("recommended_ranks"):
        yield f"ranks worth using: {scaling['recommended_ranks']:,}"


def _ranks(found: Mapping[str, Any]) -> str:
    """Render a number of ranks with its interval: 137 ranks (126 to 153)."""
    text = f"{found['value']:,.0f} ranks"
    if not is_known(found.get("low")):
        return text
    high = f"{found['high']:,.0f}" if is_known(found.get("high")) else "any number"
    return f"{text} ({found['low']:,.0f} to {high})"
