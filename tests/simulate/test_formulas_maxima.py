import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.errors import ConfigError
from evenstep.simulate.formulas import maxima

DRAWS = 20_000


def random(seed=1):
    return np.random.Generator(np.random.Philox(key=seed))


def agrees(values, expected):
    """Mean of the draws within 2 % of the formula, or within four standard errors."""
    error = values.std() / math.sqrt(len(values))
    return abs(values.mean() - expected) <= max(0.02 * abs(expected), 4 * error)


def test_the_larger_of_two_normals_is_one_over_root_pi():
    assert maxima.normal_exact(2) == pytest.approx(1 / math.sqrt(math.pi), rel=1e-12)


def test_the_largest_of_three_normals_is_three_over_two_root_pi():
    assert maxima.normal_exact(3) == pytest.approx(1.5 / math.sqrt(math.pi), rel=1e-12)


@pytest.mark.parametrize("n", [4, 64, 512])
def test_the_largest_normal_agrees_with_drawing_them(n):
    draws = random().standard_normal((DRAWS, n)).max(axis=1)
    assert agrees(draws, maxima.normal_exact(n))


@pytest.mark.parametrize("n", [4, 8, 64, 512, 4096, 10**6])
def test_blom_is_within_two_percent_of_the_quadrature(n):
    assert maxima.normal_blom(n) == pytest.approx(maxima.normal_exact(n), rel=0.02)


def test_the_kth_of_n_normals_agrees_with_drawing_them():
    draws = np.sort(random().standard_normal((DRAWS, 32)), axis=1)[:, 27]
    assert agrees(draws, maxima.normal_exact(32, 28))


@given(st.integers(1, 300), st.data())
def test_order_statistics_of_a_symmetric_distribution_mirror_each_other(n, data):
    k = data.draw(st.integers(1, n))
    mirrored = -maxima.normal_exact(n, n + 1 - k)
    assert maxima.normal_exact(n, k) == pytest.approx(mirrored, abs=1e-9)


@pytest.mark.parametrize("k", [None, 50])
def test_the_slowest_exponential_agrees_with_drawing_them(k):
    draws = np.sort(random().standard_exponential((DRAWS, 64)), axis=1)[:, (k or 64) - 1]
    assert agrees(draws, maxima.exponential(64, k))


def test_harmonic_numbers_join_where_the_expansion_takes_over():
    direct = math.fsum(1 / i for i in range(1, 5001))
    assert maxima.harmonic(5000) == pytest.approx(direct, rel=1e-14)


def test_the_slowest_pareto_agrees_with_drawing_them():
    draws = (random().pareto(4.0, (DRAWS, 64)) + 1).max(axis=1)
    assert agrees(draws, maxima.pareto(64, alpha=4.0))


def test_the_slowest_pareto_tends_to_its_power_law():
    n, alpha = 10**6, 3.0
    power_law = math.gamma(1 - 1 / alpha) * n ** (1 / alpha)
    assert maxima.pareto(n, alpha=alpha) == pytest.approx(power_law, rel=1e-5)


def test_one_pareto_rank_takes_the_mean_of_the_distribution():
    assert maxima.pareto(1, alpha=3.0) == pytest.approx(3 / 2)  # α/(α−1)


def test_a_rare_hit_agrees_with_drawing_it():
    hit = maxima.rare_hit(64, compute=100.0, delay=40.0, probability=0.01)
    draws = 100 + 40 * (random().random((DRAWS * 4, 64)) < 0.01).any(axis=1)
    assert agrees(draws, hit.mean)
    assert draws.std() / draws.mean() == pytest.approx(hit.cv, rel=0.02)


def test_a_certain_hit_is_no_noise():
    hit = maxima.rare_hit(8, compute=1.0, delay=1.0, probability=1.0)
    assert hit == (1.0, 2.0, 0.0)


def test_rare_hits_raise_the_cv_by_root_n_while_they_are_rare():
    small, large = (
        maxima.rare_hit(n, compute=1.0, delay=0.1, probability=1e-5).cv for n in (4, 64)
    )
    assert large / small == pytest.approx(4, rel=0.01)


@given(st.integers(1, 10**5), st.floats(0, 0.5))
def test_more_ranks_never_wait_less(n, cv):
    assert cv * maxima.normal_exact(2 * n) >= cv * maxima.normal_exact(n) - 1e-12


@pytest.mark.parametrize(
    "call",
    [
        lambda: maxima.normal_exact(0),
        lambda: maxima.normal_blom(4, 5),
        lambda: maxima.pareto(4, alpha=1.0),
        lambda: maxima.rare_hit(4, compute=1, delay=1, probability=1.5),
        lambda: maxima.rare_hit(4, compute=0, delay=1, probability=0.5),
    ],
)
def test_what_cannot_be_is_refused(call):
    with pytest.raises(ConfigError):
        call()
