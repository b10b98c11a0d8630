import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.measure import (
    differences,
    paired_ratio,
    ratio_of_means,
    spread,
    trimmed,
    within,
)
from evenstep.statistics.interval import student

TIMES = st.lists(st.floats(0.01, 10), min_size=2, max_size=30)


@pytest.mark.parametrize(
    ("degrees", "value"),
    [(10, 2.228), (30, 2.042), (60, 2.000), (120, 1.980)],  # printed tables of Student's t, .975
)
def test_the_quantile_is_that_of_the_tables(degrees: int, value: float) -> None:
    assert student(degrees) == pytest.approx(value, abs=1e-3)


def test_a_common_drift_of_the_machine_does_not_widen_the_ratio() -> None:
    drift = [1 + index / 10 for index in range(20)]
    ratio = paired_ratio([1.02 * value for value in drift], drift)
    assert ratio.value == pytest.approx(1.02)
    assert ratio.half_width < 1e-9


@given(TIMES)
def test_swapping_the_sides_inverts_the_ratio(times: list[float]) -> None:
    other = times[::-1]
    there, back = paired_ratio(times, other), paired_ratio(other, times)
    assert math.isclose(there.value * back.value, 1, rel_tol=1e-9)
    assert math.isclose(there.low * back.high, 1, rel_tol=1e-9)


def test_the_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    """95 % of 400 worlds are 380 with a standard deviation of 4.4; 20 off would be 4.6 of those."""
    draw = random.Random(7)
    held = 0
    for _ in range(400):
        off = [draw.lognormvariate(0, 0.05) for _ in range(30)]
        on = [1.01 * draw.lognormvariate(0, 0.05) for _ in range(30)]
        ratio = paired_ratio(on, off)
        held += ratio.low <= 1.01 <= ratio.high
    assert 360 <= held <= 400


def test_the_interval_of_a_ratio_of_means_holds_the_truth_about_as_often_as_it_says() -> None:
    """Both have the scatter of what is measured, and each some of its own."""
    draw, held = random.Random(7), 0
    for _ in range(400):
        paid = [draw.gauss(100, 20) for _ in range(30)]
        said = [0.9 * one + draw.gauss(0, 10) for one in paid]
        ratio = ratio_of_means(said, [one + draw.gauss(0, 5) for one in paid])
        held += ratio.low <= 0.9 <= ratio.high
    assert 360 <= held <= 400


def test_what_scatters_in_both_alike_does_not_widen_a_ratio_of_means() -> None:
    paid = [10.0, 90.0, 40.0, 60.0]
    assert ratio_of_means([0.8 * one for one in paid], paid).half_width < 1e-12


def test_a_tenth_at_each_end_counts_in_no_trimmed_mean() -> None:
    assert trimmed([-1e9, *[2.0, 4.0] * 4, 1e9]) == 3.0


def test_an_interval_across_a_bar_does_not_tell_on_which_side_it_is() -> None:
    sides = [within(low, low + 0.2, 0.8, 1.25) for low in (0.9, 0.7, 1.1, 0.5, 1.3)]
    assert sides == [True, None, None, False, False]


@given(TIMES)
def test_the_quartiles_enclose_the_median(times: list[float]) -> None:
    found = spread(times)
    assert found.low <= found.median <= found.high
    assert found.median == pytest.approx(statistics.median(times))


def test_one_round_is_its_own_spread() -> None:
    assert spread([3.0]) == (3.0, 3.0, 3.0)


def test_rounds_are_compared_one_by_one() -> None:
    assert differences([3, 30], [1, 10]) == [2, 20]
    with pytest.raises(ValueError, match="shorter"):
        differences([1, 2], [1])
