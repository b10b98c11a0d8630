"""Clocks of devices and the order within their streams, on a few entries each."""

import numpy as np
import pytest

from evenstep.diagnose.graph.streams import (
    idle_before,
    idle_until_over,
    in_order,
    issue_line,
    kernels_before,
    on_one_clock,
    with_kernels,
    with_stream_order,
)
from evenstep.diagnose.graph.structure import Intervals, row_numbers
from evenstep.trace.columns import Columns
from tests.diagnose.synthetic import MS

US = 1000


def table(**columns):
    """Rows, each of a kernel of its own but for those that begin and end together."""
    rows = {name: np.array(of) for name, of in columns.items()}
    count = len(rows["lane"])
    yes = np.ones(count, bool)
    rows = {"on_device": yes, "decides": yes, "waits": yes} | rows
    rows = {"held_ns": np.zeros(count, np.int64)} | rows
    together = row_numbers(*(rows[name] for name in ("lane", "enter_ns", "held_ns", "leave_ns")))
    return Columns({"kernel": together} | rows)


def test_messages_of_one_kernel_begin_and_end_together_on_one_lane():
    """Within 20 µs, the least that stamps of streams tell; a collective is a kernel of its own."""
    rows = table(
        lane=[0, 0, 1, 0, 0, 0], seq=range(6), operation=[0, 1, 0, 2, 3, 4], leave_ns=[90 * US] * 6,
        enter_ns=[5 * US, 3 * US, 5 * US, 40 * US, 41 * US, 42 * US],
        held_ns=[0, 2 * US, 0, 0, 1, 0],
    )  # fmt: skip
    operations = messages(4, 0, 0, 0, 0, 0)
    numbers = with_kernels(rows, operations).kernel.tolist()
    assert numbers[0] == numbers[1]
    assert numbers[3] == numbers[4]
    assert len(set(numbers)) == 4


@pytest.mark.parametrize("name", ["enter_ns", "leave_ns"])
@pytest.mark.parametrize(("apart", "kernels"), [(20_000, 1), (20_001, 2)])
def test_stamps_of_one_kernel_cross_by_20_us_at_most(name, apart, kernels):
    rows = table(lane=[0, 0], seq=[1, 2], operation=[0, 1], enter_ns=[0, 0], leave_ns=[MS, MS])
    for later in (np.array([0, apart]), np.array([apart, 0])):
        found = with_kernels(rows.with_column(name, rows[name] + later), messages(2, 0, 0))
        assert len(set(found.kernel.tolist())) == kernels


def messages(count, *groups):
    """So many operations that are messages, then others, of these groups."""
    groups = np.array(groups)
    return Columns({"message": np.arange(len(groups)) < count, "group": groups})


@pytest.mark.parametrize(("ends", "kernels"), [(300, 8), (0, 4)])
def test_messages_that_often_begin_but_do_not_end_together_have_a_kernel_each(ends, kernels):
    """A send to the next stage and a receive from the last one, four times; in all but the
    first they end 300 us apart, so that there it is chance. If none do, all are batches."""
    began = np.repeat(np.arange(4), 2) * MS
    late = np.tile([0, ends * US], 4) * (began > 0)
    rows = table(
        lane=[0] * 8, seq=range(8), operation=range(8), enter_ns=began, leave_ns=began + late + US
    )
    assert len(set(with_kernels(rows, messages(8, *[0] * 8)).kernel.tolist())) == kernels


@pytest.mark.parametrize(("apart", "order"), [(20_000, [1, 2, 3, 4]), (20_001, [1, 3, 2, 4])])
def test_collectives_that_compute_reaches_at_once_are_in_the_order_of_issue(apart, order):
    """The third is stamped up to 20 us before the second, from which it should begin: on streams of
    their own, as gathers and scatters of sharded modules are, copies before either differ."""
    stamps = np.array([0, 300 * US + apart, 300 * US, 900 * US])
    rows = table(
        lane=[0] * 4, enter_ns=stamps, leave_ns=stamps + MS, seq=[1, 2, 3, 4], sends=[False] * 4,
        operation=[0, 1, 2, 3],
    )  # fmt: skip
    found = in_order(rows, Columns({"message": np.zeros(4, bool)}))
    assert found.seq.tolist() == order
    assert (np.diff(found.enter_ns) >= 0).all()


def test_messages_keep_their_order_unless_one_kernel_carries_them():
    rows = table(
        lane=[0] * 3, enter_ns=[9, 5, 5], leave_ns=[20] * 3, seq=[1, 2, 3],
        sends=[False, False, True], operation=[0, 1, 2],
    )  # fmt: skip
    assert in_order(rows, Columns({"message": np.ones(3, bool)})).seq.tolist() == [3, 2, 1]


