"""When calls ended by rounds of a watchdog and by their turns; against plain loops."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.importers.flight_recorder import timeline
from evenstep.importers.flight_recorder.timeline import ROUND_NS
from evenstep.trace.columns import Columns

LANES = st.lists(
    st.lists(st.tuples(st.integers(0, 90), st.integers(1, 30)), min_size=1), min_size=1
)


@given(LANES)
def test_a_call_ends_no_earlier_than_the_one_before_it_in_its_lane_and_its_duration(lanes):
    rows = [(lane, *call) for lane, calls in enumerate(lanes) for call in calls]
    lane, end, longest = np.array(rows, np.int64).T
    expected = []
    for calls in lanes:
        before = None
        for at, length in calls:
            before = at if before is None else max(at, before + length)
            expected.append(before)
    assert timeline._in_turn(lane, end, longest).tolist() == expected


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9)), min_size=1))
def test_a_call_had_not_ended_when_the_round_before_the_one_that_noticed_it_passed(noticed):
    """Rounds of each rank are further apart than `ROUND_NS`; at half of it they are one."""
    rank = np.array([each for each, _ in noticed])
    at = 10**9 + np.array([round_ for _, round_ in noticed], np.int64) * (ROUND_NS // 2 + 1)
    after, until = timeline._bounds_of_ends(Columns(rank=rank, exit_ns=at))
    assert until.tolist() == at.tolist()
    for row in range(len(at)):
        mine = sorted(at[rank == rank[row]].tolist())
        rounds = [[mine[0]]]
        for time in mine[1:]:
            (rounds[-1].append if time - rounds[-1][-1] <= ROUND_NS else rounds.append)(
                time if time - rounds[-1][-1] <= ROUND_NS else [time]
            )
        of = next(number for number, each in enumerate(rounds) if at[row] in each)
        assert after[row] == (rounds[of - 1][-1] if of else 0)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 50)), min_size=1))
def test_compute_reaches_calls_in_the_order_of_issue(begun):
    """Each no later than any that was issued behind it on its rank began."""
    rank, time = np.array(begun, np.int64).T
    calls = Columns(rank=rank, enter_ns=np.arange(len(begun)) * 7)
    expected = [
        min(after for of, after in begun[row:] if of == begun[row][0]) for row in range(len(begun))
    ]
    assert timeline._reach_in_order(calls, time).tolist() == expected


@given(
    st.lists(st.integers(-(10**6), 10**6), min_size=2, max_size=4),
    st.lists(st.integers(0, 10**9), min_size=3, max_size=8),
)
def test_clocks_are_as_far_apart_as_the_ends_of_shared_calls_tell(apart, ends):
    """All ranks leave each call at one time, which each knows to a microsecond by its own clock."""
    rank = np.tile(np.arange(len(apart)), len(ends))
    call = np.repeat(np.arange(len(ends)), len(apart))
    seen = np.array(ends)[call] + np.array(apart)[rank]
    found = timeline._ahead(rank, call, seen - 500, seen + 500)
    assert np.abs((found - found[0]) - (np.array(apart) - apart[0])).max() <= 1_010


def test_clocks_that_no_call_contradicts_are_the_same():
    rank, call = np.array([0, 1, 0, 1]), np.array([0, 0, 1, 1])
    at = np.array([100, 130, 200, 180])
    assert timeline._ahead(rank, call, at - 40, at + 40).tolist() == [0, 0]


@pytest.mark.parametrize(
    ("after", "until", "delays"),
    [
        ([0, 0, 0, 0], [50, 50, 90, 90], [0, 0, 0, 0]),  # nothing contradicts that
        ([10, 10, 20, 20], [50, 50, 90, 90], [30, 30, 30, 30]),  # the middle, and it is kept
        ([0, 30, 0, 30], [60, 80, 60, 80], [45, 45, 45, 45]),
        ([0, 0, 40, 40], [30, 30, 90, 90], [0, 0, 65, 65]),  # the second place has another
        ([10, 10, 35, 35], [60, 60, 90, 90], [35, 35, 35, 35]),
        ([10, 10, 36, 36], [60, 60, 90, 90], [35, 35, 63, 63]),
        ([-90, -90, 0, 0], [-30, -30, 20, 20], [0, 0, 0, 0]),  # none ends before its bound
    ],
)
def test_a_place_in_a_step_has_the_delay_that_contradicts_fewest_rounds(after, until, delays):
    """Two calls in each of two steps of one lane, which without a delay would end at 1000 …"""
    step = np.array([1, 2, 1, 2])
    order = np.lexsort([[0, 0, 1, 1], step])  # by step, then by place
    end = 1000 * np.arange(1, 5)
    lanes = np.zeros(4, np.int64)
    found = timeline._delays(
        lanes, step[order], end, end + np.array(after)[order], end + np.array(until)[order]
    )
    assert found.tolist() == np.array(delays)[order].tolist()


def test_calls_before_the_first_step_keep_their_ends_and_lanes_are_apart():
    lanes, step = np.array([0, 0, 1, 1]), np.array([0, 1, 1, 2])
    end = np.full(4, 1000)
    found = timeline._delays(lanes, step, end, end + 10, end + np.array([30, 30, 90, 90]))
    assert found.tolist() == [0, 20, 50, 50]
