import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from evenstep.report.page import overview
from evenstep.trace.columns import Columns

TWO_PERCENT = 0.02  # what the page says of the numbers it reads back
NONE = Columns({name: np.empty(0) for name in ("rank", "step", "start_ns", "end_ns")})


def decoded(codes: np.ndarray, scale: tuple[float, float]) -> np.ndarray:
    """The values again, as the page's script reads them: logarithmic, 0 unknown, 1 nothing."""
    low, high = scale
    value = low * (high / low) ** ((codes.astype(float) - 2) / (255 - 2))
    return np.where(codes == 0, np.nan, np.where(codes == 1, 0.0, value))


def table(ranks: int, steps: int, wait_ns: np.ndarray) -> Columns:
    """Rank r takes r + 1 ms a step; steps are numbered from 10."""
    rank = np.repeat(np.arange(ranks, dtype=np.int32), steps)
    step = np.tile(np.arange(10, 10 + steps), ranks)
    return Columns(
        {
            "rank": rank,
            "step": step,
            "start_ns": step * 0,
            "end_ns": (rank.astype(np.int64) + 1) * 1_000_000,
            "wait_ns": wait_ns,
            "lateness_ns": np.zeros(rank.size),
            "phase_forward_ns": np.full(rank.size, 500_000),
        }
    )


def test_the_curve_has_the_fastest_median_and_slowest_rank_of_a_step() -> None:
    curve = overview.curve(table(4, 3, np.zeros(12)))
    assert curve.step.tolist() == [10, 11, 12]
    assert curve.shortest_us.tolist() == [1000.0] * 3
    assert curve.median_us.tolist() == [2500.0] * 3  # between ranks of 2 and 3 ms
    assert curve.longest_us.tolist() == [4000.0] * 3


@given(st.integers(1, 5), st.integers(1, 60), st.integers(1, 20))
def test_a_curve_never_has_more_points_than_asked(ranks: int, steps: int, points: int) -> None:
    curve = overview.curve(table(ranks, steps, np.zeros(ranks * steps)), points=points)
    assert len(curve) <= points
    assert curve.longest_us.max() == 1000.0 * ranks


def test_a_run_without_a_step_has_an_empty_curve_and_no_grid() -> None:
    assert len(overview.curve(NONE)) == 0
    assert overview.drawn_map(NONE, world=4) is None


def test_a_small_run_keeps_one_cell_per_rank_and_step() -> None:
    wait = np.arange(12) * 1000.0
    steps = table(4, 3, wait).with_column("lateness_ns", 2 * wait)
    found = overview.drawn_map(steps, world=4)
    assert found is not None
    assert found.tables["grid"].lateness_us.tolist() == (2 * wait / 1e3).tolist()
    assert found.tables["grid"].step_us.tolist() == np.repeat([1e3, 2e3, 3e3, 4e3], 3).tolist()
    assert (found.facts["grid"]["rows"], found.facts["grid"]["columns"]) == (4, 3)
    assert found.tables["grid"].wait_us.tolist() == (wait / 1e3).tolist()
    assert (found.facts["grid"]["scales"], found.facts["grid"]["order"]) == ({}, [0, 1, 2, 3])


def test_a_rank_without_a_trace_keeps_its_row_empty() -> None:
    steps = table(2, 3, np.zeros(6))
    found = overview.drawn_map(steps, world=3)
    assert found is not None
    assert np.isnan(found.tables["grid"].wait_us[6:]).all()