def test_an_end_is_one_moment_on_all_clocks():
    """Lane 1's clock is 100 behind, lane 2 shares an operation with lane 1 alone, 50 ahead of the
    first; lane 3 shares none and stays."""
    rows = table(
        lane=[0, 1, 1, 2, 3], operation=[0, 0, 1, 1, 2],
        enter_ns=[10, -80, -60, 100, 7], leave_ns=[30, -70, -40, 110, 8],
    )  # fmt: skip
    found = on_one_clock(rows, 4)
    assert found.leave_ns.tolist() == [30, 30, 60, 60, 8]
    assert found.enter_ns.tolist() == [10, 20, 40, 50, 7]


def test_the_end_of_a_kernel_of_several_messages_tells_no_clock_where_another_does():
    """It ends with the last of them: the second lane's ended 5 later than what the first saw."""
    rows = table(
        lane=[0, 0, 0, 1, 1, 1], operation=[0, 1, 2, 0, 1, 2],
        enter_ns=[0, 20, 20, 100, 120, 120], leave_ns=[10, 30, 30, 110, 135, 135],
    )  # fmt: skip
    assert on_one_clock(rows, 2).leave_ns[3:].tolist() == [10, 35, 35]


@pytest.mark.parametrize("name", ["decides", "waits"])
@pytest.mark.parametrize("row", [1, 3])
def test_the_end_of_who_need_not_wait_or_be_waited_for_tells_no_clock_where_another_does(name, row):
    """The second operation's, of the first lane or of the second, which is 100 ahead."""
    rows = table(
        lane=[0, 0, 1, 1], operation=[0, 1, 0, 1], enter_ns=[0, 20, 100, 120],
        leave_ns=[10, 30, 110, 185],
    )  # fmt: skip
    rows = rows.with_column(name, np.arange(4) != row)
    assert on_one_clock(rows, 2).leave_ns[2:].tolist() == [10, 85]
    with_end = rows.select(rows.operation == 1)  # of which alone something is known
    with_end = with_end.with_column("operation", np.zeros(2, int))
    assert on_one_clock(with_end, 2).leave_ns.tolist() == [30, 30]


def test_an_end_that_a_lane_did_not_see_stays_unknown_and_tells_no_clock():
    rows = table(
        lane=[0, 0, 1, 1], operation=[0, 1, 0, 1], enter_ns=[5, 20, 105, 120],
        leave_ns=[10, 30, 110, 0],
    )  # fmt: skip
    found = on_one_clock(rows, 2)
    assert found.leave_ns.tolist() == [10, 30, 10, 0]
    assert found.enter_ns.tolist() == [5, 20, 5, 20]


def test_a_clock_that_drifts_is_followed_along_a_line():
    ends = np.arange(1, 9) * 1_000_000
    other = 500 + ends + ends // 10_000  # 100 parts in a million faster
    rows = table(
        lane=np.repeat([0, 1], 8), operation=np.tile(np.arange(8), 2),
        enter_ns=np.append(ends, other) - 10, leave_ns=np.append(ends, other),
    )  # fmt: skip
    found = on_one_clock(rows, 2)
    assert np.abs(found.leave_ns[8:] - ends).max() <= 1
    assert np.abs(found.enter_ns[8:] - ends + 10).max() <= 1


def test_one_end_far_off_bends_no_line():
    ends = np.arange(1, 31) * 1_000_000
    other = ends + 500
    other[7] += 400_000
    rows = table(
        lane=np.repeat([0, 1], 30), operation=np.tile(np.arange(30), 2),
        enter_ns=np.append(ends, other) - 10, leave_ns=np.append(ends, other),
    )  # fmt: skip
    assert np.abs(np.delete(on_one_clock(rows, 2).leave_ns[30:] - ends, 7)).max() <= 1


def test_ends_of_one_moment_tell_no_drift_and_one_far_off_moves_no_clock():
    ends = np.full(5, 1_000_000)
    other = np.repeat(700_000, 5)
    first = ends + np.array([0, 0, 0, 0, 90_000])
    rows = table(
        lane=np.repeat([0, 1], 5), operation=np.tile(np.arange(5), 2),
        enter_ns=np.append(first, other) - 10, leave_ns=np.append(first, other),
    )  # fmt: skip
    assert on_one_clock(rows, 2).leave_ns[5:].tolist() == ends.tolist()


