"""What a comparison has shown: gain and CV of every arm, each with its 95 % interval.

A round has one block of each arm, so an arm is compared with the baselines of the same round: what
drifts slowly touches all. Gains are differences of logarithms of the mean step time, averaged over
the jobs that pace. Nobody sees them before the last round, so their number is fixed, and their
interval is Student's, over rounds; the order of arms in a round is drawn by chance. The baseline
varies most, as jobs stay in each other's way for whole blocks or not at all: an arm is compared
with the mean of both its blocks, and only the second of them with the first alone. The CV is that
of all steps of an arm; its interval is a jackknife over rounds (Tukey 1958).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean

import numpy as np

from evenstep.statistics.interval import half_width, student
from lab.arms import FEWEST_STEPS, Schedule
from lab.run import Progress, Record, carry_out, schedule_of
from lab.scenario import Scenario
from lab.steps import Array, JobSteps, job_steps

FEWEST_ROUNDS = 6  # with fewer, a standard deviation says little
BASELINES = 2  # the first arms of every comparison
HARM = -0.005  # a loss below half a percent is none


@dataclass(frozen=True, slots=True)
class Interval:
    """A value with its 95 % interval; None where there are too few rounds for one."""

    value: float
    low: float | None
    high: float | None

    def to_json(self) -> dict[str, float | None]:
        """Plain values."""
        return {"value": self.value, "low": self.low, "high": self.high}


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """One job in one arm."""

    name: str
    paced: bool
    steps: int
    step_ns: float
    gain: Interval  # of throughput over the baseline
    cv: Interval
    held: float  # share of the step that ranks were held, on average


@dataclass(frozen=True, slots=True)
class ArmOutcome:
    """One arm against the baseline."""

    name: str
    rounds: int
    gain: Interval  # mean over the jobs that pace
    worst: Interval  # of the job that gains least
    cv: Interval  # mean over the jobs that pace
    cv_ratio: Interval  # to the baseline's
    tail: float  # p99 over p50 of the steps, mean over the jobs that pace
    jobs: tuple[JobOutcome, ...]

    @property
    def verdict(self) -> str:
        """What the intervals allow to say."""
        return said(self.gain, self.lowest)

    @property
    def lowest(self) -> float | None:
        """The lowest end of any pacing job's interval; None where one has no interval."""
        paced = [job for job in self.jobs if job.paced] or list(self.jobs)
        lows = [job.gain.low for job in paced if job.gain.low is not None]
        return min(lows) if len(lows) == len(paced) else None


def said(gain: Interval, lowest: float | None) -> str:
    """Gains, loses, no harm, or not resolved: by the ends of the intervals."""
    if gain.low is None or gain.high is None or lowest is None:
        return "not resolved"
    if gain.low > 0:
        return "gains" if lowest >= HARM else "gains, harm to a job not excluded"
    if gain.high < 0:
        return "loses" if gain.high < HARM else "loses less than can matter"
    return "no harm" if lowest >= HARM else "not resolved"


@dataclass(frozen=True, slots=True)
class Part:
    """A run whose rounds count; several of one scenario are put together."""

    jobs: Sequence[JobSteps]
    schedule: Schedule
    whole_blocks: int

    @property
    def rounds(self) -> int:
        """Rounds that count and whose blocks are all there."""
        done = self.whole_blocks // len(self.schedule.arms)
        return max(0, done - self.schedule.warm_up_rounds)


def compared(
    scenario: Scenario, names: Sequence[str], folder: Path, progress: Progress | None = None
) -> tuple[Record, list[ArmOutcome]]:
    """Run a scenario with these arms, the baseline twice among them; what each came to."""
    schedule = schedule_of(scenario, names)
    record = carry_out(scenario, schedule, folder, progress)
    jobs = job_steps(scenario, schedule, record, folder)
    return record, outcomes([Part(jobs, schedule, record.whole)])


class _Sums:
    """Count, sum and sum of squares of every counted block of one job: (rounds, arms)."""

    def __init__(self, parts: Sequence[Part], job: int) -> None:
        tables = [_table(part, job) for part in parts]
        self.count, self.total, self.square, self.held = np.concatenate(tables, axis=1)

    @property
    def mean(self) -> Array:
        """Mean step time of each block, in s; nan where a block has too few steps."""
        enough = self.count >= FEWEST_STEPS
        return np.where(enough, self.total / np.maximum(self.count, 1), np.nan)

    def cv(self, arm: int, without: int | None = None) -> float:
        """CV of an arm's steps, one round left out."""
        keep = np.ones(len(self.count), bool)
        if without is not None:
            keep[without] = False
        count, total, square = (x[keep, arm].sum() for x in (self.count, self.total, self.square))
        mean = total / max(count, 1)
        return math.sqrt(max(square / max(count, 1) - mean**2, 0.0)) / mean if mean else math.nan


