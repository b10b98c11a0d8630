"""What rank 0 tells all ranks, as bytes."""

from hypothesis import given
from hypothesis import strategies as st

from evenstep.agent.exchange.messages import (
    MOST_BYTES,
    FirstCollective,
    Orders,
    SharedFloor,
    StepRow,
    floor_of,
    slowest_of,
    summarize,
)
from evenstep.pacing import Plan, Slowest

SIGNED = st.integers(-(2**63), 2**63 - 1)
PLANS = st.builds(
    lambda first, more, span, scale: Plan(first, first + more, 1, 8, span, scale),
    st.integers(0, 2**40),
    st.integers(0, 2**20),
    st.sampled_from([0, 1, 2, 16]),
    st.integers(0, 4),
)
ORDERS = st.builds(
    Orders,
    st.none() | PLANS,
    st.none() | st.builds(Slowest, *[SIGNED] * 3),
    st.none() | st.builds(SharedFloor, *[SIGNED] * 4),
)


def report(rows):
    return summarize(rows, rank=0, end=48)


@given(ORDERS)
def test_orders_survive_the_message_which_stays_within_256_bytes(sent):
    assert Orders.unpack(sent.pack()) == sent
    assert len(sent.pack()) <= MOST_BYTES


@given(st.binary(max_size=300))
def test_what_is_no_message_gives_none_or_orders_but_never_an_error(data):
    found = Orders.unpack(data)
    assert found is None or Orders.unpack(found.pack()) == found


@given(ORDERS, st.integers(1, 40))
def test_a_message_cut_short_is_none_or_lacks_the_plan(sent, lost):
    found = Orders.unpack(sent.pack()[:-lost])
    assert found is None or found == sent._replace(plan=None)


def test_the_slowest_ranks_work_is_its_low_quantile_not_its_mean():
    works = [[10] * 16, [50] * 14 + [20] * 2, [90] + [30] * 15]
    found = slowest_of([report([StepRow(100, work, None, 0, work) for work in w]) for w in works])
    assert found.work_ns == 30  # the second of 16 in ascending order: 10, 20, 30
    assert (found.first_step, found.last_step) == (32, 47)


def window(*in_flight, nbytes=8):
    """A window of steps whose first collective is an all-reduce of `nbytes`."""
    firsts = (FirstCollective(1, nbytes, length) for length in in_flight)
    return report([StepRow(100, 1, None, 0, 1, first) for first in firsts])


def test_the_floor_is_that_of_the_rank_that_waits_least():
    always_waits, never_waits = window(*[40] * 16), window(*[5] * 14, 7, 7)
    assert floor_of([always_waits, never_waits]) == SharedFloor(1, 8, 5, 2)


def test_first_collectives_of_several_sizes_share_no_floor():
    assert floor_of([window(*[4] * 16), window(*[9] * 16, nbytes=16)]) is None
    assert floor_of([report([StepRow(100, 1, None, 0, 1)] * 16)]) is None


def test_nobody_is_slowest_where_nobody_reported():
    assert slowest_of([]) is None


@given(ORDERS, ORDERS)
def test_only_what_is_new_is_told_again(before, now):
    told = now.since(before)
    for name in Orders._fields:
        new, old = getattr(now, name), getattr(before, name)
        assert getattr(told, name) == (None if new == old else new)
    assert now.since(now) == Orders()


def test_orders_of_another_version_or_with_a_flag_too_many_are_none():
    data = bytearray(Orders(floor=SharedFloor(1, 8, 5, 2)).pack())
    assert Orders.unpack(bytes([data[0] + 1]) + data[1:]) is None
    for at in (1, 2):
        assert Orders.unpack(bytes(data[:at]) + b"\x02" + data[at + 1 :]) is None
