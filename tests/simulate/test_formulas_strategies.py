import math

import pytest

from evenstep.simulate.job import strategies


def grows(gain, delay, rounds=20_000):
    """Whether x' = x − gain·x(t−delay) grows."""
    past = [1.0] * (delay + 1)
    for _ in range(rounds):
        past.append(past[-1] - gain * past[-1 - delay])
        if abs(past[-1]) > 1e6:
            return True
    return False


@pytest.mark.parametrize("delay", [0, 1, 3, 8])
def test_the_stable_step_is_where_delayed_descent_begins_to_grow(delay):
    limit = 2 * strategies.stable_step_share(delay)  # fresh gradients allow 2
    assert grows(limit * 1.02, delay)
    assert not grows(limit * 0.98, delay)


def test_fresh_gradients_allow_the_whole_step():
    assert strategies.stable_step_share(0) == pytest.approx(math.sin(math.pi / 2))
