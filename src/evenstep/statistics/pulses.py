"""Whether single high values of a series come at even distances, and how likely by chance.

A spectrum spreads what is short and rare over many frequencies, so that in short series none of
them stands out; where the high values lie says more.
"""

from __future__ import annotations

from math import exp, lgamma, log
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

FEWEST = 4  # pulses, and of a period's places in the series
REGULAR = 0.8  # of the pulses are on the period's places, and of these have one
SURE = 1e-4  # chance that so many fall on the places of some period, at most


class Pulses(NamedTuple):
    """High values every `period` values."""

    period: int
    places: Array  # of the period, boolean
    height: float  # above the values between
    chance: float


def pulses(series: Array) -> Pulses | None:
    """The pulses of a series; None where chance explains them."""
    if len(series) < FEWEST * 2:
        return None
    level = float(np.quantile(series, 0.25)), float(np.sort(series)[-FEWEST])
    high = np.flatnonzero(series > sum(level) / 2)
    if len(high) < FEWEST or len(high) > 0.75 * len(series):
        return None
    period = int(np.bincount(np.diff(high)).argmax())
    if period < 2:
        return None
    first = int(np.bincount(high % period).argmax())
    places = np.arange(len(series)) % period == first
    number, hit = int(places.sum()), int(places[high].sum())
    if number < FEWEST or hit < REGULAR * max(number, len(high)):
        return None
    tried = len(series) // FEWEST * period  # periods, each with as many places to begin at
    chance = tried * exp(
        _choices(number, hit)
        + _choices(len(series) - number, len(high) - hit)
        - _choices(len(series), len(high))
    )
    if chance > SURE:
        return None
    height = float(np.median(series[places]) - np.median(series[~places]))
    return Pulses(period, places, height, chance)


def _choices(of: int, chosen: int) -> float:
    """Logarithm of the binomial coefficient."""
    if not 0 <= chosen <= of:
        return -log(2) * 1074
    return lgamma(of + 1) - lgamma(chosen + 1) - lgamma(of - chosen + 1)
