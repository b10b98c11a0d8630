"""The one rule of who is late."""

import pytest

from evenstep.lateness import SURE, excess, late, student


def test_who_works_longer_and_does_not_wait_is_late():
    assert late([50, 95, 50], [45, 0, 45], 95) == [1]


def test_several_are_named_together_where_the_others_are_more():
    assert late([50, 95, 50, 90, 50], [45, 0, 45, 5, 45], 95) == [1, 3]
    assert late([50, 95, 50, 60, 50], [45, 0, 45, 35, 45], 95) == [1]


@pytest.mark.parametrize(
    ("work", "blocked", "step"),
    [
        ([50, 51], [1, 0], 51),  # below the threshold
        ([95, 50], [45, 0], 95),  # a victim whose wait looks like work
        ([95, 95, 50, 50], [0, 0, 0, 0], 95 * 100),
        ([99], [0], 99),
        ([], [], 1),
        ([1, 2], [0, 0], 0),
    ],
)
def test_otherwise_nobody_is(work, blocked, step):
    assert late(work, blocked, step) == []


@pytest.mark.parametrize(
    ("queued", "named"),
    [
        ((20, 50), []),  # both wait for their workers: who gets its batch first gains nothing
        ((5, 50), [1]),  # the other has its batch ready
        ((20, 20), [1]),  # late by own work
        ((0, 0), [1]),
        ((), [1]),
    ],
)
def test_who_waits_for_workers_as_the_others_do_is_not_late_by_that(queued, named):
    assert late([40, 70], [30, 0], 70, queued=queued) == named
    assert (excess([40, 70], queued, 70)[1] >= 30) == bool(named)


def test_who_has_less_to_wait_for_is_not_late_by_own_work_that_nobody_waits_for():
    """Ranks 0 and 2 wait 60 for their workers; rank 1, which works 35 more, 25."""
    assert excess([90, 90, 90], [60, 25, 60], 90) == [0, 0, 0]


def test_of_two_the_lesser_is_the_usual():
    assert excess([3, 1]) == [2, 0]


@pytest.mark.parametrize(("freedom", "quantile"), [(5, 19.35), (10, 8.514), (30, 5.436)])
def test_the_error_of_few_measurements_is_students(freedom, quantile):
    """Quantiles at 1 - 3.4e-6, the normal one at 4.5 deviations, by scipy.stats.t.isf."""
    assert SURE == 4.5
    assert student(freedom) == pytest.approx(quantile, rel=0.07)
