import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from evenstep.report.page import detail
from evenstep.report.terminal import overview
from evenstep.trace.columns import Columns

TWO_PERCENT = 0.02  # what the page says of the numbers it reads back


@given(arrays(np.float32, st.integers(1, 200), elements=st.floats(0.0625, 1e7, width=32)))
def test_what_is_within_the_scale_reads_back_within_two_percent(values: np.ndarray) -> None:
    codes, scale = detail.encoded(values)
    shown = values >= scale[0]
    read = detail.decoded(codes, scale)
    assert read[shown] == pytest.approx(values[shown], rel=TWO_PERCENT)
    assert (read[~shown] == 0).all()
    assert scale[1] / scale[0] <= detail.RANGE * 1.001


def test_unknown_and_nothing_stay_apart() -> None:
    codes, scale = detail.encoded(np.array([np.nan, 0.0, 5.0]))
    read = detail.decoded(codes, scale)
    assert np.isnan(read[0])
    assert read[1] == 0
    assert read[2] == pytest.approx(5.0)


def test_where_nothing_is_known_nothing_is_invented() -> None:
    codes, scale = detail.encoded(np.array([np.nan, 0.0]))
    assert codes.tolist() == [detail.UNKNOWN, detail.NOTHING]
    assert scale == (1.0, 1.0)


def large(ranks: int, steps: int) -> Columns:
    rank, step = (part.reshape(-1) for part in np.mgrid[:ranks, :steps])
    time = 1e6 * (1.0 + rank + step)
    return Columns(
        {
            "rank": rank, "step": step, "start_ns": np.zeros(rank.size), "end_ns": time,
            "wait_ns": time / 2, "lateness_ns": time / 4,
        }
    )  # fmt: skip


def test_a_large_run_keeps_a_cell_for_every_rank_and_step() -> None:
    ranks, steps = 2 * overview.RANK_BINS, 20
    table = large(ranks, steps)
    shape = overview.bins(table, ranks)
    assert shape is not None
    assert shape.rows == overview.RANK_BINS
    found = detail.detail(table, ranks, shape)
    assert found is not None
    assert (found.shape.rows, found.shape.columns) == (ranks, steps)
    read = detail.decoded(found.cells.wait_us, found.scales["wait_us"])
    assert read == pytest.approx(table.wait_ns / 1e3, rel=TWO_PERCENT)


def test_a_small_run_needs_no_more_detail() -> None:
    table = large(4, 10)
    shape = overview.bins(table, 4)
    assert shape is not None
    assert detail.detail(table, 4, shape) is None
