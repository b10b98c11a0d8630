"""Whether a series is periodic, with which period, and how likely that is by chance.

A spectrum spreads short and rare pulses over many frequencies, of which none stands out in a short
series; there the places of the high values tell more (`pulses`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from evenstep.statistics.interval import Array

FEWEST = 24  # values, below which nothing is called periodic
FEWEST_CYCLES = 4  # a slow drift has one or two
NEIGHBOURS = 12  # frequencies on either side of a peak that show the usual power
SURE = 1e-4  # chance of a peak like this in noise, at most
HARMONICS = 6  # of a period that the strongest one may be
ENOUGH = 0.9  # of the variance that the best period explains
BINS = 12  # of a folded period
MOST = 4096  # bins of an uneven series


class Peak(NamedTuple):
    """The strongest period of a series."""

    period: float  # in the series' own unit
    chance: float  # of such a peak in noise
    explained: float  # share of the variance that the folded period explains


def periodic(series: Array) -> Peak | None:
    """The period, in values, of an evenly spaced series; None where chance explains it.

    Fisher's g (1929) by its bound m (1 - g)^(m - 1), and the same against the neighbouring
    frequencies only, so that drift and other slow noise is not called a period.
    """
    values = series[: len(series) // 2 * 2].astype(float)
    if len(values) < FEWEST or not np.ptp(values) > 0:
        return None
    power = np.abs(np.fft.rfft(values - values.mean())) ** 2
    power[-1] /= 2  # one degree of freedom: halved, its tail is below an exponential's
    power = power[1:]
    tested = power.copy()
    tested[: FEWEST_CYCLES - 1] = 0
    at = int(np.argmax(tested))
    g = float(tested[at] / tested.sum()) if tested.any() else 0.0
    chance = max(
        min(1.0, len(tested) * (1 - g) ** (len(tested) - 1)), _chance_among_neighbours(power, at)
    )
    if chance > SURE:
        return None
    period = _fundamental(values, _between(values, at + 1))
    return Peak(period, chance, explained_share(values, np.arange(len(values)) / period))


def _fundamental(values: Array, period: float) -> float:
    """The shortest multiple of a period that explains about as much as any: a series with one high
    value in four has as much power at twice and four times its frequency."""
    number = np.arange(len(values))
    most = max(1, min(HARMONICS, int(len(values) / FEWEST_CYCLES / period)))
    tried = [period * factor for factor in range(1, most + 1)]
    shares = np.array([explained_share(values, number / one) for one in tried])
    return tried[int(np.argmax(shares >= ENOUGH * shares.max()))]


def _between(values: Array, at: int) -> float:
    """The period of the largest power near `at` cycles, which need not be a whole number."""
    cycles = np.clip(at + np.linspace(-0.75, 0.75, 31), 1, len(values) / 2)
    turn = np.exp(-2j * np.pi * cycles[:, None] / len(values) * np.arange(len(values))[None, :])
    return float(len(values) / cycles[np.argmax(np.abs(turn @ (values - values.mean())))])


def _chance_among_neighbours(power: Array, at: int) -> float:
    """Chance of a peak among the neighbouring frequencies, without its leakage: against the larger
    median of those below and above it, as slow noise falls with the frequency."""
    sides = power[max(0, at - NEIGHBOURS) : max(0, at - 1)], power[at + 2 : at + NEIGHBOURS + 1]
    usual = max((float(np.median(side)) for side in sides if len(side)), default=0.0) / np.log(2)
    if usual <= 0:
        return 0.0
    return float(min(1.0, len(power) * np.exp(-min(power[at] / usual, 700.0))))


def explained_share(values: Array, place: Array) -> float:
    """Share of the variance between the bins of a folded period; `place` is in periods."""
    bins = np.minimum((place % 1 * BINS).astype(int), BINS - 1)
    count = np.bincount(bins, minlength=BINS)
    mean = np.bincount(bins, weights=values, minlength=BINS) / np.maximum(count, 1)
    whole = float(((values - values.mean()) ** 2).sum())
    if whole <= 0:
        return 0.0
    inside = float(((values - mean[bins]) ** 2).sum())
    spare = np.maximum(len(values) - np.count_nonzero(count), 1)
    return float(max(0.0, 1 - inside / spare * (len(values) - 1) / whole))


def uneven(at: Array, values: Array) -> Peak | None:
    """The period, in units of `at`, of values at uneven times, by their means in even bins; empty
    bins take the mean of all. None where chance explains it."""
    begins, span = float(at.min(initial=0.0)), float(np.ptp(at)) if len(at) else 0.0
    if len(at) < FEWEST or span <= 0:
        return None
    gap = float(np.quantile(np.diff(np.sort(at)), 0.25))
    bins = int(span / max(gap, span / MOST))
    place = np.minimum((at - begins) / span * bins, bins - 1).astype(int)
    count, total = np.bincount(place, minlength=bins), np.bincount(place, values, bins)
    peak = periodic(np.where(count > 0, total / np.maximum(count, 1), values.mean()))
    if peak is None:
        return None
    period = peak.period * span / bins
    return peak._replace(period=period, explained=explained_share(values, at / period))


# -- pulses ----------------------------------------------------------------------------------------


FEWEST_PULSES = 4  # pulses, and of a period's places in the series
REGULAR = 0.8  # of the pulses are on the period's places, and of these have one


class Pulses(NamedTuple):
    """High values every `period` values."""

    period: int
    places: Array  # mask of the values at the period's places
    chance: float


def pulses(series: Array) -> Pulses | None:
    """The pulses of a series; None where chance explains them."""
    if len(series) < FEWEST_PULSES * 2:
        return None
    level = float(np.quantile(series, 0.25)), float(np.sort(series)[-FEWEST_PULSES])
    high = np.flatnonzero(series > sum(level) / 2)
    if len(high) < FEWEST_PULSES or len(high) > 0.75 * len(series):
        return None
    period = int(np.bincount(np.diff(high)).argmax())
    if period < 2:
        return None
    first = int(np.bincount(high % period).argmax())
    places = np.arange(len(series)) % period == first
    number, hit = int(places.sum()), int(places[high].sum())
    if number < FEWEST_PULSES or hit < REGULAR * max(number, len(high)):
        return None
    chance = _by_chance(len(series), len(high), number, hit)
    if chance > SURE:
        return None
    return Pulses(period, places, chance)


def _by_chance(count: int, high: int, number: int, hit: int) -> float:
    """Chance that of so many high values as unlikely a number lies on the places of any period: a
    sum of hypergeometric tails."""
    from scipy.special import gammaln  # when first asked: .1 s

    def choices(of: int, chosen: Array) -> Array:
        return np.asarray(gammaln(of + 1) - gammaln(chosen + 1) - gammaln(of - chosen + 1))

    def likelihood(number: int, hits: Array) -> Array:
        others = choices(count - number, high - hits)
        return choices(number, hits) + others - choices(count, np.array(high))

    total, most = 0.0, likelihood(number, np.array(hit)) + 1e-9
    for period in range(2, count // FEWEST_PULSES + 1):
        fewer, more = divmod(count, period)
        for places, begins in ((fewer, period - more), (fewer + 1, more)):
            tail = likelihood(places, np.arange(min(places, high), -1, -1))
            total += begins * float(np.exp(tail[np.minimum.accumulate(tail <= most)]).sum())
    return total
