"""Graphs of runs that are written down by hand, and their replays: every time is worked out here.

Three ranks enter an all-reduce after 10, 12 and 20 ms of work and go on with 5 ms of other work;
it moves for 4 ms from the last entry; who waited for it does 3 ms more.

    step   entries       over   waits reached   ends
    0      10, 12, 20    24     15, 17, 25      27, 27, 28
    1      37, 39, 48    52     42, 44, 53      55, 55, 56
    2      65, 67, 76    80     70, 72, 81      83, 83, 84
"""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from evenstep.diagnose.graph.build import (
    _earliest_ends,
    _hosts_begun,
    _over,
    _select_steps,
    _with_usual_messages,
)
from evenstep.diagnose.graph.entries import Entries
from evenstep.diagnose.graph.lanes import STEP_END
from evenstep.diagnose.graph.replay import Change, combine, replay, step_lengths
from evenstep.diagnose.graph.streams import FASTEST_DRIFT
from evenstep.diagnose.graph.structure import (
    NEVER_NS,
    last_lanes,
    overlap,
    regularly_later,
    seen_later,
    times,
)
from evenstep.trace.columns import Columns
from evenstep.trace.spool.layout import Flag, Op
from tests.diagnose.graph.by_hand import Run, after, at, streams
from tests.diagnose.synthetic import BOOT_NS, MS

WORK = (10, 12, 20)


def behind(numbers=(0, 1, 2)):
    """The run above, of steps with these numbers."""
    run, begin = Run(), [0, 0, 0]
    for turn, step in enumerate(numbers):
        enters = [since + work for since, work in zip(begin, WORK, strict=True)]
        over, ends = max(enters) + 4, []
        for rank, enter in enumerate(enters):
            run.collective(rank, step, turn, enter, over)
            resumed = max(over, enter + 5.001)  # who need not wait is seen in a wait all the same
            run.wait(rank, step, enter + 5, resumed)
            ends.append(max(over, enter + 5) + 3)
            run.step(rank, step, begin[rank], ends[-1])
        begin = ends
    return run


@pytest.fixture(scope="module")
def found():
    return behind().graph()


def lane(found, number, *names):
    """Columns of a lane's rows, row by row."""
    rows = found.rows.select(found.rows.lane == number)
    return list(zip(*(rows[name].tolist() for name in names), strict=True))


def test_a_row_is_an_entry_a_wait_or_an_end_after_its_own_work(found):
    first = [(0, -1, 10 * MS), (-1, 0, 5 * MS), (-1, -1, 3 * MS)]
    assert lane(found, 0, "enter", "wait", "own_ns")[:3] == first
    assert lane(found, 2, "enter", "wait", "own_ns")[3:6] == [
        (1, -1, 20 * MS), (-1, 1, 5 * MS), (-1, -1, 3 * MS),
    ]  # fmt: skip
    assert after(found.rows.at_ns[found.rows.lane == 1]) == [12, 17, 27, 39, 44, 55, 67, 72, 83]
    assert found.rows.index.tolist() == found.rows.step.tolist()
    assert found.rows.ends.sum() == 9


def test_an_operation_lasts_from_its_last_entry_until_a_waiting_member_goes_on(found):
    operations = found.operations
    assert after(operations.last_ns) == [20, 48, 76]
    assert after(operations.over_ns) == [24, 52, 80]
    assert operations.took_ns.tolist() == [4 * MS] * 3
    assert operations.members.tolist() == [3] * 3
    assert operations.whole.all()
    assert last_lanes(found).tolist() == [2, 2, 2]


def test_who_waited_was_blocked_first_for_the_last_and_then_by_the_transfer(found):
    seen = times(found)
    assert seen.work_ns[0].tolist() == [18 * MS, 20 * MS, 28 * MS - 1000]
    assert seen.blocked_ns[0].tolist() == [9 * MS, 7 * MS, 1000]  # seen to go on 1 µs later
    assert seen.wait_ns[1].tolist() == [6 * MS, 4 * MS, 0]  # 42 and 44 until 48
    assert seen.hidden_ns[0].tolist() == [0, 0, 4 * MS - 1000]
    assert seen.collectives.tolist() == [[1, 1, 1]] * 3


