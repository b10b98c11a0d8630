"""When compute reached entries that a queue held up: what tells it, on a few entries each."""

import numpy as np
import pytest

from evenstep.diagnose.graph.reached import (
    _ends_before,
    _held,
    _reached_later,
    _since_issued,
    issued_beside,
)
from evenstep.diagnose.graph.structure import NEVER_NS, NO_HOST
from evenstep.diagnose.levels import FEWEST
from evenstep.trace.columns import Columns
from tests.diagnose.synthetic import MS


def table(**columns):
    return Columns({name: np.array(of) for name, of in columns.items()})


def test_the_end_before_an_entry_is_that_of_the_one_before_it_with_its_number():
    ends = _ends_before(table(leave_ns=[5, 6, 7, 8, 9]), np.array([0, 1, 0, 1, 0]))
    assert ends.tolist() == [NEVER_NS, NEVER_NS, 5, 6, 7]


@pytest.mark.parametrize(
    ("apart", "held"), [(20_000, True), (20_001, False), (-20_000, True), (-20_001, False)]
)
def test_an_entry_is_held_that_begins_within_20_us_of_the_end_before_it(apart, held):
    enter = np.array([0, MS + apart])
    rows = table(operation=[0, 1], enter_ns=enter, leave_ns=[MS, 2 * MS])
    assert _held(rows, table(message=[False, False]), np.zeros(2, int)).tolist() == [False, held]
    assert not _held(rows, table(message=[False, True]), np.zeros(2, int)).any()
    assert not _held(rows, table(message=[False, False]), np.arange(2)).any()


@pytest.mark.parametrize(("early", "held"), [(1, 10), (2, 0)])
def test_a_queue_holds_no_entries_where_over_a_tenth_as_many_come_before_it_is_free(early, held):
    leave = MS * np.arange(1, 12 + early)
    enter = np.append(0, leave[:-1] - MS // 2 * (np.arange(10 + early) < early))
    rows = table(operation=np.arange(11 + early), enter_ns=enter, leave_ns=leave)
    message = table(message=np.zeros(11 + early, bool))
    assert _held(rows, message, np.zeros(11 + early, int)).sum() == held


def test_compute_reaches_an_entry_later_where_it_is_20_us_behind_one_issued_before():
    rows = table(lane=[0, 0, 0, 0, 1], enter_ns=[0, 50_000, 29_999, 30_000, 0])
    free = np.array([False, True, False, False, False])
    assert _reached_later(rows, free).tolist() == [False, False, True, False, False]
    assert not _reached_later(rows, ~free).any()


def test_compute_is_as_far_between_two_entries_as_hosts_issued_what_lies_between():
    """The second and third of lane 0 are issued at 20 and 40 of 80; of lane 1 the second is its
    last, and of lane 2 the second was issued when the first and the third were."""
    rows = table(
        lane=[0, 0, 0, 0, 1, 1, 2, 2, 2], enter_ns=[0, 80, 90, 100, 0, 70, 0, 60, 90],
        slack_ns=[0, 60, 50, 20, 0, 10, 0, 60, 90],
    )  # fmt: skip
    rows = rows.with_column("enter_ns", rows.enter_ns + 1000)
    found = _since_issued(rows, np.array([1, 2, 5, 7]))
    assert found.tolist() == [0, 55, 40, 0, 0, 70, 0, 60, 0]
    assert _since_issued(rows.select(np.arange(4)), np.array([3])).tolist() == [0] * 4


@pytest.mark.parametrize(
    ("changed", "count", "beside"),
    [
        ({"slack_ns": 50_000}, FEWEST, True),
        ({"slack_ns": 50_000}, FEWEST - 1, False),
        ({"slack_ns": 50_001}, 20, False),
        ({"slack_ns": 0, "on_device": False}, 20, False),
        ({"slack_ns": 0, "computed_ns": 1.0}, 20, False),  # recorded: nothing to infer
        ({"slack_ns": NO_HOST}, 20, False),
        ({"slack_ns": 0, "early_ns": 20_001}, 20, True),
        ({"slack_ns": 0, "early_ns": 20_000}, 20, False),
    ],
)
def test_kernels_run_beside_compute_that_begin_as_issued_before_what_was_issued_earlier(
    changed, count, beside
):
    """Twenty of each kind in turn: one that compute reaches 1 ms later, and one issued behind it,
    so many of which differ."""
    second = np.arange(40) % 2 == 1
    differ = second & (np.arange(40) < 2 * count)
    early = changed.get("early_ns", MS)
    columns = {
        "lane": np.zeros(40, int), "seq": np.arange(40), "operation": np.arange(40),
        "enter_ns": 3 * MS * (np.arange(40) // 2) + MS - early * second,
        "slack_ns": np.full(40, MS), "on_device": np.ones(40, bool),
        "computed_ns": np.full(40, np.nan),
    }  # fmt: skip
    for name in changed.keys() & columns.keys():
        columns[name] = np.where(differ, changed[name], columns[name])
    kinds = {"queue": np.zeros(40, int), "op": second.astype(int), "message": np.zeros(40, bool)}
    found = issued_beside(Columns(columns), Columns(kinds))
    assert found.tolist() == (differ & beside).tolist()
