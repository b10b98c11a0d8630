import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.diagnose.measure.transfers import line_through

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
