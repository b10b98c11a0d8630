"""The maximum over ranks against closed forms, and families told by their tails."""

from math import gamma
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenstep.diagnose.predict.forecast import _maximum
from evenstep.statistics.tails import fit

SHAPE = (1000, 8)
MS = 1e6


def drawn(kind, seed=0, shape=SHAPE):
    random = np.random.default_rng(seed)
    return {
        "normal": lambda: random.normal(50, 1, shape),
        "lognormal": lambda: random.lognormal(1, 0.7, shape),
        "exponential": lambda: 50 + random.exponential(1, shape),
        "pareto": lambda: 1 + random.pareto(3, shape),
        "rare_hits": lambda: random.normal(50, 0.3, shape) + 10 * (random.random(shape) < 0.01),
    }[kind]() * MS


def mean_of_maximum(noise, ranks):
    """E[max] by quadrature over the table."""
    at, cdf = _maximum(noise, np.zeros(ranks), np.ones(ranks))
    return float((np.diff(cdf) * (at[1:] + at[:-1]) / 2).sum() + cdf[0] * at[0])


def harmonic(ranks):
    return sum(1 / k for k in range(1, ranks + 1))


#: E[max of n] in ms. Blom 1958 for the normal; exact for the others.
CLOSED = {
    "normal": lambda n: 50 + NormalDist().inv_cdf((n - 0.375) / (n + 0.25)),
    "exponential": lambda n: 50 + harmonic(n),
    "pareto": lambda n: gamma(n + 1) * gamma(2 / 3) / gamma(n + 2 / 3),  # of shape 3
    "rare_hits": lambda n: 50 + 10 * (1 - 0.99**n) + 0.3,  # less than .3 of normal noise
}


@pytest.mark.parametrize("kind", CLOSED)
@pytest.mark.parametrize("ranks", [8, 64])
def test_the_expected_maximum_is_the_closed_form(kind, ranks):
    noise = fit(drawn(kind))
    assert mean_of_maximum(noise, ranks) / MS == pytest.approx(CLOSED[kind](ranks), rel=0.05)


@pytest.mark.parametrize("often", [0.01, 0.02, 0.03])
def test_hits_far_from_the_usual_values_are_as_long_as_they_were_seen(often):
    """They are 500 times as long as the noise, and the 99.5th percentile is one of them."""
    random = np.random.default_rng(0)
    values = 1 + 0.01 * random.standard_normal(SHAPE) + 5 * (random.random(SHAPE) < often)
    noise = fit(values * MS)
    told = np.interp(-np.log(0.005), -noise.log_survival, noise.at_ns)
    assert told / MS == pytest.approx(float(np.quantile(values, 0.995)), rel=0.005)


@pytest.mark.parametrize("kind", ["normal", "exponential"])
def test_light_tails_stay_light_far_beyond_the_sample(kind):
    excess = mean_of_maximum(fit(drawn(kind)), 100_000) / MS - 50
    expected = {"normal": NormalDist().inv_cdf(1 - 1e-5) + 0.14, "exponential": harmonic(100_000)}
    assert excess == pytest.approx(expected[kind], rel=0.1)


@pytest.mark.parametrize("kind", ["normal", "rare_hits"])
def test_the_family_is_chosen_by_values_it_has_not_seen(kind):
    assert [fit(drawn(kind, seed)).family for seed in range(5)].count(kind) >= 4


@pytest.mark.parametrize("seed", range(5))
def test_a_heavy_tail_is_never_taken_for_a_normal_one(seed):
    weights = fit(drawn("pareto", seed)).weights
    assert "normal" not in weights


def test_rare_hits_are_counted_and_measured():
    found = fit(drawn("rare_hits"), "rare_hits").parameters
    assert found["probability"] == pytest.approx(0.01, rel=0.3)  # 80 of 8,000, ± 3 deviations
    assert found["delay_ns"] == pytest.approx(10 * MS, rel=0.02)


def test_work_that_never_varies_has_no_noise():
    noise = fit(np.full((20, 4), 7.0))
    assert noise.family == "none"
    assert mean_of_maximum(noise, 1000) == pytest.approx(7.0, abs=1e-5)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(0, 1e9), min_size=48, max_size=48))
def test_any_values_give_a_distribution(values):
    noise = fit(np.array(values).reshape(24, 2))
    assert (np.diff(noise.at_ns) >= 0).all()
    assert (np.diff(noise.log_survival) <= 0).all()
    cdf = np.exp(noise.log_cdf(np.array([-1.0, *values, 1e30])))
    assert cdf[0] == pytest.approx(0, abs=1e-6)
    assert cdf[-1] == pytest.approx(1)


@pytest.mark.parametrize("family", [None, "pareto", "rare_hits"])
def test_a_tail_begins_below_values_that_tie_at_the_top(family):
    noise = fit(np.repeat([0.0, 1.0], [10, 200]).reshape(-1, 2) * MS, family)
    assert np.exp(noise.log_cdf(np.array([0.0]))) == pytest.approx(10 / 210)
