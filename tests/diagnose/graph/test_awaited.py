"""The pieces of the max-plus model of a gap, on a few gaps each."""

import numpy as np
import pytest

from evenstep.diagnose.graph.awaited import (
    Awaited,
    _of_members,
    _waits_of_rows,
    infer_waits,
    places_of,
)
from evenstep.diagnose.graph.gaps import FURTHEST, Gaps, clearly, gaps_between, weighted_median
from evenstep.diagnose.graph.reached import with_reached
from evenstep.trace.columns import Columns
from evenstep.trace.spool.layout import Op
from tests.diagnose.synthetic import MS

NAN = np.nan


def gaps(lasted, over, *, kind=None, cell=None, idle=None, computed=None):
    """Gaps of these lengths in ms; `over` are ends of the last operation, or rows of several."""
    lasted, over = np.array(lasted, float) * MS, np.atleast_2d(np.array(over, float)) * MS
    count = len(lasted)
    ends = np.full((1 + FURTHEST, count), -np.inf)
    ends[1 : 1 + len(over)] = over
    kind = np.array(kind or [0] * count)
    return Gaps(
        np.arange(1, count + 1), kind, np.array(cell or [0] * count),
        np.zeros(count, bool), np.array(idle or [False] * count), lasted,
        np.array(computed or [NAN] * count) * MS, ends,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("wait", "work"),
    [
        (0, 10),  # nothing waited for: all of it is work
        (1, 4),  # from 6 on
        (-1, 10),  # before the wait: it was over by then
        (2, 3),  # the one before was over at 7
    ],
)
def test_work_is_what_is_not_waited(wait, work):
    found = gaps([10], [[6], [7]]).work(np.array([wait]))
    assert (found[0] / MS).tolist() == [work]
    assert not found[1].any()


def test_a_wait_after_all_work_hides_how_long_that_was():
    _, unseen = gaps([10] * 4, [10, 9.997, 9.996, 12]).work(np.array([-1]))  # within 3 µs
    assert unseen.tolist() == [True, True, False, True]


def test_what_a_device_computed_is_its_work_and_hides_nothing():
    work, unseen = gaps([10], [10], computed=[3]).work(np.array([-1]))
    assert (work / MS).tolist() == [3]
    assert not unseen.any()


@pytest.mark.parametrize(("wait", "lasts"), [(0, [4, 4, 4]), (1, [10, 5, 4]), (-1, [6, 4, 4])])
def test_a_gap_lasts_as_long_as_its_work_and_its_wait(wait, lasts):
    found = gaps([0, 0, 0], [6, 1, -3]).expected(np.array([wait]), np.full(3, 4.0 * MS))
    assert (found / MS).tolist() == lasts


@pytest.mark.parametrize(
    ("values", "weight", "group", "found"),
    [
        ([5, 1, 3], [1, 1, 1], [0, 0, 0], [3]),
        ([5, 1, 3], [9, 1, 1], [0, 0, 0], [5]),
        ([5, 1, 3], [1, 0, 0], [0, 0, 2], [5, 0, 0]),
        ([4, 2], [1, 1], [0, 0], [2]),  # of two the lower
        ([], [], [], []),
    ],
)
def test_a_weighted_median_is_of_each_group(values, weight, group, found):
    made = weighted_median(np.array(values, float), np.array(weight, float), np.array(group, int))
    assert made.tolist() == found


def test_a_lane_is_paced_by_most_of_its_work():
    """Four gaps of 10 ms in each of four steps; in the last all take half as long again, in the
    second only one does."""
    lasted = [10] * 4 + [10, 10, 15, 10] + [10] * 4 + [15] * 4
    cells = np.repeat(np.arange(4), 4).tolist()
    one = gaps(lasted, [0] * 16, kind=[0, 1, 2, 3] * 4, cell=cells)
    paces = one.paces(np.zeros(4, int)).reshape(4, 4)
    assert paces.tolist() == [[1] * 4] * 3 + [[1.5] * 4]


def test_a_misfit_is_the_mean_difference_from_what_a_gap_would_last():
    one = gaps([10, 14, 10], [0, 0, 0])
    apart, usual = one.misfit(np.zeros(1, int), np.ones(3))
    assert (usual / MS).tolist() == [10]
    assert (apart / MS).tolist() == pytest.approx([4 / 3])


