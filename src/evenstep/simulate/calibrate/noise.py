"""Fit noise to a table of factors by step and rank.

First the part that all ranks share in a step, then the part that lasts from step to step, then the
distribution of the rest: normal, lognormal, Pareto or normal with rare hits, by log likelihood less
the number of parameters (Akaike 1974); recorded values where no family fits.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from evenstep.documents import short
from evenstep.scenario.parts import Noise
from evenstep.statistics.interval import MAD_SIGMA
from evenstep.trace.columns import Array

SILENT = 1e-4  # standard deviation below which there is no noise
COMMON = 0.1  # share of the variance below which no part counts as common or lasting
FEWEST = 40  # values, below which only a normal distribution is fitted
FEWEST_LASTING = 50  # steps, below which no lasting part is fitted
OUTLYING = 6.0  # robust standard deviations above which a value is a hit
MOST_HITS = 0.2
NEAR = 0.08  # largest distance (Kolmogorov) of a family that fits
CERTAIN = 5.0  # standard deviations
KEPT = 256  # values of a recorded distribution


def fit_noise(factor: Array, *, phase: str = "compute", length_ns: float = 0.0) -> list[Noise]:
    """Noises that together give factors (steps, ranks) around 1. `length_ns`: the time that factors
    multiply; 0: no delays are fitted."""
    if not float(factor.std()) > SILENT:
        return []
    noises: list[Noise] = []
    rest = factor
    shared = common_part(rest)
    if shared is not None:
        noises += _shared_noise(shared, phase)
        rest = rest / shared[:, None]
    lasting = lasting_part(rest)
    if lasting is not None:
        sigma, steps = map(short, lasting)
        noises.append(Noise(kind="drift", phase=phase, sigma=sigma, steps=steps))
    sigma = lasting[0] if lasting else 0.0
    return [*noises, *_own(rest.reshape(-1), phase, length_ns, sigma=sigma)]


def common_part(factor: Array) -> Array | None:
    """Factor of each step that all ranks share; None where ranks vary independently.

    The test is of the order of each rank's steps, so that outliers and skew do not matter.
    """
    steps, ranks = factor.shape
    if ranks < 4 or steps < FEWEST:
        return None
    place = np.argsort(np.argsort(factor, axis=0, kind="stable"), axis=0) / steps
    whole, together = float(place.var()), float(place.mean(axis=1).var())
    chance = whole / ranks * (1 + CERTAIN * math.sqrt(2 / steps))
    if together < max(chance, whole / ranks + COMMON * whole):
        return None
    middle = np.median(factor, axis=1)
    return np.asarray(middle / float(np.median(middle)))


def _shared_noise(shared: Array, phase: str) -> list[Noise]:
    """Noise common to all ranks. On one switch, these are one rack."""
    lasting = lasting_part(shared[:, None])
    sigma = float(shared.std())
    if lasting is None:
        return [Noise(kind="normal", phase=phase, scope="rack", sigma=short(sigma))]
    steps = short(lasting[1])
    found = [Noise(kind="drift", phase=phase, scope="rack", sigma=short(lasting[0]), steps=steps)]
    left = sigma**2 - lasting[0] ** 2
    if left > COMMON * sigma**2:
        found.append(Noise(kind="normal", phase=phase, scope="rack", sigma=short(math.sqrt(left))))
    return found


def lasting_part(factor: Array) -> tuple[float, float] | None:
    """Standard deviation and length in steps of lasting noise: autocovariance σ² e^(-k/steps).

    Fitted to lags 1 and 2, which noise of single steps does not enter. Outliers are clipped first.
    """
    if len(factor) < FEWEST_LASTING:
        return None
    centred = factor - np.median(factor, axis=0)
    limit = 4 * MAD_SIGMA * float(np.median(np.abs(centred)))
    centred = np.clip(centred, -limit, limit)
    centred = centred - centred.mean(axis=0)
    whole, first, second = (
        float((centred[lag:] * centred[: len(centred) - lag]).mean()) for lag in (0, 1, 2)
    )
    noise = 4 / math.sqrt(factor.size)  # of an autocorrelation of independent values, four times
    if whole <= 0 or first < max(COMMON, noise) * whole or second < noise * whole:
        return None
    keep = min(max(second / first, 0.05), 0.999)
    return math.sqrt(min(first / keep, whole)), -1 / math.log(keep)


# -- distribution of the rest ----------------------------------------------------------------------


class _Family(NamedTuple):
    """Noises, and of their distribution: log likelihood, parameters, distance."""

    noises: list[Noise]
    log_likelihood: float
    parameters: int
    distance: float  # of Kolmogorov and Smirnov


def _own(values: Array, phase: str, length_ns: float, *, sigma: float) -> list[Noise]:
    """Noise of each rank in each step; `sigma` of it is lasting noise."""
    if len(values) < FEWEST:
        return _plain(math.sqrt(max(float(values.var()) - sigma**2, 0.0)), phase)
    middle = float(np.median(values))
    families = [_normal(values, phase, sigma)]
    if sigma == 0.0:
        families += [_lognormal(values, phase), _pareto(values, phase)]
    if length_ns:
        families += _hits(values, phase, sigma, length_ns)
    best = max(families, key=lambda family: family.log_likelihood - family.parameters)
    if best.distance <= NEAR or sigma:
        return best.noises
    kept = np.quantile(values / middle, (np.arange(KEPT) + 0.5) / KEPT)
    return [Noise(kind="recorded", phase=phase, values=tuple(short(v) for v in kept))]


def _plain(sigma: float, phase: str) -> list[Noise]:
    return [Noise(kind="normal", phase=phase, sigma=short(sigma))] if sigma > SILENT else []


def _normal(values: Array, phase: str, sigma: float) -> _Family:
    found = stats.norm(values.mean(), max(float(values.std()), 1e-9))
    left = math.sqrt(max(found.var() - sigma**2, 0.0))
    return _fit_family(values, found, 2, _plain(left / found.mean(), phase))


def _lognormal(values: Array, phase: str) -> _Family:
    logs = np.log(np.maximum(values, 1e-6))
    deviation = max(float(logs.std()), 1e-9)
    found = stats.lognorm(deviation, scale=math.exp(logs.mean()))
    noise = Noise(kind="lognormal", phase=phase, sigma=short(deviation))
    return _fit_family(np.exp(logs), found, 2, [noise])


def _pareto(values: Array, phase: str) -> _Family:
    """Excess over the smallest: Lomax, its index by likelihood on a grid, its scale by the mean."""
    least = float(values.min())
    mean = max(float(values.mean()) - least, 1e-12)
    found = []
    for alpha in (1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0, 10.0):
        lomax = stats.lomax(alpha, loc=least, scale=mean * (alpha - 1))
        noise = Noise(kind="pareto", phase=phase, alpha=alpha, scale=short(mean / least))
        found.append(_fit_family(values, lomax, 3, [noise]))
    return max(found, key=lambda family: family.log_likelihood)


def _fit_family(values: Array, found: Any, parameters: int, noises: list[Noise]) -> _Family:
    """A family with this SciPy distribution."""
    likelihood = float(found.logpdf(values).sum())
    return _Family(noises, likelihood, parameters, float(stats.kstest(values, found.cdf).statistic))


def _hits(values: Array, phase: str, sigma: float, length_ns: float) -> list[_Family]:
    """Two normal populations: nearly all, and those far above."""
    middle = float(np.median(values))
    robust = max(MAD_SIGMA * float(np.median(np.abs(values - middle))), 1e-6)
    above = values > middle + OUTLYING * robust
    share = float(above.mean())
    if above.sum() < 3 or share > MOST_HITS:
        return []
    low, high = values[~above], values[above]
    usual = stats.norm(low.mean(), max(float(low.std()), 1e-9))
    rare = stats.norm(high.mean(), max(float(high.std()), usual.std()))
    logs = np.logaddexp(
        math.log(1 - share) + usual.logpdf(values), math.log(share) + rare.logpdf(values)
    )
    left = math.sqrt(max(usual.var() - sigma**2, 0.0))
    delay = (rare.mean() - usual.mean()) * length_ns / 1e6
    hit = Noise(kind="hits", phase=phase, probability=short(share), delay_ms=short(delay))
    distance = float(stats.kstest(low, usual.cdf).statistic)
    return [_Family([*_plain(left, phase), hit], float(logs.sum()), 5, distance)]


def mean_of(noises: list[Noise], length_ns: float) -> float:
    """Mean factor of these noises on a length."""
    factor, delay = 1.0, 0.0
    for noise in noises:
        if noise.kind == "pareto":
            factor *= 1 + noise.scale
        elif noise.kind == "recorded":
            factor *= float(np.mean(noise.values))
        elif noise.kind == "hits":
            delay += noise.probability * noise.delay_ms * 1e6
    return factor + delay / length_ns if length_ns else factor
