"""Segments of a few rows, their schedules, and replays of many of them."""

import numpy as np
import pytest

from evenstep.diagnose.graph.replay import Change, replay
from evenstep.diagnose.graph.schedule import Links, carried_over, evaluate, schedule
from evenstep.diagnose.graph.segments import (
    _between,
    _own,
    _segment_numbers,
    _start_state,
    _took,
)
from evenstep.diagnose.graph.structure import NEVER_NS
from evenstep.trace.columns import Columns
from evenstep.trace.spool.layout import Flag, Op
from tests.diagnose.graph.by_hand import Run, after
from tests.diagnose.graph.test_build import behind
from tests.diagnose.synthetic import MS

INF = np.inf
#: Rows 0 and 1 of a lane and 2 and 3 of another; operations 4 and 5 of one queue; 6 and 7 the lanes
#: and 8 the queue as they were left; 9 stands for nothing. Both enter the first, the second lane
#: the other as well; the first waits for the first after row 0, the second lane at last for the
#: other.
TWO = Links(
    previous=np.array([6, 0, 7, 2]), awaited=np.array([9, 4, 9, 9]),
    entry_operation=np.array([0, 0, 1]), entry_row=np.array([0, 2, 2]), queued=np.array([8, 4]),
    lane_end=np.array([1, 3]), lane_awaited=np.array([9, 5]), queue_end=np.array([5]),
)  # fmt: skip


@pytest.mark.parametrize(
    ("left", "over", "state"),
    [
        # rows 3 and 5; first over at 5 + 4, second at 9 + 10; rows 9 + 2 and 5 + 1
        ([0, 0, -INF], [3, 11, 5, 6, 9, 19], [11, 19, 19]),
        ([0, 0, 20], [3, 26, 5, 6, 24, 34], [26, 34, 34]),  # the queue is busy until 20
        ([8, 0, -INF], [11, 17, 5, 6, 15, 25], [17, 25, 25]),  # the first lane until 8
    ],
)
def test_an_event_begins_when_all_that_it_depends_on_is_over(left, over, state):
    plan = schedule(TWO, np.arange(6))
    work = np.array([3.0, 2, 5, 1])[plan.rows][:, None]
    took = np.array([4.0, 10])[plan.operations][:, None]
    buffer = evaluate(plan, work, took, np.array(left, float)[:, None])
    assert buffer[plan.place[:6], 0].tolist() == over
    assert carried_over(plan, buffer)[:, 0].tolist() == state


@pytest.mark.parametrize(("time_ns", "over"), [([5, 9], [3, 7]), ([9, 5], [3, -INF])])
def test_a_circle_is_cut_before_what_was_over_first(time_ns, over):
    """A row that waited for what it had yet to enter."""
    links = Links(
        np.array([2]), np.array([1]), np.array([0]), np.array([0]), np.array([4]),
        np.array([0]), np.array([4]), np.array([1]),
    )  # fmt: skip
    plan = schedule(links, np.array(time_ns))
    buffer = evaluate(plan, np.full((1, 1), 3.0), np.full((1, 1), 4.0), np.array([[0.0], [-INF]]))
    assert buffer[plan.place[:2], 0].tolist() == over


def numbers(lane, index, enter, wait=None, after=None, operations=1):
    none = [-1] * len(lane)
    rows = {"lane": lane, "enter": enter, "wait": wait or none, "after": after or none}
    rows = Columns({name: np.array(of) for name, of in rows.items()})
    table = Columns({"op": np.zeros(operations, int)})
    return [found.tolist() for found in _segment_numbers(rows, table, np.array(index))]


def test_an_operation_and_what_follows_its_entries_lie_in_the_latest_step_of_its_members():
    """The first lane enters it in its second step, the other in its first."""
    found = numbers([0, 0, 1, 1, 1], [0, 1, 0, 0, 1], [-1, 0, -1, 0, -1])
    assert found == [[0, 1, 0, 1, 1], [1]]


def test_who_waits_in_an_earlier_step_is_drawn_behind_what_it_waits_for():
    """Lane 1 draws the first operation into segment 2, lane 2 waits for it, and enters another."""
    found = numbers([0, 1, 2, 2], [0, 2, 0, 1], [0, 0, -1, 1], [-1, -1, 0, -1], operations=2)
    assert found == [[2, 2, 2, 2], [2, 2]]


def test_what_begins_after_another_operation_is_not_before_it():
    found = numbers([0, 1], [1, 0], [0, 1], after=[-1, 0], operations=2)
    assert found == [[1, 1], [1, 1]]


