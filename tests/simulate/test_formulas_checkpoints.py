import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep import checkpoints

WRITES = st.floats(1e-4, 1.0)  # ÷ mean time between failures
RESTARTS = st.floats(0, 0.5)


def simulated(write, mtbf, interval, restart, cycles=200_000):
    """Time per cycle when failures are drawn, strike at any time and a restart follows each."""
    random = np.random.Generator(np.random.Philox(key=7))
    left, total = cycles, 0.0
    need = np.full(cycles, interval + write)
    while left:
        gap = random.exponential(mtbf, left)
        total += np.minimum(gap, need).sum()
        failed = gap < need
        left = int(failed.sum())
        need = np.full(left, restart + interval + write)
    return total / cycles


@pytest.mark.parametrize(("write", "restart"), [(0.005, 0.0), (0.02, 0.1), (0.2, 0.05)])
def test_shares_agree_with_drawn_failures(write, restart):
    interval = checkpoints.daly(write, 1.0)
    useful = interval / simulated(write, 1.0, interval, restart)
    shares = checkpoints.shares(write, 1.0, interval=interval, restart=restart)
    assert shares.useful == pytest.approx(useful, rel=0.02)


@given(WRITES, RESTARTS, st.floats(0.01, 2))
def test_shares_add_up_to_one(write, restart, interval):
    shares = checkpoints.shares(write, 1.0, interval=interval, restart=restart)
    assert math.fsum(shares) == pytest.approx(1)
    assert min(shares) >= -1e-9


@given(WRITES, st.floats(0.1, 10))
def test_no_interval_beats_the_best(write, factor):
    best = checkpoints.best_interval(write, 1.0)
    most = checkpoints.shares(write, 1.0, interval=best).useful
    assert checkpoints.shares(write, 1.0, interval=best * factor).useful <= most * (1 + 1e-9)


@given(st.floats(1e-4, 0.5))
def test_daly_is_within_two_percent_of_the_best_interval(write):
    best = checkpoints.best_interval(write, 1.0)
    assert checkpoints.daly(write, 1.0) == pytest.approx(best, rel=0.02)


@pytest.mark.parametrize("write", [1e-5, 1e-4, 5e-4])
def test_young_is_within_two_percent_where_writing_is_short(write):
    # Young leaves out −C/3: relative √(C/2M)·⅔ (expand Daly), 1.1 % at C/M = 5·10^-4
    best = checkpoints.best_interval(write, 1.0)
    assert checkpoints.young(write, 1.0) == pytest.approx(best, rel=0.02)


def test_waste_is_the_first_order_of_what_is_lost():
    shares = checkpoints.shares(1e-5, 1.0, interval=checkpoints.young(1e-5, 1.0), restart=1e-4)
    waste = checkpoints.waste(1e-5, 1.0, interval=checkpoints.young(1e-5, 1.0), restart=1e-4)
    assert 1 - shares.useful == pytest.approx(waste, rel=0.01)


def test_writing_longer_than_twice_the_gap_gives_dalys_other_branch():
    assert checkpoints.daly(3.0, 1.0) == 1.0


def test_a_job_that_never_finishes_a_cycle_does_nothing_useful():
    shares = checkpoints.shares(1e4, 1.0, interval=1.0, restart=0.5)
    assert shares.useful == 0
    assert math.fsum(shares) == pytest.approx(1)


def test_the_longest_restart_leaves_exactly_the_goal():
    restart = checkpoints.longest_restart(0.001, 1.0, goal=0.9)
    best = checkpoints.best_interval(0.001, 1.0)
    shares = checkpoints.shares(0.001, 1.0, interval=best, restart=restart)
    assert shares.useful == pytest.approx(0.9, rel=1e-9)


def test_a_goal_out_of_reach_leaves_no_time_to_restart():
    assert checkpoints.longest_restart(0.1, 1.0, goal=0.99) == 0
