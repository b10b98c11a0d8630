"""Families of distributions that may continue a measured one above a high threshold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import pi, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import log_ndtr

Array = npt.NDArray[Any]

SHIFTS = (0.03, 0.1, 0.3, 1.0, 3.0)  # tried below the smallest value, in standard deviations
ROUNDS = 30  # of expectation maximisation
HEAVIEST = 0.95  # shape of a Pareto tail whose mean is still finite
FEWEST_HITS = 3


def log_survival(z: Array) -> Array:
    """log P(Z > z) of a standard normal, exact far out in its tail."""
    return np.asarray(log_ndtr(-np.asarray(z)))


def _log_density(z: Array) -> Array:
    return np.asarray(-(z**2) / 2 - 0.5 * np.log(2 * pi))


@dataclass(slots=True, frozen=True)
class TailFamily:
    """A distribution above a threshold: log P(X > x) and log density, both of the whole."""

    name: str
    parameters: dict[str, float]
    log_survival: Callable[[Array], Array]
    log_density: Callable[[Array], Array]

    def given_above(self, values: Array, threshold: float) -> Array:
        """Log density of exceedances, given that they are above the threshold."""
        return np.asarray(
            self.log_density(values) - self.log_survival(np.array([threshold], float))
        )


def normal(values: Array, threshold: float) -> TailFamily:
    """Mean and standard deviation of everything; light tail."""
    del threshold
    mean, sd = float(values.mean()), spread_of(values)
    return TailFamily(
        "normal",
        {"sd_ns": sd},
        lambda x: log_survival((x - mean) / sd),
        lambda x: _log_density((x - mean) / sd) - np.log(sd),
    )


def lognormal(values: Array, threshold: float) -> TailFamily:
    """Of the excess over a shift, which is chosen by likelihood among a few."""
    lowest, spread = float(values.min()), spread_of(values)
    fits = [_shifted(values, lowest - shift * spread) for shift in SHIFTS]
    above = values[values > threshold]
    return max(fits, key=lambda fit: float(fit.given_above(above, threshold).sum()))


def _shifted(values: Array, shift: float) -> TailFamily:
    logs = np.log(values - shift)
    mean, sd = float(logs.mean()), max(float(logs.std()), 1e-9)

    def standard(x: Array) -> Array:
        return np.asarray((np.log(np.maximum(x - shift, 1e-9)) - mean) / sd)

    return TailFamily(
        "lognormal",
        {"shift_ns": shift, "log_sd": sd},
        lambda x: log_survival(standard(x)),
        lambda x: _log_density(standard(x)) - np.log(sd * np.maximum(x - shift, 1e-9)),
    )


def pareto(values: Array, threshold: float) -> TailFamily:
    """Generalised Pareto of the exceedances by probability-weighted moments (Hosking 1987)."""
    excess = np.sort(values[values > threshold]) - threshold
    shape, scale = _pareto_moments(excess)
    above = len(excess) / len(values)

    def ratio(x: Array) -> Array:
        return np.asarray(np.maximum((x - threshold) / scale, 0))

    def survives(x: Array) -> Array:
        return np.asarray(np.log(above) + _pareto_log(shape, ratio(x)))

    def density(x: Array) -> Array:
        inner = np.maximum(1 + shape * ratio(x), 1e-300)
        return np.asarray(survives(x) - np.log(scale) - np.log(inner))

    name = "pareto" if shape > 0 else "bounded"
    return TailFamily(name, {"shape": shape, "scale_ns": scale}, survives, density)


def exponential(values: Array, threshold: float) -> TailFamily:
    """Of the exceedances: memoryless."""
    above = values[values > threshold]
    scale, share = max(float(above.mean()) - threshold, 1e-9), len(above) / len(values)

    def survives(x: Array) -> Array:
        return np.asarray(np.log(share) - np.maximum((x - threshold) / scale, 0))

    def density(x: Array) -> Array:
        return np.asarray(survives(x) - np.log(scale))

    return TailFamily("exponential", {"scale_ns": scale}, survives, density)


def _pareto_moments(excess: Array) -> tuple[float, float]:
    """Shape ξ and scale σ; a mean is always finite."""
    number = len(excess)
    weight = (number - np.arange(1, number + 1)) / max(number - 1, 1)
    first, second = float(excess.mean()), float((weight * excess).mean())
    if first <= 2 * second or first <= 0:
        return HEAVIEST, max(first, 1e-9) * (1 - HEAVIEST)
    shape = min(2 - first / (first - 2 * second), HEAVIEST)
    return max(shape, -1.0), max(2 * first * second / (first - 2 * second), 1e-9)


def _pareto_log(shape: float, ratio: Array) -> Array:
    if abs(shape) < 1e-6:
        return -ratio
    return np.asarray(-np.log(np.maximum(1 + shape * ratio, 1e-300)) / shape)


def rare_hits(values: Array, threshold: float) -> TailFamily | None:
    """Two normal populations (expectation maximisation); None where there is no second one."""
    del threshold
    split = _widest_gap(values)
    if split is None:
        return None
    share, low, high = _two(values, split)
    if not FEWEST_HITS / len(values) <= share <= 0.5 or high[0] - low[0] < 3 * (low[1] + high[1]):
        return None

    def survives(x: Array) -> Array:
        parts = (
            np.log(1 - share) + log_survival((x - low[0]) / low[1]),
            np.log(share) + log_survival((x - high[0]) / high[1]),
        )
        return np.asarray(np.logaddexp(*parts))

    def density(x: Array) -> Array:
        parts = (
            np.log((1 - share) / low[1]) + _log_density((x - low[0]) / low[1]),
            np.log(share / high[1]) + _log_density((x - high[0]) / high[1]),
        )
        return np.asarray(np.logaddexp(*parts))

    found = {"probability": share, "delay_ns": high[0] - low[0], "sd_ns": low[1]}
    return TailFamily("rare_hits", found, survives, density)


def _widest_gap(values: Array) -> float | None:
    """The middle of the widest gap in the upper half."""
    ordered = np.sort(values)[len(values) // 2 :]
    gaps = np.diff(ordered)
    if not len(gaps) or gaps.max() <= 0:
        return None
    at = int(np.argmax(gaps[: max(len(gaps) - FEWEST_HITS + 1, 1)]))
    return float(ordered[at] + gaps[at] / 2)


def _two(values: Array, split: float) -> tuple[float, tuple[float, float], tuple[float, float]]:
    """Share of the upper population, and mean and deviation of both."""
    belongs = (values > split).astype(float)
    least = 1e-3 * spread_of(values)
    for _ in range(ROUNDS):
        share = min(max(float(belongs.mean()), 1e-9), 1 - 1e-9)
        low = _moments(values, 1 - belongs, least)
        high = _moments(values, belongs, low[1])  # a hit comes on top of the usual noise
        upper = np.log(share / high[1]) + _log_density((values - high[0]) / high[1])
        lower = np.log((1 - share) / low[1]) + _log_density((values - low[0]) / low[1])
        belongs = 1 / (1 + np.exp(np.clip(lower - upper, -500, 500)))
    return share, low, high


def _moments(values: Array, weight: Array, least: float) -> tuple[float, float]:
    total = max(float(weight.sum()), 1e-9)
    mean = float((weight * values).sum()) / total
    return mean, max(sqrt(float((weight * (values - mean) ** 2).sum()) / total), least)


def spread_of(values: Array) -> float:
    """Standard deviation, kept from being nothing."""
    return max(float(values.std()), 1e-9 * max(float(np.abs(values).max()), 1.0), 1e-3)