def test_own_work_in_an_interval_is_that_before_each_row(found):
    covered = overlap(found, np.array([0]), np.array([at(5)]), np.array([at(12)]))
    assert covered[found.rows.lane == 0].tolist() == [5 * MS, 2 * MS, *[0] * 7]
    assert not covered[found.rows.lane > 0].any()


def test_a_replay_of_nothing_changed_ends_as_the_run_did(found):
    (ends,) = replay(found, [Change.none()])
    assert after(ends) == [[27, 27, 28], [55, 55, 56], [83, 83, 84]]
    assert step_lengths(found, ends[None]).tolist() == [[27 * MS, 28 * MS, 28 * MS]]


def test_a_replay_with_less_work_lets_another_be_the_last(found):
    """Entries after 10, 12 and 10 ms: over at 16, when rank 1 has yet to work until 17; then
    entries at 29, 32 and 29, and at 49, 52 and 49."""
    mine = np.flatnonzero((found.rows.lane == 2) & (found.rows.enter >= 0))
    ends = replay(found, [Change.of_work(mine, np.full(3, 10.0 * MS))])
    assert after(ends[0]) == [[19, 20, 19], [39, 40, 39], [59, 60, 59]]
    assert step_lengths(found, ends).tolist() == [[19 * MS, 20 * MS, 20 * MS]]


def test_a_replay_with_a_longer_transfer_holds_up_who_waits_for_it(found):
    """The second is over at 58, not 52: all go on at 61 and enter the third at 71, 73, 81."""
    ends = replay(found, [Change.of_transfers(np.array([1]), np.array([10.0 * MS]))])
    assert after(ends[0]) == [[27, 27, 28], [61, 61, 61], [88, 88, 89]]


def test_changes_are_combined_by_their_differences_and_never_below_nothing(found):
    first, last = (np.flatnonzero((found.rows.lane == one) & found.rows.ends) for one in (0, 2))
    less = [Change.of_work(rows, np.full(3, 1.0 * MS)) for rows in (first, first, last)]
    both = combine(found, [*less, Change.of_transfers(np.array([0]), np.array([9.0 * MS]))])
    assert dict(zip(both.rows.tolist(), both.own_ns.tolist(), strict=True)) == {
        **dict.fromkeys(first.tolist(), 0.0),  # 3 − 2 − 2
        **dict.fromkeys(last.tolist(), 1.0 * MS),
    }
    assert both.operations.tolist() == [0]
    assert both.took_ns.tolist() == [9 * MS]
    assert Change.of_work(first, np.full(3, -1.0)).own_ns.tolist() == [0] * 3
    assert Change.of_transfers(first, np.full(3, -1.0)).took_ns.tolist() == [0] * 3


def test_steps_left_out_part_the_run_and_each_part_begins_when_its_lanes_did():
    """As above, but the third is step 7: its lanes begin at 55, 55 and 56."""
    found = behind((0, 1, 7)).graph()
    assert found.stretch_of.tolist() == [0, 0, 1]
    assert after(found.starts_ns[:, :3]) == [[0, 0, 0], [55, 55, 56]]
    ends = replay(found, [Change.none()])
    assert after(ends[0]) == [[27, 27, 28], [55, 55, 56], [83, 83, 84]]
    assert step_lengths(found, ends).tolist() == [[28 * MS, 28 * MS, 28 * MS]]  # of the last lanes


def test_a_step_whose_ends_nobody_knows_shares_the_time_until_the_next():
    found = behind().graph()
    ends = replay(found, [Change.none()])
    ends[0, 1] = np.nan
    assert step_lengths(found, ends).tolist() == [[27 * MS, 28 * MS, 28 * MS]]
    ends[0, 2] = np.nan
    assert step_lengths(found, ends).tolist() == [[27 * MS, 0, 0]]


