import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenstep.statistics.spectrum import FEWEST, periodic, uneven


@settings(max_examples=60, deadline=None)
@given(st.floats(2, 20), st.floats(0, 6.28), st.integers(100, 400))
def test_a_wave_has_its_period(period, phase, length):
    at = np.arange(length)
    noise = np.random.default_rng(0).standard_normal(length)
    found = periodic(10 * np.sin(2 * np.pi * at / period + phase + 0.3) + noise)
    assert found is None or found.period == pytest.approx(period, rel=0.03)
    assert found is not None or period < 2.05  # near two, a wave may be seen in its zeros


def test_alternating_steps_have_a_period_of_two():
    found = periodic(np.tile([1.0, 2.0], 50))
    assert found.period == 2
    assert found.explained == pytest.approx(1)


def test_noise_has_no_period():
    random = np.random.default_rng(1)
    # a chance of 1e-4 each: one in 300 would be 3 %
    assert not any(periodic(random.standard_normal(200)) for _ in range(300))


def test_a_drift_has_no_period():
    random = np.random.default_rng(2)
    walks = np.cumsum(random.standard_normal((100, 300)), axis=1)
    assert sum(periodic(walk) is not None for walk in walks) <= 1


def test_a_single_spike_has_no_period():
    series = np.random.default_rng(3).standard_normal(200)
    series[77] = 1000
    assert periodic(series) is None


@pytest.mark.parametrize("series", [np.ones(100), np.arange(FEWEST - 2.0), np.zeros(0)])
def test_too_little_has_no_period(series):
    assert periodic(series) is None


@pytest.mark.parametrize("period", [0.31, 0.9, 2.7])
def test_a_square_wave_seen_at_uneven_times_has_its_period(period):
    random = np.random.default_rng(4)
    at = np.sort(random.uniform(0, 40, 1500))
    found = uneven(at, (at / period % 1 < 0.4) + 0.1 * random.standard_normal(1500))
    assert found.period == pytest.approx(period, rel=0.01)


def test_noise_at_uneven_times_has_no_period():
    random = np.random.default_rng(5)
    assert not any(
        uneven(np.sort(random.uniform(0, 40, 300)), random.standard_normal(300)) for _ in range(20)
    )


def test_one_slow_value_of_four_has_a_period_of_four_not_of_its_harmonics():
    # an impulse train has equal power at every multiple of its frequency
    noise = np.random.default_rng(0).standard_normal(106)
    assert periodic(10 * (np.arange(106) % 4 == 1) + noise).period == pytest.approx(4, rel=0.01)
