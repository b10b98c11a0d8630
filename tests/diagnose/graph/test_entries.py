"""Which records are one operation, who decides when it begins, and who waits for its end."""

from dataclasses import replace

import numpy as np
import pytest

from evenstep.diagnose.graph.entries import TELLING_NS, _unrelated_records, entries
from evenstep.trace.clocks.clocks import align
from evenstep.trace.columns import Columns
from evenstep.trace.spool.layout import Flag, Op
from tests.diagnose.graph.by_hand import Run, after, at
from tests.diagnose.programs import ring
from tests.diagnose.synthetic import MS

SENDER, RECEIVER = 0, 1


def found(run, backend="mpi"):
    trace = run.trace()
    trace.groups = tuple(replace(group, backend=backend) for group in trace.groups)
    return entries(trace, align(trace), np.array(sorted(trace.ranks)))


def by_lane(rows, name):
    return rows[name][np.lexsort([rows.operation, rows.lane])].tolist()


def together(op, root=1, **more):
    """One operation of three ranks."""
    run = Run()
    for rank in range(3):
        run.collective(rank, 0, 0, rank, 5, op, Flag(0), peer_or_root=root, **more)
    return found(run)


@pytest.mark.parametrize(
    ("op", "decides", "waits"),
    [
        (Op.ALL_REDUCE, [1, 1, 1], [1, 1, 1]),
        (Op.BROADCAST, [0, 1, 0], [1, 0, 1]),  # nobody waits for who receives
        (Op.SCATTER, [0, 1, 0], [1, 0, 1]),
    ],
)
def test_who_gives_decides_and_who_gets_waits(op, decides, waits):
    rows = together(op).rows
    assert rows.decides.tolist() == [bool(one) for one in decides]
    assert rows.waits.tolist() == [bool(one) for one in waits]


@pytest.mark.parametrize("op", [Op.REDUCE, Op.GATHER])
@pytest.mark.parametrize(("left", "stays"), [(5, True), (4.9, True), (4.4, False)])
def test_who_sends_to_a_root_waits_where_it_leaves_with_it(op, left, stays):
    """The root has all at 5; a tenth of 4 and 5 ms before the end is too soon to tell."""
    run = Run()
    for rank, leave in enumerate((left, left, 5)):
        run.collective(rank, 0, 0, 2 * (rank == 2), leave, op, Flag(0), peer_or_root=2)
    rows = found(run).rows
    assert rows.decides.all()
    assert rows.waits.tolist() == [stays, stays, True]


@pytest.mark.parametrize("flags", [Flag.ASYNC, Flag.ON_DEVICE])
def test_who_sends_to_a_root_behind_its_thread_does_not_wait(flags):
    run, there = Run(), {"device_enter_ns": 1 * MS, "device_exit_ns": 5 * MS}
    for rank in range(3):
        run.collective(rank, 0, 0, 1, 5, Op.REDUCE, flags, peer_or_root=2, **there)
    assert found(run).rows.waits.tolist() == [False, False, True]


def test_a_call_on_a_device_without_times_has_no_end_on_its_host():
    run = Run()
    for rank in range(3):
        run.collective(rank, 0, 0, 1, 5, Op.ALL_REDUCE, Flag.ON_DEVICE)
    assert not len(found(run).rows)


@pytest.mark.parametrize(
    ("calls", "short", "waits"), [(7, 0, False), (8, 0, True), (20, 1, True), (20, 2, False)]
)
def test_a_root_that_left_after_the_last_in_nearly_all_calls_waits(calls, short, waits):
    """Of at least 8 calls 95 %; `short` of them it left at once."""
    run = Run()
    for turn in range(calls):
        since, stays = 10 * turn, turn >= short
        for rank, (enter, leave) in enumerate(((0, 5 if stays else 0.5), (2, 5), (4, 5))):
            run.collective(
                rank, turn, turn, since + enter, since + leave, Op.BROADCAST,
                Flag.HOST_BLOCKED, peer_or_root=0,
            )  # fmt: skip
    rows = found(run).rows
    mine = rows.lane == 0
    assert rows.waits[mine].tolist() == [waits] * calls
    assert rows.decides[~mine].tolist() == [waits] * (2 * calls)


