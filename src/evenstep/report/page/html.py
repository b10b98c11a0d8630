"""A diagnosis and its trace as one HTML file that opens from disk without network access.

Text and numbers are readable without scripts; the browser draws the charts from columns packed into
the page. A content security policy forbids requests and all scripts but ours, so names of ranks or
hosts cannot inject anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log
from typing import Any

import numpy as np

from evenstep import words
from evenstep.diagnose.finding import Diagnosis
from evenstep.diagnose.lateness.case import Case, open_case
from evenstep.diagnose.measure.attempts import ENERGY, PRICE
from evenstep.diagnose.measure.hosts import metric_samples
from evenstep.diagnose.measure.overview import step_table
from evenstep.diagnose.predict.what_if import WhatIfGain
from evenstep.diagnose.sentences import partial, sureness, verdict
from evenstep.report.page import fabric, sheet
from evenstep.report.page.fabric import hosts, places, sizes
from evenstep.report.page.overview import (
    PHASES_IN_ORDER,
    curve,
    distributions,
    drawn_map,
    host_waits,
    per_rank,
    waiting,
)
from evenstep.report.page.sheet import Chart, pack
from evenstep.report.page.timeline import Timeline, timeline
from evenstep.report.terminal import brief, terminal
from evenstep.report.terminal.sentences import describe_actions, stragglers
from evenstep.report.terminal.style import unbroken
from evenstep.trace.columns import Columns, rows_by_key
from evenstep.trace.spool.layout import Flag, Kind, Op, Phase
from evenstep.trace.trace import Trace
from evenstep.words import is_known, number

#: In the order in which they are joined to the page's script.
SCRIPTS = (
    *("quantities.js", "columns.js", "canvas.js", "cells.js", "curve.js", "heat.js"),
    *("pictures.js", "records.js", "spans.js", "spans_legend.js", "matrix.js", "bounds.js"),
    *("boxes.js", "scatter.js", "places.js", "svg.js", "fabric_layout.js", "fabric.js"),
    *("host_waits.js", "tools.js", "page.js"),
)
RANKS_IN_TABLE = 32
CULPRITS_NAMED = 1024

Row = dict[str, float | None]
HOURS_A_DAY = 24.0
WIDTH, HEIGHT = 640.0, 300.0
LEFT, RIGHT, TOP, BOTTOM = 92.0, 16.0, 14.0, 34.0
ROOM = 1.25  # factor beyond the outermost points
TICKS = 8
Point = tuple[int, float]  # ranks and throughput


def render(
    diagnosis: Diagnosis,
    trace: Trace,
    *,
    steps: Columns | None = None,
    case: Case | None = None,
    answers: Sequence[WhatIfGain] = (),
    price_per_rank_hour: float | None = None,
    links: Sequence[Mapping[str, Any]] = (),
    link_map: Chart | None = None,
) -> str:
    """Render the page.

    `steps` (the table of `diagnose.measure.overview.step_table`) and `case` are made from the trace
    if None; `links` are those in the JSON of a simulation, `link_map` their fabric (of
    `simulate.job.fabric_map`). Raises `MissingExtra` without jinja2.
    """
    template = sheet.template(
        "page.html.j2", "the HTML report", SCRIPTS, where=terminal.where, effect=terminal.effect,
        sureness=sureness, unbroken=unbroken,
    )  # fmt: skip
    shown = contents(diagnosis, trace, case=case, steps=steps)
    directory, data = pack(shown.tables | (link_map.tables if link_map is not None else {}))
    asked = {"what_if": [answer.to_json() for answer in answers]} if answers else {}
    drawn = scaling(diagnosis)
    measured = not links and len(trace.nodes) > 1
    loads = fabric.loads(trace) if measured else fabric.simulated_load(links)
    shares = diagnosis.summary.get("shares") or {}
    facts = {"directory": directory, "fabric": link_map and link_map.facts, **shown.facts}
    text: str = template.render(
        diagnosis=diagnosis,
        summary=diagnosis.summary,
        run=_run_line(diagnosis),
        shares=[(n, text, shares[n]) for n, text in words.SHARES if words.is_known(shares.get(n))],
        cost=waiting_cost(diagnosis, trace, price_per_rank_hour),
        said=verdict(diagnosis.findings, diagnosis.summary),
        partial=partial(diagnosis.summary, diagnosis.limits),
        markdown=brief.markdown(diagnosis),
        shown=shown,
        answers=answers,
        scaling=drawn,
        stragglers=list(stragglers(diagnosis.summary.get("stragglers") or {})),
        pacing=list(describe_actions(diagnosis.summary)),
        paced=(diagnosis.summary.get("pacing") or {}).get("effect"),
        loads=loads,
        simulated=bool(links),
        link_map=link_map,
        between=None if link_map is not None else shown.facts["host_waits"],
        sections=[],  # filled by the template: anchor and title of each
        columns=_place_columns(shown),
        data=data,
        facts=sheet.embed(facts),
        verdict=sheet.embed(diagnosis.to_json() | asked),
    )
    return text


def _place_columns(shown: Contents) -> list[tuple[str, str]]:
    """The parts of ranks' places that are known, with their titles; adapters on several nodes."""
    several = len({place.get("node") for place in shown.places.values()}) > 1
    titles = {"gpu": "GPU", **({"nic": "adapter"} if several else {}), "numa": "NUMA"}
    known = {part for place in shown.places.values() for part in place}
    return [(part, title) for part, title in titles.items() if part in known]


