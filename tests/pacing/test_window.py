import statistics

from hypothesis import given
from hypothesis import strategies as st

from evenstep.pacing.window import RollingWindow

VALUES = st.lists(st.integers(-(10**12), 10**12), min_size=1, max_size=80)


@given(VALUES, st.integers(1, 20), st.floats(0, 1))
def test_a_quantile_is_that_of_the_last_values(values: list[int], size: int, q: float) -> None:
    window = RollingWindow(size)
    for value in values:
        window.push(value)
    last = sorted(values[-size:])
    assert window.quantile(q) == last[int(q * (len(last) - 1))]


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=80), st.integers(1, 20))
def test_the_deviation_is_the_population_deviation(values: list[int], size: int) -> None:
    window = RollingWindow(size)
    for value in values:
        window.push(value)
    assert abs(window.deviation - statistics.pstdev(values[-size:])) < 1e-3


@given(VALUES, st.integers(1, 20), st.integers(1, 20))
def test_resizing_keeps_the_newest(values: list[int], before: int, after: int) -> None:
    window = RollingWindow(before)
    for value in values:
        window.push(value)
    window.resize(after)
    assert len(window) == min(len(values), before, after)
    assert window.quantile(1.0) == max(values[-min(before, after) :])


def test_an_empty_window_is_zero_everywhere() -> None:
    assert RollingWindow(4).quantile(0.5) == 0
    assert RollingWindow(4).deviation == 0
