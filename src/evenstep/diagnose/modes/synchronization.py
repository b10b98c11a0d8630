"""Modes of coupling: steps that alternate, and small delays that hold up all ranks.

`synchronization_oscillation`: fast and slow steps alternate with a period of their own, in the work
that most ranks have in common, or by ranks that are late in every second step or so. What recurs
because of checkpoints, collectors or input is claimed before.

`synchronization_amplification`: step-time growth caused by waiting, over the mean delay of a rank.
With delays x_i the growth is E[max x_i] − E[x]: n − 1 where one of n ranks is hit at a time, and 0
without spread.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from evenstep.diagnose.finding import Evidence, Finding
from evenstep.diagnose.lateness.case import Case
from evenstep.diagnose.lateness.delays import Cause
from evenstep.diagnose.levels import DOMINANT, MOST, ROUND_STEPS, SMALLEST_SHARE
from evenstep.diagnose.modes.intervention import Gain, by_noise, constant, finding_of, throughout
from evenstep.statistics.interval import Share
from evenstep.statistics.spectrum import Peak, periodic, pulses
from evenstep.trace.columns import Array
from evenstep.trace.spool.layout import Flag, Kind

HARMONICS = 4  # of a long period; of a short one all there are
ALTERNATING = 4.0  # steps: ranks late with a longer period are stragglers that recur


class Oscillation(NamedTuple):
    """A periodic part of a series of steps."""

    peak: Peak
    slow: Array  # (steps,) bool: the slow part of the period
    lost_ns: Array  # (steps,) above the fastest step


def synchronization_oscillation(case: Case) -> list[Finding]:
    """Common work that oscillates, and ranks that are late in alternate steps. Inferred steps, and
    those of a table of durations, may be single collectives: there the program alternates."""
    if not case.trace.elapsed_known:
        return []
    inferred = case.trace.flagged(Kind.STEP, Flag.INFERRED)
    return [*([] if inferred else _common(case)), *_alternating(case)]


def oscillation(series: Array) -> Oscillation | None:
    """The oscillation of a series of steps; None where noise explains most of it."""
    pulse = pulses(series)
    if pulse is not None:
        lost = np.where(pulse.places, pulse.height, 0.0)
        share = _explained(series, lost)
        peak = Peak(float(pulse.period), pulse.chance, share)
        return Oscillation(peak, pulse.places, lost) if share >= MOST else None
    wave = periodic(series)
    return None if wave is None else _harmonic(series, wave)


def _harmonic(series: Array, peak: Peak) -> Oscillation | None:
    """An oscillation by the first harmonics of its period (least squares)."""
    turns = np.arange(min(round(peak.period), HARMONICS) + 1) / peak.period
    angle = 2 * np.pi * turns * np.arange(len(series))[:, None]
    waves = np.hstack([np.cos(angle), np.sin(angle)])
    profile = waves @ np.linalg.lstsq(waves, series, rcond=None)[0]
    lost, share = profile - profile.min(), _explained(series, profile)
    slow = lost > lost.max() / 2
    return Oscillation(peak._replace(explained=share), slow, lost) if share >= MOST else None


def _explained(series: Array, model: Array) -> float:
    """Share of the variance of a series that a model explains."""
    return 1 - float((series - model).var() / max(series.var(), 1e-12))


def _common(case: Case) -> list[Finding]:
    """Work that most ranks have in the slow steps only, as far as it makes these steps longer."""
    work = common_work(case)
    seen = oscillation(work)
    if seen is None or not lengthens(case, work, seen.slow):
        return []
    change = case.with_less_work(seen.lost_ns)
    return _oscillating(case, seen, Gain(case.share(case.saved(change)), change), [])


def common_work(case: Case) -> Array:
    """Own work of each step that most ranks have."""
    return np.asarray(np.quantile(case.program_ns, 0.5, axis=1, method="lower"))


def lengthens(case: Case, work: Array, slow: Array) -> bool:
    """Whether steps with more common work are longer by most of it."""
    return _rise(case.step_ns, slow) >= MOST * _rise(work, slow)


def _rise(series: Array, slow: Array) -> float:
    """How much higher a series is in the slow steps."""
    return float(np.median(series[slow]) - np.median(series[~slow]))


def _alternating(case: Case) -> list[Finding]:
    """Ranks that are late in every second, third or fourth step, and not in between."""
    cells = case.claims.unclaimed(case.delays.cells(Cause.WORK))
    loss = case.loss(cells)
    seen = oscillation(loss)
    if seen is None or seen.peak.period > ALTERNATING:
        return []
    if _rise(loss, seen.slow) < MOST * np.median(loss[seen.slow]):
        return []
    mine = cells & seen.slow[:, None]
    gain = Gain(case.share(case.loss(mine)), case.relieved(mine))
    finding = _oscillating(case, seen, gain, case.culprits(mine))
    if finding:
        case.claims.claim(mine)
    return finding


# -- the finding -----------------------------------------------------------------------------------


def _oscillating(case: Case, seen: Oscillation, gain: Gain, ranks: list[int]) -> list[Finding]:
    """The finding of an oscillation that surely costs enough; `ranks`: of a few, all if empty."""
    if gain.share.low < SMALLEST_SHARE:
        return []
    step, period, several = case.grid.step_ns, seen.peak.period, len(case.grid.ranks) > 1
    all_ranks = "most ranks together" if several else "the job"
    fast, slow = float(np.median(step[~seen.slow])), float(np.median(step[seen.slow]))
    swinging, spread = _phases(case, period)
    often = period > 2.5
    return finding_of(
        case, "synchronization_oscillation", gain,
        numbers={
            "fast": fast,
            "slow": slow,
            "period": period,
            "who": case.ranks_in_words(ranks) if ranks else all_ranks,
            "verb": "does" if len(ranks) == 1 or not several else "do",
            "shared": ", and synchronization makes it everybody's" if several else "",
            "every": f"every {period:.3g} steps" if often else "in every other step",
            "why": ": the period is the program's or the machine's, not chance" if often else "",
        },
        where=case.where(ranks), at=throughout(case.grid.steps, "oscillating"), projected=constant,
        options=["find", "beside"],
        evidence=[
            Evidence("oscillation_period", period, None, "steps"),
            Evidence("oscillation_amplitude", slow - fast, 0, "ns"),
            Evidence("oscillation_explains", seen.peak.explained, 0.0, "share"),
            Evidence("chance_of_such_a_period", seen.peak.chance, 1.0, "1"),
            Evidence("ranks_oscillating", swinging, 0, "ranks"),
            Evidence("phase_between_ranks", spread, 0.0, "periods"),
        ],
    )  # fmt: skip


def _phases(case: Case, period: float) -> tuple[int, float]:
    """Number of ranks that oscillate with this period, and their largest phase difference in
    periods (at most half of one)."""
    work = case.grid.work_ns - case.grid.work_ns.mean(axis=0)
    turn = np.exp(-2j * np.pi * np.arange(len(work)) / period)
    wave = (turn[:, None] * work).sum(axis=0) * 2 / len(work)
    noise = 4 * work.std(axis=0) / np.sqrt(len(work))
    strong = np.abs(wave) > np.maximum(noise, 0.25 * np.abs(wave).max(initial=0))
    if not strong.any():
        return 0, 0.0
    angle = np.angle(wave[strong] / wave[np.argmax(np.abs(wave))])
    return int(strong.sum()), float(np.abs(angle).max() / (2 * np.pi))


# -- amplification ---------------------------------------------------------------------------------


def _own_work(case: Case) -> Array:
    """Own work (steps, ranks) with late cells as nan, of steps and ranks with cells left."""
    late = case.delays.any
    work = np.where(late, np.nan, case.grid.work_ns.astype(float))
    work = work[np.count_nonzero(~late, axis=1) > 1]
    return np.asarray(work[:, ~np.isnan(work).all(axis=0)])


def synchronization_amplification(case: Case) -> list[Finding]:
    """The loss that is left when every delay with a culprit is taken out."""
    if case.contended or not len(case.grid.steps) or not case.trace.elapsed_known:
        return []  # without recorded work its noise is unknown
    share, work = case.share(case.claims.rest_ns), _own_work(case)
    delay = np.maximum(work - np.nanquantile(work, 0.05, axis=0), 0) if work.size else np.zeros(1)
    mean = float(np.nanmean(delay))
    if mean <= 0 or work.shape[1] < 2:
        return []
    factor = float(np.nanmax(delay, axis=1).mean()) / mean - 1
    spread = float(np.median(np.nanmax(work, axis=1) - np.nanmin(work, axis=1)))
    total = float(case.grid.duration_ns.sum())
    waited = float(case.grid.wait_ns.sum()) / total if total else 0.0
    gain = share.value * (1 - 1 / np.sqrt(ROUND_STEPS))
    low, high = gain - (share.value - share.low), gain + (share.high - share.value)
    others = case.share(case.delays.all_loss_ns.sum(axis=1)).value >= SMALLEST_SHARE
    named = "apart from what other findings name, " if others else ""
    computed = float(case.grid.device_ns.sum()) >= DOMINANT * float(case.grid.work_ns.sum())
    even = "work" if computed else "cores"  # on devices that are busy, hosts hardly matter
    return finding_of(
        case, "synchronization_amplification", Gain(share, case.costs.even),
        numbers={"spread": spread, "apart": named, "factor": 1 + factor, "round": ROUND_STEPS},
        projected=by_noise,
        options={even: share, "rounds": Share(gain, max(0.0, low), min(1.0, high))},
        evidence=[
            Evidence("amplification", factor, None, "factor"),
            Evidence("spread_of_own_work", spread, 0, "ns"),
            Evidence("wait_share", waited, 0.0, "share"),
        ],
    )  # fmt: skip
