import math

import numpy as np
import pytest

from evenstep.errors import ConfigError
from evenstep.simulate.formulas import strategies


def normals(*shape, seed=3):
    return np.random.Generator(np.random.Philox(key=seed)).standard_normal(shape)


def stale_synchronous(steps, bound):
    """Every rank may start step t once all have finished step t − 1 − bound."""
    rounds, ranks = steps.shape
    finished = np.zeros((rounds + 1, ranks))
    for t in range(rounds):
        gate = finished[t - bound].max() if t >= bound else 0.0
        finished[t + 1] = np.maximum(finished[t], gate) + steps[t]
    return finished[-1].max() / rounds


@pytest.mark.parametrize("bound", [0, 1, 4])
def test_a_simulated_stale_synchronous_job_lies_within_the_bounds(bound):
    mean = stale_synchronous(100 + 10 * normals(1500, 24), bound)
    low, high = strategies.stale_synchronous(24, bound, mean=100, cv=0.1)
    assert low <= mean <= high * 1.005  # a quarter of a percent is the drawing's own error


def parameter_server(times, updates=4000):
    """Ages of gradients when each rank computes, applies and reads again at once."""
    ready, read, ages, version = np.array(times), [0] * len(times), [], 0
    for _ in range(updates):
        rank = int(ready.argmin())
        ages.append(version - read[rank])
        version += 1
        read[rank] = version
        ready[rank] += times[rank]
    return np.mean(ages[len(times) :]), version / ready.min()


@pytest.mark.parametrize("times", [[1.0, 1.01, 1.02, 0.99], [1.0, 2.0, 3.03, 1.01, 0.7]])
def test_a_simulated_parameter_server_agrees_in_rate_and_staleness(times):
    age, rate = parameter_server(times)
    result = strategies.asynchronous(times)
    assert result.staleness == pytest.approx(age, rel=0.02)
    assert result.rate == pytest.approx(rate, rel=0.02)


def test_staleness_of_the_ranks_averages_to_n_minus_one():
    times = [1.0, 2.0, 5.0]
    result = strategies.asynchronous(times)
    weighted = sum(s / t for s, t in zip(result.by_time, times, strict=True)) / result.rate
    assert weighted == pytest.approx(2.0)


def test_ranks_that_are_alike_can_be_counted():
    listed = strategies.asynchronous([1.0, 1.0, 1.0, 2.0])
    counted = strategies.asynchronous([1.0, 2.0], [3, 1])
    assert (counted.rate, counted.staleness) == (listed.rate, listed.staleness)
    assert set(counted.by_time) == set(listed.by_time)


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


@pytest.mark.parametrize(
    "call",
    [
        lambda: strategies.stale_synchronous(4, -1, mean=1, cv=0),
        lambda: strategies.asynchronous([1.0, 0.0]),
        lambda: strategies.stable_step_share(-1),
    ],
)
def test_what_cannot_be_is_refused(call):
    with pytest.raises(ConfigError):
        call()


def test_fresh_gradients_allow_the_whole_step():
    assert strategies.stable_step_share(0) == pytest.approx(math.sin(math.pi / 2))