def test_time_in_which_no_rank_is_in_a_step_is_nobodys_work():
    """40 ms between two steps of one rank after the other, of which the first may begin at 50."""
    run = Run()
    for step, begin in enumerate((0, 50)):
        for rank in range(3):
            run.collective(rank, step, step, begin + 2 + rank, begin + 6, flags=Flag(0))
            run.step(rank, step, begin + rank, begin + 8 + rank)
    found = run.graph()
    assert found.between_ns.tolist() == [0, 40 * MS]
    # 8 to 10 and from 50 on; 9 to 10; none
    assert [one[-1] for one in lane(found, 0, "own_ns")] == [2 * MS, 2 * MS, 4 * MS, 2 * MS]
    assert [one[-1] for one in lane(found, 2, "own_ns")] == [2 * MS, 4 * MS, 4 * MS, 4 * MS]


def queued():
    """Each step two all-reduces of one group: entered after 1, 2 and 3 ms and 3 ms later, over at
    13 and 17, as the second begins when the first is over; waits from 8, 9 and 10 on, end at 20."""
    run = Run()
    for step in range(2):
        since = 20 * step
        for rank in range(3):
            for turn, over in enumerate((13, 17)):
                enter = since + 1 + rank + 3 * turn
                run.collective(rank, step, 2 * step + turn, enter, since + over)
            run.wait(rank, step, since + 8 + rank, since + 17)
            run.step(rank, step, since, since + 20)
    return run.graph()


def test_an_operation_begins_when_the_one_before_it_in_its_queue_is_over():
    found = queued()
    assert found.operations.queues.tolist() == [False, True, True, True]
    assert found.took_ns.tolist() == [10 * MS, 4 * MS] * 2
    ends = replay(found, [Change.of_transfers(np.array([0]), np.array([1.0 * MS]))])
    # over at 4; the second from 6 on until 10, when the last comes to its wait
    assert after(ends[0]) == [[13, 13, 13], [33, 33, 33]]


def test_what_ends_before_what_was_queued_before_it_is_in_no_queue():
    run = Run()
    for step in range(2):
        for rank in range(3):
            run.collective(rank, step, 2 * step, 20 * step + 1, 20 * step + 17)
            run.collective(rank, step, 2 * step + 1, 20 * step + 2, 20 * step + 13)
            run.wait(rank, step, 20 * step + 8, 20 * step + 17)
            run.step(rank, step, 20 * step, 20 * step + 20)
    operations = run.graph().operations
    assert not operations.queues.any()
    assert after(operations.over_ns) == [17, 13, 37, 33]
    assert operations.took_ns.tolist() == [16 * MS, 11 * MS] * 2


@pytest.mark.parametrize("on_device", [2, 3])
def test_a_lane_is_its_device_where_most_of_its_operations_ran_there(on_device):
    """Of five all-reduces a step."""
    run = Run(2)
    for step in range(4):
        for turn in range(5):
            enter = 20 * step + 3 * turn
            times = {"device_enter_ns": enter * MS + 1, "device_exit_ns": (enter + 1) * MS}
            for rank in range(2):
                flags, more = Flag(0), {}
                if turn < on_device:
                    flags, more = Flag.ASYNC | Flag.ON_DEVICE, times | {"device": 0}
                run.collective(rank, step, 5 * step + turn, enter, enter + 1, flags=flags, **more)
        for rank in range(2):
            run.step(rank, step, 20 * step, 20 * step + 16)
    assert run.graph().device.tolist() == [on_device == 3] * 2


def leaving_later(later):
    """Steps of 20 ms of calls that begin at 2, the first of which is left at 6, and the others so
    many ms later (steps, ranks)."""
    later = np.asarray(later, float)
    run = Run(later.shape[1])
    for step, row in enumerate(later):
        for rank, more in enumerate(row):
            since = 20 * step
            run.collective(rank, step, step, since + 2, since + 6 + more, flags=Flag(0))
            run.step(rank, step, since, since + 20)
    return run.graph()


