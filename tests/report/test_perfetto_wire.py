"""The encoder against the definition of the wire format, and tracks against their laws."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.export.perfetto import wire
from evenstep.export.perfetto.slices import lanes, levels, side_by_side

numbers = st.integers(0, 2**63 - 1)


def decoded(data):
    """A varint by its definition: seven bits a byte, the lowest first."""
    assert all(byte & 0x80 for byte in data[:-1])
    assert not data[-1] & 0x80
    return sum((byte & 0x7F) << 7 * place for place, byte in enumerate(data))


@given(numbers)
def test_a_varint_reads_back(number):
    assert decoded(wire.varint(number)) == number


@pytest.mark.parametrize(("number", "data"), [(1, b"\x01"), (150, b"\x96\x01"), (300, b"\xac\x02")])
def test_the_examples_of_the_format_are_encoded_as_documented(number, data):
    # protobuf.dev/programming-guides/encoding: 1, 150 and (proto2's page) 300
    assert wire.varint(number) == data


@given(st.lists(numbers, max_size=20))
def test_padded_varints_read_back_and_have_one_width(values):
    table = wire.varints(np.array(values, np.uint64), wire.TIME_BYTES)
    assert table.shape == (len(values), wire.TIME_BYTES)
    assert [decoded(bytes(row)) for row in table] == values


def test_rows_of_different_widths_are_put_in_the_order_asked_for():
    tables = [np.array([[1], [2]], np.uint8), np.array([[7, 8]], np.uint8)]
    assert wire.interleave(tables, np.array([1, 2, 0])).tolist() == [2, 7, 8, 1]


@st.composite
def intervals(draw):
    starts = sorted(draw(st.lists(st.integers(0, 200), min_size=1, max_size=60)))
    lengths = draw(st.lists(st.integers(1, 90), min_size=len(starts), max_size=len(starts)))
    start = np.array(starts)
    return start, start + np.array(lengths)


@given(intervals())
def test_intervals_on_one_lane_never_overlap(pair):
    start, end = pair
    lane = lanes(start, end)
    for one in np.unique(lane):
        mine = lane == one
        assert (start[mine][1:] >= end[mine][:-1]).all()


def test_what_follows_one_another_needs_one_lane():
    assert lanes(np.arange(0, 100, 10), np.arange(10, 110, 10)).max() == 0


@given(intervals())
def test_an_interval_with_a_depth_lies_inside_one_of_each_depth_above(pair):
    order = np.lexsort([-pair[1], pair[0]])
    start, end = pair[0][order], pair[1][order]
    depth = levels(start, end)
    for i in np.flatnonzero(depth > 0):
        above = depth == depth[i] - 1
        assert ((start[above] <= start[i]) & (end[above] >= end[i])).any()
    for level in range(depth.max() + 1):
        mine = depth == level
        assert (start[mine][1:] >= end[mine][:-1]).all()


def test_an_overlap_that_does_not_nest_has_no_depth():
    assert levels(np.array([0, 2, 5]), np.array([10, 4, 15])).tolist() == [0, 1, -1]


@given(intervals())
def test_ranks_side_by_side_do_not_touch(pair):
    start, end = pair
    rank = np.arange(len(start)) % 3
    first, last = side_by_side(rank, start, end)
    assert (last - first == end - start).all()
    assert all(
        last[rank == r].max() <= first[rank == r + 1].min() for r in range(min(len(start), 3) - 1)
    )