def test_a_lane_of_unknown_beginning_is_free_as_early_as_any_other():
    carried = np.array([[5.0, np.nan, -INF], [np.nan, np.nan, -INF]])
    assert _start_state(carried).tolist() == [[5, 5, -INF], [0, 0, -INF]]


# -- many segments ---------------------------------------------------------------------------------


def test_steps_of_one_structure_are_one_batch_in_their_order():
    found = behind().graph()
    first, later = found.batch_of[:2]  # in the first nothing is queued before the all-reduce
    assert found.batch_of.tolist() == [first, later, later]
    assert found.place_in_batch.tolist() == [0, 0, 1]
    assert found.batches[later].first_row.tolist() == [9, 18]
    assert found.batches[later].first_operation.tolist() == [1, 2]


def alternating():
    """Of six steps every second has two all-reduces of 2 ms, the others one; 3 and 4 ms of work."""
    run, since, number, ends = Run(2), 0, 0, []
    for step in range(6):
        begin = since
        for _ in range(1 + step % 2):
            for rank in range(2):
                run.collective(rank, step, number, since + 3 + rank, since + 6, flags=Flag(0))
            since, number = since + 6, number + 1
        for rank in range(2):
            run.step(rank, step, begin, since)
        ends.append(since)
    return run.graph(), ends


def test_steps_of_two_structures_are_replayed_one_after_the_other():
    found, ends = alternating()
    assert ends == [6, 18, 24, 36, 42, 54]
    first, two, one = found.batch_of[:3]
    assert found.batch_of.tolist() == [first, two, one, two, one, two]
    assert len({first, two, one}) == 3
    assert found.place_in_batch.tolist() == [0, 0, 0, 1, 1, 2]
    assert after(replay(found, [Change.none()])[0]) == [[end, end] for end in ends]


def test_a_change_of_one_structure_shifts_the_other():
    """What rank 1 does in even steps takes 1 ms less: they last 5 ms."""
    found, _ = alternating()
    even = (found.rows.index % 2 == 0) & (found.rows.lane == 1) & (found.rows.enter >= 0)
    rows = np.flatnonzero(even)
    changes = [Change.none(), Change.of_work(rows, np.full(3, 3.0 * MS))]
    ends = replay(found, changes)
    assert after(ends[1, :, 0]) == [5, 17, 22, 34, 39, 51]
    assert after(ends[0, :, 0]) == [6, 18, 24, 36, 42, 54]


def test_chunks_side_by_side_give_what_steps_one_after_the_other_do():
    """As in the three steps that are worked out: with 10 ms of work, 20 ms a step."""
    found = behind(range(40)).graph()
    mine = np.flatnonzero((found.rows.lane == 2) & (found.rows.enter >= 0))
    (ends,) = replay(found, [Change.of_work(mine, np.full(40, 10.0 * MS))])
    assert after(ends) == [[19 + 20 * k, 20 + 20 * k, 19 + 20 * k] for k in range(40)]


def test_lanes_that_never_meet_drift_apart_over_any_number_of_chunks():
    """Each alone: 10, 12 and 14 ms a step; then the first 13."""
    run = Run(3, (0,), (1,), (2,))
    for step in range(60):
        for rank in range(3):
            length = 10 + 2 * rank
            begin = step * length
            run.collective(rank, step, step, begin + 1, begin + 2, Op.BARRIER, group=rank)
            run.step(rank, step, begin, begin + length)
    found = run.graph()
    rows = np.flatnonzero((found.rows.lane == 0) & found.rows.ends)
    changes = [Change.none(), Change.of_work(rows, found.own_ns[rows] + 3 * MS)]
    ends = replay(found, changes)
    assert after(ends[0]) == [[10 * k, 12 * k, 14 * k] for k in range(1, 61)]
    assert after(ends[1]) == [[13 * k, 12 * k, 14 * k] for k in range(1, 61)]


@pytest.mark.parametrize("since", [0, -100])
@pytest.mark.parametrize(("latest", "first"), [(None, 2), (3, 2), (0, 4)])
def test_a_step_may_begin_at_any_time_or_none_and_its_first_work_is_since_then(
    latest, first, since
):
    """Lane 0 from `since` on, lane 1 nobody knows since when: as its next step, 2 after its first
    end, unless its host began longer ago."""
    rows = {"lane": np.array([0, 0, 1, 1]), "at_ns": since + np.array([5, 9, 4, 6])}
    latest = NEVER_NS if latest is None else since + latest
    known = np.array([[since, NEVER_NS], [since + 5, NEVER_NS]])
    surely = np.array([[since, latest], [NEVER_NS] * 2])
    found = _own(
        Columns(rows | {"wait": np.full(4, -1)}),
        Columns({"over_ns": np.zeros(0, int)}), (known, surely),
        np.zeros(2, int), np.array([0, 1, 0, 1]), (np.zeros(0, int), np.zeros(0, int)),
    )  # fmt: skip
    assert found[0].tolist() == [5, 4, first, 2]
    assert found[1].tolist() == [[since, since + 4 - first]]


