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


def test_of_one_step_nothing_follows():
    assert share_of(np.ones(1), np.full(1, 10.0)) == (0.1, 0.0, 1.0)


@pytest.mark.parametrize("steps", [2, 3, 15])
def test_of_few_steps_that_agree_one_may_be_an_exception(steps):
    share = share_of(np.full(steps, 1.0), np.full(steps, 10.0))
    assert share == pytest.approx((0.1, 0.1 - 0.1 / steps, 0.1 + 0.1 / steps))


def test_few_steps_that_differ_have_students_interval():
    share = share_of(np.array([0.5, 1.5]), np.full(2, 10.0))  # t(1) = 12.7
    assert (share.low, share.value, share.high) == (
        0,
        pytest.approx(0.1),
        pytest.approx(0.549, 0.01),
    )


def test_fewer_steps_give_less_confidence():
    confidences = [share_of(np.ones(n), np.full(n, 10)).confidence for n in (1, 2, 15)]
    assert confidences == sorted(confidences)
    assert confidences[0] < 0.8 < confidences[-1]


def test_a_dozen_steps_that_agree_show_that_something_is_lost():
    assert share_of(np.ones(12), np.full(12, 10.0)).low > 0
    assert share_of(np.eye(12)[0], np.full(12, 10.0)).low == 0


def test_nothing_measured_is_nothing_lost():
    assert share_of(np.zeros(0), np.zeros(0)) == Share(0, 0, 0)
    assert share_of(np.zeros(20), np.ones(20)).confidence == 0


def test_a_share_never_exceeds_the_whole():
    share = share_of(np.full(30, 20.0), np.full(30, 10.0))
    assert share == (1, 1, 1)
