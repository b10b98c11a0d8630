"""Gains of arms with their intervals as a drawing, what no difference looks like behind them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

WIDTH, LEFT, RIGHT, TOP, ROW, FOOT = 760.0, 190.0, 20.0, 10.0, 24.0, 30.0
AGAIN = "baseline again"  # the arm that is the baseline once more
NARROWEST = 0.01  # of the axis, as a share: less than a percent is not blown up to its width
STEPS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)

Interval = Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class GainLine:
    """One gain. Places are in the drawing's units; None where it is not known."""

    label: str
    y: float
    whole: bool  # the mean over the jobs, not one job
    value: float | None
    ends: tuple[float, float] | None
    predicted: float | None


@dataclass(frozen=True, slots=True)
class Forest:
    """All gains; `band` is the interval of the baseline against itself."""

    lines: list[GainLine]
    ticks: list[tuple[float, str]]
    zero: float
    band: tuple[float, float] | None
    height: float
    width: float = WIDTH
    left: float = LEFT
    right: float = WIDTH - RIGHT


def forest(
    arms: Sequence[Mapping[str, Any]], predicted: Mapping[str, Sequence[float]]
) -> Forest | None:
    """Each arm's mean gain and those of its jobs; None where nothing was compared."""
    rows = list(_rows(arms, predicted))
    known = [x for _, _, gain, told in rows for x in (*gain.values(), told) if x is not None]
    if not known:
        return None
    low, high = min(*known, 0.0), max(*known, 0.0)
    room = max(0.06 * (high - low), (NARROWEST - (high - low)) / 2)
    low, high = low - room, high + room

    def x(gain: float) -> float:
        return round(LEFT + (gain - low) / (high - low) * (WIDTH - LEFT - RIGHT), 1)

    def line(at: int, label: str, whole: bool, gain: Interval, told: float | None) -> GainLine:
        value, ends = gain["value"], _ends(gain)
        return GainLine(
            label,
            TOP + (at + 0.5) * ROW,
            whole,
            None if value is None else x(value),
            None if ends is None else (x(ends[0]), x(ends[1])),
            None if told is None else x(told),
        )

    again = next((_ends(arm["gain"]) for arm in arms if arm["arm"] == AGAIN), None)
    return Forest(
        [line(at, *row) for at, row in enumerate(rows)],
        [(x(at), f"{100 * at:+.3g} %" if at else "0") for at in _ticks(low, high)],
        x(0.0),
        None if again is None else (x(again[0]), x(again[1])),
        TOP + len(rows) * ROW + FOOT,
    )


def _rows(
    arms: Sequence[Mapping[str, Any]], predicted: Mapping[str, Sequence[float]]
) -> Iterator[tuple[str, bool, Interval, float | None]]:
    for arm in arms:
        if arm["gain"] is None:
            continue
        told, jobs = predicted.get(arm["arm"]), arm["jobs"]
        paced = [at for at, job in enumerate(jobs) if job["paced"]] or list(range(len(jobs)))
        mean = None if told is None else sum(told[at] for at in paced) / len(paced)
        yield arm["arm"], True, arm["gain"], mean
        if len(jobs) > 1:
            for at, job in enumerate(jobs):
                yield job["job"], False, job["gain"], None if told is None else told[at]


def _ends(gain: Interval) -> tuple[float, float] | None:
    low, high = gain["low"], gain["high"]
    return None if low is None or high is None else (low, high)


def _ticks(low: float, high: float) -> list[float]:
    """Round gains between the ends, about six of them."""
    step = next((step for step in STEPS if (high - low) / step <= 7), STEPS[-1])
    first, last = int(low / step) - 1, int(high / step) + 1
    return [at * step for at in range(first, last + 1) if low <= at * step <= high]