@pytest.mark.parametrize("since_ms", [100, -100])
def test_an_operation_ends_when_its_first_member_leaves_also_before_time_0(since_ms):
    """Two calls of two ranks that enter at 1 and 2 ms and leave at 5 and 7, and 10 ms later."""
    member, turn = np.tile([0, 1], 2), np.repeat([0, 1], 2)
    since, there = (since_ms + 10 * turn) * MS, turn >= 0
    rows = {"enter_ns": since + (1 + member) * MS, "leave_ns": since + (5 + 2 * member) * MS}
    found = Columns({**rows, "operation": turn, "decides": there, "waits": there})
    ended = _earliest_ends(Entries(found, Columns({"op": np.zeros(2, np.int64)})))
    assert (ended / MS).tolist() == [since_ms + 5, since_ms + 15]


def test_what_a_lane_goes_on_later_than_the_first_is_no_work_of_its_own():
    found = leaving_later([[0, 1], [0, 3]])
    assert seen_later(found, found.rows.until_ns).tolist() == [0] * 8
    over = np.append(found.operations.over_ns, 0)[found.rows.wait]
    assert (seen_later(found, over) / MS).tolist() == [0, 0, 1, 0, 0, 0, 3, 0]
    assert not seen_later(replace(found, device=np.ones(2, bool)), over).any()
    seen = times(found)
    assert (seen.work_ns / MS).tolist() == [[16, 15], [16, 13]]
    assert (seen.blocked_ns / MS).tolist() == [[4, 5], [4, 7]]
    assert (seen.wait_ns == 0).all()


@pytest.mark.parametrize(("kind", "share"), [(0, 1), (-1, 0)])
def test_what_a_lane_regularly_goes_on_later_is_its_usual_least(kind, share):
    """Of twelve steps lane 1 is once .4 ms later and once 3, and else 1; lane 2 in six not at all.
    Of operations of no kind nothing is told."""
    later = np.zeros((12, 3))
    later[:, 1], later[6:, 2] = 1, 2
    later[3, 1], later[5, 1] = 0.4, 3
    found = leaving_later(later)
    regular = regularly_later(found, np.full(12, kind)) / MS
    after = found.rows.ends & (found.rows.lane == 1)
    assert regular[after].tolist() == [share * (0.4 if step == 3 else 1) for step in range(12)]
    assert not regular[~after].any()


def test_a_lane_is_later_by_its_own_measure_for_each_kind():
    """Every other operation lane 1 leaves 1 ms later, the others 2 ms."""
    found = leaving_later([[0, 1 + step % 2] for step in range(8)])
    regular = regularly_later(found, np.arange(8) % 2) / MS
    assert regular[found.rows.ends & (found.rows.lane == 1)].tolist() == [1, 2] * 4
    as_one = regularly_later(found, np.zeros(8, int)) / MS
    assert as_one[found.rows.ends & (found.rows.lane == 1)].tolist() == [1] * 8


def test_a_blocking_call_is_entry_and_wait_in_one_row():
    run = Run()
    for rank, enter in enumerate((3, 5, 9)):
        run.collective(rank, 0, 0, enter, 11, flags=Flag(0))
        run.step(rank, 0, 0, 12)
    found = run.graph()
    assert lane(found, 0, "enter", "wait", "own_ns") == [(0, 0, 3 * MS), (-1, -1, 1 * MS)]
    seen = times(found)
    assert (seen.blocked_ns[0] / MS).tolist() == [8, 6, 2]
    assert (seen.wait_ns[0] / MS).tolist() == [6, 4, 0]
    (ends,) = replay(found, [Change.of_work(np.array([4]), np.array([5.0 * MS]))])
    assert after(ends) == [[8, 8, 8]]  # entered at 3, 5 and 5, over at 7


def test_a_root_that_need_not_wait_goes_on_and_who_receives_waits_for_it_alone():
    """Rank 1 broadcasts at 4 and works on until 10; others come at 1 and 6 and have it at 7."""
    run = Run()
    for rank, (enter, leave) in enumerate(((1, 7), (4, 4.1), (6, 7))):
        flags = Flag(0) if rank != 1 else Flag.ASYNC
        run.collective(rank, 0, 0, enter, leave, Op.BROADCAST, flags, peer_or_root=1)
        run.step(rank, 0, 0, 10)
    found = run.graph()
    assert lane(found, 1, "enter", "wait") == [(0, -1), (-1, -1)]
    assert lane(found, 0, "enter", "wait") == [(-1, 0), (-1, -1)]
    assert after(found.operations.last_ns) == [4]
    assert found.took_ns.tolist() == [3 * MS]
    mine = np.flatnonzero((found.rows.lane == 2) & (found.rows.wait >= 0))
    (ends,) = replay(found, [Change.of_work(mine, np.array([9.0 * MS]))])
    assert after(ends) == [[10, 10, 12]]  # who receives late holds nobody up


