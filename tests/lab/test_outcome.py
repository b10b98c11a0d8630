"""Steps become labelled blocks, and blocks an outcome."""

import math

import numpy as np
import pytest

from lab.arms import Schedule, arm
from lab.outcome import Interval, Part, gain_interval, jackknifed, outcomes, said
from lab.run import Record
from lab.scenario import Run
from lab.steps import JobSteps, labels

S = 1_000_000_000
ARMS = (arm("baseline"), arm("baseline again"), arm("slack"))


def test_a_step_counts_where_its_block_has_settled_and_it_ends_inside():
    schedule = Schedule(ARMS[:1], 2, 1, seed=0)
    record = Record(starts_ns=(0, 10 * S, 20 * S), end_ns=30 * S, whole=3)
    start = np.array([5, 11, 13, 19.5, 23, 29.5]) * S
    run = Run(block_s=10, settle_s=2)
    found = labels(start.astype(int), (start + S).astype(int), record, schedule, run)
    assert found.tolist() == [-1, -1, 1, -1, 2, -1]  # warm-up, settling, counts, ends outside …


def test_a_block_cut_short_counts_for_nothing():
    record = Record(starts_ns=(0, 10 * S), end_ns=13 * S, whole=1, ended="interrupted")
    start = np.array([3, 12]) * S
    found = labels(start, start + S // 10, record, Schedule(ARMS[:1], 2, 0, 0), Run(settle_s=1))
    assert found.tolist() == [0, -1]


def job(schedule, step_s, *, paced=True, noise=0.0, steps=50, seed=1):
    """Every block has steps of the length its arm takes."""
    random = np.random.default_rng(seed)
    block = np.repeat(np.arange(schedule.blocks), steps)
    mean = np.array([step_s[schedule.arm_at(one)] for one in range(schedule.blocks)])[block]
    times = mean * (1 + noise * random.standard_normal(len(block)))
    return JobSteps("job", paced, block, times * S, 0 * times, block)


def test_a_gain_is_found_with_its_size():
    schedule = Schedule(ARMS, 20, 0, seed=3)
    jobs = [job(schedule, (0.11, 0.11, 0.10), noise=0.02, seed=seed) for seed in (1, 2)]
    _, again, auto = outcomes([Part(jobs, schedule, schedule.blocks)])
    assert auto.gain.low < 0.10 < auto.gain.high
    assert auto.gain.low > 0.08
    assert auto.verdict == "gains"
    assert again.gain.low < 0 < again.gain.high
    assert auto.cv.low < 0.02 < auto.cv.high


def test_a_job_that_loses_is_not_hidden_by_one_that_gains():
    schedule = Schedule(ARMS, 20, 0, seed=3)
    jobs = [
        job(schedule, (0.1, 0.1, 0.08), noise=0.01),
        job(schedule, (0.1, 0.1, 0.103), noise=0.01),
    ]
    auto = outcomes([Part(jobs, schedule, schedule.blocks)])[2]
    assert auto.gain.value > 0.05
    assert auto.worst.value == pytest.approx(0.1 / 0.103 - 1, abs=0.003)
    assert auto.verdict == "gains, harm to a job not excluded"


def test_jobs_that_do_not_pace_are_shown_and_not_averaged():
    schedule = Schedule(ARMS, 6, 0, seed=3)
    jobs = [job(schedule, (0.1, 0.1, 0.1)), job(schedule, (0.1, 0.1, 0.2), paced=False)]
    auto = outcomes([Part(jobs, schedule, schedule.blocks)])[2]
    assert auto.gain.value == pytest.approx(0)
    assert auto.jobs[1].gain.value == pytest.approx(-0.5)


def test_rounds_that_are_not_whole_are_left_out():
    schedule = Schedule(ARMS, 20, 2, seed=3)
    assert outcomes([Part([job(schedule, (1, 1, 1))], schedule, 3 * 7 + 2)])[0].rounds == 5


def test_runs_are_put_together():
    schedule = Schedule(ARMS, 3, 0, seed=3)
    parts = [Part([job(schedule, (0.2, 0.2, 0.1))], schedule, schedule.blocks) for _ in range(2)]
    auto = outcomes(parts)[2]
    assert auto.rounds == 6
    assert auto.gain.low > 0.5


def test_nothing_is_said_before_there_is_a_round():
    schedule = Schedule(ARMS, 20, 2, seed=3)
    auto = outcomes([Part([job(schedule, (1, 1, 1))], schedule, 4)])[2]
    assert (auto.rounds, auto.verdict) == (0, "not resolved")
    assert math.isnan(auto.gain.value)


def test_an_arm_is_compared_with_both_blocks_of_the_baseline():
    schedule = Schedule(ARMS, 8, 0, seed=3)
    _, again, slack = outcomes(
        [Part([job(schedule, (0.09, 0.16, 0.1))], schedule, schedule.blocks)]
    )
    assert again.gain.value == pytest.approx(0.09 / 0.16 - 1)
    assert slack.gain.value == pytest.approx(math.sqrt(0.09 * 0.16) / 0.1 - 1)


@pytest.mark.parametrize("rounds", [6, 12, 60])
def test_an_interval_holds_the_gain_in_19_of_20_comparisons(rounds):
    log_gains = 0.03 + 0.05 * np.random.default_rng(5).standard_normal((1000, rounds))
    found = [gain_interval(row) for row in log_gains]
    outside = [not one.low < math.expm1(0.03) < one.high for one in found]
    assert 0.03 < np.mean(outside) < 0.07


def test_few_rounds_have_no_interval():
    assert gain_interval([0.1] * 5) == Interval(pytest.approx(math.expm1(0.1)), None, None)
    assert gain_interval([0.1] * 8).low == pytest.approx(math.expm1(0.1), abs=0.01)


def test_the_jackknife_of_a_mean_is_students_interval():
    # Tukey 1958: for the mean it is s / √n, here √3.5 / √6; t(.975, 5) = 2.571 (any table)
    values = np.array([1.0, 2, 3, 4, 5, 6])
    found = jackknifed(
        lambda without: np.delete(values, [] if without is None else without).mean(), 6
    )
    assert found.high - found.value == pytest.approx(2.571 * math.sqrt(3.5 / 6), rel=5e-3)


def interval(low, high):
    return Interval((low + high) / 2, low, high)


@pytest.mark.parametrize(
    ("gain", "worst", "verdict"),
    [
        ((0.01, 0.03), (0.0, 0.02), "gains"),
        ((-0.001, 0.03), (-0.004, 0.02), "no harm"),
        ((-0.02, 0.03), (-0.02, 0.02), "not resolved"),
        ((-0.03, -0.02), (-0.04, -0.02), "loses"),
    ],
)
def test_the_ends_of_the_intervals_decide(gain, worst, verdict):
    assert said(interval(*gain), worst[0]) == verdict