def test_waits_of_adjacent_steps_are_means_of_what_is_known() -> None:
    steps = 2 * overview.MOST_STEPS
    wait = np.tile([1000.0, 3000.0], steps // 2)
    wait[0] = np.nan
    rows = table(1, steps, wait)
    found = overview.drawn_map(rows, world=1)
    assert found is not None
    assert found.facts["grid"]["steps_per_bin"] == 2
    assert found.tables["grid"].wait_us[:2].tolist() == [3.0, 2.0]


def test_one_late_rank_among_many_does_not_vanish_in_its_cell() -> None:
    ranks, late = 2 * overview.MOST_RANKS, 501
    wait = np.full(ranks, 28e6)
    wait[late] = 0
    rows = table(ranks, 1, wait)
    rows["lateness_ns"][late] = 30e6
    found = overview.drawn_map(rows, world=ranks, named=[7])
    assert found is not None
    assert found.facts["grid"]["ranks_per_bin"] == 2
    assert found.facts["grid"]["order"][:2] == [7, late]  # the named one, then the latest
    assert np.flatnonzero(found.tables["grid"].wait_us == 0).tolist() == [0]
    assert int(np.argmax(found.tables["grid"].lateness_us)) == 0
    assert found.tables["grid"].lateness_us.max() == pytest.approx(30e3)


def test_a_large_map_reads_back_within_two_percent() -> None:
    ranks, steps = 512, 500
    rank, step = (part.reshape(-1) for part in np.mgrid[:ranks, :steps])
    time = 1e6 * (1.0 + rank + step)
    rows = Columns(
        {
            "rank": rank, "step": step, "start_ns": np.zeros(rank.size), "end_ns": time,
            "wait_ns": time / 2, "lateness_ns": time / 4,
        }
    )  # fmt: skip
    found = overview.drawn_map(rows, ranks)
    assert found is not None
    assert (found.facts["grid"]["rows"], found.facts["grid"]["columns"]) == (ranks, steps)
    read = decoded(found.tables["grid"].wait_us, found.facts["grid"]["scales"]["wait_us"])
    np.testing.assert_allclose(read, rows.wait_ns / 1e3, rtol=TWO_PERCENT)  # 256,000 cells


@given(st.integers(1, 5000), st.integers(1, 10**6))
def test_the_grid_stays_within_its_limits_and_covers_everything(world: int, last: int) -> None:
    ends = Columns({"rank": np.array([0, 0]), "step": np.array([0, last])})
    shape = overview.bins(ends, world)
    assert shape is not None
    assert shape.rows <= overview.MOST_RANKS
    assert shape.columns <= overview.MOST_STEPS
    assert shape.rows * shape.columns <= overview.MOST_CELLS
    assert shape.rows * shape.ranks_per_bin >= world
    assert shape.columns * shape.steps_per_bin > last


def test_means_of_a_rank_leave_out_what_is_unknown() -> None:
    wait = np.array([2e6, np.nan, 4e6, np.nan, np.nan, np.nan])
    first, second = overview.per_rank(table(2, 3, wait))
    assert first["wait_ns"] == pytest.approx(3e6)
    assert second["wait_ns"] is None
    assert second["step_ns"] == pytest.approx(2e6)
    assert second["phase_forward_ns"] == pytest.approx(500_000)


@given(arrays(np.float32, st.integers(1, 200), elements=st.floats(0.0625, 1e7, width=32)))
def test_what_is_within_the_scale_reads_back_within_two_percent(values: np.ndarray) -> None:
    codes, scale = overview.encode(values)
    shown = values >= scale[0]
    read = decoded(codes, scale)
    assert read[shown] == pytest.approx(values[shown], rel=TWO_PERCENT)
    assert (read[~shown] == 0).all()
    assert scale[1] / scale[0] <= overview.RANGE * 1.001


def test_unknown_and_nothing_stay_apart() -> None:
    codes, scale = overview.encode(np.array([np.nan, 0.0, 5.0]))
    read = decoded(codes, scale)
    assert np.isnan(read[0])
    assert read[1] == 0
    assert read[2] == pytest.approx(5.0)


def test_where_nothing_is_known_nothing_is_invented() -> None:
    codes, scale = overview.encode(np.array([np.nan, 0.0]))
    assert codes.tolist() == [overview.UNKNOWN, overview.NOTHING]
    assert scale == (1.0, 1.0)