@pytest.mark.parametrize(
    ("flags", "known"),
    [
        (Flag(0), False),  # the call returned, which may be as it was handed over
        (Flag.HOST_BLOCKED, True),
        (Flag.ASYNC, True),
        (Flag.ASYNC | Flag.EXIT_UPPER_BOUND, False),
        (Flag.ASYNC | Flag.EXIT_UPPER_BOUND | Flag.HOST_BLOCKED, True),
    ],
)
def test_of_a_root_whose_end_is_not_known_no_wait_is_known(flags, known):
    run = Run()
    for turn in range(10):
        for rank in range(3):
            since = 10 * turn
            run.collective(
                rank, turn, turn, since + 2 * rank, since + 5, Op.BROADCAST, flags, peer_or_root=0
            )
    rows = found(run).rows
    assert rows.waits[rows.lane == 0].tolist() == [known] * 10


def test_members_that_come_together_tell_nothing_of_a_root():
    """Within 0.1 ms of each other."""
    run = Run()
    for turn in range(10):
        for rank in range(3):
            enter = 10 * turn + 0.04 * rank
            run.collective(
                rank, turn, turn, enter, 10 * turn + 5, Op.BROADCAST, Flag.HOST_BLOCKED,
                peer_or_root=0,
            )  # fmt: skip
    rows = found(run).rows
    assert not rows.waits[rows.lane == 0].any()


@pytest.mark.parametrize(
    ("apart", "left", "waits"), [(0.1, 0.1, True), (0.0999, 5, False), (0.1, 0.0999, False)]
)
def test_a_root_that_came_0_1_ms_before_the_last_waits_where_it_stays_until_that_comes(
    apart, left, waits
):
    run = Run()
    for turn in range(8):
        for rank, leave in enumerate((left, 5, 5)):
            run.collective(
                rank, turn, turn, 10 * turn + (rank > 0) * apart, 10 * turn + leave, Op.BROADCAST,
                Flag.HOST_BLOCKED, peer_or_root=0,
            )  # fmt: skip
    rows = found(run).rows
    assert rows.waits[rows.lane == 0].tolist() == [waits] * 8


def rootless(early, left, op=Op.BROADCAST, flags=Flag.ON_DEVICE, calls=20):
    """Which records of two members tell nothing of each other, where the first comes so much
    before the second, and in the first `left` of the calls leaves 1 ns before it comes."""
    number = np.repeat(np.arange(calls), 2)
    first, since = np.tile([True, False], calls), MS * number
    came = since + TELLING_NS * 2 - first * early
    leave = np.where(first & (number < left), since + TELLING_NS * 2 - 1, since + TELLING_NS * 2)
    of = {"op": 0 * number + int(op), "flags": 0 * number + int(flags), "group": 0 * number}
    placed = Columns({"enter_ns": came, "leave_ns": leave})
    return _unrelated_records(Columns(of), number, placed, number < 0)


@pytest.mark.parametrize(
    ("early", "left", "more", "unrelated"),
    [
        (TELLING_NS, 0, {}, False),
        (TELLING_NS - 1, 0, {}, True),  # nobody came clearly before the last
        (TELLING_NS, 1, {}, False),  # of 20
        (TELLING_NS, 2, {}, True),
        (TELLING_NS, 0, {"flags": Flag(0)}, True),
        (TELLING_NS, 9, {"op": Op.ALL_REDUCE}, False),
        (TELLING_NS, 0, {"op": Op.OTHER}, True),
    ],
)
def test_kernels_of_no_known_root_belong_together_where_early_ones_last_until_the_last_begins(
    early, left, more, unrelated
):
    assert rootless(early, left, **more).tolist() == [unrelated] * 40