def test_what_nobody_waited_for_was_over_when_the_first_member_saw_it_over():
    """Rank 1 broadcasts from 4 to 7; who receives recorded nothing of it."""
    run = Run()
    run.collective(1, 0, 0, 4, 7, Op.BROADCAST, peer_or_root=1)
    for rank in range(3):
        run.step(rank, 0, 0, 10)
    operations = run.graph().operations
    assert after(operations.over_ns) == [7]
    assert operations.took_ns.tolist() == [3 * MS]


def test_a_message_held_up_by_the_one_before_it_on_its_link_ends_when_it_is_received():
    """A link takes 4 ms a message; two sent at 1 and 2 are received from 0 to 5 and from 5 to 9."""
    run = Run(2)
    for turn, (sent, posted, received) in enumerate(((1, 0, 5), (2, 5, 9))):
        run.message(0, 0, Op.SEND, 1, turn, sent, sent + 0.1)
        run.message(1, 0, Op.RECV, 0, turn, posted, received, Flag(0))
    for rank in range(2):
        run.step(rank, 0, 0, 12)
    found = run.graph()
    assert after(found.operations.over_ns) == [5, 9]
    assert found.rows.own_ns[found.rows.lane == 1].tolist() == [0, 0, 3 * MS]


def test_a_message_that_was_there_when_it_was_asked_for_did_not_take_until_then():
    """Messages take 1 ms. In step 1 rank 1 waits for rank 2 until 41, works, and finds what rank 0
    sent at 21 when it asks for it at 50."""
    run = Run()
    bound = Flag.ASYNC | Flag.EXIT_UPPER_BOUND
    for step, (came, asked) in enumerate(((2, 2), (41, 50))):
        begin = 20 * step
        run.message(0, step, Op.SEND, 1, step, begin + 1, begin + 1.1)
        run.message(2, step, Op.SEND, 1, step, came - 1, came - 0.9)
        for peer, leave in ((0, asked), (2, came)):
            run.message(1, step, Op.RECV, peer, step, begin, leave, bound)
        run.wait(1, step, begin, came)
        for rank in range(3):
            run.step(rank, step, begin, (20, 60)[step])
    found = run.graph()
    received = found.operations.over_ns[found.operations.root == 0]
    assert after(received) == [2, 22]


def test_a_message_asked_for_as_a_reduction_ends_was_not_waited_for():
    """Messages take 1 ms. In step 1 rank 1 waits for a reduction from 25 to 41, and asks for what
    rank 0 sent at 21 right then."""
    run = Run()
    bound = Flag.ASYNC | Flag.EXIT_UPPER_BOUND
    for step, (since, over, asked) in enumerate(((3, 5, 2), (25, 41, 41.05))):
        begin = 20 * step
        run.message(0, step, Op.SEND, 1, step, begin + 1, begin + 1.1)
        run.message(1, step, Op.RECV, 0, step, begin, asked, bound)
        for rank in range(2):
            run.collective(rank, step, step, (since, over - 1)[rank == 0], over)
        if not step:
            run.wait(1, step, begin, asked)
        run.wait(1, step, since, over)
        for rank in range(2):
            run.step(rank, step, begin, (20, 60)[step])
    found = run.graph()
    assert after(found.operations.over_ns[found.operations.message]) == [2, 22]


def test_a_lane_whose_beginning_nobody_saw_begins_with_its_usual_first_work():
    run = Run()
    for step in range(3):
        for rank in range(3):
            run.collective(rank, step, step, 10 * step + 2, 10 * step + 6, flags=Flag(0))
            if step:
                run.step(rank, step, 10 * step, 10 * step + 10)
    found = run.graph()
    # of the later steps' first rows, 6 to 12 and 20 to 22, the lower middle
    own = (found.rows.own_ns[found.rows.lane == 0] / MS).tolist()
    assert own == [2, 6, 4, 2, 4]
    assert (found.starts_ns[0, :3] - BOOT_NS).tolist() == [0, 0, 0]


