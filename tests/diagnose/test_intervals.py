import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from evenstep.diagnose.graph.structure import (
    Intervals,
    length_before,
    overlap_length,
    union_length,
)

CELLS, SPAN = 3, 12
ROWS = st.lists(
    st.tuples(st.integers(0, CELLS - 1), st.integers(-SPAN, SPAN), st.integers(-SPAN, SPAN)),
    max_size=12,
)


def intervals(rows):
    columns = zip(*rows, strict=True) if rows else ((), (), ())
    return Intervals(*(np.array(column, np.int64) for column in columns))


def covered(rows, cell):
    """The reference: every nanosecond that lies in an interval of the cell."""
    return {t for c, start, end in rows if c == cell for t in range(start, end)}


@given(ROWS)
def test_a_union_counts_every_nanosecond_once(rows):
    expected = [len(covered(rows, cell)) for cell in range(CELLS)]
    assert union_length(intervals(rows), CELLS).tolist() == expected


@given(ROWS, ROWS)
def test_an_overlap_is_what_both_cover(one, other):
    expected = [len(covered(one, cell) & covered(other, cell)) for cell in range(CELLS)]
    assert overlap_length(intervals(one), intervals(other), CELLS).tolist() == expected


@given(ROWS, st.lists(st.tuples(st.integers(0, CELLS - 1), st.integers(-15, 15)), max_size=6))
def test_the_length_before_a_time_is_the_part_of_the_union_that_is_earlier(rows, asked):
    cell = np.array([c for c, _ in asked], np.int64)
    time = np.array([t for _, t in asked], np.int64)
    expected = [len([t for t in covered(rows, c) if t < limit]) for c, limit in asked]
    assert length_before(intervals(rows), cell, time).tolist() == expected


def test_years_in_nanoseconds_do_not_overflow():
    year = 365 * 86_400 * 10**9
    far = intervals([(0, year, year + 5), (0, year + 3, year + 9)])
    assert union_length(far, 1).tolist() == [9]