def _table(part: Part, job: int) -> Array:
    """Steps, their times in s and the squares, time held: (4, rounds, arms)."""
    schedule, steps = part.schedule, part.jobs[job]
    found = np.zeros((4, part.rounds, len(schedule.arms)))
    for block in np.unique(steps.block[steps.block >= 0]):
        number = schedule.round_of(int(block)) - schedule.warm_up_rounds
        if not 0 <= number < part.rounds:
            continue
        here = steps.block == block
        times = steps.step_ns[here] * 1e-9
        held = steps.held_ns[here].sum() * 1e-9
        place = number, schedule.arm_at(int(block))
        found[(slice(None), *place)] = len(times), times.sum(), (times**2).sum(), held
    return found


def outcomes(parts: Sequence[Part]) -> list[ArmOutcome]:
    """Every arm against the baseline, over the rounds of all parts."""
    jobs, arms = parts[0].jobs, parts[0].schedule.arms
    sums = [_Sums(parts, job) for job in range(len(jobs))]
    paced = [index for index, job in enumerate(jobs) if job.paced] or list(range(len(jobs)))
    tails = [[_tail(parts, job, arm) for job in range(len(jobs))] for arm in range(len(arms))]
    return [_arm(jobs, sums, paced, arm, name.name, tails[arm]) for arm, name in enumerate(arms)]


def _tail(parts: Sequence[Part], job: int, arm: int) -> float:
    """p99 over p50 of a job's counted steps in an arm; beside a CV, which one long step doubles."""
    times = np.concatenate([_counted(part, job, arm) for part in parts])
    return float(np.percentile(times, 99) / np.percentile(times, 50)) if len(times) else math.nan


def _counted(part: Part, job: int, arm: int) -> Array:
    schedule = part.schedule
    first = len(schedule.arms) * schedule.warm_up_rounds
    blocks = range(first, first + part.rounds * len(schedule.arms))
    return part.jobs[job].of([block for block in blocks if schedule.arm_at(block) == arm])


def _arm(
    jobs: Sequence[JobSteps],
    sums: Sequence[_Sums],
    paced: Sequence[int],
    arm: int,
    name: str,
    tails: Sequence[float],
) -> ArmOutcome:
    gains = [_log_gains(one, arm) for one in sums]
    of_jobs = tuple(
        JobOutcome(
            job.name,
            job.paced,
            int(one.count[:, arm].sum()),
            _ratio(one.total[:, arm].sum() * 1e9, one.count[:, arm].sum()),
            gain_interval(log_gains),
            jackknifed(partial(one.cv, arm), len(one.count)),
            _ratio(one.held[:, arm].sum(), one.total[:, arm].sum()),
        )
        for job, one, log_gains in zip(jobs, sums, gains, strict=True)
    )
    rounds = len(sums[0].count)
    together = np.mean([gains[index] for index in paced], axis=0) if rounds else np.array([])

    def cv(without: int | None) -> float:
        return float(np.mean([sums[index].cv(arm, without) for index in paced]))

    def ratio(without: int | None) -> float:
        baseline = float(np.mean([sums[index].cv(0, without) for index in paced]))
        return _ratio(cv(without), baseline)

    return ArmOutcome(
        name,
        int(np.isfinite(together).sum()),
        gain_interval(together),
        min((of_jobs[index].gain for index in paced), key=_value),
        jackknifed(cv, rounds),
        jackknifed(ratio, rounds),
        float(np.mean([tails[index] for index in paced])),
        of_jobs,
    )


def _log_gains(sums: _Sums, arm: int) -> Array:
    """Of each round; nan where a block has too few steps."""
    logs = np.log(sums.mean)
    if not len(logs):
        return np.array([])
    compared = logs[:, :1] if arm < BASELINES else logs[:, :BASELINES]
    return np.asarray(compared.mean(axis=1) - logs[:, arm])


def gain_interval(log_gains: Sequence[float] | Array) -> Interval:
    """Mean gain over rounds, as a share."""
    told = [float(value) for value in log_gains if math.isfinite(value)]
    if not told:
        return Interval(math.nan, None, None)
    mean = fmean(told)
    if len(told) < FEWEST_ROUNDS:
        return Interval(math.expm1(mean), None, None)
    half = half_width(told)
    return Interval(math.expm1(mean), math.expm1(mean - half), math.expm1(mean + half))


def jackknifed(statistic: Callable[[int | None], float], rounds: int) -> Interval:
    """A statistic of all rounds; `statistic(k)` is the same with round k left out."""
    if not rounds:
        return Interval(math.nan, None, None)
    value = statistic(None)
    if rounds < FEWEST_ROUNDS:
        return Interval(value, None, None)
    without = np.array([statistic(index) for index in range(rounds)])
    error = math.sqrt((rounds - 1) / rounds * float(((without - without.mean()) ** 2).sum()))
    half = student(rounds - 1) * error
    return Interval(value, max(0.0, value - half), value + half)


def _ratio(part: float, whole: float) -> float:
    return float(part / whole) if whole else math.nan


def _value(interval: Interval) -> float:
    """For the least of several; one that is not known is none."""
    return interval.value if math.isfinite(interval.value) else math.inf
