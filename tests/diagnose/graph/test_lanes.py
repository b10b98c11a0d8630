"""Waits of host threads matched with operations, on a few records each."""

import numpy as np
import pytest

from evenstep.diagnose.graph.lanes import (
    Awaited,
    TimeLine,
    _awaited_at_end,
    _furthest_before,
)
from evenstep.trace.columns import Columns
from evenstep.trace.spool.layout import Flag, Kind, Op, Phase
from tests.diagnose.graph.by_hand import Run, after
from tests.diagnose.synthetic import MS


def waits(found):
    """Of each lane what it waits for, and when it came to the wait, in ms."""
    rows = found.rows.select(found.rows.wait >= 0)
    order = np.lexsort([rows.at_ns, rows.lane])
    table = (rows.lane, rows.wait, np.array(after(rows.at_ns)))
    return list(zip(*(column[order].tolist() for column in table), strict=True))


def two_groups(*windows, steps=1, pace=1, **more):
    """All-reduces of two groups, entered at 1 and 2, over at 6 and 9; waits of every rank."""
    run = Run(3, (0, 1, 2), (0, 1, 2))
    for step in range(steps):
        since = 20 * step
        for rank in range(3):
            for group, times in enumerate([(1, 6), (2, 9)]):
                enter, over = (pace * (since + one) for one in times)
                run.collective(rank, step, step, enter, over, group=group, **more)
            for begin, end in windows:
                run.wait(rank, step, pace * (since + begin), pace * (since + end))
            run.step(rank, step, pace * since, pace * (since + 12))
    return run.graph()


def test_a_wait_is_for_the_last_operation_of_every_queue_that_was_over_when_it_ended():
    assert waits(two_groups((3, 9)))[:2] == [(0, 0, 3), (0, 1, 3)]


def test_what_an_earlier_wait_waited_for_is_not_waited_for_again():
    assert waits(two_groups((3, 6), (7, 9)))[:2] == [(0, 0, 3), (0, 1, 7)]


@pytest.mark.parametrize("pace", [0.01, 1, 100])
def test_a_wait_ended_with_the_end_nearest_to_its_own_at_any_pace(pace):
    """Of ends at 6 and 9, of which the second may be seen a little after the wait it ended."""
    at = 3 * pace
    assert waits(two_groups((3, 8.9), pace=pace))[:2] == [(0, 0, at), (0, 1, at)]
    assert waits(two_groups((3, 7.4), pace=pace))[:2] == [(0, 0, at), (1, 0, at)]


def test_a_wait_for_nothing_on_record_is_for_something_unknown():
    """From 0.1 to 0.6, before anything is over: its own operation, that nobody else is in."""
    found = two_groups((0.1, 0.6), (3, 9))
    first = [one for one in waits(found) if one[2] == 0.1]
    assert [lane for lane, _, _ in first] == [0, 1, 2]
    assert {number for _, number, _ in first}.isdisjoint({0, 1})
    table = found.operations.select(np.array([number for _, number, _ in first]))
    assert table.members.tolist() == [1, 1, 1]
    assert table.group.tolist() == [-1, -1, -1]
    assert after(table.over_ns) == [0.6] * 3
    assert table.took_ns.tolist() == [500_000] * 3
    assert not table.whole.any()
    assert not table.message.any()
    assert not table.queues.any()


def test_waits_of_ranks_that_called_nothing_on_record_are_for_something_unknown():
    run = Run(2)
    for rank in range(2):
        run.wait(rank, 0, 2, 5 + rank)
        run.step(rank, 0, 0, 8)
    found = run.graph()
    assert waits(found) == [(0, 0, 2), (1, 1, 2)]
    assert after(found.operations.over_ns) == [5, 6]


def test_a_wait_too_short_to_tell_is_for_nothing_unknown():
    found = two_groups((0.1, 0.11), (3, 9))
    assert len(found.operations) == 2
    assert 0.1 not in [at for _, _, at in waits(found)]


