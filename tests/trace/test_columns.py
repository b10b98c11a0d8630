import copy
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.trace.columns import (
    Columns,
    begins,
    key_numbers,
    largest_of,
    means_of,
    medians_of,
    positions_by_key,
    rows_by_key,
    run_numbers,
    running_maximum,
    smallest_of,
)

ROWS = st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 3)), max_size=30)


@pytest.fixture
def table():
    return Columns({"rank": np.array([1, 0, 1, 0]), "step": np.array([0, 1, 1, 0])})


def test_a_column_is_reached_by_attribute_and_by_name(table):
    assert table.rank is table["rank"]
    assert list(table) == ["rank", "step"]


def test_rows_are_picked_by_mask_index_and_slice(table):
    assert table.select(table.rank == 1).step.tolist() == [0, 1]
    assert table.select(np.array([3, 0])).rank.tolist() == [0, 1]
    assert len(table.select(slice(0, 3))) == 3


class Told(np.ndarray):
    """An array that counts how often rows of it were copied."""

    copied = 0

    def __getitem__(self, rows):
        type(self).copied += 1
        return super().__getitem__(rows)


def test_of_selected_rows_only_columns_that_are_read_are_copied(monkeypatch):
    monkeypatch.setattr(Told, "copied", 0)
    table = Columns({name: np.arange(4).view(Told) for name in ("rank", "step")})
    last = table.select(np.array([1, 3])).select(np.array([True, True])).sorted_by("rank")
    later = last.with_column("group", np.zeros(2)).only("rank", "step")
    assert Told.copied == 1  # to sort by it
    assert np.array_equal(later.rank, [1, 3])
    assert later["rank"] is last["rank"]
    assert Told.copied == 2


def test_the_first_name_is_the_most_significant_in_sorting(table):
    ordered = table.sorted_by("rank", "step")
    assert list(zip(ordered.rank, ordered.step, strict=True)) == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_tables_are_put_below_each_other(table):
    assert Columns.concatenate([table, table]).rank.tolist() == [1, 0, 1, 0] * 2
    assert len(Columns.concatenate([])) == 0


def test_a_column_of_another_length_is_refused(table):
    with pytest.raises(ValueError, match=r"columns differ in length: \[4, 5\]"):
        table.with_column("extra", np.zeros(5))


def test_a_column_that_is_not_there_is_named_with_those_that_are(table):
    with pytest.raises(AttributeError, match="no column 'stepp'; there are rank, step"):
        table.stepp  # noqa: B018


@pytest.mark.parametrize("through", [copy.copy, lambda t: pickle.loads(pickle.dumps(t))])
def test_a_table_can_be_copied_and_sent_to_another_process(table, through):
    assert through(table).rank.tolist() == table.rank.tolist()


@given(ROWS)
def test_rows_are_numbered_in_the_order_of_their_keys(rows):
    keys = np.array(rows, np.int64).reshape(-1, 2).T
    distinct = sorted(set(rows))
    assert key_numbers(*keys).tolist() == [distinct.index(row) for row in rows]


@given(ROWS)
def test_a_position_counts_the_rows_of_the_same_keys_before_it(rows):
    keys = np.array(rows, np.int64).reshape(-1, 2).T
    assert positions_by_key(*keys).tolist() == [
        rows[:at].count(rows[at]) for at in range(len(rows))
    ]


@given(ROWS)
def test_runs_and_keys_of_rows_are_those_of_a_loop(rows):
    keys = np.array(rows, np.int64).reshape(-1, 2).T
    new = [at == 0 or rows[at] != rows[at - 1] for at in range(len(rows))]
    assert begins(*keys).tolist() == new
    assert run_numbers(*keys).tolist() == [sum(new[: at + 1]) - 1 for at in range(len(rows))]
    places = {}
    for at, (first, _) in enumerate(rows):
        places.setdefault(first, []).append(at)
    assert [one.tolist() for one in rows_by_key(keys[0])] == [places[one] for one in sorted(places)]


@given(ROWS)
def test_values_of_a_place_are_summed_up_as_by_a_loop(rows):
    rows = sorted(rows, key=lambda row: row[1])
    values, place = np.array(rows, np.int64).reshape(-1, 2).T
    of = [[float(value) for value, at in rows if at == one] for one in range(6)]
    so_far = [max(value for value, at in rows[: end + 1] if at == place[end])
              for end in range(len(rows))]  # fmt: skip
    assert running_maximum(values, place).tolist() == so_far
    assert medians_of(values, place, 6).tolist() == [np.median(one) if one else 0 for one in of]
    some = np.where(values == 3, np.nan, values.astype(float))
    known = [[one for one in each if one != 3] for each in of]
    means = [np.mean(each) if each else np.nan for each in known]
    assert means_of(some, place, 6) == pytest.approx(means, nan_ok=True)


@given(ROWS)
def test_extremes_are_those_of_each_place_and_beyond_all_numbers_without_any(rows):
    values, place = (np.array([row[at] for row in rows], np.int64) for at in (0, 1))
    size = int(place.max(initial=0)) + 1
    at = [[value for value, other in rows if other == one] for one in range(size)]
    bounds = np.iinfo(np.int64)
    assert largest_of(values, place).tolist() == [max(one, default=bounds.min) for one in at]
    assert smallest_of(values, place).tolist() == [min(one, default=bounds.max) for one in at]
    assert largest_of(values, place, 5, least=-9).tolist() == [
        max(one, default=-9) for one in (at + [[]] * 5)[:5]
    ]
