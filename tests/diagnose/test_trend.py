import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.statistics.trend import isotonic, thin, trend

AXIS = np.arange(60.0)


def test_the_slope_is_not_moved_by_a_few_wild_values():
    values = 3 * AXIS + np.random.default_rng(0).standard_normal(60)
    values[[5, 20, 50]] = 1e6
    assert trend(AXIS, values).slope == pytest.approx(3, rel=0.05)


def test_the_interval_covers_the_slope_about_as_often_as_it_says():
    random = np.random.default_rng(1)
    found = [trend(AXIS, 0.05 * AXIS + random.standard_normal(60)) for _ in range(200)]
    assert sum(one.low <= 0.05 <= one.high for one in found) >= 180  # 190 expected


@pytest.mark.parametrize("memory", [0.0, 0.5, 0.8])
def test_noise_with_memory_is_rarely_called_a_trend(memory):
    random, false = np.random.default_rng(2), 0
    for _ in range(200):
        values = random.standard_normal(60)
        for i in range(1, 60):
            values[i] += memory * values[i - 1]
        false += trend(AXIS, values).p < 0.001
    assert false <= 6


def test_the_test_agrees_with_kendall_on_a_small_case():
    # 1 2 3 5 4 6 7 8: S = 28 - 2 = 26, variance 8·7·21/18 = 65.33, z = 25/8.083 = 3.093
    found = trend(np.arange(8.0), np.array([1.0, 2, 3, 5, 4, 6, 7, 8]))
    assert found.p == pytest.approx(0.00198, rel=0.02)


def test_too_few_values_have_no_trend():
    assert trend(np.arange(7.0), np.arange(7.0)).p == 1.0


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40))
def test_the_isotonic_fit_rises_and_has_the_median_of_what_it_levels(values):
    found = isotonic(np.array(values))
    assert (np.diff(found) >= 0).all()
    for level in np.unique(found):
        assert level == pytest.approx(np.median(np.array(values)[found == level]), abs=1e-6)


def test_one_low_value_at_the_end_leaves_a_growth_sure():
    """A ramp of 100 in 16 of 27 values, level then, and 30 less in the last."""
    values = np.minimum(100 * np.arange(27.0) / 16, 100)
    values[17:] += np.array([0.5, -1, -0.6, 0.8, -0.2, 0.7, -0.9, 0.3, 0.1, -30])
    found = isotonic(values)
    assert np.abs(found[:-1] - values[:-1]).max() < 2
    assert trend(np.arange(27.0), values, values - found).p < 1e-6


def test_a_thinned_series_is_made_of_medians():
    places, values = thin(np.arange(6.0), np.array([1.0, 9, 2, 4, 5, 6]), blocks=2)
    assert places.tolist() == [1.0, 4.0]
    assert values.tolist() == [2.0, 5.0]


def test_growth_without_any_noise_is_sure():
    values = np.sqrt(AXIS)
    assert trend(AXIS, values, values - isotonic(values)).p < 1e-6
