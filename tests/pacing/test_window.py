from hypothesis import given
from hypothesis import strategies as st

from evenstep.pacing.slack import RollingWindow

VALUES = st.lists(st.integers(-(10**12), 10**12), min_size=1, max_size=80)


@given(VALUES, st.integers(1, 20), st.floats(0, 1))
def test_a_quantile_is_that_of_the_last_values(values: list[int], size: int, q: float) -> None:
    window = RollingWindow(size)
    for value in values:
        window.push(value)
    last = sorted(values[-size:])
    assert window.quantile(q) == last[int(q * (len(last) - 1))]


def test_the_quantile_of_an_empty_window_is_zero() -> None:
    assert RollingWindow(4).quantile(0.5) == 0