def test_a_gap_in_which_the_device_was_idle_may_be_longer():
    one = gaps([10, 14, 9], [0, 0, 0], idle=[False, True, True])
    apart, _ = one.misfit(np.zeros(1, int), np.ones(3))
    assert (apart / MS).tolist() == pytest.approx([1 / 3])  # 9 is shorter than 10


def test_a_smaller_misfit_counts_where_it_is_clearly_so():
    before, now = np.array([10.0, 10, 10]), np.array([8.0, 9.5, 9.5])
    assert clearly(now, before, 0.4).tolist() == [True, False, False]  # 15 % of what is left
    assert clearly(now, before, 2.0).tolist() == [False, False, False]


def test_waits_of_rows_are_counted_in_entries_and_begin_with_their_work():
    """Three gaps of a lane: the second waits at once for the operation entered last, the third
    after 6 ms of work, as in another step, for that of the first entry."""
    one = gaps([4, 9, 8, 6], [[2, 3, -1, 0], [-9, 5, 1, 0], [0, 0, 8, 0]], kind=[0, 1, 2, 2])
    rows = Columns({"enter_ns": np.array([0, 4, 13, 21, 27]) * MS, "lane": np.zeros(5, int)})
    made = _waits_of_rows(rows, one, np.array([0, 1, -3]))
    assert made.ahead.tolist() == [3, 1, 0, 0, 1]  # the last's is taken to be waited for
    assert made.worked.tolist() == [True, False, False, False, False]
    assert (made.since_ns / MS).tolist() == [13 + 6, 4, 13, 21, 27]


def test_messages_of_a_kernel_are_waited_for_by_what_follows_all_of_them():
    """Kernels of rows 0 and 1, of 2, and of 3 to 5; the first is waited for at the second's entry,
    the second after work before the third's."""
    idle = np.array([False, False, True])
    found = Awaited(np.array([1, 1, 0]), ~idle & [False, True, True], np.array([7, 8, 9]), idle)
    made = _of_members(found, np.array([1, 2, 5]), 6)
    assert made.ahead.tolist() == [2, 1, 1, 0, 0, 0]
    assert made.worked.tolist() == [False, False, True, False, False, False]
    assert made.since_ns.tolist() == [7, 7, 8, 9, 9, 9]


def operations(op, **more):
    empty = {"members": np.full(len(op), 2), "message": np.zeros(len(op), bool)}
    return Columns(empty | {"op": np.array(op), "root": np.zeros(len(op), int)} | more)


def test_entries_of_the_same_place_in_the_same_program_are_one_kind():
    """Lane 0 does A B in two steps and A in a third; lane 1 does A B, too, and then B A."""
    lane = np.array([0, 0, 0, 0, 0, 1, 1, 1, 1])
    step = np.array([0, 0, 1, 1, 2, 0, 0, 1, 1])
    op = [1, 5, 1, 5, 1, 1, 5, 5, 1]
    rows = Columns({"lane": lane, "step": step, "operation": np.arange(9), "sends": lane < 0})
    places = places_of(rows, operations(op)).tolist()
    assert places[:2] == places[2:4] == places[5:7]
    assert len(set(places)) == 5


def lanes(enter, leave, op, **more):
    """Entries of one lane a step each, at these times in ms after the step began."""
    steps = len(enter)
    table = operations(np.tile(op, steps))
    return infer_waits(steps_of(enter, leave, **more), table, leave.reshape(-1) * MS)


def steps_of(enter, leave, **more):
    steps = len(enter)
    rows = {
        "lane": np.zeros(enter.size, int), "step": np.repeat(np.arange(steps), enter.shape[1]),
        "enter_ns": enter.reshape(-1) * MS, "leave_ns": leave.reshape(-1) * MS,
        "operation": np.arange(enter.size), "on_device": np.zeros(enter.size, bool),
        "computed_ns": np.full(enter.size, NAN), "sends": np.zeros(enter.size, bool),
        "held_ns": np.zeros(enter.size, int),
    }  # fmt: skip
    return Columns(rows | more)