@pytest.mark.parametrize(("op", "root"), [(Op.OTHER, 0), (Op.BROADCAST, 7), (Op.REDUCE, -1)])
def test_what_has_no_known_kind_or_root_is_an_operation_of_each_member(op, root):
    rows, operations = together(op, root)
    assert operations.members.tolist() == [1, 1, 1]
    assert not operations.whole.any()
    assert len(set(operations.queue.tolist())) == 3
    assert sorted(rows.operation.tolist()) == [0, 1, 2]
    assert (rows.decides & rows.waits).all()


def test_what_is_of_each_member_is_in_no_queue_with_what_is_of_all():
    run = Run()
    for rank in range(3):
        run.collective(rank, 0, 0, 1, 2)
        run.collective(rank, 0, 1, 3, 4, Op.OTHER)
    made = found(run)
    assert sorted(made.operations.members.tolist()) == [1, 1, 1, 3]
    assert len(set(made.operations.queue.tolist())) == 4


def test_operations_are_in_order_of_group_and_number_and_know_who_is_missing():
    run = Run(3, (0, 1, 2), (0, 2))
    for rank in (2, 0):
        run.collective(rank, 0, 4, 7, 8, group=1)
    for number in (1, 0):
        for rank in range(3 - number):
            run.collective(rank, number, number, 2 * number, 6, group=0)
    table = found(run).operations
    assert table.group.tolist() == [0, 0, 1]
    assert table.sequence.tolist() == [0, 1, 4]
    assert table.members.tolist() == [3, 2, 2]
    assert table.whole.tolist() == [True, False, True]
    assert table.step.tolist() == [0, 1, 0]
    assert table.queue.tolist() == [0, 0, 1]


def test_records_in_another_order_on_each_rank_are_still_one_operation_each():
    """Two groups, of which the last rank enters the second first."""
    run = Run(2, (0, 1), (1, 0))
    for rank, first in enumerate((0, 1)):
        for turn in range(2):
            group = abs(first - turn)
            run.collective(rank, 0, 3, 2 * turn, 6, group=group)
    rows = found(run).rows
    assert rows.operation.tolist() == [0, 0, 1, 1]
    assert rows.lane.tolist() == [0, 1, 0, 1]
    assert after(rows.enter_ns) == [0, 2, 2, 0]


@pytest.mark.parametrize(
    ("op", "sent", "received", "size"),
    [
        (Op.ALL_REDUCE, 100, 100, 100),
        (Op.ALL_GATHER, 100, 300, 300),
        (Op.ALL_GATHER, 100, 0, 300),  # each of three sends a part
        (Op.GATHER, 100, 100, 300),
        (Op.REDUCE_SCATTER, 300, 100, 300),
        (Op.REDUCE_SCATTER, 100, 100, 300),  # of what each has a part
        (Op.ALL_TO_ALL, 100, 300, 300),  # what the busiest link carries
    ],
)
def test_a_size_is_that_of_the_whole_buffer(op, sent, received, size):
    table = together(op, bytes_in=sent, bytes_out=received).operations
    assert table.size_bytes.tolist() == [size]


def test_a_thread_is_blocked_in_a_call_that_it_makes_itself():
    run = Run()
    for rank, flags in enumerate((Flag(0), Flag.ASYNC, Flag(0))):
        run.collective(rank, 0, 0, 1, 5, flags=flags, thread=int(rank == 2))
    assert found(run).rows.calls.tolist() == [True, False, False]


# -- messages --------------------------------------------------------------------------------------


def handed(sent, received, flags=(Flag.ASYNC, Flag.ASYNC), *, waits=(), calls=(), turns=1):
    """Messages of rank 0 to rank 1, each (enter, leave); `waits` are the sender's."""
    run = Run()
    for turn in range(turns):
        since = 100 * turn
        for rank, op, (enter, leave) in ((0, Op.SEND, sent), (1, Op.RECV, received)):
            run.message(rank, turn, op, 1 - rank, turn, since + enter, since + leave, flags[rank])
        for begin, end in waits:
            run.wait(0, turn, since + begin, since + end)
        for number, begin in enumerate(calls):
            run.collective(0, turn, 9 * turn + number, since + begin, since + begin + 1)
    return found(run)


def part(rows, name, op=None):
    """What a column says of the sender and of the receiver of the first message."""
    return tuple(bool(rows[name][rows.sends == sends][0]) for sends in (True, False))


