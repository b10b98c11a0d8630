"""The distribution of a rank's own work: as measured, continued by a fitted tail.

Below a high threshold u stands the measured distribution, above it the tail of one of five
families: normal, lognormal (with a shift), exponential, generalised Pareto (Pickands 1975) and rare
hits (a second normal population). The family is chosen by the likelihood of held-out exceedances.
The maximum over ranks needs only the survival function, so that no rank is drawn one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from evenstep.statistics.interval import Array

FEWEST = 40  # values, below which there is no tail to speak of
SMALLEST = 1e-12  # survival probability at which a table ends
BODY_POINTS, TAIL_POINTS = 200, 600
NEAREST, FARTHEST = 1e-3, 1e7  # distances from the threshold, in standard deviations
TEMPER = 0.5  # factor on the log likelihood: clustered exceedances count for fewer
UNLIKELY = 0.02  # weight below which a family is left out
SHIFTS = (0.03, 0.1, 0.3, 1.0, 3.0)  # tried below the smallest value, in standard deviations
HEAVIEST = 0.95  # shape of a Pareto tail whose mean is still finite
FEWEST_HITS = 3


class TailFamily(NamedTuple):
    """A distribution that may continue a measured one. `parts` are a mixture: the weight of each,
    its distribution in SciPy, and its shape, place and scale."""

    name: str
    parameters: dict[str, float]
    parts: tuple[tuple[float, Any, tuple[float, ...]], ...]

    def logs(self, x: Array) -> Array:
        """log P(X > x) and log density. Shape (2, values)."""
        parts = [
            np.log(share) + np.stack([one.logsf(x, *args), one.logpdf(x, *args)])
            for share, one, args in self.parts
        ]
        return np.asarray(np.logaddexp.reduce(parts))

    def given_above(self, values: Array, threshold: float) -> Array:
        """Log density of exceedances, given that they are above the threshold."""
        return np.asarray(self.logs(values)[1] - self.logs(np.array([threshold], float))[0])


def normal(values: Array, _: float) -> TailFamily:
    """A normal distribution of all values: a light tail."""
    sd = spread_of(values)
    return TailFamily("normal", {"sd_ns": sd}, ((1.0, stats.norm, (values.mean(), sd)),))


def lognormal(values: Array, threshold: float) -> TailFamily:
    """A lognormal distribution above a shift, which is chosen by likelihood among a few."""
    lowest, spread = float(values.min()), spread_of(values)
    fits = [_shift(values, lowest - shift * spread) for shift in SHIFTS]
    above = values[values > threshold]
    return max(fits, key=lambda fit: float(fit.given_above(above, threshold).sum()))


def _shift(values: Array, shift: float) -> TailFamily:
    logs = np.log(values - shift)
    sd = max(float(logs.std()), 1e-9)
    part = 1.0, stats.lognorm, (sd, shift, np.exp(logs.mean()))
    return TailFamily("lognormal", {"shift_ns": shift, "log_sd": sd}, (part,))


def pareto(values: Array, threshold: float) -> TailFamily:
    """Generalised Pareto of the exceedances by probability-weighted moments (Hosking 1987)."""
    excess = np.sort(values[values > threshold]) - threshold
    shape, scale = _pareto_moments(excess)
    part = len(excess) / len(values), stats.genpareto, (shape, threshold, scale)
    name = "pareto" if shape > 0 else "bounded"
    return TailFamily(name, {"shape": shape, "scale_ns": scale}, (part,))


def exponential(values: Array, threshold: float) -> TailFamily:
    """An exponential distribution of the exceedances: memoryless."""
    above = values[values > threshold]
    scale = max(float(above.mean()) - threshold, 1e-9)
    part = len(above) / len(values), stats.expon, (threshold, scale)
    return TailFamily("exponential", {"scale_ns": scale}, (part,))


def _pareto_moments(excess: Array) -> tuple[float, float]:
    """Shape ξ and scale σ of a Pareto tail with a finite mean."""
    number = len(excess)
    weight = (number - np.arange(1, number + 1)) / max(number - 1, 1)
    first, second = float(excess.mean()), float((weight * excess).mean())
    if first <= 2 * second or first <= 0:
        return HEAVIEST, max(first, 1e-9) * (1 - HEAVIEST)
    shape = min(2 - first / (first - 2 * second), HEAVIEST)
    return max(shape, -1.0), max(2 * first * second / (first - 2 * second), 1e-9)


def rare_hits(values: Array, _: float) -> TailFamily | None:
    """Two normal populations, split at the widest gap; None where these are not far apart."""
    split = _widest_gap(values)
    if split is None:
        return None
    above = values > split
    share, usual, hit = float(above.mean()), values[~above], values[above]
    sd = max(float(usual.std()), 1e-3 * spread_of(values))
    wide = max(float(hit.std()), sd)  # a hit comes on top of the usual noise
    delay = float(hit.mean() - usual.mean())
    if not FEWEST_HITS / len(values) <= share <= 0.5 or delay < 3 * (sd + wide):
        return None
    found = {"probability": share, "delay_ns": delay, "sd_ns": sd}
    calm, struck = (usual.mean(), sd), (hit.mean(), wide)
    parts = (1 - share, stats.norm, calm), (share, stats.norm, struck)
    return TailFamily("rare_hits", found, parts)


def _widest_gap(values: Array) -> float | None:
    """The middle of the widest gap in the upper half."""
    ordered = np.sort(values)[len(values) // 2 :]
    gaps = np.diff(ordered)
    if not len(gaps) or gaps.max() <= 0:
        return None
    at = int(np.argmax(gaps[: max(len(gaps) - FEWEST_HITS + 1, 1)]))
    return float(ordered[at] + gaps[at] / 2)


def spread_of(values: Array) -> float:
    """Standard deviation, never 0."""
    return max(float(values.std()), 1e-9 * max(float(np.abs(values).max()), 1.0), 1e-3)


# -- as a table ------------------------------------------------------------------------------------


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


#: Families, and the parameters of their tails: each costs one unit of log likelihood (Akaike).
FITS: dict[str, tuple[Callable[[Array, float], TailFamily | None], int]] = {
    **{"normal": (normal, 0), "lognormal": (lognormal, 2), "exponential": (exponential, 1)},
    **{"pareto": (pareto, 2), "rare_hits": (rare_hits, 3)},
}


def weigh(values: Array) -> dict[str, float]:
    """Weights of the families by how well their tails explain held-out values, (steps, ranks), the
    best first. Halves are runs of neighbouring steps, so that a burst stays in one."""
    scores = dict.fromkeys(FITS, 0.0)
    halves = (np.arange(len(values)) // 8) % 2 == 1
    for half in (halves, ~halves):
        train, test = values[half].reshape(-1), values[~half].reshape(-1)
        if min(len(train), len(test)) < FEWEST // 2 or not np.ptp(train) > 0:
            return {"normal": 1.0}
        threshold = threshold_of(train)
        above = test[test > threshold]
        for name, (fit, _) in FITS.items():
            family = fit(train, threshold)
            logs = None if family is None else family.given_above(above, threshold)
            scores[name] += -1e9 if logs is None else float(np.maximum(logs, -1e4).sum())
    scores = {name: score - FITS[name][1] for name, score in scores.items()}
    best = max(scores.values())
    weights = {name: float(np.exp((score - best) * TEMPER)) for name, score in scores.items()}
    total = sum(weights.values())
    kept = {name: weight / total for name, weight in weights.items() if weight / total > UNLIKELY}
    return dict(sorted(kept.items(), key=lambda item: -item[1]))


def threshold_of(values: Array) -> float:
    """Beginning of the tail of values that are not all equal: a tenth of them, at least 20 and at
    most 500, lie above; more where the highest values are equal."""
    ordered, number = np.sort(values), len(values)
    above = min(max(number // 10, 20), 500, number // 2)
    return float(min(ordered[number - above - 1], ordered[ordered < ordered[-1]][-1]))


def fit(values: Array, family: str | None = None) -> TabulatedNoise:
    """The distribution of values (steps, ranks), with the tail of a family or of the best one."""
    flat = values.reshape(-1)
    if float(np.ptp(flat)) <= 0:
        point = float(flat[0]) if len(flat) else 0.0
        at = np.array([point - 1e-6, point])
        return TabulatedNoise("none", {}, at, np.array([0.0, np.log(SMALLEST)]), len(flat))
    weights = {family: 1.0} if family else weigh(values)
    name = next(iter(weights))
    threshold = threshold_of(flat)
    tail = FITS[name][0](flat, threshold) or pareto(flat, threshold)
    at, survives = _table(flat, threshold, tail)
    return TabulatedNoise(tail.name, tail.parameters, at, survives, len(flat), weights)


def _table(flat: Array, threshold: float, tail: TailFamily) -> tuple[Array, Array]:
    """Quantiles up to the threshold, and points of the tail, at distances from it that grow by a
    constant factor and at the values seen beyond it; with log P(X > x) at each."""
    share, spread = float((flat > threshold).mean()), spread_of(flat)
    levels = np.linspace(0, 1 - share, BODY_POINTS)
    body = np.minimum(np.quantile(flat, levels), threshold)
    points = threshold + spread * np.geomspace(NEAREST, FARTHEST, TAIL_POINTS)
    points = np.union1d(points, flat[flat > threshold])
    shape = tail.logs(points)[0] - tail.logs(np.array([threshold]))[0]
    kept = shape > np.log(SMALLEST / share)
    at = np.concatenate([body, points[kept]])
    survives = np.concatenate([np.log1p(-levels), np.log(share) + shape[kept]])
    end = at[-1] + 1e-6 * spread
    return np.append(at, end), np.append(np.minimum.accumulate(survives), np.log(SMALLEST))
