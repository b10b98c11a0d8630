"""Chart of throughput by number of ranks: ideal, measured and fitted, on logarithmic axes."""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from typing import Any

from evenstep.diagnose.finding import Diagnosis
from evenstep.words import number

WIDTH, HEIGHT = 640.0, 300.0
LEFT, RIGHT, TOP, BOTTOM = 92.0, 16.0, 14.0, 34.0
ROOM = 1.25  # factor beyond the outermost points
TICKS = 8

Point = tuple[int, float]  # ranks and throughput


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