def _run_line(diagnosis: Diagnosis) -> str:
    summary, run = diagnosis.summary, diagnosis.run
    parts = [f"run {words.printable(run['run_id'])}"] if run.get("run_id") else []
    if runs := run.get("runs"):
        parts.append(f"{words.plural(len(runs), 'run')} together; charts are of the largest")
    parts += [words.plural(summary["ranks"], "rank"), words.plural(summary["steps"], "step")]
    return " · ".join(parts)


@dataclass(slots=True, frozen=True)
class Contents:
    """`tables` are the data of charts, `facts` the names and scales that charts need."""

    tables: dict[str, Columns]
    facts: dict[str, Any]
    ranks: Sequence[Row]
    places: dict[int, dict[str, str]]
    hosts: list[dict[str, Any]]
    waits_known: bool  # whether the trace tells waits from transfers

    @property
    def worst(self) -> list[Row]:
        """All ranks, or if there are too many those with most lateness, in order of rank."""
        worst = sorted(self.ranks, key=lambda row: -(row["lateness_ns"] or 0.0))[:RANKS_IN_TABLE]
        return sorted(worst, key=lambda row: row["rank"] or 0)

    @property
    def phases(self) -> list[str]:
        """Names of the columns of phases that took time, in the order of a step."""
        drawn = set(self.tables["dist"].phase.tolist())
        return [f"phase_{one.name.lower()}_ns" for one in PHASES_IN_ORDER if int(one) in drawn]


def contents(
    diagnosis: Diagnosis, trace: Trace, *, case: Case | None = None, steps: Columns | None = None
) -> Contents:
    """Compute the contents of a page. `case` and `steps` are made from the trace if None."""
    case = case or open_case(trace)
    table = step_table(trace, case.grid) if steps is None else steps
    named = (int(rank) for finding in diagnosis.findings for rank in finding.where.ranks)
    culprits = list(dict.fromkeys(named))[:CULPRITS_NAMED]
    shown = timeline(trace, table, case.grid.clocks, culprits=culprits)
    ranks, located = per_rank(table), places(trace)
    tables = {"curve": curve(table), "records": shown.records, "kept": shown.steps}
    tables |= {"dist": distributions(table), "places": _means(ranks)}
    facts: dict[str, Any] = {
        **dict.fromkeys(("grid", "waiting", "host_waits", "sizes")),  # None unless set below
        "world": trace.world,
        "compared": None if case.grid.sampled.all() else int(case.grid.sampled.sum()),
        "culprits": culprits,
        "clock_error_us": case.grid.clocks.error_ns / 1e3,
        "unplaced": case.grid.clocks.unplaced,
        "places": located,
        **_names(trace, shown),
    }
    waits_apart = case.waits_known and min(case.grid.shape)
    waits = (waiting(case), host_waits(trace, case)) if waits_apart else ()
    for chart in filter(None, (drawn_map(table, trace.world, culprits), *waits, sizes(case))):
        tables |= chart.tables
        facts |= chart.facts
    known = case.waits_known or trace.world < 2  # a lone rank never waits
    return Contents(tables, facts, ranks, located, hosts(trace, case.grid.clocks), known)


def _means(rows: Sequence[Row]) -> Columns:
    """Return mean wait and lateness of each rank, for the map of nodes."""
    means = {"rank": np.array([row["rank"] for row in rows], np.int32)}
    for name in ("wait", "lateness"):  # None becomes NaN
        column = np.array([row[f"{name}_ns"] for row in rows], float)
        means[f"{name}_us"] = (column / 1e3).astype(np.float32)
    return Columns(means)


def _names(trace: Trace, shown: Timeline) -> dict[str, Any]:
    used = set(shown.records.name.tolist())
    codes: dict[str, Any] = {"kinds": Kind, "ops": Op, "phases": Phase, "flags": Flag}
    return {
        "names": {index: name for index, name in enumerate(trace.names) if index in used},
        "groups": [
            {"name": one.name, "ranks": words.ranks(one.ranks).partition(" ")[2]}
            for one in trace.groups
        ],
        "nodes": {rank: info.node for rank, info in trace.ranks.items()},
        **{
            key: {name.lower(): int(value) for name, value in numbers.__members__.items()}
            for key, numbers in codes.items()
        },
    }