def test_a_clock_that_wanders_is_followed_piece_by_piece():
    """Over 256 ends, by 10 µs to and fro: a line alone would miss by up to as much."""
    ends = np.arange(256) * 1_000_000
    wander = np.rint(10_000 * np.abs(np.linspace(-1, 1, 256))).astype(np.int64)
    rows = table(
        lane=np.repeat([0, 1], 256), operation=np.tile(np.arange(256), 2),
        enter_ns=np.append(ends, ends + wander), leave_ns=np.append(ends, ends + wander),
    )  # fmt: skip
    inner = slice(256 + 32, -32)  # between the middles of the first and the last piece
    off = on_one_clock(rows, 2).leave_ns[inner] - ends[32:-32]
    assert np.abs(off).max() <= 2500  # half of what 64 ends wander, at the turn


@pytest.mark.parametrize(
    ("enter", "leave", "idle"),
    [
        (12_000, 20_000, 8_000),  # compute until 10 and from 21 on: idle since the entry
        (4_000, 20_000, 10_000),  # since compute ended
        (4_000, 24_000, 14_000),  # it went on 3 µs before, as the end is known to that
        (4_000, 24_001, 0),  # had gone on before
        (22_000, 50_000, 20_000),  # from 70 on, as stamps of two streams cross by 20 µs
        (22_000, 49_999, 0),
    ],
)
def test_compute_waited_for_an_operation_where_it_was_idle_until_its_end(enter, leave, idle):
    computes = Intervals(np.ones(3, int), np.array([0, 21, 70]) * US, np.array([10, 30, 80]) * US)
    one = (np.array([at]) for at in (1, enter, leave))
    assert idle_until_over(computes, *one).tolist() == [idle]


def test_a_lane_without_compute_was_never_idle_for_anything():
    none = Intervals(*np.zeros((3, 0), np.int64))
    assert idle_until_over(none, np.array([0]), np.array([1]), np.array([9])).tolist() == [0]


def _line(enter, issued, seen=None):
    seen = enter if seen is None else seen  # at once: by clocks that may differ, nothing is known
    rows = {"lane": np.zeros_like(enter), "enter_ns": enter, "leave_ns": enter}
    return issue_line(Columns({**rows, "issued_ns": issued, "seen_ns": seen}))


