"""Sums, orders and intervals of a graph's rows, on a few numbers each."""

import numpy as np
import pytest

from evenstep.diagnose.graph.structure import (
    Graph,
    Intervals,
    by_step_and_lane,
    grouped_order,
    issued_in,
    last_lanes,
    length_before,
    means,
    overlap,
    overlap_length,
    quantiles,
    row_hash,
    union_length,
)
from evenstep.trace.columns import Columns

#: Of cell 0: 2 to 5, 4 to 8 and an empty one; of cell 1: 0 to 3, and 1 to 2 inside.
SOME = Intervals(np.array([0, 0, 0, 1, 1]), np.array([2, 4, 9, 0, 1]), np.array([5, 8, 9, 3, 2]))


def nothing():
    return Intervals(*np.zeros((3, 0), np.int64))


def test_what_intervals_cover_together_counts_once():
    assert union_length(SOME, 3).tolist() == [6, 3, 0]
    assert union_length(nothing(), 2).tolist() == [0, 0]


def test_the_order_of_intervals_does_not_matter():
    turned = Intervals(*(column[::-1] for column in SOME))
    assert union_length(turned, 3).tolist() == [6, 3, 0]
    before = length_before(turned, np.array([0, 1]), np.array([5, 2]))
    assert before.tolist() == [3, 2]


def test_what_two_sets_of_intervals_share():
    other = Intervals(np.array([0, 1, 2]), np.array([3, 2, 0]), np.array([6, 9, 4]))
    assert overlap_length(SOME, other, 3).tolist() == [3, 1, 0]  # 3 to 6, and 2 to 3


@pytest.mark.parametrize(
    ("cell", "time", "length"),
    [(0, 1, 0), (0, 2, 0), (0, 3, 1), (0, 6, 4), (0, 8, 6), (0, 99, 6), (1, -4, 0), (1, 2, 2),
     (1, 50, 3), (2, 50, 0)],
)  # fmt: skip
def test_what_is_covered_before_a_time(cell, time, length):
    assert length_before(SOME, np.array([cell]), np.array([time])).tolist() == [length]


def test_before_nothing_nothing_is_covered():
    assert length_before(nothing(), np.array([0, 1]), np.array([5, 6])).tolist() == [0, 0]
    assert length_before(SOME, np.zeros(0, int), np.zeros(0, int)).tolist() == []


def test_quantiles_are_values_of_their_group():
    values, group = np.array([5.0, 1, 3, 9, 7, 2]), np.array([0, 0, 0, 2, 0, 2])
    assert quantiles(values, group, 0.5, 4).tolist() == [3, 0, 2, 0]  # of 1 3 5 7, and of 2 9
    assert quantiles(values, group, 1.0, 4).tolist() == [7, 0, 9, 0]


def test_means_are_of_each_kind():
    assert means(np.array([1.0, 3, 8]), np.array([0, 0, 2])).tolist() == [2, 0, 8]


@pytest.mark.parametrize("big", [0, 70_000])
def test_rows_are_in_order_of_group_and_then_of_all_keys(big):
    group = np.array([1, 0, 1, 0, 1]) + big
    first, second = np.array([3, 2, 1, 2, 1]), np.array([0, 5, 9, 4, 8])
    assert grouped_order(group, first, second).tolist() == [3, 1, 4, 2, 0]
    assert grouped_order(group, np.arange(5)).tolist() == [1, 3, 0, 2, 4]


def test_hashes_tell_rows_apart_by_every_column_and_their_order():
    table = np.array([[0, 0], [0, 1], [1, 0], [1, 1]]).T
    assert len({*row_hash(list(table)).tolist(), 0}) == 5


def made(rows, operations=None, steps=2, lanes=2, device=()):
    """A graph of these columns; no segments."""
    rows = Columns({name: np.array(of) for name, of in rows.items()})
    operations = Columns({name: np.array(of) for name, of in (operations or {}).items()})
    empty = np.zeros(0, np.int64)
    return Graph(
        np.arange(lanes), np.arange(steps), rows, operations, [], empty, empty,
        np.zeros((1, lanes)), np.zeros(steps, int), np.array(device, bool),
    )  # fmt: skip


def test_values_of_rows_are_summed_by_step_and_lane():
    found = made({"index": [0, 0, 1, 1], "lane": [0, 0, 0, 1]})
    assert by_step_and_lane(found, np.array([1.2, 1.4, 5, 7])).tolist() == [[3, 0], [5, 7]]


def test_the_last_lane_is_the_first_of_those_that_came_last():
    rows = {"enter": [0, 0, 1, -1, 0], "at_ns": [5, 7, 3, 9, 7], "lane": [0, 1, 0, 1, 2]}
    found = made(rows, {"last_ns": [7, 4, 1]}, lanes=3)
    assert last_lanes(found).tolist() == [1, -1, -1]


#: A device's four entries at 10, 20, 35 and 60, issued 4, 4, 10 and 0 before, with rows between.
ISSUED = {
    "lane": [0, 0, 0, 1, 0, 0], "at_ns": [10, 20, 35, 36, 50, 60], "index": [0] * 6,
    "slack_ns": [4, 4, 10, 3, -1, 0], "own_ns": [10.0, 10, 15, 36, 15, 10],
    "inside": [7, 7, 8, 8, -1, 8],
}  # fmt: skip


def test_work_between_two_entries_of_one_record_was_issued_in_it():
    every = issued_in(made(ISSUED), np.ones(6, bool))
    assert every.tolist() == [0, 10, 0, 0, 15, 10]  # both of 7, and those from 35 to 60 of 8
    but = issued_in(made(ISSUED), np.array([1, 1, 1, 1, 1, 0], bool))
    assert but.tolist() == [0, 10, 0, 0, 0, 0]


def test_before_the_first_entry_of_a_device_nothing_was_issued_that_is_known():
    """Of one lane whose last row was issued in the same record as its first."""
    one = ISSUED | {"lane": [0] * 6, "inside": [8, 7, 8, 8, -1, 8]}
    assert issued_in(made(one, lanes=1), np.ones(6, bool)).tolist() == [0, 0, 0, 36, 15, 10]


def test_what_a_device_does_after_its_host_issued_an_entry_is_none_of_the_hosts():
    """Work from 20 to 35, issued at 25, and a pause of the host from 22 to 30."""
    covered = overlap(made(ISSUED), np.array([0]), np.array([22]), np.array([30]))
    assert covered.tolist() == [0, 0, 3, 0, 0, 0]


def test_what_a_device_does_before_a_wait_was_issued_before_the_next_entry():
    """Work from 35 to 50, and then a wait, all before the entry at 60, which was issued at 40; a
    checkpoint of the host from 36 to 45, while its device still had something to do."""
    graph = made(ISSUED | {"slack_ns": [4, 4, 10, 3, -1, 20]})
    covered = overlap(graph, np.array([0]), np.array([36]), np.array([45]))
    assert covered.tolist() == [0, 0, 0, 0, 4, 0]
