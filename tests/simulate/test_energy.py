import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.simulate.job.outlook import State, bill

HOURS = st.floats(0, 1000).map(lambda hours: hours * 3.6e12)


def test_an_hour_of_one_accelerator_is_its_power_and_its_price():
    paid = bill([State(3.6e12, 700)], progress=10, price_per_hour=2.5)
    assert paid.joules == pytest.approx(700 * 3600)
    assert (paid.cost, paid.cost_per_unit) == pytest.approx((2.5, 0.25))
    assert paid.mean_watts == pytest.approx(700)


def test_node_and_building_are_added_to_every_state():
    states = [State(0.5e9, 600), State(0.5e9, 0)]
    paid = bill(states, node_share_watts=200, pue=1.25, progress=1)
    assert paid.joules == pytest.approx(0.5 * 800 * 1.25 + 0.5 * 200 * 1.25)


def test_polling_costs_what_sleeping_saves():
    polling = bill([State(8e9, 700), State(2e9, 350, waits=True)], progress=1)
    asleep = bill([State(8e9, 700), State(2e9, 100, waits=True)], progress=1)
    assert polling.joules - asleep.joules == pytest.approx(2 * (350 - 100))
    assert polling.joules_waiting == pytest.approx(700)


@given(HOURS, HOURS, HOURS, HOURS)
def test_mean_power_lies_between_the_states(compute, communicate, wait, idle):
    times = (compute, communicate, wait, idle)
    paid = bill([State(*one) for one in zip(times, (700, 400, 350, 100), strict=True)], progress=1)
    assert sum(times) == 0 or 100 - 1e-6 <= paid.mean_watts <= 700 + 1e-6


def test_no_progress_costs_infinitely_much_per_unit():
    assert bill([State(1.0, 700)], progress=0).joules_per_unit == math.inf
