import random
from statistics import median

from hypothesis import given
from hypothesis import strategies as st

from evenstep.statistics.outliers import ALARM, series, standing

TIMES = st.lists(st.floats(1.0, 1e9), min_size=1, max_size=60)


@given(TIMES)
def test_the_value_lies_among_the_repeats(times):
    found = series(times)
    assert min(times) <= found.median_ns <= max(times)
    assert found.mad_ns <= max(times) - min(times)


def test_one_wild_repeat_changes_nothing():
    assert series([1.0] * 9 + [1e9]).median_ns == 1.0


def normal(number, *, sigma, repeats=20, seed=0):
    """So many alike, with relative noise."""
    draw = random.Random(seed)
    return {
        k: series([draw.gauss(100, 100 * sigma) for _ in range(repeats)]) for k in range(number)
    }


def test_alarms_are_as_rare_as_they_claim():
    # 400 probes of 16 alike: ALARM of them may name somebody; three times that has p < 1e-4
    alarms = sum(bool(standing(normal(16, sigma=0.3, seed=s), least=0).factors) for s in range(400))
    assert alarms <= 3 * ALARM * 400


def test_what_is_twice_as_slow_is_named_through_noise():
    found = normal(8, sigma=0.1)
    found[5] = series([2 * value for value in found[5].values_ns])
    result = standing(found, least=0.15)
    assert list(result.factors) == [5]
    usual = sorted(one.median_ns for one in found.values())[3]  # the lower median of eight
    assert result.factors[5] == found[5].median_ns / usual


def test_noise_raises_the_limit():
    calm, noisy = (standing(normal(4, sigma=s), least=0.0).limit for s in (0.01, 0.3))
    assert calm < noisy


def test_repeats_that_drift_are_less_sure_than_their_spread_tells():
    drifting = [1.0 + i / 50 for i in range(50)]
    shuffled = random.Random(1).sample(drifting, 50)
    assert series(drifting).error > series(shuffled).error


def test_of_two_the_faster_is_the_usual():
    found = standing({0: series([100.0] * 10), 1: series([150.0] * 10)}, least=0.15)
    assert found.factors == {1: 1.5}


def test_one_alone_is_compared_with_nobody():
    assert not standing({0: series([1.0])}, least=0.1).factors


@given(st.dictionaries(st.integers(0, 9), TIMES, min_size=2), st.floats(0.0, 1.0))
def test_whoever_is_named_is_beyond_the_limit(times, least):
    found = standing({key: series(values) for key, values in times.items()}, least=least)
    assert all(factor > 1 + found.limit for factor in found.factors.values())
    assert found.usual_ns <= median(series(values).median_ns for values in times.values())
