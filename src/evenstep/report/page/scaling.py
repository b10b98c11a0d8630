"""Throughput by number of ranks as a drawing: ideal, measured, fitted, and projected.

Both axes are logarithmic, so that perfect scaling is a straight line and every doubling as wide.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log
from typing import Any

from evenstep.diagnose.finding import Diagnosis
from evenstep.words import number

WIDTH, HEIGHT = 640.0, 300.0
LEFT, RIGHT, TOP, BOTTOM = 92.0, 16.0, 14.0, 34.0
ROOM = 1.25  # beyond the outermost point, as a factor
TICKS = 8


@dataclass(slots=True, frozen=True)
class ThroughputPoint:
    """Throughput at one size, with its interval where it has one."""

    ranks: int
    throughput: float
    low: float | None = None
    high: float | None = None


@dataclass(slots=True, frozen=True)
class Drawing:
    """Places in the drawing's own units; lines are lists of SVG points."""

    unit: str
    ideal: str
    fitted: str
    measured: list[dict[str, Any]]
    projected: list[dict[str, Any]]
    x_ticks: list[tuple[float, str]]
    y_ticks: list[tuple[float, str]]
    width: float = WIDTH
    height: float = HEIGHT
    left: float = LEFT
    right: float = WIDTH - RIGHT
    bottom: float = HEIGHT - BOTTOM


def scaling(diagnosis: Diagnosis, projection: Mapping[str, Any] | None) -> Drawing | None:
    """The drawing of several runs, or of one and its projection; None where there is neither.

    `projection` is what `evenstep project --json` prints.
    """
    curve = diagnosis.summary.get("scaling") or {}
    rows = curve.get("points") or []
    measured = [ThroughputPoint(row["ranks"], row["throughput"]) for row in rows]
    fitted = [ThroughputPoint(row["ranks"], row["fitted"]) for row in rows if row.get("fitted")]
    unit = str(curve.get("unit") or "")
    if projection is not None and not measured:
        one = projection["measured"]
        measured = [ThroughputPoint(one["ranks"], one["throughput"]["value"])]
        unit = str(one["throughput"]["unit"])
    ahead = [_ahead(row) for row in (projection or {}).get("projected") or []]
    measured = [point for point in measured if point.throughput and point.throughput > 0]
    if not measured or len(measured) + len(ahead) < 2:
        return None
    return _drawn(unit, sorted(measured, key=lambda point: point.ranks), fitted, ahead)


def _ahead(row: Mapping[str, Any]) -> ThroughputPoint:
    rate = row["throughput"]
    return ThroughputPoint(row["ranks"], rate["value"], rate["low"], rate["high"])


class _Axes:
    """From ranks and throughput to places."""

    def __init__(self, ranks: Sequence[float], rates: Sequence[float]) -> None:
        self.ranks = min(ranks) / ROOM, max(ranks) * ROOM
        self.rates = min(rates) / ROOM, max(rates) * ROOM

    def x(self, ranks: float) -> float:
        low, high = self.ranks
        return round(LEFT + log(ranks / low) / log(high / low) * (WIDTH - LEFT - RIGHT), 1)

    def y(self, rate: float) -> float:
        low, high = self.rates
        share = log(max(rate, low) / low) / log(high / low)
        return round(HEIGHT - BOTTOM - share * (HEIGHT - BOTTOM - TOP), 1)

    def line(self, points: Sequence[ThroughputPoint]) -> str:
        return " ".join(f"{self.x(one.ranks)},{self.y(one.throughput)}" for one in points)


def _drawn(
    unit: str,
    measured: list[ThroughputPoint],
    fitted: list[ThroughputPoint],
    ahead: list[ThroughputPoint],
) -> Drawing:
    first = measured[0]
    everything = [*measured, *fitted, *ahead]
    sizes = sorted({point.ranks for point in everything})
    ideal = [ThroughputPoint(n, first.throughput / first.ranks * n) for n in sizes]
    ends = [end for one in ahead for end in (one.low, one.high) if end]
    axes = _Axes(sizes, [*(one.throughput for one in [*everything, *ideal]), *ends])
    shown = sizes[:: -(-len(sizes) // TICKS)]
    return Drawing(
        unit=unit,
        ideal=axes.line(ideal),
        fitted=axes.line(fitted),
        measured=[_place(axes, one, unit) for one in measured],
        projected=[_place(axes, one, unit) for one in ahead],
        x_ticks=[(axes.x(n), f"{n:,}") for n in shown],
        y_ticks=[(axes.y(rate), number(rate)) for rate in _decades(*axes.rates)],
    )


def _place(axes: _Axes, point: ThroughputPoint, unit: str) -> dict[str, Any]:
    ends = (point.low, point.high) if point.low and point.high else None
    return {
        "x": axes.x(point.ranks),
        "y": axes.y(point.throughput),
        "ends": [axes.y(end) for end in ends] if ends else None,
        "label": f"{point.ranks:,} ranks: {number(point.throughput, unit)}"
        + (f" ({number(point.low)} to {number(point.high)})" if ends else ""),
    }


def _decades(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten between the ends; every other one of too many."""
    exponents = range(int(log(low, 10)) - 2, int(log(high, 10)) + 2)
    found = [m * 10.0**e for e in exponents for m in (1, 2, 5) if low <= m * 10.0**e <= high]
    return found[:: -(-len(found) // TICKS)] if found else []
