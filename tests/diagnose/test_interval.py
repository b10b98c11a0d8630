import numpy as np
import pytest

from evenstep.statistics.interval import BLOCK_STEPS, Share, share_of


def test_a_share_is_the_sum_of_the_losses_over_the_sum_of_the_steps():
    share = share_of(np.full(40, 3.0), np.full(40, 12.0))
    assert share == (0.25, 0.25, 0.25)


def test_the_same_numbers_give_the_same_interval():
    lost = np.random.default_rng(0).random(100)
    assert share_of(lost, np.ones(100)) == share_of(lost, np.ones(100))


def test_the_interval_covers_the_truth_in_most_draws():
    random = np.random.default_rng(1)
    covered = 0
    for _ in range(200):
        share = share_of(random.exponential(0.2, 300), np.ones(300))
        covered += share.low <= 0.2 <= share.high
    assert covered >= 0.88 * 200  # nominal .95; block bootstraps are somewhat narrow


def test_neighbouring_steps_that_agree_widen_it():
    random = np.random.default_rng(2)
    single = random.random(800)
    runs = np.repeat(random.random(100), BLOCK_STEPS)
    narrow, wide = (share_of(lost, np.ones(800)) for lost in (single, runs))
    assert wide.high - wide.low > 1.5 * (narrow.high - narrow.low)


def test_few_steps_leave_everything_open():
    share = share_of(np.full(3, 1.0), np.full(3, 10.0))
    assert (share.value, share.low) == (pytest.approx(0.1), 0)
    assert share.high > 0.2


def test_fewer_steps_give_less_confidence():
    confidences = [share_of(np.ones(n), np.full(n, 10)).confidence for n in (1, 4, 15)]
    assert confidences == sorted(confidences)
    assert confidences[0] < confidences[-1] < 0.9


def test_a_dozen_steps_that_agree_show_that_something_is_lost():
    assert share_of(np.ones(12), np.full(12, 10.0)).low > 0
    assert share_of(np.eye(12)[0], np.full(12, 10.0)).low == 0


def test_nothing_measured_is_nothing_lost():
    assert share_of(np.zeros(0), np.zeros(0)) == Share(0, 0, 0)
    assert share_of(np.zeros(20), np.ones(20)).confidence == 0


def test_a_share_never_exceeds_the_whole():
    share = share_of(np.full(30, 20.0), np.full(30, 10.0))
    assert share == (1, 1, 1)
