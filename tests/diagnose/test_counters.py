import re

import numpy as np
import pytest

from evenstep.diagnose.measure.grid import step_grid
from evenstep.diagnose.measure.hosts import _CONGESTION, congestion, growth
from evenstep.trace.spool.layout import Kind
from tests.diagnose.synthetic import World, with_rows

METRIC = "tcp.retransmitted_segments"


def sampled(values, *, device: int = -1, rank: int = 0):
    """A counter sampled evenly over the run on one rank, and the grid."""
    trace = World(steps=20).trace()
    trace.names = ("", METRIC)
    times = np.linspace(trace.events.enter_ns.min(), trace.events.exit_ns.max(), len(values))
    bits = np.asarray(values, float).view(np.uint64)
    rows = {"enter_ns": times.astype(np.int64), "bytes_in": bits, "device": device, "rank": rank}
    return with_rows(trace, kind=int(Kind.SAMPLE), name=1, **rows)


def test_a_counter_grows_evenly_between_samples():
    trace = sampled([0, 200])
    grown = growth(trace, step_grid(trace), METRIC)
    assert grown[:, 0] == pytest.approx(200 / 20, rel=0.01)
    assert not grown[:, 1:].any()


def test_a_counter_that_was_reset_has_not_grown():
    trace = sampled([100, 110, 0, 5])
    assert growth(trace, step_grid(trace), METRIC)[:, 0].sum() <= 15


def test_devices_of_a_rank_are_added():
    one = sampled([0, 200], device=0)
    rows = one.of_kind(Kind.SAMPLE)
    both = with_rows(
        one, kind=int(Kind.SAMPLE), name=1, device=1, enter_ns=rows.enter_ns, bytes_in=rows.bytes_in
    )
    assert growth(both, step_grid(both), METRIC)[:, 0] == pytest.approx(20, rel=0.01)


@pytest.mark.parametrize("values", [[7, 7, 7], [7]])
def test_a_counter_that_stands_still_is_no_congestion(values):
    trace = sampled(values)
    grid = step_grid(trace)
    assert congestion(trace, grid, np.ones(len(grid.steps), bool)) == []


def test_samples_of_a_rank_without_steps_are_left_aside():
    trace = sampled([0, 200], rank=77)
    assert not growth(trace, step_grid(trace), METRIC).any()


def test_counters_of_congestion_are_named_as_they_are_recorded():
    assert all(
        re.fullmatch(r"(tcp|ip|nic|ib)\.\w+_(segments|packets|count|ticks)", name)
        for name in _CONGESTION
    )
