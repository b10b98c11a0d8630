"""Scenarios as networks: who is where, how fast the links are, and what does not fit."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.errors import ConfigError
from lab.scenario import parse
from lab.tcp import layout as layouts
from lab.tcp import network, shaping
from lab.tcp.layout import Layout
from lab.tcp.plan import plan
from lab.tcp.shaping import Shape


def planned(**network):
    return plan(parse({"fabric": "tcp", "network": network, "jobs": [{"ranks": 4, "copies": 2}]}))


def test_with_one_leaf_half_of_every_job_is_on_each_side_of_the_link():
    found = planned()
    sides = [[found.layout.leaf_of[found.hosts[job, rank]] for rank in range(4)] for job in (0, 1)]
    assert sides == [[0, 0, 1, 1]] * 2


def test_the_link_is_as_fast_as_the_scenario_says():
    assert planned(link_gBps=0.02).layout.uplink.gbps == pytest.approx(0.16)  # 8 bits a byte


def test_oversubscription_divides_what_the_hosts_of_a_leaf_can_send():
    # 4 hosts a side at 10 MB/s, 2:1 oversubscribed: 20 MB/s, 160 Mbit/s
    found = planned(nic_gBps=0.01, oversubscription=2.0).layout
    assert (found.edge.gbps, found.uplink.gbps) == pytest.approx((0.08, 0.16))


def test_oversubscription_of_unlimited_cards_is_refused():
    with pytest.raises(ConfigError, match=r"needs network\.nic_gBps"):
        planned(oversubscription=2.0)


def test_other_traffic_has_a_host_under_every_leaf():
    assert planned().others == ()
    found = planned(background_flows=1, leaves=2)
    assert [found.layout.leaf_of[host] for host in found.others] == [0, 1]
    assert found.path(1) == (found.others[1], found.others[0])


@given(
    st.floats(0.001, 10), st.integers(3028, 10**7), st.sampled_from(["tbf", "htb"]),
    st.sampled_from(["bfifo", "pfifo", "red"]),
)  # fmt: skip
def test_a_change_of_shape_names_everything_but_the_root_of_htb(gbps, nbytes, shaper, queue):
    shape = Shape(gbps=gbps, buffer_bytes=nbytes, shaper=shaper, queue=queue)
    made, changed = shaping.lines("up0", shape), shaping.changes("up0", shape)
    assert len(made) - len(changed) == (shaper == "htb")
    assert all(" change " in row and " add " not in row for row in changed)
    assert all(f"{shape.bits_per_second}bit" in " ".join(rows) for rows in (made, changed))


@pytest.mark.parametrize(
    ("changes", "field"),
    [({"gbps": 0}, "gbps"), ({"buffer_bytes": 100}, "buffer_bytes")],
)  # fmt: skip
def test_a_shape_that_cannot_be_is_refused_by_its_field(changes, field):
    with pytest.raises(ConfigError, match=field):
        Shape(**{"gbps": 1.0, "buffer_bytes": 10_000, **changes})


@pytest.mark.parametrize(
    ("given_", "field"),
    [({"leaf_of": []}, "hosts"), ({"leaf_of": [0, 2]}, "leaf_of"), ({"leaf_of": [0, 1]}, "uplink")],
)  # fmt: skip
def test_a_layout_that_cannot_be_is_refused_by_its_field(given_, field):
    with pytest.raises(ConfigError, match=field):
        Layout(**given_)


def test_hosts_have_addresses_of_their_own():
    assert len({layouts.address(host) for host in range(layouts.MOST_HOSTS)}) == layouts.MOST_HOSTS


def test_a_name_says_whose_it_is():
    mine = network.Owner.here()
    assert network.owner_of(mine.name("host12")) == mine
    assert mine.alive
    assert mine.pid == os.getpid()


def test_a_later_process_of_the_same_number_is_not_the_owner():
    mine = network.Owner.here()
    assert not mine._replace(start=mine.start + 1).alive


@given(st.text(max_size=40))
def test_no_other_name_is_taken_for_ours(name):
    assert network.owner_of(name) is None
