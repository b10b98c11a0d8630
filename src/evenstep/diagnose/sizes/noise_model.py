"""How a rank's own work varies: what was measured, and what lies beyond it.

Below a high threshold u the measured distribution stands. Above it one of five families does,
chosen by the likelihood of exceedances it was not fitted to: normal, lognormal (with a shift),
exponential, generalised Pareto (Pickands 1975) and rare hits (a second normal population).
The maximum over ranks then needs only the survival function, so nothing is drawn rank by rank.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.statistics.tails import (
    TailFamily,
    exponential,
    lognormal,
    normal,
    pareto,
    rare_hits,
    spread_of,
)

Array = npt.NDArray[Any]

FEWEST = 40  # values, below which there is no tail to speak of
SMALLEST = 1e-12  # survival probability at which a table ends
BODY_POINTS, TAIL_POINTS = 200, 160
FINE_POINTS = 3000  # that the tail's are chosen from
NEAREST, FARTHEST = 1e-3, 1e7  # distances from the threshold, in standard deviations
TEMPER = 0.5  # of the log likelihood: exceedances come in clusters and count for fewer
UNLIKELY = 0.02  # weight below which a family is left out


@dataclass(slots=True, frozen=True)
class TabulatedNoise:
    """A distribution as a table: `at_ns` ascends, `log_survival` falls."""

    family: str
    parameters: dict[str, float]
    at_ns: Array
    log_survival: Array
    values: int  # it was fitted to
    weights: dict[str, float] = field(default_factory=dict)  # of families: likelihood held out

    def log_cdf(self, x: Array) -> Array:
        """log P(X <= x)."""
        tail = np.interp(x, self.at_ns, self.log_survival, left=0.0, right=-np.inf)
        return np.asarray(np.log1p(-np.minimum(np.exp(tail), 1 - 1e-16)))


FITS: dict[str, Callable[[Array, float], TailFamily | None]] = {
    "normal": normal,
    "lognormal": lognormal,
    "exponential": exponential,
    "pareto": pareto,
    "rare_hits": rare_hits,
}


#: Parameters that a family bends its tail with: each costs one unit of log likelihood (Akaike).
FREEDOM = {"normal": 0, "lognormal": 2, "exponential": 1, "pareto": 2, "rare_hits": 3}


def weigh(values: Array) -> dict[str, float]:
    """How well each family's tail explains values it has not seen, as weights, the best first.

    `values` is (steps, ranks): halves are neighbouring steps, so that a burst stays in one.
    """
    scores = dict.fromkeys(FITS, 0.0)
    halves = (np.arange(len(values)) // 8) % 2 == 1
    for half in (halves, ~halves):
        train, test = values[half].reshape(-1), values[~half].reshape(-1)
        if min(len(train), len(test)) < FEWEST // 2:
            return {"normal": 1.0}
        threshold = threshold_of(train)
        for name, fit in FITS.items():
            scores[name] += _score(fit(train, threshold), test, threshold)
    scores = {name: score - FREEDOM[name] for name, score in scores.items()}
    best = max(scores.values())
    weights = {name: float(np.exp((score - best) * TEMPER)) for name, score in scores.items()}
    total = sum(weights.values())
    kept = {name: weight / total for name, weight in weights.items() if weight / total > UNLIKELY}
    return dict(sorted(kept.items(), key=lambda item: -item[1]))


def _score(family: TailFamily | None, test: Array, threshold: float) -> float:
    """Log likelihood of the held-out values above the threshold."""
    above = test[test > threshold]
    if family is None:
        return -1e9
    return float(np.maximum(family.given_above(above, threshold), -1e4).sum())


def threshold_of(values: Array) -> float:
    """Where the tail begins: above it lie a tenth of the values, at least 20 and at most 500."""
    number = len(values)
    above = min(max(number // 10, 20), 500, number // 2)
    return float(np.sort(values)[number - above - 1])


def fit(values: Array, family: str | None = None) -> TabulatedNoise:
    """The distribution of some values (steps, ranks), with the tail of a family or the best one."""
    flat = values.reshape(-1)
    if float(np.ptp(flat)) <= 0:
        point = float(flat[0]) if len(flat) else 0.0
        at = np.array([point - 1e-6, point])
        return TabulatedNoise("none", {}, at, np.array([0.0, np.log(SMALLEST)]), len(flat))
    weights = {family: 1.0} if family else weigh(values)
    name = next(iter(weights))
    threshold = threshold_of(flat)
    tail = FITS[name](flat, threshold) or pareto(flat, threshold)
    at, survives = _table(flat, threshold, tail)
    return TabulatedNoise(tail.name, tail.parameters, at, survives, len(flat), weights)


def _tail_points(
    tail: TailFamily, threshold: float, spread: float, least: float
) -> tuple[Array, Array]:
    """Distances above the threshold and log P(beyond | above it), down to `least`."""

    def beyond(steps: Array) -> Array:
        start = tail.log_survival(np.array([threshold]))
        return np.asarray(tail.log_survival(threshold + steps) - start)

    coarse = spread * np.geomspace(NEAREST, FARTHEST, 101)
    ends = np.flatnonzero(beyond(coarse) < least)
    steps = np.geomspace(coarse[0], coarse[ends[0]] if len(ends) else coarse[-1], FINE_POINTS)
    shape = beyond(steps)
    kept = np.flatnonzero(shape > least)
    chosen = kept[_spread_out(shape[kept])]
    return steps[chosen], shape[chosen]


def _spread_out(levels: Array) -> Array:
    """Some places of a falling series: half of them where it falls, half evenly."""
    falls = np.abs(np.diff(levels, prepend=levels[:1]))
    each = falls / max(float(falls.sum()), 1e-12) + 1 / max(len(levels), 1)
    wanted = np.linspace(0, float(each.sum()), TAIL_POINTS)
    return np.unique(np.minimum(np.searchsorted(np.cumsum(each), wanted), len(levels) - 1))


def _table(flat: Array, threshold: float, tail: TailFamily) -> tuple[Array, Array]:
    ordered = np.sort(flat)
    share = float((flat > threshold).mean())
    levels = np.linspace(0, 1 - share, BODY_POINTS)
    body = np.minimum(np.quantile(ordered, levels), threshold)  # which lies between two values
    spread = spread_of(flat)
    steps, shape = _tail_points(tail, threshold, spread, float(np.log(SMALLEST / share)))
    at = np.concatenate([body, threshold + steps])
    survives = np.concatenate([np.log1p(-levels), np.log(share) + shape])
    end = at[-1] + 1e-6 * spread
    return np.append(at, end), np.append(np.minimum.accumulate(survives), np.log(SMALLEST))