def test_a_wait_begins_when_its_thread_returned_from_the_last_call_within_it():
    """A wait from 3 to 9 in which the thread was blocked in a barrier from 4 to 5."""
    run = Run(3, (0, 1, 2), (0, 1, 2))
    for rank in range(3):
        run.collective(rank, 0, 0, 1, 9)
        run.wait(rank, 0, 3, 9)
        run.collective(rank, 0, 0, 4, 5, Op.BARRIER, Flag(0), group=1)
        run.step(rank, 0, 0, 12)
    assert waits(run.graph())[:2] == [(0, 1, 4), (0, 0, 5)]


def test_a_wait_that_begins_with_the_call_it_lies_in_is_no_wait_of_its_own():
    """Stamps of both may be equal: a barrier from 1 to 5, and a wait from 1 to 5."""
    run = Run()
    for rank in range(3):
        run.collective(rank, 0, 0, 1, 5, Op.BARRIER, Flag(0))
        run.wait(rank, 0, 1, 5)
        run.step(rank, 0, 0, 12)
    found = run.graph()
    assert waits(found) == [(0, 0, 1), (1, 0, 1), (2, 0, 1)]
    assert len(found.operations) == 1


def test_a_wait_that_names_its_operation_is_for_it_alone():
    """Of two over at 6 and 9, a wait until 10 names the first."""
    run = Run(3, (0, 1, 2), (0, 1, 2))
    for rank in range(3):
        run.collective(rank, 0, 0, 1, 6, group=0)
        named = len(run.rows)
        run.collective(rank, 0, 0, 2, 9, group=1)
        run.wait(rank, 0, 3, 10, parent=named)
        run.step(rank, 0, 0, 12)
    assert waits(run.graph()) == [(0, 0, 3), (1, 0, 3), (2, 0, 3)]


def test_a_send_was_waited_for_when_its_thread_saw_its_end_not_when_it_was_received():
    """Rank 0 sends at 1, and its message is there at 3.5; it waits for rank 1's until 5, and for an
    all-reduce, and at last its own send, until 9. Both messages take 1 ms once both have come."""
    run = Run(2)
    run.message(0, 0, Op.SEND, 1, 0, 1, 9)
    run.message(1, 0, Op.RECV, 0, 0, 2.5, 3.5)
    run.wait(1, 0, 2.5, 3.5)
    run.message(1, 0, Op.SEND, 0, 0, 4, 5)
    run.message(0, 0, Op.RECV, 1, 0, 3.5, 5)
    run.wait(0, 0, 3.5, 5)
    for rank in range(2):
        run.collective(rank, 0, 0, 6, 9)
        run.wait(rank, 0, 6, 9)
        run.step(rank, 0, 0, 10)
    mine = [found for found in waits(run.graph()) if found[0] == 0]
    reduction, sent, received = 0, 1, 2
    assert mine == [(0, received, 3.5), (0, reduction, 6), (0, sent, 6)]


@pytest.mark.parametrize(
    ("received", "goes_on", "waited"),
    [(6, 4, []), (4.1, 4, [(0, 0, 1)]), (4.1, 4.02, [(0, 0, 1)]), (4.1, 4.021, [])],
)
def test_a_sender_has_waited_that_goes_on_at_once_but_not_before_its_message_is_received(
    received, goes_on, waited
):
    """Rank 0 hands its message over at 1 and computes when its send has ended, at 4, or later."""
    run = Run(2)
    run.message(0, 0, Op.SEND, 1, 0, 1, 4)
    run.record(0, Kind.PHASE, 0, goes_on, 7, op=int(Phase.FORWARD))
    run.message(1, 0, Op.RECV, 0, 0, 2, received, flags=Flag(0))
    run.step(0, 0, 0, 8)
    run.step(1, 0, 0, 8)
    found = run.graph()
    assert waits(found) == [*waited, (1, 0, 2)]
    assert after(found.operations.over_ns) == [4 if waited else received]


def test_an_operation_was_over_when_the_first_thread_that_waited_for_it_went_on():
    """Its end is stamped at 9 by another thread, but a rank went on at 8.9."""
    run = Run()
    for rank, left in enumerate((8.9, 9, 9)):
        run.collective(rank, 0, 0, 1, 9)
        run.wait(rank, 0, 3, left)
        run.step(rank, 0, 0, 12)
    assert after(run.graph().operations.over_ns) == [8.9]