def test_a_message_begins_with_its_sender_and_its_receiver_waits():
    made = handed((2, 2.1), (1, 6))
    assert part(made.rows, "decides") == (True, False)
    assert part(made.rows, "waits") == (False, True)
    assert made.operations.members.tolist() == [2]
    assert made.operations.whole.tolist() == [True]
    assert made.operations.root.tolist() == [SENDER]
    assert made.operations.message.tolist() == [True]


@pytest.mark.parametrize(("backend", "meets"), [("gloo", True), ("mpi", False)])
def test_a_message_of_gloo_begins_with_both_ends_whether_or_not_its_sender_waits(backend, meets):
    """The receiver comes 5 ms after the sender, who waits for something else until 9."""
    run = Run()
    run.message(SENDER, 0, Op.SEND, RECEIVER, 0, 1, 9)
    run.message(RECEIVER, 0, Op.RECV, SENDER, 0, 6, 8)
    assert part(found(run, backend).rows, "decides") == (True, meets)


@pytest.mark.parametrize(
    ("begin", "end", "blocked"), [(3, 9, True), (3, 12, False), (0.2, 0.8, False), (3, 5, False)]
)
def test_a_sender_was_blocked_by_its_message_if_any_later_wait_of_it_ended_with_that(
    begin, end, blocked
):
    """It enters at 1, and at 2 a collective; its message is over at 9."""
    run = Run()
    run.message(SENDER, 0, Op.SEND, RECEIVER, 0, 1, 9)
    run.message(RECEIVER, 0, Op.RECV, SENDER, 0, 6, 9)
    run.collective(SENDER, 0, 0, 2, 2.5)
    run.wait(SENDER, 0, begin, end)
    rows = found(run, "gloo").rows
    rows = rows.select(rows.operation == rows.operation[rows.sends][0])
    assert part(rows, "waits") == (blocked, True)


@pytest.mark.parametrize(("left", "meets"), [(6, True), (3, False)])
def test_a_sender_blocked_until_its_receiver_came_waits_for_it(left, meets):
    made = handed((2, left), (5, 6), (Flag.HOST_BLOCKED, Flag.HOST_BLOCKED))
    assert part(made.rows, "decides") == (True, meets)
    assert part(made.rows, "waits") == (meets, True)


@pytest.mark.parametrize(
    ("waits", "calls", "decides", "blocked"),
    [
        ([(2, 6)], (), True, True),
        ([(2, 9)], (), False, False),  # which ended with something else
        ([(4, 6)], (3,), False, False),  # after another call: of whatever was sent
    ],
)
def test_a_wait_right_behind_a_send_is_for_it(waits, calls, decides, blocked):
    """The send is over at 6, when its receiver, which came at 5, has it."""
    rows = handed((1.9, 6), (5, 6), waits=waits, calls=calls).rows
    rows = rows.select(rows.operation == rows.operation[rows.sends][0])
    assert part(rows, "decides") == (True, decides)
    assert part(rows, "waits") == (blocked, True)


def test_messages_that_take_as_long_when_they_are_received_late_begin_with_both():
    """4 ms from the later end on: once the receiver is late, once the sender."""
    run = Run()
    for turn, (enter, posted) in enumerate(((10, 1), (1, 20))):
        since, over = 100 * turn, max(enter, posted) + 4
        run.message(0, turn, Op.SEND, 1, turn, since + enter, since + over)
        run.message(1, turn, Op.RECV, 0, turn, since + posted, since + over)
    assert found(run).rows.decides.all()


def test_messages_that_are_there_when_they_are_received_late_began_with_their_sender():
    """4 ms in flight, but 1 where the receiver came 19 ms later."""
    run = Run()
    for turn, (enter, posted, over) in enumerate(((10, 1, 14), (1, 20, 21))):
        since = 100 * turn
        run.message(0, turn, Op.SEND, 1, turn, since + enter, since + over)
        run.message(1, turn, Op.RECV, 0, turn, since + posted, since + over)
    rows = found(run).rows
    assert rows.decides.tolist() == rows.sends.tolist()


