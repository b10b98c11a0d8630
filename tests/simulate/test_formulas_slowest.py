import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.simulate import formulas

DRAWS = 20_000


def random(seed=1):
    return np.random.Generator(np.random.Philox(key=seed))


def agrees(values, expected):
    """Mean of the draws within 2 % of the formula, or within four standard errors."""
    error = values.std() / math.sqrt(len(values))
    return abs(values.mean() - expected) <= max(0.02 * abs(expected), 4 * error)


def test_the_larger_of_two_normals_is_one_over_root_pi():
    assert formulas.normal_exact(2) == pytest.approx(1 / math.sqrt(math.pi), rel=1e-12)


def test_the_largest_of_three_normals_is_three_over_two_root_pi():
    assert formulas.normal_exact(3) == pytest.approx(1.5 / math.sqrt(math.pi), rel=1e-12)


@pytest.mark.parametrize("n", [4, 64, 512])
def test_the_largest_normal_agrees_with_drawing_them(n):
    draws = random().standard_normal((DRAWS, n)).max(axis=1)
    assert agrees(draws, formulas.normal_exact(n))


def test_a_rare_hit_agrees_with_drawing_it():
    hit = formulas.rare_hit(64, compute=100.0, delay=40.0, probability=0.01)
    draws = 100 + 40 * (random().random((DRAWS * 4, 64)) < 0.01).any(axis=1)
    assert agrees(draws, hit.mean)
    assert draws.std() / draws.mean() == pytest.approx(hit.cv, rel=0.02)


def test_a_certain_hit_is_no_noise():
    hit = formulas.rare_hit(8, compute=1.0, delay=1.0, probability=1.0)
    assert hit == (1.0, 2.0, 0.0)


def test_rare_hits_raise_the_cv_by_root_n_while_they_are_rare():
    small, large = (
        formulas.rare_hit(n, compute=1.0, delay=0.1, probability=1e-5).cv for n in (4, 64)
    )
    assert large / small == pytest.approx(4, rel=0.01)


@given(st.integers(1, 10**5), st.floats(0, 0.5))
def test_more_ranks_never_wait_less(n, cv):
    assert cv * formulas.normal_exact(2 * n) >= cv * formulas.normal_exact(n) - 1e-12
