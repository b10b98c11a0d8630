"""Which call of a file holds a moment, and which calls of two ranks are one; by plain loops."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from evenstep.importers.kineto.device import _enclosing
from evenstep.importers.kineto.grouping import _pairs
from evenstep.trace.columns import Columns

#: (thread, begin, length of the outer, of two inside it, one behind the other)
NESTS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 4), st.integers(0, 4), st.integers(0, 2)),
    max_size=6,
)


def nested(nests):
    """Rows of threads that nest: each outer one with one inside and one in that."""
    rows, at = [], [0, 0, 0]
    for thread, gap, length, inside in nests:
        begin = at[thread] + gap
        at[thread] = end = begin + length + 2 * inside + 1
        rows += [(thread, begin, end), (thread, begin + inside, end - 1)]
    return rows


@given(NESTS, st.lists(st.tuples(st.integers(-1, 2), st.integers(0, 40)), min_size=1, max_size=20))
def test_a_moment_is_in_the_last_row_to_begin_that_is_open(nests, asked):
    rows = nested(nests)
    thread, begin, end = np.array(rows, np.int64).reshape(-1, 3).T
    outer = Columns(thread=thread, start_ns=begin, end_ns=end)
    found = _enclosing(outer, *np.array(asked, np.int64).T) if rows else np.full(len(asked), -1)
    for (lane, time), at in zip(asked, found.tolist(), strict=True):
        open_ = [row for row in rows if row[0] == lane and row[1] <= time <= row[2]]
        latest = max((row[1] for row in open_), default=-1)
        assert (rows[at][0] == lane and rows[at][1] == latest) if at >= 0 else not open_
        if at >= 0:
            assert rows[at] in open_


def met(*meetings):
    """Calls (lane, meeting); each lane is a profile's."""
    lane, meeting = np.array(
        [(lane, number) for number, lanes in enumerate(meetings) for lane in sorted(lanes)]
    ).T
    return Columns(lane=lane, profile=lane, meeting=meeting, row=np.arange(len(lane)))


def pairs_of(*meetings):
    return [sorted(zip(each.meeting.tolist(), each.lane.tolist(), strict=True))
            for each in _pairs(met(*meetings))]  # fmt: skip


def test_two_alone_in_a_meeting_are_a_pair():
    assert pairs_of([0, 1], [1, 0], [0, 1]) == [[(0, 0), (0, 1), (2, 0), (2, 1), (4, 0), (4, 1)]]


def test_in_a_larger_meeting_those_are_a_pair_that_met_alone():
    found = pairs_of([0, 1], [2, 3], [0, 2, 1, 3], [3, 1, 2, 0])
    assert [{lane for _, lane in each} for each in found] == [{0, 1}, {2, 3}]
    assert [len(each) for each in found] == [6, 6]


def test_where_several_are_possible_none_is_guessed():
    found = pairs_of([0, 1], [0, 2], [1, 2], [0, 1, 2])
    assert not any(len({number for number, _ in each}) > 1 for each in found)


def test_a_lane_that_is_mostly_without_its_other_is_of_no_pair():
    assert pairs_of([0, 1], [0], [0], [0], [1]) == []
