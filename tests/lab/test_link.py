"""The emulated links against closed forms, and against the simulator's sharing."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.fair.link import Fabric, Link
from tests.simulate.brute_force import fair_rates


def ends(fabric, arrivals):
    """When each transfer ends; `arrivals`: key -> (time, bytes, links)."""
    waiting = sorted(arrivals.items(), key=lambda item: item[1][0])
    found = {}
    while waiting or fabric.next_end_ns < math.inf:
        start = waiting[0][1][0] if waiting else math.inf
        now = min(start, fabric.next_end_ns)
        found |= dict.fromkeys(fabric.advance(now), now)
        while waiting and waiting[0][1][0] <= now:
            key, (_, nbytes, links) = waiting.pop(0)
            fabric.begin(key, nbytes, links)
    return found


def test_alone_a_transfer_has_the_whole_link():
    assert ends(Fabric([Link(0.5)]), {"a": (100, 1000, (0,))}) == {"a": pytest.approx(2100)}


def test_two_share_a_link_and_the_second_has_the_rest_alone():
    # a alone for 500 (500 left), then both at 1/2: a ends after 1,000 more, b has 500 left
    found = ends(Fabric([Link(1.0)]), {"a": (0, 1000, (0,)), "b": (500, 1000, (0,))})
    assert found == {"a": pytest.approx(1500), "b": pytest.approx(2000)}


def test_goodput_is_lost_to_each_further_contender():
    # three of 1,000 bytes on a link of 1 that keeps .8: rate .64 / 3 each, until all end
    same = dict.fromkeys("abc", (0, 1000, (0,)))
    found = ends(Fabric([Link(1.0, 0.8)]), same)
    assert found["a"] == pytest.approx(3000 / 0.64)


def test_flows_that_do_not_yield_take_their_share():
    found = ends(Fabric([Link(1.0, flows=2.0)]), {"a": (0, 1000, (0,))})
    assert found["a"] == pytest.approx(3000)


def test_what_a_bottleneck_leaves_free_others_take():
    # a crosses both links, b the second: a has .2 of the first, b the other .8 of the second
    fabric = Fabric([Link(0.2), Link(1.0)])
    found = ends(fabric, {"a": (0, 200, (0, 1)), "b": (0, 800, (1,))})
    assert found == {"a": pytest.approx(1000), "b": pytest.approx(1000)}


def test_no_card_sends_more_than_it_can():
    fabric = Fabric([Link(1.0)])
    fabric.begin("a", 1000, (0,), 0.25)
    assert fabric.next_end_ns == pytest.approx(4000)


def test_a_link_may_change_under_a_transfer():
    fabric = Fabric([Link(1.0)])
    fabric.begin("a", 1000, (0,))
    assert fabric.advance(500) == []
    fabric.change(0, capacity=0.25)
    assert fabric.next_end_ns == pytest.approx(2500)


def test_what_crosses_nothing_takes_no_time():
    assert ends(Fabric([Link(1.0)]), {"a": (7, 1000, ())}) == {"a": 7}


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(1, 1e6)), min_size=1, max_size=8))
def test_everything_ends_however_long_the_clock_has_run(transfers):
    # at 10^17 ns, three years, a float knows the time to 16 ns
    fabric = Fabric([Link(0.1)], now_ns=1e17)
    arrivals = {key: (1e17 + start, size, (0,)) for key, (start, size) in enumerate(transfers)}
    found = ends(fabric, arrivals)
    busy_ns = max(found.values()) - min(start for start, _, _ in arrivals.values())
    assert busy_ns >= sum(size for _, size in transfers) / 0.1 - 1000 * len(transfers)


FLOWS = st.lists(st.sets(st.integers(0, 3), min_size=1, max_size=3), min_size=1, max_size=6)


@given(FLOWS, st.lists(st.floats(0.1, 10), min_size=4, max_size=4))
def test_rates_are_those_of_the_simulator(flows, capacities):
    fabric = Fabric([Link(capacity) for capacity in capacities])
    for index, links in enumerate(flows):
        fabric.begin(index, 1000, tuple(sorted(links)))
    expected = fair_rates([tuple(links) for links in flows], list(capacities))
    assert fabric.next_end_ns == pytest.approx(1000 / max(expected), rel=1e-9)
