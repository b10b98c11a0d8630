"""Modes of coupling: steps that are slow together, and small delays that hold up all ranks.

`synchronization_oscillation`: fast and slow steps alternate with a period of their own, in the work
that most ranks have in common. What recurs because of checkpoints, collectors or input is claimed
before; few slow steps without a period are `runtime_jitter`.

`synchronization_amplification`: step-time growth caused by waiting, over the mean delay of a rank.
With delays x_i the growth is E[max x_i] − E[x]: n − 1 where one of n ranks is hit at a time, and 0
without spread.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from evenstep import words
from evenstep.diagnose import levels
from evenstep.diagnose.finding import Finding
from evenstep.diagnose.graph.structure import by_step_and_lane, row_numbers
from evenstep.diagnose.lateness.case import Case
from evenstep.diagnose.lateness.delays import WORK_PHASES
from evenstep.diagnose.lateness.oscillation import SlowSteps, oscillation, with_rest
from evenstep.diagnose.lateness.thresholds import BY_CHANCE
from evenstep.diagnose.modes.intervention import (
    Gain,
    by_noise,
    constant,
    finding_of,
    gain_of,
    throughout,
)
from evenstep.statistics.interval import Share, student, z
from evenstep.trace.columns import Array
from evenstep.trace.spool.layout import Flag, Kind


def slow_together(case: Case) -> SlowSteps | None:
    """Steps that more work of most ranks than others of their program have, and no wait for a core,
    makes longer: periodic, or few. None of inferred steps, or of a table of durations, which may be
    single collectives: there the program alternates; nor of hosts that run ahead of devices without
    times. None periodic where only every so many steps are recorded, as a program prints and shows
    at just such steps."""
    known = case.trace.elapsed_known and not case.grid.unseen
    if not known or case.trace.table.flagged(Kind.STEP, Flag.INFERRED):
        return None
    of_most = partial(np.quantile, q=0.5, axis=1, method="lower")
    work = of_most(case.program_ns) - of_most(case.grid.run_delay_ns)
    work, later = _beside_steps_alike(case, work), bool(case.costs.graph.device.any())
    seen = oscillation(work, later) or _few(work, later)
    apart = len(work) > 1 and np.median(np.diff(case.grid.steps)) > 1
    if seen is None or (apart and seen.peak is not None):
        return None
    lasted = [case.step_ns]  # in the replay, the first of few perhaps since before the capture
    lasted += [of_most(case.grid.duration_ns)] * (levels.MINOR * len(work) < 1)
    longer = min(_rise(each, seen.slow) for each in lasted)
    return seen if longer >= levels.MOST * _rise(work, seen.slow) else None


def _beside_steps_alike(case: Case, work: Array) -> Array:
    """The work of each step, less what steps that move about as much data in as many forwards,
    backwards and updates usually have more than all: a program may train two models in turn, act
    between updates, or have longer batches now and then."""
    table, rows = case.costs.graph.operations, case.costs.graph.rows
    moved = by_step_and_lane(case.costs.graph, np.append(table.size_bytes, 0)[rows.enter])
    moved = case.grid.from_sampled(np.median(moved, axis=1))
    phases = case.grid.records.of_kind(Kind.PHASE)
    cell, mine = case.grid.cell(phases.select(np.isin(phases.op, WORK_PHASES[:3])))
    done = case.grid.shaped(np.bincount(cell[mine], minlength=case.grid.start_ns.size))
    alike = row_numbers(_about(moved), _about(case.grid.spread(np.median(done, axis=1))))
    found = work.astype(float)
    for steps in (np.flatnonzero(alike == one) for one in np.unique(alike)):
        if len(steps) >= levels.FEWEST:
            found[steps] -= np.median(work[steps]) - np.median(work)
    return found


def _about(amount: Array) -> Array:
    """A number for each amount, the same for those that differ little from the next."""
    order = np.argsort(amount)
    apart = np.diff(amount[order], prepend=amount.min()) > levels.MINOR * amount[order]
    return np.asarray(np.cumsum(apart)[np.argsort(order)])


def _few(series: Array, later: bool = False) -> SlowSteps | None:
    """Few steps far above the noise of the others, without those of a minor part of the highest;
    None without any. Few are a minor part of them, or a standard deviation of chance more
    (binomial); where that is less than a step, one that is beyond the prediction interval of the
    others (one-sided, normal sample, Bonferroni)."""
    low, usual = np.quantile(series, [levels.LOW, 0.5])
    noise, minor = levels.SIGMAS * (usual - low) / z(1 - levels.LOW), levels.MINOR * len(series)
    if minor < 1:
        others = np.delete(series, np.argmax(series))
        if len(others) < 2:
            return None
        reach = student(len(others) - 1, 1 - BY_CHANCE / len(series))
        noise = reach * others.std(ddof=1) * np.sqrt(1 + 1 / len(others))
    least = max(noise, (levels.CHANGED - 1) * usual, levels.MINOR * (series.max() - usual))
    slow = series > usual + least
    if not 0 < slow.sum() <= max(minor + np.sqrt(minor * (1 - levels.MINOR)), 1):
        return None
    return SlowSteps(slow, with_rest(np.where(slow, series - usual, 0.0), slow, series, later))


def _rise(series: Array, slow: Array) -> float:
    """How much higher a series is in the slow steps."""
    return float(np.median(series[slow]) - np.median(series[~slow]))


def of_slow_steps(
    case: Case, name: str, seen: SlowSteps, *, numbers: Mapping[str, Any], **fields: Any
) -> list[Finding]:
    """The finding of slow steps that surely cost enough: few that stand out one by one did, however
    wide the interval of their mean. Sentences may use, beside `numbers`, `fast` and `slow` (lengths
    of steps); `fields` are those of `finding_of`."""
    gain = gain_of(case, case.with_less_work(seen.lost_ns))
    apart = not case.contended or seen.slow.sum() < levels.SEVERAL  # else a core may have lacked
    few = seen.peak is None and apart and gain.share.value >= levels.NAMED
    if not few and gain.share.low < levels.SMALLEST_SHARE:
        return []
    fast, slow = (float(np.median(case.step_ns[one])) for one in (~seen.slow, seen.slow))
    numbers = {"fast": fast, "slow": slow, **numbers}
    return finding_of(case, name, gain, numbers=numbers, projected=constant, **fields)


def synchronization_oscillation(case: Case) -> list[Finding]:
    """Slow steps with a period of their own."""
    seen = slow_together(case)
    if seen is None or seen.peak is None:
        return []
    period, several = seen.peak.period, len(case.grid.ranks) > 1
    often = period > 2.5
    return of_slow_steps(
        case, "synchronization_oscillation", seen,
        numbers={
            "period": period, "explained": seen.peak.explained, "chance": seen.peak.chance,
            "who": "most ranks together do" if several else "the job does",
            "shared": ", and synchronization makes it everybody's" if several else "",
            "every": words.every(period),
            "why": ": the period is the program's or the machine's, not chance" if often else "",
        },
        at=throughout(case.grid.steps, "oscillating"), options=["find", "beside"],
    )  # fmt: skip


# -- amplification ---------------------------------------------------------------------------------


def synchronization_amplification(case: Case) -> list[Finding]:
    """The loss that is left when every delay with a culprit is taken out."""
    share, late = case.share(case.claims.rest_ns), case.delays.any
    if share.value < levels.SMALLEST_SHARE or not case.trace.elapsed_known:
        return []  # without recorded work its noise is unknown
    work = np.where(late, np.nan, case.grid.work_ns.astype(float))
    work = work[np.count_nonzero(~late, axis=1) > 1]
    work = work[:, ~np.isnan(work).all(axis=0)]
    delay = np.maximum(work - np.nanquantile(work, 0.05, axis=0), 0) if work.size else np.zeros(1)
    mean = float(np.nanmean(delay))
    if mean <= 0 or work.shape[1] < 2:
        return []
    factor = float(np.nanmax(delay, axis=1).mean()) / mean - 1
    spread = float(np.median(np.nanmax(work, axis=1) - np.nanmin(work, axis=1)))
    rounds = levels.ROUND_STEPS
    gain = share.value * (1 - 1 / np.sqrt(rounds))
    low, high = gain - (share.value - share.low), gain + (share.high - share.value)
    others = case.share(case.delays.all_loss_ns.sum(axis=1)).value >= levels.SMALLEST_SHARE
    named = " apart from what other findings name" if others else ""
    computed = float(case.grid.device_ns.sum()) >= levels.DOMINANT * float(case.grid.work_ns.sum())
    even = "work" if computed else "cores"  # on devices that are busy, hosts hardly matter
    return finding_of(
        case, "synchronization_amplification", Gain(share, case.costs.even),
        numbers={"spread": spread, "apart": named, "round": rounds, "amplification": factor},
        projected=by_noise,
        options={even: share, "rounds": Share(gain, max(0.0, low), min(1.0, high))},
    )  # fmt: skip