def test_a_rank_that_recorded_nothing_is_free_as_early_as_any_other():
    """Steps of 10 ms of the other two, the second of which comes last, after 5 ms."""
    run = Run(3, (0, 1))
    for step in range(3):
        for rank in range(2):
            run.collective(rank, step, step, 10 * step + 3 + 2 * rank, 10 * step + 8, flags=Flag(0))
            run.step(rank, step, 10 * step, 10 * step + 10)
    found = run.graph()
    assert after(found.starts_ns[0, :3]) == [0, 0, 0]
    ends = replay(found, [Change.none()])
    assert after(ends[0, :, :2]) == [[10, 10], [20, 20], [30, 30]]
    assert np.isnan(ends[0, :, 2]).all()
    assert step_lengths(found, ends).tolist() == [[10 * MS] * 3]


def test_a_stream_begins_its_first_step_where_the_step_before_it_ended():
    """Lane 1 works 26 ms in step 1, the first that counts, and 6 ms in all others."""
    work = np.full((5, 3), 6.0)
    work[1, 1] = 26.0
    run = streams(work)
    found = run.graph(first=1)
    opens = np.unique(found.rows.lane, return_index=True)[1]
    own = (found.rows.own_ns[opens] / MS).tolist()
    assert own == pytest.approx([6, 26, 6], rel=2 * FASTEST_DRIFT)
    assert found.rows.step.min() == 1
    replayed = step_lengths(found, replay(found, [Change.none()]))[0] / MS
    assert replayed == pytest.approx([30, 10, 10, 10], rel=2 * FASTEST_DRIFT)
    run.rows = [row for row in run.rows if row["step"]]
    usual = run.graph().rows.own_ns[opens] / MS
    assert usual.tolist() == pytest.approx(
        [6, 6, 6], rel=2 * FASTEST_DRIFT
    )  # of which nobody saw the beginning


def test_steps_are_left_with_what_is_entered_in_them_and_the_waits_for_that():
    """Operations 0 and 3 of a queue are entered in step 0; 1 and 2, of which 1 begins another
    queue, in step 1, where 0 is waited for."""
    rows = Columns({
        "step": np.array([0, 0, 1, 1, 1, 1, 1]), "enter": np.array([0, 3, 1, 2, -1, -1, -1]),
        "wait": np.array([-1, -1, 0, -1, 1, 0, -1]), "after": np.array([-1, 0, 0, 1, -1, -1, -1]),
        "order": np.array([0, 0, 0, 0, 0, 0, STEP_END]),
    })  # fmt: skip
    table = Columns(
        {"queue": np.array([0, 1, 1, 1]), "queues": np.array([False, True, True, True])}
    )
    kept, left = _select_steps(rows, table, np.array([1]))
    assert [kept[name].tolist() for name in ("enter", "wait", "after")] == [
        [0, 1, -1, -1], [-1, -1, 0, -1], [-1, 0, -1, -1],
    ]  # fmt: skip
    assert left.queues.tolist() == [False, True]
    kept, left = _select_steps(rows, table, np.array([0]))
    assert kept.enter.tolist() == [0, 1]
    assert left.queue.tolist() == [0, 1]
    assert left.queues.tolist() == [False, False]


@pytest.mark.parametrize(("falling", "serial"), [(1, True), (2, False)])
def test_a_queue_is_one_where_nearly_all_ends_come_in_its_order(falling, serial):
    """Ten after the first, so many of which end sooner; two at once are in order. A second queue's
    ends all come later."""
    ended = np.array([0, 1, 1, 3, 4, 5, 6, 7, 8, 9, 10, 20, 21])
    ended[4 : 4 + 2 * falling : 2] = 2
    queue = np.repeat([0, 1], [11, 2])
    table = Columns({"queue": queue, "message": queue < 0})
    over, follows = _over(None, Entries(None, table), ended)
    assert follows.tolist() == [False] + [serial] * 10 + [False, True]
    assert (
        over[:11].tolist() == (np.maximum.accumulate(ended[:11]) if serial else ended[:11]).tolist()
    )


