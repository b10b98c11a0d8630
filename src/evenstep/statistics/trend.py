"""Whether a series drifts: Theil-Sen slope and the Mann-Kendall test, by ranks alone.

Neighbouring values are not independent, which makes chance look like drift: the variance of the
test is raised by the autocorrelation of the ranks (Hamed and Rao 1998). That is taken as that of a
first-order process, its coefficient corrected for the bias of short series (Marriott, Pope 1954).
"""

from __future__ import annotations

from statistics import NormalDist, median
from typing import NamedTuple

import numpy as np

from evenstep.statistics.interval import Array

BLOCKS = 64  # a series is thinned to so many medians
FEWEST = 8  # values, below which no trend is claimed


class Trend(NamedTuple):
    """Slope per unit of the axis, its 95 % interval, and the p-value of there being none."""

    slope: float
    low: float
    high: float
    p: float


def trend(axis: Array, values: Array, noise: Array | None = None) -> Trend:
    """The trend of a series without gaps, in order of its axis; p is 1 for too few values. `noise`:
    the part of the values that is no trend; by default the residual of the line."""
    if len(values) < FEWEST:
        return Trend(0.0, 0.0, 0.0, 1.0)
    first, second = np.triu_indices(len(values), 1)
    run = axis[second] - axis[first]
    rise = (values[second] - values[first])[run > 0]
    slopes = np.sort(rise / run[run > 0])
    if not len(slopes):
        return Trend(0.0, 0.0, 0.0, 1.0)
    slope = float(np.median(slopes))
    deviation = np.sqrt(_variance(values, values - slope * axis if noise is None else noise))
    total = float(np.sign(values[second] - values[first]).sum())
    z = (abs(total) - 1) / deviation if total and deviation > 0 else 0.0
    low, high = _bounds(slopes, 1.96 * deviation)
    return Trend(slope, low, high, 2 * (1 - NormalDist().cdf(max(z, 0.0))))


def _variance(values: Array, detrended: Array) -> float:
    """Variance of the Mann-Kendall sum: n(n−1)(2n+5)/18 less ties, corrected by Hamed and Rao."""
    n = len(values)
    ties = np.unique(values, return_counts=True)[1].astype(float)
    plain = (n * (n - 1) * (2 * n + 5) - (ties * (ties - 1) * (2 * ties + 5)).sum()) / 18
    order = rank_values(detrended)
    order -= order.mean()
    power = float((order**2).sum())
    if power <= 0:
        return max(float(plain), 0.0)
    lags = np.arange(1, n - 1)
    first = float((order[1:] * order[:-1]).sum()) / power
    corrected = min((n * first + 1) / (n - 4), 0.99)
    auto = corrected**lags if first > 1.96 / np.sqrt(n) else np.zeros(len(lags))
    weight = (n - lags) * (n - lags - 1.0) * (n - lags - 2.0)
    factor = 1 + 2 / (n * (n - 1.0) * (n - 2.0)) * float((weight * auto).sum())
    return float(plain) * max(factor, 1.0)


def rank_values(values: Array) -> Array:
    """Rank of each value from 1; equal values share the mean of theirs. Flattened."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(count) - (count - 1) / 2)[place.reshape(-1)])


def _bounds(slopes: Array, half: float) -> tuple[float, float]:
    """Sen's interval: the slopes at `half` of the test's sum from the middle one."""
    middle = (len(slopes) - 1) / 2
    low = int(np.clip(middle - half / 2, 0, len(slopes) - 1))
    high = int(np.clip(np.ceil(middle + half / 2), 0, len(slopes) - 1))
    return float(slopes[low]), float(slopes[high])


def thin(axis: Array, values: Array, blocks: int = BLOCKS) -> tuple[Array, Array]:
    """Medians of neighbouring values along the first axis, at most `blocks` of them."""
    edges = np.array_split(np.arange(len(values)), min(blocks, len(values)))
    places = np.array([float(np.mean(axis[part])) for part in edges])
    return places, np.array([np.median(values[part], axis=0) for part in edges])


def isotonic(values: Array) -> Array:
    """The non-decreasing series nearest to the values, by absolute differences, so that no single
    value moves its neighbours (pool adjacent violators)."""
    pooled: list[list[float]] = []
    for value in values.tolist():
        level = [value]
        while pooled and median(pooled[-1]) >= median(level):
            level = pooled.pop() + level
        pooled.append(level)
    return np.array([one for level in pooled for one in [median(level)] * len(level)])


# -- association -----------------------------------------------------------------------------------
# Whether two series of steps are related; never a claim of cause. Their slow course is taken off
# first (a loss falls anyway). Chance keeps their autocorrelation: one series is rotated.


FEWEST_STEPS = 24
SHIFTS = 999  # at most
WINDOW = 9  # steps of the running median that is taken off
SEED = 20_403  # any: the same trace must give the same p-value


class Association(NamedTuple):
    """Spearman's ρ, and the share of shifts with at least as large a one."""

    rho: float
    p: float


def association(one: Array, other: Array) -> Association | None:
    """Association of two series over the same steps; None for too few steps or a constant."""
    if len(one) < FEWEST_STEPS:
        return None
    first, second = rank_values(_detrend(one)), rank_values(_detrend(other))
    if first.std() == 0 or second.std() == 0:
        return None
    rho = linear(first, second)
    shifts = np.arange(1, len(first))
    if len(shifts) > SHIFTS:
        shifts = np.random.default_rng(SEED).choice(shifts, SHIFTS, replace=False)
    chance = np.array([linear(first, np.roll(second, int(shift))) for shift in shifts])
    as_large = int(np.count_nonzero(np.abs(chance) >= abs(rho) - 1e-12))
    return Association(rho, (1 + as_large) / (1 + len(shifts)))


def _detrend(values: Array) -> Array:
    """The series less its running median."""
    from scipy.ndimage import median_filter  # when first asked: .1 s

    return np.asarray(values - median_filter(values.astype(float), WINDOW, mode="nearest"))


def linear(one: Array, other: Array) -> float:
    """Pearson's correlation of all values; 0 for a constant. Of ranks, it is Spearman's."""
    if not one.std() or not other.std():
        return 0.0
    return float(np.corrcoef(one.reshape(-1), other.reshape(-1))[0, 1])