def test_who_always_enters_so_long_after_an_end_has_waited_for_it():
    """Gathers take 2 to 16 ms, and the reduction is entered 5 ms after their end, not after their
    entry; the next step's gather comes 6 ms after the reduction, which takes 1 ms."""
    moved = np.array([2, 9, 4, 16, 7, 3, 12, 5, 14, 8])
    begin = np.append(0, np.cumsum(moved + 11)[:-1])
    enter = np.stack([begin, begin + moved + 5], axis=1)
    leave = np.stack([begin + moved, begin + moved + 6], axis=1)
    found = lanes(enter, leave, [int(Op.ALL_GATHER), int(Op.REDUCE_SCATTER)])
    assert (found.ahead[::2] == 1).all()
    assert not found.worked[::2].any()


def test_who_enters_so_long_after_its_own_entry_has_not_waited():
    """The same, but the reduction is entered 20 ms after the gather's entry, whenever it ends."""
    moved = np.array([2, 9, 4, 16, 7, 3, 12, 5, 14, 8])
    begin = 30 * np.arange(10)
    enter = np.stack([begin, begin + 20], axis=1)
    leave = np.stack([begin + moved, begin + 21], axis=1)
    found = lanes(enter, leave, [int(Op.ALL_GATHER), int(Op.REDUCE_SCATTER)])
    assert not ((found.ahead == 1) & ~found.worked)[::2].any()


def test_entries_of_a_blocking_stream_follow_the_end_before_them_at_once():
    enter = np.arange(6)[:, None] * 30 + np.array([0, 10, 20])
    leave = enter + 10
    found = lanes(
        enter, leave, [int(Op.ALL_GATHER)] * 3, on_device=np.ones(18, bool),
    )  # fmt: skip
    assert (found.ahead[:-1] == 1)[np.arange(17) % 3 < 2].all()
    assert not found.worked.any()


def lane_rows(lane, step, enter, leave, **more):
    count = len(lane)
    rows = {
        "lane": np.array(lane), "step": np.array(step), "enter_ns": np.array(enter) * MS,
        "leave_ns": np.array(leave) * MS, "operation": np.arange(count),
        "on_device": np.ones(count, bool), "sends": np.zeros(count, bool),
        "computed_ns": np.full(count, NAN), "held_ns": np.zeros(count, int),
    }  # fmt: skip
    return Columns(rows | more)


def test_a_gap_is_between_two_entries_of_a_lane_and_knows_the_ends_before_it():
    """Lanes 1 and 2; the second of lane 1 opens a step 3 ms after the first, over at 2."""
    rows = lane_rows([1, 1, 1, 2, 2], [0, 1, 1, 0, 0], [0, 3, 7, 1, 5], [2, 6, 8, 9, 9])
    found = gaps_between(rows, rows.leave_ns, np.arange(5))
    assert found.row.tolist() == [1, 2, 4]
    assert found.kind.tolist() == [0, 1, 3]
    assert found.opens.tolist() == [True, False, False]
    assert (found.lasted / MS).tolist() == [3, 4, 4]
    assert (found.over[1] / MS).tolist() == [2, 3, 8]
    assert (found.over[2] / MS).tolist() == [-np.inf, -1, -np.inf]
    assert found.cell.tolist() == [1, 1, 2]
    assert np.isnan(found.computed).all()
    assert not found.idle.any()


@pytest.mark.parametrize(("slack", "idle"), [(300_000, 1), (301_000, 0), (-1, 0), (0, 1)])
def test_a_device_was_idle_that_begins_soon_after_its_host_has_issued(slack, idle):
    """Within a tenth of 3 ms."""
    rows = lane_rows([1, 1], [0, 0], [0, 3], [1, 4], slack_ns=np.array([0, slack]))
    assert gaps_between(rows, rows.leave_ns, np.zeros(2, int)).idle.tolist() == [bool(idle)]