@pytest.mark.parametrize(
    ("sequence", "more", "known"),
    [
        ([1, 2], {}, True),
        ([2, 3], {}, False),  # collectives of the group came before
        ([2, 3], {"group": np.array([-1, -1])}, True),
        ([2, 3], {"message": np.array([True, True])}, True),
        ([2, 1], {"group": np.array([0, 1])}, False),
        ([1, 2], {"message": np.array([False, True])}, True),
    ],
)
def test_hosts_have_surely_begun_a_run_whose_first_collectives_are_on_record(sequence, more, known):
    table = {
        "sequence": np.array(sequence),
        "group": np.zeros(2, int),
        "message": np.zeros(2, bool),
    }
    begun = np.array([[100, NEVER_NS], [200, 200]])
    span = SimpleNamespace(
        steps=np.array([0, 1]), ranks=np.arange(2), apart=np.ones(2, bool),
        step_ns=lambda name: begun, _replace=lambda apart: None if apart.any() else span,
    )  # fmt: skip
    ahead = SimpleNamespace(placed=lambda lanes, ns: ns + lanes + 1, error_ns=10)
    found = _hosts_begun(span, Entries(None, Columns(table | more)), ahead)
    assert found.tolist() == [[111 if known else NEVER_NS, NEVER_NS], [NEVER_NS] * 2]


@pytest.mark.parametrize(
    ("apart", "blocked", "sure"), [(20_000, 2, True), (20_001, 2, False), (20_000, 1, False)]
)
def test_a_message_that_both_ends_were_blocked_in_tells_how_long_its_channel_takes(
    apart, blocked, sure
):
    """Messages of channel 0 take 10 ms, of channel 1 3 ms, but nobody was blocked in them; one of
    channel 0 took 1 ms, with one or both ends blocked in it and in one of channel 2, asked for 9 ns
    after it was sent, until up to 20 us apart. A receiver waits until 20 ms for one of channel 0,
    sent at 0, and one of channel 1, sent at 5: for which of them hangs on what channel 0 takes."""
    number = np.arange(44)
    queue = np.repeat([0, 1, 2], [22, 21, 1])
    took = np.array([10.0, 3.0, 1.0])[queue]
    sent = 1000.0 + 100 * number
    took[0], sent[0], sent[43] = 1, 5000, 5000
    took[21], sent[21], took[42], sent[42] = 20, 0, 15, 5
    over = np.rint((sent + took) * MS).astype(np.int64)
    several = np.isin(number, (21, 42))
    pair, receives = np.isin(number, (0, 43)), np.array([0, 1])
    enter = np.rint(sent * MS).astype(np.int64)
    rows = Columns({
        "operation": number.repeat(2), "lane": np.tile(receives, 44), "held_ns": np.zeros(88, int),
        "enter_ns": (enter[:, None] + 9 * receives * pair[:, None]).reshape(-1),
        "leave_ns": np.stack([over, over + apart * pair], axis=1).reshape(-1),
        "decides": np.tile([True, False], 44), "sends": np.tile([True, False], 44),
        "waits": np.stack([pair & (blocked > 1), pair | several], axis=1).reshape(-1),
        "calls": np.ones(88, bool), "on_device": np.zeros(88, bool),
    })  # fmt: skip
    table = {"message": np.ones(44, bool), "size_bytes": 1 + queue, "queue": queue}
    none = Columns({name: np.zeros(0, int) for name in ("lane", "enter_ns", "leave_ns")})
    span = SimpleNamespace(
        trace=SimpleNamespace(ranks=dict.fromkeys((0, 1), SimpleNamespace(node="node0"))),
        ranks=np.arange(2), device=np.zeros(2, bool), waits=lambda: none,
    )  # fmt: skip
    ends = _with_usual_messages(span, Entries(rows, Columns(table)), over) / MS
    assert ends[[21, 42]].tolist() == ([10, 20] if sure else [20, 8])