@pytest.mark.parametrize(("took", "end"), [(24, 38), (14, 34), (30, 44)])
def test_a_queue_is_busy_over_steps_that_have_nothing_in_it(took, end):
    """The second group's first lasts from 1 to 25; its next, of the third step, is entered at 21,
    takes 10 ms from when the first is over, and is waited for from 30 on; 3 ms follow."""
    run = Run(2, (0, 1), (0, 1))
    for rank in range(2):
        run.collective(rank, 0, 0, 1, 25, group=1)
        for step in range(2):
            run.collective(rank, step, step, 10 * step + 2, 10 * step + 6, flags=Flag(0))
            run.step(rank, step, 10 * step, 10 * step + 10)
        run.collective(rank, 2, 1, 21, 35, group=1)
        run.wait(rank, 2, 30, 35)
        run.step(rank, 2, 20, 38)
    found = run.graph()
    first = np.flatnonzero(found.took_ns == 24 * MS)
    ends = replay(found, [Change.of_transfers(first, np.array([float(took * MS)]))])
    assert after(ends[0]) == [[10, 10], [20, 20], [end, end]]


def test_nobody_is_in_a_step_from_the_last_end_until_the_first_beginning_where_all_are_known():
    """Of the third step a beginning, of the fourth an end is not known; the fifth begins, on one
    lane, before the one before it ended."""
    begun = np.array([[0, 1], [12, 11], [NEVER_NS, 20], [30, 31], [42, 43], [52, 47]])
    ended = np.array([[9, 10], [19, 18], [25, 24], [40, NEVER_NS], [48, 46], [60, 60]])
    (since, until), lasted = _between(begun, ended)
    assert (since.tolist(), until.tolist()) == ([10, 25, 48], [11, 30, 47])
    assert lasted.tolist() == [0, 1, 0, 5, 0, 0]


def test_an_operation_is_of_the_latest_step_of_its_members_and_so_is_what_follows_it():
    """Lane 1 enters operation 1 a step later than lane 0; lane 2 waits for it, and lane 3 enters
    the last one after it."""
    rows = Columns({
        "lane": np.array([0, 0, 0, 1, 1, 2, 2, 3]), "enter": np.array([0, 1, 2, 0, 1, -1, -1, 3]),
        "wait": np.array([-1, -1, -1, -1, -1, 0, 1, -1]), "after": np.array([-1] * 7 + [1]),
    })  # fmt: skip
    index = np.array([0, 0, 0, 0, 1, 0, 0, 0])
    of_rows, of_operations = _segment_numbers(rows, Columns({"queue": np.zeros(4, int)}), index)
    assert of_rows.tolist() == [0, 1, 1, 0, 1, 0, 1, 1]
    assert of_operations.tolist() == [0, 1, 1, 1]


def test_an_operation_takes_from_when_all_that_it_comes_after_is_there():
    """The second, entered at 8, comes after the first on its stream; the third is queued behind the
    second, which ends later than it."""
    rows = Columns({"enter": np.array([0, 1, 2]), "after": np.array([-1, 0, -1])})
    table = {"over_ns": [10, 15, 14], "last_ns": [4, 8, 12], "queues": [False, False, True]}
    operations = Columns({name: np.array(of) for name, of in table.items()})
    assert _took(rows, operations).tolist() == [6, 5, 0]
    free = rows.with_column("after", np.full(3, -1))
    assert _took(free, operations).tolist() == [6, 7, 0]
    assert operations.last_ns.tolist() == [4, 8, 12]


@pytest.mark.parametrize(("lanes", "segment"), [(50, 1), (80, 0)])
def test_one_segment_holds_all_where_too_many_lanes_depend_on_one_another(lanes, segment):
    """Each waits for what the lane before it entered; the first is a step ahead."""
    lane = np.arange(lanes)
    rows = {"lane": lane, "enter": lane, "wait": lane - 1, "after": np.full(lanes, -1)}
    operations = Columns({"queue": lane})
    found = _segment_numbers(Columns(rows), operations, (lane == 0).astype(int))
    assert [one.tolist() for one in found] == [[segment] * lanes] * 2