def test_of_very_many_gaps_those_of_some_lanes_and_steps_are_fitted():
    """Of 150,000 gaps in cells of 10 every third cell."""
    many = np.arange(150_000)
    whole = Gaps(*[many] * 2, many // 10, *[many] * 4, many[None])
    kept = whole.sample().row
    assert kept.tolist() == many[many // 10 % 3 == 0].tolist()
    few = Gaps(*[many[:60_000]] * 2, many[:60_000] // 10, *[many[:60_000]] * 4, many[None, :60_000])
    assert len(few.sample().row) == 60_000


REDUCES = np.array([18.0, 6.0, 6.0, 6.0])  # work before each of a step's all-reduces, ms


def reduced_in_turn(pace, steps=12, transfer=1.5, rest=3.0):
    """Lanes with streams of compute at these paces, and one of communication each: when compute
    reaches every all-reduce, when its kernel begins and when it is over. (lanes, steps, 4), ms."""
    pace, free = np.array(pace), 0.0  # lanes differ in all they compute
    compute, found = np.zeros(len(pace)), []
    for step in range(steps):
        for work in REDUCES * (1 + 0.01 * np.cos(step)):
            compute = compute + pace * work
            began = np.maximum(compute, free)
            free = began.max() + transfer
            found.append((compute, began, np.full(len(pace), free)))
        compute = np.maximum(compute, free) + rest * pace
    return (np.array(one).T.reshape(len(pace), steps, -1) for one in zip(*found, strict=True))


def entries_of(enter, leave):
    """Entries of one group's lanes, and its operations."""
    lanes, steps, places = enter.shape
    lane, step = np.repeat(np.arange(lanes), steps * places), np.tile(np.arange(steps), lanes)
    number = np.tile(np.arange(steps * places), lanes)
    rows = lane_rows(
        lane, step.repeat(places), enter.reshape(-1), leave.reshape(-1), operation=number,
        slack_ns=np.full(len(lane), 9 * MS), seq=number,
    )  # fmt: skip
    for name in ("enter_ns", "leave_ns"):
        rows = rows.with_column(name, np.rint(rows[name]).astype(np.int64))
    table = operations(np.ones(steps * places, int), queue=np.zeros(steps * places, int))
    return rows, table


def test_kernels_held_by_their_queue_are_entered_when_compute_reaches_them():
    """Lane 2 computes 1.2 times as long: the others' third and fourth kernels begin as the one
    before is over, at 30.3 and 37.5 ms, though their compute was there at 30 and 36."""
    reached, began, over = reduced_in_turn([1.0, 1.0, 1.2])
    assert (began - reached)[0].max() > 1.4
    moved = with_reached(*entries_of(began, over))
    assert moved.enter_ns / MS == pytest.approx(reached.reshape(-1), abs=0.2)
    sooner = (began - reached).reshape(-1)
    assert moved.slack_ns / MS == pytest.approx(9 - sooner, abs=0.2)  # issued when they were


def test_no_kernel_is_reached_before_its_host_issued_it():
    _, began, over = reduced_in_turn([1.0, 1.0, 1.2])
    rows, table = entries_of(began, over)
    moved = with_reached(rows.with_column("slack_ns", np.zeros(len(rows), int)), table)
    assert (moved.enter_ns == rows.enter_ns).all()


def test_entries_stamped_as_compute_reaches_them_stay():
    reached, _, over = reduced_in_turn([1.0, 1.0, 1.2])
    rows, table = entries_of(reached, over)
    assert (with_reached(rows, table).enter_ns == rows.enter_ns).all()


def test_what_compute_waits_for_one_after_the_other_is_not_held_by_its_queue():
    """Two blocking all-reduces of 2 ms in a row, which hosts issue at once, 10 ms before the next
    two; lane 2 computes longer by turns, and the others wait for it in the first."""
    steps = 12
    work = 10 + 8.0 * np.outer([0, 0, 1], np.arange(steps) % 2)
    first = np.cumsum(work.max(axis=0) + 4) - work.max(axis=0) - 4 + work
    over = first.max(axis=0) + 2
    enter = np.stack([first, np.broadcast_to(over, first.shape)], axis=2)
    leave = np.stack([np.broadcast_to(over + at, first.shape) for at in (0, 2)], axis=2)
    rows, table = entries_of(enter, leave)
    issued = np.tile((10.0 * np.arange(steps)[:, None] + [0, 0.1]).reshape(-1) - 200, 3)
    slack = np.rint(rows.enter_ns - issued * MS).astype(np.int64)
    rows = rows.with_column("slack_ns", slack)
    assert (with_reached(rows, table).enter_ns == rows.enter_ns).all()
