import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.diagnose.measure.curve import (
    hierarchical_ns,
    line_through,
    ring_ns,
    tree_ns,
)

SIZES = np.array([1e3, 1e4, 1e5, 1e6, 1e7, 1e8])


@given(st.floats(1e3, 1e7), st.floats(0.1, 500))
def test_a_line_is_found_again(alpha_ns, bandwidth):
    line = line_through(SIZES, alpha_ns + SIZES / bandwidth)
    assert line.alpha_ns == pytest.approx(alpha_ns, rel=1e-3)
    assert line.gBps == pytest.approx(bandwidth, rel=1e-3)


def test_one_odd_size_does_not_tilt_the_line():
    times = 50_000 + SIZES / 10
    times[3] *= 5
    assert line_through(SIZES, times).gBps == pytest.approx(10, rel=0.01)


@pytest.mark.parametrize("sizes", [[1e6], [1e6, 2e6]])
def test_sizes_too_much_alike_have_no_line(sizes):
    assert line_through(np.array(sizes), np.array(sizes)) is None


def test_time_that_does_not_grow_with_size_has_no_bandwidth():
    assert line_through(SIZES[:3], np.array([3e5, 2e5, 1e5])) is None


def test_latency_is_never_negative():
    assert line_through(SIZES, SIZES**1.2).alpha_ns == 0


def test_a_ring_takes_what_the_published_workload_takes():
    # W1: 64 ranks, 100 MB, 12.5 GB/s, 2 µs a message: 16.002 ms
    assert ring_ns(64, 1e8, 2000, 12.5) / 1e6 == pytest.approx(16.002, abs=1e-3)


def test_the_limit_of_a_ring_is_twice_the_bytes():
    # 20 GB at 50 GB/s: 400 ms a pass, a ring moves 2(n - 1)/n times that
    assert ring_ns(2**20, 20e9, 0, 50) / 1e6 == pytest.approx(800, rel=1e-5)


def test_algorithms_keep_their_order():
    small, large = 1e3, 1e9
    assert tree_ns(64, small, 2000, 12.5) < ring_ns(64, small, 2000, 12.5)
    assert ring_ns(64, large, 2000, 12.5) < tree_ns(64, large, 2000, 12.5)


def test_a_hierarchy_of_one_node_is_a_ring_inside_it():
    assert hierarchical_ns(8, 1, 1e8, 2000, 300, 12.5) == pytest.approx(ring_ns(8, 1e8, 0, 300))
