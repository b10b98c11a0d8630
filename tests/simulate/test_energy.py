import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.errors import ConfigError
from evenstep.simulate.job.energy import PowerDraw, StateTimes, bill

POWER = PowerDraw(compute_watts=700, communicate_watts=400, spin_wait_watts=350, idle_watts=100)
HOURS = st.floats(0, 1000).map(lambda hours: hours * 3.6e12)


def test_an_hour_of_one_accelerator_is_its_power_and_its_price():
    paid = bill(StateTimes(compute_ns=3.6e12), POWER, progress=10, price_per_hour=2.5)
    assert paid.joules == pytest.approx(700 * 3600)
    assert (paid.cost, paid.cost_per_unit) == pytest.approx((2.5, 0.25))
    assert paid.mean_watts == pytest.approx(700)


def test_node_and_building_are_added_to_every_state():
    power = PowerDraw(
        compute_watts=600, communicate_watts=0, spin_wait_watts=0, idle_watts=0,
        node_share_watts=200, pue=1.25,
    )  # fmt: skip
    assert bill(StateTimes(compute_ns=1e9), power, progress=1).joules == pytest.approx(1000)


def test_polling_costs_what_sleeping_saves():
    polling = bill(StateTimes(compute_ns=8e9, spin_wait_ns=2e9), POWER, progress=1)
    asleep = bill(StateTimes(compute_ns=8e9, idle_ns=2e9), POWER, progress=1)
    assert polling.joules - asleep.joules == pytest.approx(2 * (350 - 100))
    assert polling.joules_waiting == pytest.approx(700)


@given(HOURS, HOURS, HOURS, HOURS)
def test_mean_power_lies_between_the_states(compute, communicate, wait, idle):
    times = StateTimes(
        compute_ns=compute, communicate_ns=communicate, spin_wait_ns=wait, idle_ns=idle
    )
    paid = bill(times, POWER, progress=1)
    assert times.total_ns == 0 or 100 - 1e-6 <= paid.mean_watts <= 700 + 1e-6


def test_no_progress_costs_infinitely_much_per_unit():
    assert bill(StateTimes(compute_ns=1.0), POWER, progress=0).joules_per_unit == math.inf


def test_what_cannot_be_is_named():
    with pytest.raises(ConfigError, match="idle_watts"):
        PowerDraw(compute_watts=1, communicate_watts=1, spin_wait_watts=1, idle_watts=-1)
    with pytest.raises(ConfigError, match="pue"):
        PowerDraw(compute_watts=1, communicate_watts=1, spin_wait_watts=1, idle_watts=1, pue=0.9)
    with pytest.raises(ConfigError, match="idle_ns"):
        StateTimes(idle_ns=-1)
    with pytest.raises(ConfigError, match="progress"):
        bill(StateTimes(), POWER, progress=-1)