def test_without_a_wait_on_record_who_enters_right_after_an_end_has_waited_for_it():
    """Two all-reduces a step, entered at 2 and 10 and over at 9 and 12; the step ends at 15. The
    second is entered 1 ms after the end of the first, which takes 1 to 10 ms."""
    run = Run()
    took = (1, 7, 3, 9, 2, 5, 8, 4)
    since = 0
    for step, moves in enumerate(took):
        for rank in range(3):
            run.collective(rank, step, 2 * step, since + 2, since + 2 + moves)
            run.collective(rank, step, 2 * step + 1, since + 3 + moves, since + 4 + moves)
            run.step(rank, step, since, since + 7 + moves)
        since += 7 + moves
    found = run.graph()
    rows = found.rows.select((found.rows.lane == 0) & (found.rows.wait >= 0))
    first = rows.select(rows.wait % 2 == 0)
    assert first.wait.tolist() == [2 * step for step in range(8)]


@pytest.mark.parametrize(
    ("number", "value", "found"),
    [(0, 4, 0), (0, 5, 1), (0, 99, 2), (1, 0, 2), (1, 3, 4), (1, 4, 4), (2, 9, 5)],
)
def test_a_time_line_counts_values_of_smaller_numbers_and_up_to_a_value(number, value, found):
    line = TimeLine(np.array([0, 0, 1, 1, 1]), np.array([5, 8, 3, 3, 7]))
    assert line.before(np.array([number]), np.array([value])).tolist() == [found]


def test_lanes_of_hosts_that_began_at_very_different_times_stand_on_one_line_all_the_same():
    """2,000 lanes, each with two values: clocks of machines up for 0 to 116 days."""
    begun = 5 * 10**12 * np.arange(2000)[::-1]
    lane = np.repeat(np.arange(2000), 2)
    line = TimeLine(lane, np.stack([begun, begun + 10], axis=1).ravel())
    assert (line.before(lane[::2], begun + 5) == 2 * np.arange(2000) + 1).all()


def test_where_waits_of_a_place_differ_each_is_for_the_last_that_was_over():
    """Of two all-reduces a step, both are entered before the wait in every other step; it ends
    long after both."""
    run = Run(2)
    for step in range(4):
        since, twice = 20 * step, ((1, 6), (9, 11)) if step % 2 == 0 else ((1, 3), (2, 5))
        for rank in range(2):
            for turn, (enter, over) in enumerate(twice):
                run.collective(rank, step, 2 * step + turn, since + enter, since + over)
            run.wait(rank, step, since + (3 if step % 2 == 0 else 4), since + 8)
            run.step(rank, step, since, since + 12)
    assert [number for lane, number, _ in waits(run.graph()) if lane == 0] == [0, 3, 4, 7]


@pytest.mark.parametrize(("late", "found"), [(0, 20), (2, 18), (3, 0)])
def test_a_step_waits_at_its_end_for_what_is_mostly_over_by_then(late, found):
    """Ten steps of two entries, each of a queue of its own; so many are over only 5 ms after the
    next step begins, the others as it does. Nothing follows the last."""
    row = np.arange(20)
    enter = row // 2 * 10 * MS + row % 2 * MS
    rows = Columns(
        {"lane": 0 * row, "enter_ns": enter, "operation": row, "sends": np.zeros(20, bool)}
    )
    following = (row // 2 + 1) * 10 * MS
    over = following + 5 * MS * (row < late)
    none = np.zeros(20, np.int64)
    waited = Awaited(none, none > 0, none, none > 0)
    left = _awaited_at_end(rows, Columns({"queue": row % 2}), over, waited, row // 2 * 2 + 1)
    assert sorted(left.tolist()) == row[late:].tolist()[: found or 0]


def test_the_furthest_of_earlier_waits_is_of_the_same_lane():
    lane, last = np.array([0, 0, 0, 0, 1, 1]), np.array([2, 5, 3, 4, 1, 0])
    assert _furthest_before(lane, last).tolist() == [-1, 2, 5, 5, -1, 1]