@dataclass(slots=True, frozen=True)
class WaitingCost:
    """Rank-hours of the diagnosed steps, and the part spent waiting. None is unknown."""

    rank_hours: float | None
    lost_rank_hours: float | None
    price: float | None  # of a rank-hour, in the currency of the user
    energy_joules: float | None  # from the GPUs' energy counters
    ranks: int

    @property
    def lost_share(self) -> float | None:
        """The share of waiting in all rank-hours."""
        if not self.rank_hours or self.lost_rank_hours is None:
            return None
        return self.lost_rank_hours / self.rank_hours

    @property
    def lost_a_day(self) -> float | None:
        """Rank-hours lost per day at the same share of waiting."""
        return None if self.lost_share is None else self.lost_share * self.ranks * HOURS_A_DAY

    def money_a_day(self, share: float) -> float | None:
        """Return the price per day of a share of all rank-hours."""
        return self.money(share * self.ranks * HOURS_A_DAY)

    def money(self, rank_hours: float | None) -> float | None:
        return None if self.price is None or rank_hours is None else self.price * rank_hours


def waiting_cost(diagnosis: Diagnosis, trace: Trace, price: float | None = None) -> WaitingCost:
    """Compute the cost of a run; `price` is that of a rank-hour, default from the run's facts."""
    summary = diagnosis.summary
    mean_ns = (summary.get("step_time") or {}).get("mean_ns")
    price = trace.run.get(PRICE) if price is None else price
    known = is_known(mean_ns) and "scaling" not in summary  # joint diagnoses have no own steps
    hours = mean_ns * summary["steps"] * summary["ranks"] / 3.6e12 if known else None
    return WaitingCost(
        rank_hours=hours,
        lost_rank_hours=summary.get("rank_hours_wasted"),
        price=float(price) if isinstance(price, int | float) else None,
        energy_joules=energy_joules(trace),
        ranks=int(summary["ranks"]),
    )


def energy_joules(trace: Trace) -> float | None:
    """Return the energy between first and last reading of all ranks' counters; None without any."""
    found = metric_samples(trace, ENERGY)
    total = sum(float(np.ptp(found.value[rows])) for rows in rows_by_key(found.rank))
    return total if total > 0 else None


def scaling(diagnosis: Diagnosis) -> dict[str, Any] | None:
    """The chart: positions in SVG units, and lines as lists of SVG points; None of one size."""
    curve = diagnosis.summary.get("scaling") or {}
    rows = curve.get("points") or []
    measured = sorted((row["ranks"], row["throughput"]) for row in rows if row["throughput"])
    if len(measured) < 2:
        return None
    fitted = [(row["ranks"], row["fitted"]) for row in rows if row.get("fitted")]
    sizes = sorted({ranks for ranks, _ in [*measured, *fitted]})
    first, rate = measured[0]
    ideal = [(n, rate / first * n) for n in sizes]
    axes = _Axes([*measured, *fitted, *ideal])
    unit = str(curve.get("unit") or "")
    return {
        "unit": unit,
        "ideal": axes.line(ideal),
        "fitted": axes.line(fitted),
        "measured": [
            {"x": axes.x(n), "y": axes.y(found), "label": f"{n:,} ranks: {number(found, unit)}"}
            for n, found in measured
        ],
        "x_ticks": [(axes.x(n), f"{n:,}") for n in sizes[:: -(-len(sizes) // TICKS)]],
        "y_ticks": [(axes.y(tick), number(tick)) for tick in _decades(*axes.rates)],
        **{"width": WIDTH, "height": HEIGHT, "left": LEFT},
        **{"right": WIDTH - RIGHT, "bottom": HEIGHT - BOTTOM},
    }


class _Axes:
    """Map ranks and throughput to positions."""

    def __init__(self, points: Sequence[Point]) -> None:
        ranks, rates = zip(*points, strict=True)
        self.ranks = min(ranks) / ROOM, max(ranks) * ROOM
        self.rates = min(rates) / ROOM, max(rates) * ROOM

    def x(self, ranks: float) -> float:
        low, high = self.ranks
        return round(LEFT + log(ranks / low) / log(high / low) * (WIDTH - LEFT - RIGHT), 1)

    def y(self, rate: float) -> float:
        low, high = self.rates
        share = log(max(rate, low) / low) / log(high / low)
        return round(HEIGHT - BOTTOM - share * (HEIGHT - BOTTOM - TOP), 1)

    def line(self, points: Sequence[Point]) -> str:
        return " ".join(f"{self.x(ranks)},{self.y(rate)}" for ranks, rate in points)


def _decades(low: float, high: float) -> list[float]:
    """Return 1, 2 and 5 times powers of ten between the ends, at most `TICKS`."""
    exponents = range(int(log(low, 10)) - 2, int(log(high, 10)) + 2)
    found = [m * 10.0**e for e in exponents for m in (1, 2, 5) if low <= m * 10.0**e <= high]
    return found[:: -(-len(found) // TICKS)] if found else []