@pytest.mark.parametrize("op", [Op.SEND, Op.RECV])
def test_a_message_of_which_one_end_is_known_is_an_operation_of_one(op):
    run = Run()
    run.message(2, 0, op, 1, 0, 1, 5)
    made = found(run)
    assert made.operations.members.tolist() == [1]
    assert made.operations.whole.tolist() == [False]
    assert made.rows.decides.tolist() == [True]
    assert made.rows.waits.tolist() == [op is Op.RECV]


def test_what_other_ranks_recorded_is_left_out():
    """Of three ranks the second: its all-reduce misses a member, its messages an end."""
    run = Run()
    for rank in range(3):
        run.collective(rank, 0, 0, rank, 5)
    for sender, receiver in ((0, 1), (0, 2)):
        run.message(sender, 0, Op.SEND, receiver, 0, 6, 7)
        run.message(receiver, 0, Op.RECV, sender, 0, 6, 7)
    trace = run.trace()
    made = entries(trace, align(trace), np.array([0, 2]))
    assert made.operations.members.tolist() == [2, 2, 1]
    assert made.operations.whole.tolist() == [False, True, False]
    assert made.rows.lane.tolist() == [0, 1, 0, 1, 0]


@pytest.mark.parametrize(("entered", "enter", "held"), [("device", 3, 2), ("host", 5, 0)])
def test_an_entry_is_when_compute_came_to_it_where_a_profile_tells_that(entered, enter, held):
    """It came at 3 to a kernel that ran from 5 to 9, in stream 7."""
    run = Run(1)
    run.collective(
        0, 0, 0, 3, 10, flags=Flag.ASYNC | Flag.ON_DEVICE, device=0, stream=7,
        device_enter_ns=at(5), device_exit_ns=at(9),
    )  # fmt: skip
    trace = run.trace()
    trace.ranks[0].facts["entered"] = entered
    rows = entries(trace, align(trace), np.array([0])).rows
    assert (after(rows.enter_ns), after(rows.leave_ns)) == ([enter], [9])
    assert (rows.held_ns / MS).tolist() == [held]
    assert rows.stream.tolist() == [7 if entered == "device" else 0]


@pytest.mark.parametrize("named", [False, True])
def test_a_wait_right_behind_a_send_that_names_another_message_is_not_for_it(named):
    """From 2.5 to 5, as both are over; the receiver of the second came at 3."""
    run = Run(2)
    for turn, (sent, came) in enumerate(((1, 1), (2, 3))):
        run.message(0, 0, Op.SEND, 1, turn, sent, 5)
        run.message(1, 0, Op.RECV, 0, turn, came, 5, Flag.ASYNC)
    run.wait(0, 0, 2.5, 5, parent=int(named))
    rows = found(run).rows
    second = rows.select(rows.operation == 1)
    assert second.decides.tolist() == [True, not named]
    assert second.waits.tolist() == [not named, True]


def test_messages_are_queued_by_who_sends_to_whom_behind_collectives():
    run = Run()
    run.collective(0, 0, 0, 0, 1)
    run.collective(1, 0, 0, 0, 1)
    for turn, (sender, receiver) in enumerate(((0, 1), (1, 2), (0, 1))):
        run.message(sender, 0, Op.SEND, receiver, turn // 2, 2 + turn, 3 + turn)
        run.message(receiver, 0, Op.RECV, sender, turn // 2, 2 + turn, 3 + turn)
    table = found(run).operations
    assert table.message.tolist() == [False, True, True, True]
    queues = table.queue[1:].tolist()
    roots = table.root[1:].tolist()
    assert sorted(roots) == [0, 0, 1]
    assert len(set(zip(queues, roots, strict=True))) == len(set(queues)) == 2
    assert min(queues) > table.queue[0]


def test_of_messages_alone_none_are_exchanges_of_unequal_amounts():
    """A mask also where no collective has one: as numbers, it would choose the first message."""
    uneven = found(ring(ranks=3, steps=2).run()).operations.uneven
    assert uneven.dtype == bool
    assert not uneven.any()
