"""Values of a series of steps that are higher than the others with a period of their own."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from evenstep.diagnose import levels
from evenstep.statistics.interval import MAD_SIGMA
from evenstep.statistics.spectrum import Peak, periodic, pulses
from evenstep.trace.columns import Array

HARMONICS = 4  # of a long period; of a short one all there are


class SlowSteps(NamedTuple):
    """Steps with more work than the others."""

    slow: Array  # (steps,) bool
    lost_ns: Array  # (steps,) above the work of the others
    peak: Peak | None = None  # their period, if there is one


def oscillation(series: Array, later: bool = False) -> SlowSteps | None:
    """The oscillation of a series of steps; None where noise explains most of it. A step at a
    pulse's place that is no pulse itself, as a first one may be, loses what it has more. `later`:
    the last work of each step counts as the first of the next."""
    pulse = pulses(series)
    if pulse is not None:
        after = np.append(False, pulse.places[:-1]) & (pulse.period > 2)
        more = series - np.median(series[~(pulse.places | after)])
        height = float(np.median(more[pulse.places]))
        slow = pulse.places & (more > height / 2)
        lost = np.where(slow, height, np.maximum(more, 0)) * pulse.places
        lost = with_rest(lost, slow, series, later)
        share = _explained_share(series, lost)
        peak = Peak(float(pulse.period), pulse.chance, share)
        return SlowSteps(slow, lost, peak) if share >= levels.MOST else None
    wave = periodic(series)
    return None if wave is None else _harmonic(series, wave)


def _harmonic(series: Array, peak: Peak) -> SlowSteps | None:
    """An oscillation by the first harmonics of its period (least squares)."""
    turns = np.arange(min(round(peak.period), HARMONICS) + 1) / peak.period
    angle = 2 * np.pi * turns * np.arange(len(series))[:, None]
    waves = np.hstack([np.cos(angle), np.sin(angle)])
    profile = waves @ np.linalg.lstsq(waves, series, rcond=None)[0]
    lost, share = profile - profile.min(), _explained_share(series, profile)
    slow = lost > lost.max() / 2
    return SlowSteps(slow, lost, peak._replace(explained=share)) if share >= levels.MOST else None


def _explained_share(series: Array, model: Array) -> float:
    """Share of the variance of a series that a model explains."""
    return 1 - float((series - model).var() / max(series.var(), 1e-12))


def with_rest(lost: Array, slow: Array, series: Array, later: bool) -> Array:
    """What slow steps lose, with what steps after them usually have more than others: where the
    last work of a step counts as the first of the next (`later`, as on devices), which noise makes
    longer as often as shorter; elsewhere, as it may, only beyond that noise."""
    after = np.append(False, slow[:-1]) & ~slow
    calm = series[~(slow | after)]
    if not after.any() or not len(calm):
        return lost
    usual = np.median(calm)
    more = float(np.median(series[after]) - usual)
    noise = MAD_SIGMA * float(np.median(np.abs(calm - usual)))
    surely = more > levels.ERRORS * noise * np.sqrt(np.pi / 2 / after.sum())
    return lost + after * more if later or surely else lost


def late_in_turns(excess: Array, least: float) -> Array:
    """Cells of ranks that are late by at least so much with a period of their own, and hardly else,
    as ranks that take turns are, all with the period that is clearest of one. (steps, ranks) bool,
    by their excess."""
    found = np.zeros(excess.shape, bool)
    ranks = np.flatnonzero(np.quantile(excess, 1 - levels.MINOR, axis=0) >= least)
    waves = [oscillation(excess[:, rank]) for rank in ranks]
    peaks = [one.peak for one in waves if one is not None and one.peak is not None]
    for rank, one in zip(ranks, waves, strict=True) if peaks else ():
        mine = excess[:, rank]
        seen = one or _harmonic(mine, max(peaks, key=lambda peak: peak.explained))
        if seen is not None and seen.slow.any() and not seen.slow.all():
            late, calm = (float(np.median(mine[which])) for which in (seen.slow, ~seen.slow))
            found[:, rank] = seen.slow & (late >= least) & (calm < levels.MOST * late)
    return found