def test_hosts_that_are_always_far_ahead_are_placed_by_when_they_saw_ends():
    # issued 140 ms before, on a clock 1 s ahead, and looked for four times a second
    enter = np.arange(1_000) * 11 * MS
    seen = -(-enter // (250 * MS)) * 250 * MS
    ahead = _line(enter, enter + 860 * MS, seen + 1_000 * MS).offset_at(enter)
    # 44 looks, 5 ms after an end on average: the soonest comes within 2 ms, one in a thousand not
    assert 998 * MS < ahead.min() <= ahead.max() <= 1_000 * MS


@pytest.mark.parametrize("every", [22, 33])
def test_looks_that_keep_step_with_the_ends_do_not_tell_when_these_were(every):
    # each issued as it is entered, looked for 4 ms after each second or third end: of the 11 ms
    # between two ends they leave out the last 7, so why not the first 4
    enter = np.arange(1_000) * 11 * MS
    seen = -(-(enter - 4 * MS) // (every * MS)) * every * MS + 4 * MS
    assert _line(enter, enter + 30, seen).offset_at(enter) == pytest.approx(30, abs=1)


def test_the_curve_of_issue_follows_a_clock_that_drifts_and_no_faster_one():
    enter = np.arange(64) * MS
    wander = np.rint(20_000 * np.sin(enter / (200 * MS))).astype(np.int64)  # 100 parts in a million
    found = _line(enter, enter + 30 + wander)
    assert found.offset_at(enter) == pytest.approx(30 + wander, abs=1)
    jumping = _line(enter, enter + enter // 1000)  # a thousand parts, of which it falls 200
    assert jumping.offset_at(enter) == pytest.approx(63_000 - 200.0 * np.arange(63, -1, -1))


def test_nothing_begins_before_it_is_issued_by_the_least_difference_of_the_clocks():
    # every fourth begins the moment it is issued, 50 ns later by the host's clock; others lag
    enter = np.arange(400) * 1000
    line = _line(enter, enter + 50 - 7 * (np.arange(400) % 4))
    assert line.offset_at(enter) == pytest.approx(50, abs=1)


def test_an_entry_far_behind_its_issue_does_not_move_the_curve():
    enter = np.array([0, 50, 100])
    found = _line(enter, enter + np.array([7, -900, 7]))
    assert found.offset_at(np.array([0, 50, 100])) == pytest.approx([7, 7, 7], abs=0.02)


# -- the order within streams ----------------------------------------------------------------------


def streams(**more):
    """Two streams of one lane in one step: operations 0, 2 and 3 on the first, 1 on the second."""
    columns = {
        "lane": [0] * 4, "step": [0] * 4, "seq": [1, 2, 3, 4], "operation": [0, 1, 2, 3],
        "stream": [7, 8, 7, 7], "sends": [False] * 4, "calls": [False] * 4,
        "enter_ns": [0, 5 * MS, 10 * MS, 30 * MS], "leave_ns": [10 * MS, 9 * MS, 20 * MS, 40 * MS],
    }  # fmt: skip
    return table(**columns | more)


ALONE = Columns(
    {
        "queue": np.zeros(4, int), "message": np.zeros(4, bool), "op": np.ones(4, int),
        "size_bytes": np.ones(4, int), "members": np.full(4, 2),
    }
)  # fmt: skip


def test_an_entry_comes_after_the_one_before_it_in_its_stream():
    assert with_stream_order(streams(), ALONE).after.tolist() == [-1, -1, 0, 2]


@pytest.mark.parametrize(
    ("changed", "after"),
    [
        ({"lane": [0, 0, 1, 1]}, [-1, -1, -1, 2]),
        ({"step": [0, 0, 0, 1]}, [-1, -1, 0, -1]),
        ({"stream": [0, 8, 0, 0]}, [-1, -1, -1, -1]),  # 0 is unknown
        ({"seq": [4, 3, 2, 1]}, [2, -1, 3, -1]),
    ],
)
def test_an_order_is_that_of_a_lane_a_step_and_a_stream_by_issue(changed, after):
    assert with_stream_order(streams(**changed), ALONE).after.tolist() == after


def test_a_message_comes_after_all_that_the_kernel_before_it_carries():
    """Operations 0 and 1 are of one kernel, then come a send and a receive."""
    rows = streams(
        stream=[7] * 4, enter_ns=[0, 0, 10 * MS, 30 * MS],
        leave_ns=[9 * MS, 9 * MS, 20 * MS, 40 * MS],
    )  # fmt: skip
    before = kernels_before(with_stream_order(rows, ALONE))
    assert before.tolist() == [-1, -1, rows.kernel[0], rows.kernel[2]]


@pytest.mark.parametrize(
    ("leave", "after"),
    [
        ([10, 30, 40, 50], [-1, 0, 1, 2]),  # ms: all in the order of issue
        ([10, 0, 40, 0], [-1, 0, 1, 2]),  # ends that nobody waited for tell nothing
        ([10, 60, 40, 70], [-1, -1, 0, 1]),  # the third before the second: a stream for each pair
        ([40, 60, 10, 50], [-1] * 4),  # nor that
    ],
)
def test_messages_run_in_their_groups_stream_or_their_pairs_where_no_end_denies_it(leave, after):
    """Lane 1 sends to lanes 0 and 2 in turn; theirs are operations of one member."""
    rows = streams(
        stream=[0] * 4, lane=[1] * 4, sends=[True] * 4, enter_ns=[0, MS, 2 * MS, 3 * MS],
        leave_ns=[one * MS for one in leave],
    )  # fmt: skip
    peers = table(
        lane=[0, 2, 0, 2], step=[0] * 4, seq=range(4), operation=range(4), stream=[0] * 4,
        sends=[False] * 4, calls=[False] * 4, enter_ns=[0] * 4, leave_ns=[0] * 4,
    ).with_column("kernel", np.arange(10, 14))  # fmt: skip
    both = Columns.concatenate([rows, peers.only(*rows)])
    operations = ALONE.with_columns(message=np.ones(4, bool), group=np.zeros(4, int))
    assert with_stream_order(both, operations).after[:4].tolist() == after


@pytest.mark.parametrize(("kernels", "after"), [([0, 1], -1), ([0, 0], 0)])
def test_two_messages_that_their_ranks_issue_in_different_orders_have_no_stream(kernels, after):
    """Lane 0 sends and then receives, and so does lane 1: in one stream each would wait for the
    other, but for messages of one kernel; a third message comes after these."""
    rows = table(
        lane=[0] * 3 + [1] * 3, step=[0] * 6, seq=[1, 2, 3] * 2, operation=[0, 1, 2, 1, 0, 2],
        stream=[0] * 6, sends=[True, False, True] * 2, calls=[False] * 6,
        enter_ns=[0, MS, 20 * MS] * 2, leave_ns=[10 * MS, 10 * MS, 30 * MS] * 2,
        kernel=[*kernels, 2, 3 + kernels[0], 3 + kernels[1], 5],
    )  # fmt: skip
    operations = ALONE.select(slice(3)).with_columns(
        message=np.ones(3, bool), group=np.zeros(3, int)
    )
    found = with_stream_order(rows, operations).after
    assert found[[0, 3]].tolist() == [-1, -1]
    assert found[2] == (after if after < 0 else 1)


def test_a_lane_that_shares_only_kernels_of_several_messages_is_placed_before_others_like_it():
    """Lane 1, 100 ahead, shares one with the first; lane 2, 200 ahead, as well, which it saw end 5
    later, and an operation alone with lane 1, that tells its clock."""
    rows = table(
        lane=[0, 0, 0, 0, 1, 1, 1, 2, 2, 2], operation=[0, 1, 3, 4, 0, 1, 2, 3, 4, 2],
        enter_ns=[0, 0, 40, 40, 100, 100, 140, 240, 240, 240],
        leave_ns=[30, 30, 60, 60, 130, 130, 150, 265, 265, 250],
    )  # fmt: skip
    assert on_one_clock(rows, 3).leave_ns[4:].tolist() == [30, 30, 50, 65, 65, 50]


def scattered(lanes=1):
    """Twelve steps of each lane: a reduction begins 5 ms after its entry, as the one that scatters
    ends, which is of another group."""
    turn, lane = np.tile(np.arange(36), lanes), np.arange(lanes).repeat(36)
    came = turn // 3 * 20 * MS
    kind = turn % 3
    rows = table(
        lane=lane, operation=turn, seq=turn, step=turn // 3, sends=turn < 0, calls=turn < 0,
        stream=turn * 0, enter_ns=came + np.choose(kind, [0, 5 * MS, MS]),
        leave_ns=came + np.choose(kind, [5 * MS, 7 * MS, 15 * MS]),
    )  # fmt: skip
    operations = Columns(
        {
            "op": np.choose(kind, [5, 1, 4]), "size_bytes": np.ones_like(turn),
            "members": np.full_like(turn, 2), "message": turn < 0, "queue": (kind == 1).astype(int),
        }
    )  # fmt: skip
    return rows, operations.select(slice(36))


def test_a_kind_that_mostly_begins_at_an_end_comes_after_it():
    rows, operations = scattered()
    after = with_stream_order(rows, operations).after
    assert after.tolist() == [one for k in range(12) for one in (-1, 3 * k, -1)]


@pytest.mark.parametrize(("sooner", "after"), [(20_001, 0), (20_000, -1)])
def test_what_compute_reaches_as_an_end_comes_is_not_held_up_by_it(sooner, after):
    """On two lanes compute comes to what follows the reduction so many ns before that begins: the
    least that tells, or within what stamps may cross by."""
    rows, operations = scattered(lanes=2)
    following = rows.operation % 3 == 2
    early = rows.enter_ns + following * (4 * MS - sooner)
    found = with_stream_order(rows.with_column("enter_ns", early), operations)
    assert found.after[[1, 37]].tolist() == [after, after]


@pytest.mark.parametrize("name", ["queue", "calls"])
def test_what_is_in_one_queue_or_blocks_its_thread_comes_after_nothing(name):
    rows, operations = scattered()
    if name == "queue":
        operations = operations.with_column("queue", np.zeros(36, int))
    else:
        rows = rows.with_column("calls", np.ones(36, bool))
    assert (with_stream_order(rows, operations).after == -1).all()


@pytest.mark.parametrize(("first", "after"), [(2, 0), (1, -1)])
def test_a_kind_that_hardly_ever_begins_at_an_end_comes_after_nothing(first, after):
    """From this step of twelve on it begins 0.1 ms after its entry: two tell, one does not."""
    rows, operations = scattered()
    early = (rows.step >= first) & (rows.operation % 3 == 1)
    changed = rows.with_column("enter_ns", rows.enter_ns - early * 4_900_000)
    assert with_stream_order(changed, operations).after[1] == after


def test_an_idle_device_begins_equally_soon_after_every_issue_of_a_place():
    """After 4 ms, at one place .14 ms behind the host, with 20 µs of noise; at another, between
    .1 and .3 ms. After .3 ms .14 ms are no short time, .05 ms are what a launch takes."""
    slack = np.array([140, 160, 150, 100, 200, 300, 140, 50]) * 1000
    lasted = np.array([4, 4, 4, 4, 4, 4, 0.3, 0.3]) * 1e6
    found = idle_before(slack, lasted, np.array([5, 5, 5, 7, 7, 7, 8, 9]))
    assert found.tolist() == [True, True, True, True, False, False, False, True]
