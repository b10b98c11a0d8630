"""A sweep's rows by combination: the mean of the repeats and how far it can be trusted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import Any

from evenstep.simulate.study.sweep import MEASURES
from evenstep.statistics.interval import half_width

Row = Mapping[str, Any]


def summed_up(rows: Iterable[Row], axes: Iterable[str]) -> list[dict[str, Any]]:
    """One entry for each combination: what was varied, and measures as value, low and high."""
    by_combination: dict[int, list[Row]] = {}
    for row in sorted(rows, key=lambda row: int(row["number"])):
        by_combination.setdefault(int(row["combination"]), []).append(row)
    names = list(axes)
    return [_combination(same, names) for same in by_combination.values()]


def _combination(rows: list[Row], axes: list[str]) -> dict[str, Any]:
    first = rows[0]
    found: dict[str, Any] = {"varied": {name: first[name] for name in axes}}
    found.update({name: first[name] for name in ("ranks", "nodes", "steps", "unit")})
    found["repeats"] = len(rows)
    for name in MEASURES:
        values = [float(row[name]) for row in rows if row[name] is not None]
        found[name] = _not_negative(interval(values)) if values else None
    return found


def _not_negative(found: dict[str, float | None]) -> dict[str, float | None]:
    """The interval of what is measured: never below 0."""
    return found | {"low": None if found["low"] is None else max(found["low"], 0.0)}


def interval(values: list[float]) -> dict[str, float | None]:
    """Mean and its 95 % interval (Student's t); of a single value the bounds are unknown."""
    mean = fmean(values)
    if len(values) < 2:
        return {"value": mean, "low": None, "high": None}
    half = half_width(values)
    return {"value": mean, "low": mean - half, "high": mean + half}
