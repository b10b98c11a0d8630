"""Contents of the report page: packed tables for charts, facts, and rows of the HTML tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from evenstep.diagnose.finding import Diagnosis
from evenstep.diagnose.lateness.case import Case, open_case
from evenstep.diagnose.measure.overview import step_table
from evenstep.report.page.fabric import hosts, places
from evenstep.report.page.overview import PHASES_IN_ORDER, curve, distributions, drawn_map, per_rank
from evenstep.report.page.sizes import sizes
from evenstep.report.page.timeline import Timeline, timeline
from evenstep.report.page.waiting import host_waits, waiting
from evenstep.trace.columns import Columns
from evenstep.trace.spool.layout import Flag, Kind, Op, Phase
from evenstep.trace.trace import Trace
from evenstep.words import some_ranks

RANKS_IN_TABLE = 32
CULPRITS_NAMED = 1024

Row = dict[str, float | None]


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
        "groups": [{"name": one.name, "ranks": some_ranks(one.ranks)} for one in trace.groups],
        "nodes": {rank: info.node for rank, info in trace.ranks.items()},
        **{
            key: {name.lower(): int(value) for name, value in numbers.__members__.items()}
            for key, numbers in codes.items()
        },
    }
