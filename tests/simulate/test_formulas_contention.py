import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.errors import ConfigError
from evenstep.simulate.formulas import contention


def fluid(compute, transfer, *, steps=5000):
    """Jobs on one link of capacity 1 with fair sharing, event by event; step times of the first."""
    jobs = len(compute)
    left = np.array(compute, float)
    sending = np.zeros(jobs, bool)
    now, began, times = 0.0, 0.0, []
    while len(times) < steps:
        rate = np.where(sending, 1 / max(sending.sum(), 1), 1.0)
        wait = (left / rate).min()
        left -= wait * rate
        now += wait
        for job in np.flatnonzero(left < 1e-12):
            if sending[job] and job == 0:
                times.append(now - began)
                began = now
            left[job] = compute[job] if sending[job] else transfer
            sending[job] = not sending[job]
    return np.array(times[100:])


@pytest.mark.parametrize("transfer", [0.3, 0.6])
def test_two_drifting_jobs_agree_with_a_fluid_link(transfer):
    # 0.17 % apart: they drift through all phases some ten times in what is counted
    times = fluid([1.0, 1.0 + 0.0017 * (1 + transfer)], transfer)
    closed = contention.drifting(1.0, transfer)
    assert closed.mean == pytest.approx(times.mean(), rel=0.02)
    assert closed.cv == pytest.approx(times.std() / times.mean(), rel=0.1)


def test_the_mean_of_two_solves_its_own_equation():
    closed = contention.drifting(1.0, 0.6)
    assert closed.mean == pytest.approx(1.6 + 0.36 / closed.mean)


def test_three_transfers_wait_for_those_under_way():
    # alone 1.6; of two, R = .6 (1 + .6/1.6) = .825; of three, R = .6 (1 + 2 · .825/1.825)
    assert contention.drifting(1.0, 0.6, jobs=3).mean == pytest.approx(1.6 + 0.6 * 1.65 / 1.825)


def test_four_jobs_agree_with_a_fluid_link():
    times = fluid([1.0, 1.0123, 0.9871, 1.0291], 0.6, steps=800)
    assert contention.drifting(1.0, 0.6, jobs=4).mean == pytest.approx(times.mean(), rel=0.03)


def test_a_job_alone_is_not_delayed():
    assert contention.drifting(1.0, 0.5, jobs=1) == (1.5, 0.0, 0.0)


def test_the_moments_of_a_uniform_phase_are_those_drawn():
    mean = contention.drifting(1.0, 0.5).mean
    phase = np.random.Generator(np.random.Philox(key=5)).uniform(-mean / 2, mean / 2, 400_000)
    excess = np.maximum(0.5 - np.abs(phase), 0)
    assert mean - 1.5 == pytest.approx(excess.mean(), rel=0.02)
    assert contention.drifting(1.0, 0.5).variance == pytest.approx(excess.var(), rel=0.02)


def test_random_rings_cross_racks_as_often_as_drawn_ones():
    random = np.random.Generator(np.random.Philox(key=9))
    orders = np.argsort(random.random((4000, 32)), axis=1) // 8
    crossed = (orders != np.roll(orders, 1, axis=1)).sum(axis=1).mean()
    assert contention.crossings(32, 8, ordered=False) == pytest.approx(crossed, rel=0.02)


def test_rings_in_rack_order_leave_each_rack_once():
    assert contention.crossings(32, 8, ordered=True) == 4
    assert contention.crossings(8, 8, ordered=False) == 0


@given(st.floats(0, 10), st.floats(0.01, 10), st.integers(1, 8))
def test_neighbours_never_help(compute, transfer, jobs):
    assert contention.drifting(compute, transfer, jobs=jobs).mean >= (compute + transfer) * (
        1 - 1e-12
    )


@pytest.mark.parametrize("job", [(-1, 1), (1, -1), (0, 0)])
def test_jobs_that_cannot_be_are_refused(job):
    with pytest.raises(ConfigError):
        contention.drifting(*job)
