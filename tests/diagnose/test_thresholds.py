"""What is called late, in noise of any shape and in few steps."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm

from evenstep.diagnose.engine import diagnose
from evenstep.diagnose.lateness.case import open_case
from evenstep.diagnose.lateness.thresholds import (
    above_others,
    beyond_others,
    chronic_ranks,
    error_of_median,
    late_threshold,
    standing_out,
    unsteady,
    usual_excess,
    usual_lateness,
)
from evenstep.trace.spool.layout import Phase
from tests.diagnose.graph.by_hand import streams
from tests.diagnose.synthetic import MS, World


def test_five_steps_of_noise_make_no_rank_chronic():
    # of 64 ranks, some scatter so little in five steps that their own noise excuses nothing
    found = [
        finding
        for seed in range(4)
        for finding in diagnose(World(ranks=64, steps=5, noise=0.05, seed=seed).trace()).findings
        if finding.mode == "straggler" and finding.when.pattern == "chronic"
    ]
    assert found == []


def test_equal_ranks_whose_noise_lasts_for_some_steps_are_rarely_late():
    """Of 64 in 40 steps, as an autoregression of .5 has it: one draw in twenty may name a rank."""
    rng, named = np.random.default_rng(4), 0
    for _ in range(60):
        noise = rng.standard_normal((40, 64))
        for step in range(1, 40):
            noise[step] = 0.5 * noise[step - 1] + np.sqrt(0.75) * noise[step]
        named += chronic_ranks(beyond_others(noise), 10.0, (), contended=False).any()
    assert named <= 8  # as many or more of 60 by a chance of .01


def test_two_ranks_later_by_a_deviation_and_a_half_are_known_in_eighteen_steps():
    """A median of 18 errs by 1.25 / sqrt(18) = .3: they are five of these later, 2.8 are asked for
    (Student, 17, .05 / 8). Two and more of these below the mean is one in seventy, and the error,
    which is estimated too, may be twice as large as that: one in five is let be."""
    rng, missed = np.random.default_rng(5), 0
    for _ in range(40):
        work = rng.standard_normal((18, 8)) + 1.5 * np.isin(np.arange(8), [3, 6])
        found = chronic_ranks(beyond_others(work), 10.0, (), contended=False)
        missed += np.count_nonzero(~found[[3, 6]])
    assert missed <= 16  # of 80


def test_a_long_tail_that_all_ranks_have_is_not_made_of_single_events():
    excess = np.random.default_rng(1).exponential(1.0, (400, 16))
    # the lower quarter of an exponential is four times as narrow as it is wide above
    assert np.count_nonzero(excess > late_threshold(excess, 1.0, 0.25)) == 0


def test_events_that_stand_apart_are_seen_in_a_long_tail():
    excess = np.random.default_rng(1).exponential(1.0, (400, 16))
    excess[::40, 3] = 40.0
    assert np.argwhere(excess > late_threshold(excess, 1.0, 0.25))[:, 1].tolist() == [3] * 10


def test_events_smaller_than_their_noise_s_tail_need_only_stand_out_of_normal_noise():
    excess = np.random.default_rng(2).standard_normal((2000, 8))
    excess[::400, 3] = 6.5  # few beside what lies between 2.5 and 5 deviations
    assert np.count_nonzero(excess > late_threshold(excess, 1.0, 1.0)) == 5


def test_what_is_usual_follows_a_change_and_not_the_noise():
    work = 100 + np.random.default_rng(3).standard_normal((160, 5))
    work[80:, 2] += 20
    late = usual_excess(work, np.arange(5) == 2)[:, 2]
    # the median of 16 values errs by 1.25 / 4 of their deviation
    assert np.abs(late[:80]).max() < 1.5
    assert np.abs(late[80:] - 20).max() < 1.5
    assert above_others(work)[80:, 2].std() > 3 * late[80:].std()


def test_what_is_usual_of_half_the_ranks_is_by_how_much_they_are_later_than_the_others():
    work = 100 + 3 * np.random.default_rng(3).standard_normal((4000, 8))
    work[:, 4:] += 5
    # two medians, of 4 ranks and of 16 steps, err by less than 1.25 · 3 · (1/2 + 1/4)
    late = usual_excess(work, np.arange(8) > 3)[:, 4:]
    assert np.abs(late.mean() - 5) < 0.1  # a 28th of that, as 250 stretches of 4 ranks count
    assert late.std() < 3


def test_a_slower_rank_is_later_in_longer_steps():
    work = np.where(np.arange(20) % 5 < 3, 100.0, 200.0)[:, None] * [1, 1, 1, 1.1]
    late = usual_excess(work, np.arange(4) == 3)[:, 3]
    assert late == pytest.approx(0.1 * work[:, 0])


def test_of_ranks_half_of_which_are_slower_the_others_noise_hides_few():
    """16 of 32 by 9 %, in noise of 9 % of a step: the last of the 16 others, whom each would be
    compared with step by step, is itself usually behind."""
    work = np.random.default_rng(0).normal(100, 9, (60, 32))
    work[:, :16] *= 1.09
    # beside the median of 60 steps, the last of 16 such is 1.8 · 1.25 · 9 / 60 ** .5 = 2.6 behind
    assert np.median(beyond_others(work), axis=0)[:16].mean() > 9 - 3.5
    chronic = open_case(streams(work).trace()).delays.chronic
    assert chronic[:16].sum() >= 13
    assert not chronic[16:].any()


def test_ranks_of_one_program_are_late_together_where_each_alone_may_be_noise():
    """5.5 ms in noise of 8: of 20 steps a median errs by 2.2 ms, that of four ranks' mean by 1.1;
    2.75 times that stands out among 8."""
    noise = norm.ppf((np.arange(20) + 0.5) / 20)
    excess = np.stack([np.random.default_rng(rank).permutation(noise) for rank in range(8)], axis=1)
    excess *= 8 * MS
    excess[:, 4:] += 5.5 * MS
    programs = np.arange(4), np.arange(4, 8)
    together, alone = (
        chronic_ranks(excess, 100 * MS, these, contended=False) for these in (programs, ())
    )
    assert (together[4:].all(), together[:4].any(), alone[4:].all()) == (True, False, False)


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_a_chronic_rank_costs_what_the_job_gains_with_its_noise_left(ranks):
    slow = World(ranks=ranks, steps=300, noise=0.06).slow(1, Phase.FORWARD, 6 * MS)
    finding = next(f for f in diagnose(slow.trace()).findings if f.mode == "straggler")
    assert finding.severity == pytest.approx(slow.injected_share(), rel=0.2)


def test_ranks_late_in_turns_by_little_more_than_the_noise_are_told_from_it():
    """20 ms late in a quarter of the steps, in noise of 4.5 ms: each cell may be noise, but noise
    is alike on all ranks, and five of eight scatter half as much."""
    world = World(ranks=8, noise=0.1)
    turns = np.random.default_rng(9).integers(0, 4, world.steps)
    table = world.everywhere()
    for turn, rank in enumerate((1, 5, 6)):
        table[turns == turn, rank] = 20 * MS
    slow = world.delayed(Phase.BACKWARD, table, computing=True)
    first = diagnose(slow.trace()).findings[0]
    assert (first.mode, sorted(first.where.ranks)) == ("straggler", [1, 5, 6])
    assert first.severity == pytest.approx(slow.injected_share(), rel=0.1)


def test_of_two_ranks_the_one_that_is_late_hides_nothing():
    draw = np.random.default_rng(3)
    late = np.arange(200) % 7 < 2
    more = draw.standard_normal(200) + 25 * late
    excess = np.stack([-more, more], axis=1)
    # the noise, of work that varies with its machine, is underestimated
    found = excess > late_threshold(excess, 1.0, 0.3)
    assert not found[:, 0].any()
    assert (found[:, 1] == late).all()


def test_ranks_that_scatter_alike_are_all_steady():
    draw = np.random.default_rng(5)
    alarms = [unsteady(100 * draw.standard_normal((60, 16))).any() for _ in range(400)]
    assert np.mean(alarms) < 0.08  # .05 by design, ± .011


def test_of_how_late_a_rank_is_mean_and_variance_tell():
    excess = np.random.default_rng(6).standard_normal((4000, 6))
    excess[::4, 2] += 5
    usual = usual_lateness(excess, np.arange(6) != 2)
    assert usual[2] == pytest.approx(5, abs=0.2)


def test_who_is_late_once_is_no_culprit_beside_who_is_always():
    table = World(steps=120).everywhere()
    table[10:60, 2] = 30 * MS
    table[90, 0] = 20 * MS
    findings = diagnose(
        World(steps=120, noise=0.003).delayed(Phase.FORWARD, table).trace()
    ).findings
    assert [list(f.where.ranks) for f in findings if f.mode == "straggler"] == [[2]]


def test_one_fast_rank_is_no_loss():
    table = World(ranks=5).everywhere() + 25 * MS
    table[:, 3] = 0
    world = replace(World(ranks=5, noise=0.003), style="blocking").delayed(Phase.FORWARD, table)
    assert diagnose(world.trace()).findings == []


@pytest.mark.parametrize(
    ("fast", "slow"),
    [([3.0], [32.0, 32.1]), ([22.0], [32.0, 32.1]), ([], [32.0, 32.1, 31.9, 32.2])],
)
def test_workers_stand_out_of_workers_and_not_of_their_server(fast, slow):
    levels = np.array([*slow, 22.1, 21.9, 22.05, 21.95, *fast])
    assert np.flatnonzero(standing_out(levels)).tolist() == [*range(len(slow))]


def test_beside_a_slow_rank_none_is_named_that_is_slower_by_nature():
    """Of 64 ranks work differs by 2 ms of 100 (standard deviation), one's by 12 ms more."""
    world = World(ranks=64, steps=40, noise=0.01)
    more = np.random.default_rng(0).normal(6 * MS, 2 * MS, 64)
    more[3] += 12 * MS
    table = world.everywhere() + more.astype(int)
    first = diagnose(world.delayed(Phase.FORWARD, table, computing=True).trace()).findings[0]
    assert (first.mode, list(first.where.ranks)) == ("straggler", [3])


def test_the_level_of_a_drift_is_known_nearly_as_well_as_one_that_stays():
    """It rises by 5 in 16 steps: evenly spread, by MAD a deviation of 1.85."""
    ramp = np.linspace(0, 20, 64)[:, None]
    error = error_of_median(ramp + 0.01 * np.random.default_rng(1).standard_normal((64, 3)))
    assert error == pytest.approx(1.85 * np.sqrt(np.pi / 2) / 8, rel=0.1)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_the_error_of_a_median_of_few_steps_is_a_number(steps):
    values = np.arange(3.0 * steps).reshape(steps, 3) ** 2
    assert np.isfinite(error_of_median(values)).all()
