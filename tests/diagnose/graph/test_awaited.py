"""The pieces of the max-plus model of a gap, on a few gaps each."""

import numpy as np
import pytest

from evenstep.diagnose.graph.awaited import (
    Awaited,
    _in_stream,
    _most_end_with,
    _of_members,
    _shares_by_idle_time,
    _until_over,
    _waits_of_rows,
    _work_done_after,
    entered_kinds,
    infer_waits,
    places_of,
    usual_shares,
)
from evenstep.diagnose.graph.gaps import (
    FURTHEST,
    WHOLE,
    Gaps,
    best_shares,
    clearly,
    fit_shares,
    gaps_between,
    weighted_median,
)
from evenstep.diagnose.graph.reached import issued_beside, with_reached
from evenstep.trace.columns import Columns
from evenstep.trace.spool.layout import Op
from tests.diagnose.synthetic import MS

NAN = np.nan
US = 1000


def gaps(lasted, over, *, kind=None, cell=None, idle=None, computed=None):
    """Gaps of these lengths in ms; `over` are ends of the last operation, or rows of several."""
    lasted, over = np.array(lasted, float) * MS, np.atleast_2d(np.array(over, float)) * MS
    count = len(lasted)
    ends = np.full((FURTHEST, count), -np.inf)
    ends[: len(over)] = over
    kind = np.array(kind or [0] * count)
    return Gaps(
        np.arange(1, count + 1), kind, 0 * kind, np.array(cell or [0] * count),
        np.zeros(count, bool), np.array(idle or [False] * count), lasted,
        np.array(computed or [NAN] * count) * MS, ends,
    )  # fmt: skip


def shares(*rows):
    """Shares of work before the wait for the last entry, the one before it, and so on; by kind."""
    found = np.full((len(rows), FURTHEST), NAN)
    for line, row in zip(found, rows, strict=True):
        line[: len(row)] = row
    return found


@pytest.mark.parametrize(
    ("share", "work", "unseen"),
    [
        ([], 10, False),  # nothing waited for: all of it is work
        ([0.0], 4, False),  # from 6 on
        ([0.5], 8, False),  # of 8, 4 before the wait and 4 from 6 on
        ([1.0], 10, False),  # after all of it: it was over by then
        ([0.0, 0.0], 3, False),  # the one before was over at 7 alone
    ],
)
def test_work_is_what_fits_behind_every_wait(share, work, unseen):
    found = gaps([10], [[6], [7]]).work(shares(share))
    assert (found[0] / MS).tolist() == pytest.approx([work])
    assert found[1].tolist() == [unseen]


def test_a_wait_after_all_work_hides_how_long_that_was():
    _, unseen = gaps([10] * 4, [10, 9.81, 9.79, 12]).work(shares([1.0]))  # within 2 %
    assert unseen.tolist() == [True, True, False, True]
    _, unseen = gaps([0.1] * 2, [0.0971, 0.0969]).work(shares([1.0]))  # within 3 µs
    assert unseen.tolist() == [True, False]


@pytest.mark.parametrize(("leave", "rows"), [(5.5, [6]), (6.5, [])])
def test_who_was_idle_until_an_end_came_to_one_of_the_next_six_entries_then(leave, rows):
    enter = np.arange(9) * MS
    table = {"lane": 0 * enter, "enter_ns": enter, "leave_ns": enter + round(leave * MS)}
    first, row = _until_over(Columns(table), np.array([0]))
    assert (first.tolist(), row.tolist()) == ([0] * len(rows), rows)


def test_what_a_device_computed_is_its_work_and_hides_nothing():
    work, unseen = gaps([10], [10], computed=[3]).work(shares([1.0]))
    assert (work / MS).tolist() == [3]
    assert not unseen.any()


def test_a_gap_lasts_until_every_wait_and_what_follows_it():
    one = gaps([0, 0, 0], [[6, 1, 6], [9, 0, 0]])
    lasts = one.expected(shares([0.5, 1.0]), np.full(3, 4.0 * MS))
    assert (lasts / MS).tolist() == [9, 4, 8]  # 6 + 2 but until 9; work alone; 6 + 2


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
    paces = one.paces(shares([], [], [], [])).reshape(4, 4)
    assert paces.tolist() == [[1] * 4] * 3 + [[1.5] * 4]


def test_a_misfit_is_the_mean_difference_from_what_a_gap_would_last():
    one = gaps([10, 14, 10], [0, 0, 0])
    apart, usual = one.misfit(shares([]), np.ones(3))
    assert (usual / MS).tolist() == [10]
    assert (apart / MS).tolist() == pytest.approx([4 / 3])


def test_a_gap_in_which_the_device_was_idle_may_be_longer():
    one = gaps([10, 14, 9], [0, 0, 0], idle=[False, True, True])
    apart, _ = one.misfit(shares([]), np.ones(3))
    assert (apart / MS).tolist() == pytest.approx([1 / 3])  # 9 is shorter than 10


def test_a_smaller_misfit_counts_where_it_is_clearly_so():
    before, now = np.array([10.0, 10, 10]), np.array([8.0, 9.5, 9.5])
    assert clearly(now, before, 0.4).tolist() == [True, False, False]  # 15 % of what is left
    assert clearly(now, before, 2.0).tolist() == [False, False, False]


def test_the_only_place_outside_of_backward_has_the_pace_of_the_whole_step():
    """Four places of 8 ms in backward, and after it 6 ms of an optimizer, in every third of nine
    steps once gradients are there after 30 ms: that wait is found."""
    steps, late = 9, [30.0, 0.0, 0.0] * 3
    found = gaps(
        [each for wait in late for each in (8, 8, 8, 8, wait + 6)],
        [each for wait in late for each in (-5, -5, -5, -5, wait)],
        kind=[0, 1, 2, 3, 4] * steps,
        cell=[2 * step + (place < 4) for step in range(steps) for place in range(5)],
    )
    never = shares([], [], [], [], [])
    share, _ = fit_shares(found, never, np.ones(5, bool), WHOLE)
    assert share[4, 0] == 0
    assert np.isnan(share[:4]).all()


@pytest.mark.parametrize("part", [0.0, 1 / 3, 0.5, 0.75])
def test_a_wait_is_found_after_the_part_of_the_work_that_it_comes_after(part):
    """Four places of 8 ms of work in a step, and one of 12, a part of which comes before a wait
    that is over after 2 to 40 ms."""
    steps, over = 24, np.random.default_rng(0).uniform(2, 40, 24)
    found = gaps(
        [each for at in over for each in (8, 8, 8, 8, max(at, 12 * part) + 12 * (1 - part))],
        [each for at in over for each in (-5, -5, -5, -5, at)],
        kind=[0, 1, 2, 3, 4] * steps,
        cell=[2 * step for step in range(steps) for _ in range(5)],
    )
    never = shares([], [], [], [], [])
    share = best_shares(found, never, np.zeros(5, bool), never)
    assert share[4, 0] == pytest.approx(part)
    assert np.isnan(share[:4]).all()


def test_a_part_of_work_is_reached_after_the_waits_before_it():
    """Half of 8 ms of work, where a wait until 6 came before any of it."""
    one = gaps([20], [[14], [6]])
    found = _work_done_after(
        one, shares([0.5, 0.0]), np.array([0.5]), np.array([8.0 * MS]), np.ones(1, bool)
    )
    assert (found / MS).tolist() == [10]


def test_waits_of_rows_are_counted_in_entries_and_begin_with_their_work():
    """Three gaps of a lane: the second entry's operation is waited for at once; the first one's
    after half of the work of the gap after next, 3 of 6 ms."""
    one = gaps([4, 9, 8], [[2, 3, -1], [-9, 5, 1]], kind=[0, 1, 2])
    never = dict.fromkeys(("on_device", "sends"), np.zeros(4, bool))
    rows = Columns({"enter_ns": np.array([0, 4, 13, 21]) * MS, "lane": np.zeros(4, int)} | never)
    rows = rows.with_column("leave_ns", np.zeros(4))
    made = _waits_of_rows(rows, one, shares([], [0.0, 0.5], []), one.kind)
    assert made.ahead.tolist() == [2, 1, 0, 1]  # the last's is taken to be waited for
    assert made.worked.tolist() == [True, False, False, False]
    assert (made.since_ns / MS).tolist() == [4 + 6, 4, 13, 21]


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
    empty["size_bytes"] = np.zeros(len(op), int)
    return Columns(empty | {"op": np.array(op), "root": np.zeros(len(op), int)} | more)


def test_entries_of_the_same_place_in_the_same_program_are_one_kind():
    """Lane 0 does A B in two steps and A in a third; lane 1 does A B, too, and then B A."""
    lane = np.array([0, 0, 0, 0, 0, 1, 1, 1, 1])
    step = np.array([0, 0, 1, 1, 2, 0, 0, 1, 1])
    op = [1, 5, 1, 5, 1, 1, 5, 5, 1]
    rows = Columns({"lane": lane, "step": step, "operation": np.arange(9), "sends": lane < 0})
    places = places_of(rows, entered_kinds(rows, operations(op))).tolist()
    assert places[:2] == places[2:4] == places[5:7]
    assert len(set(places)) == 5


@pytest.mark.parametrize(("op", "apart"), [(Op.ALL_REDUCE, True), (Op.ALL_GATHER, False)])
def test_steps_that_reduce_other_amounts_are_of_another_program(op, apart):
    """Two models in turn: 10 and 25 MB, and batches that make that 2 % more or less."""
    size = np.array([10, 25, 10.2, 24.5]).repeat(2) * 1e6
    step = np.arange(4).repeat(2)
    table = operations([int(op)] * 8, size_bytes=size.astype(int))
    rows = {"lane": 0 * step, "step": step, "operation": np.arange(8), "sends": step < 0}
    places = places_of(Columns(rows), entered_kinds(Columns(rows), table)).reshape(4, 2)
    assert (places[0] == places[2]).all()
    assert (places[1] == places[3]).all()
    assert (places[0] != places[1]).all() == apart


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
        "kernel": np.arange(enter.size),
        **{name: np.zeros(enter.size, int) for name in ("idled_ns", "freed_ns")},
    }  # fmt: skip
    return Columns(rows | more)


def test_messages_sent_are_waited_for_where_all_that_follows_them_comes_so_long_after_their_ends():
    """Three times a step a message is sent, 8 ms of work follow its end, another is received, and
    16 ms of work follow that. The ends are the same in all steps: one place alone tells nothing."""
    within = np.array([[0, 9, 26, 44, 61, 81], [1, 10, 36, 45, 73, 82]])
    enter, leave = (98 * np.arange(12)[:, None] + times for times in within)
    sends = np.tile([True, False], 36)
    table = operations([int(Op.SEND)] * 72, message=np.ones(72, bool))
    found = infer_waits(steps_of(enter, leave, sends=sends), table, leave.reshape(-1) * MS)
    assert (found.ahead[:-1] == 1).all()
    assert not found.worked.any()


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


def test_work_that_late_peers_always_hide_is_that_of_the_same_place_in_other_layers():
    """Every layer computes for 10 ms, with the next one's parameters under way: of the first three
    for 2 ms; of the others until 13 to 15 ms after their entry, when the next entry follows."""
    moved = np.tile([2, 2, 2, 0, 0, 0, 1], (9, 1))
    moved[:, 3:6] = 13 + np.arange(27).reshape(9, 3) % 3
    lasted = np.maximum(moved, 10)
    enter = (np.cumsum(lasted) - lasted.reshape(-1)).reshape(9, 7)
    found = lanes(
        enter, enter + moved, [int(Op.ALL_GATHER)] * 6 + [int(Op.ALL_REDUCE)],
        on_device=np.ones(63, bool),
    )  # fmt: skip
    ahead, worked, since = (each.reshape(9, 7)[:, 3:5] for each in found[:3])
    assert (ahead == 1).all()
    assert worked.all()
    assert (since - enter[:, 3:5] * MS == 10 * MS).all()


def test_as_a_step_begins_no_scatter_of_the_last_is_awaited_in_place_of_a_gather():
    """Three gathers are entered as a step begins. Each of eight layers of 5 ms waits for its own,
    of 6 to 9, and enters the third gather after that, or a scatter; compute waits for what was
    entered three before, but for what was before the step."""
    steps, layers, random = 12, 8, np.random.default_rng(3)
    begun, enter, leave = 0, [], []
    for _ in range(steps):
        came, over, done = [begun] * 3, [begun], begun
        for layer in range(layers):
            over.append(max(over[-1], came[layer]) + int(random.integers(6, 10)))
            done = max(done, over[-1]) + 5
            came.append(done)
        enter.append(came)
        leave.append(over[1:] + [each + 1 for each in came[layers:]])
        begun = done + 11
    ops = [int(Op.ALL_GATHER)] * layers + [int(Op.REDUCE_SCATTER)] * 3
    device = np.ones(steps * len(ops), bool)
    found = lanes(np.array(enter), np.array(leave), ops, on_device=device)
    assert found.ahead.reshape(steps, -1).tolist() == [[3] * layers + [0, 0, 1]] * steps


def lane_rows(lane, step, enter, leave, **more):
    count = len(lane)
    rows = {
        "lane": np.array(lane), "step": np.array(step), "enter_ns": np.array(enter) * MS,
        "leave_ns": np.array(leave) * MS, "operation": np.arange(count),
        "on_device": np.ones(count, bool), "sends": np.zeros(count, bool),
        "computed_ns": np.full(count, NAN), "kernel": np.arange(count),
        "idled_ns": np.zeros(count), "freed_ns": np.zeros(count), "after": np.full(count, -1),
    }  # fmt: skip
    return Columns(rows | more)


def test_a_gap_is_between_two_entries_of_a_lane_and_knows_the_ends_before_it():
    """Lanes 1 and 2; the second of lane 1 opens a step 3 ms after the first, over at 2."""
    rows = lane_rows([1, 1, 1, 2, 2], [0, 1, 1, 0, 0], [0, 3, 7, 1, 5], [2, 6, 8, 9, 9])
    found = gaps_between(rows, rows.leave_ns, np.arange(5), np.array([1, 2, 1, 1, 2]))
    assert len(set(found.pair.tolist())) == 3  # that which opens a step is another
    assert found.row.tolist() == [1, 2, 4]
    assert found.kind.tolist() == [0, 1, 3]
    assert found.opens.tolist() == [True, False, False]
    assert (found.lasted / MS).tolist() == [3, 4, 4]
    assert (found.over[0] / MS).tolist() == [2, 3, 8]
    assert (found.over[1] / MS).tolist() == [-np.inf, -1, -np.inf]
    assert found.cell.tolist() == [2, 2, 4]
    assert np.isnan(found.computed).all()
    assert not found.idle.any()


@pytest.mark.parametrize(("slack", "idle"), [(300_000, 1), (301_000, 0), (-1, 0), (0, 1)])
def test_a_device_was_idle_that_begins_soon_after_its_host_has_issued(slack, idle):
    """Within a tenth of 3 ms."""
    rows = lane_rows([1, 1], [0, 0], [0, 3], [1, 4], slack_ns=np.array([0, slack]))
    assert gaps_between(rows, rows.leave_ns, *np.zeros((2, 2), int)).idle.tolist() == [bool(idle)]


def test_of_very_many_gaps_those_of_some_lanes_and_steps_are_fitted():
    """Of 150,000 gaps, ten in forward or backward each, all of every third step."""
    many = np.arange(150_000)
    whole = Gaps(*[many] * 3, many // 10, *[many] * 4, many[None])
    kept = whole.sample().row
    assert kept.tolist() == many[many // 20 % 3 == 0].tolist()
    few = Gaps(*[many[:60_000]] * 3, many[:60_000] // 10, *[many[:60_000]] * 4, many[None, :60_000])
    assert len(few.sample().row) == 60_000


#: Twelve steps of a gather, 5 ms, and a reduction, 4 ms, 10 and 20 ms after the step began.
GATHER, REDUCE = int(Op.ALL_GATHER), int(Op.ALL_REDUCE)


def two(first, second, ends):
    steps = np.arange(12)
    enter = np.stack([30 * steps + 10, 30 * steps + 20], axis=1).reshape(-1)
    leave = enter + np.tile(ends, 12)
    rows = lane_rows(np.ones(24, int), steps.repeat(2), enter, leave)
    table = operations([first, second] * 12)
    return rows, table, gaps_between(rows, rows.leave_ns, *[np.tile([0, 1], 12)] * 2)


@pytest.mark.parametrize(
    ("first", "second", "ends", "waits"),
    [
        (GATHER, REDUCE, (5, 4), [[0, NAN], [0, NAN]]),
        (REDUCE, REDUCE, (5, 4), [[NAN, NAN], [0, NAN]]),  # the last of several is waited for
        (GATHER, REDUCE, (12, 4), [[NAN, NAN], [0, 0]]),  # who went on before its end waits later
    ],
)
def test_usually_the_last_of_several_reductions_is_waited_for_and_anything_else(
    first, second, ends, waits
):
    rows, table, found = two(first, second, ends)
    share = usual_shares(rows, table, found)
    assert share[:, :2].tolist() == pytest.approx(np.array(waits), nan_ok=True)
    assert np.isnan(share[:, 2:]).all()


def test_a_wait_that_most_end_with_comes_after_the_work_that_others_show():
    """Three lanes gather for 10 ms; two reduce as that is over, the third after 14 ms of work."""
    steps, lanes = 12, 3
    enter = np.tile(40 * np.arange(steps)[:, None] + [10, 20], (lanes, 1, 1))
    enter[2, :, 1] += 4
    leave = np.stack([enter[:, :, 0] + 10, np.full((lanes, steps), 0) + enter[2, :, 1] + 2], axis=2)
    rows = lane_rows(
        np.repeat(np.arange(lanes), 2 * steps), np.tile(np.arange(steps).repeat(2), lanes),
        enter.reshape(-1), leave.reshape(-1), operation=np.tile(np.arange(2 * steps), lanes),
    )  # fmt: skip
    place = np.tile([0, 1], lanes * steps)
    table, found = (
        operations([GATHER, REDUCE] * steps),
        gaps_between(rows, rows.leave_ns, place, place),
    )
    assert usual_shares(rows, table, found)[:, 0].tolist() == [1, 0]
    alone = gaps_between(
        rows.select(rows.lane < 2), rows.leave_ns[rows.lane < 2], *[place[:48]] * 2
    )
    assert usual_shares(rows, table, alone)[:, 0].tolist() == [0, 0]  # which nobody shows


@pytest.mark.parametrize(
    ("other", "long", "part"), [(60_001, 3, 1), (60_000, 3, 0), (60_001, 1, 0)]
)
def test_work_is_done_before_a_wait_if_most_other_gaps_last_twice_what_follows_it(
    other, long, part
):
    """Five gaps of 2 ms end 30 us after the operation, three others with no end, 20 us long but for
    so many."""
    lasted = np.array([2 * MS] * 5 + [other] * long + [20_000] * (3 - long)) / MS
    found = gaps(lasted, np.append(lasted[:5] - 0.03, [-np.inf] * 3))
    ended, before = next(_most_end_with(found))
    assert (ended.tolist(), before.tolist()) == ([True], [part])


@pytest.mark.parametrize(
    ("after", "more", "ends"),
    [
        (-20_000, {}, True),
        (-20_001, {}, False),
        (40_000, {}, True),  # 2 % of its length
        (40_001, {}, False),
        (0, {"idle": [True] * 3}, False),
        (0, {"opens": np.ones(3, bool)}, False),
    ],
)
def test_a_gap_ends_with_an_operation_where_nothing_else_tells_when_it_does(after, more, ends):
    found = gaps([2] * 3, [2 - after / MS] * 3)._replace(
        **{k: np.array(v) for k, v in more.items()}
    )
    assert next(_most_end_with(found))[0].tolist() == [ends]


@pytest.mark.parametrize(("count", "most"), [(2, False), (3, True)])
def test_a_kind_ends_with_what_more_than_half_of_its_gaps_end_with(count, most):
    found = gaps([2] * 4, [2] * count + [1] * (4 - count))
    assert [ended.tolist() for ended, _ in _most_end_with(found)] == [[most]] + [[False]] * 5


def test_a_hidden_place_works_as_long_as_those_seen_between_the_same_two_kinds_of_entries():
    """Places of 0, 8 and 6 ms between two kinds; the fourth is seen of the slowest alone, 12."""
    kind = np.repeat(np.arange(4), 4)
    nothing = np.zeros(16)
    some = Gaps(
        np.arange(16), kind, 0 * kind, 0 * kind, *[nothing > 0] * 2, *[nothing] * 2, nothing[None]
    )
    work, unseen = np.array([0, 8, 6, 12.0])[kind], np.arange(16) > 12
    assert some.lengths(work, unseen).tolist() == [0, 8, 6, 6]
    assert some.known(unseen).all()
    assert not some._replace(pair=kind).known(unseen)[12:].any()


def test_a_hidden_place_works_no_longer_than_what_is_seen_of_it():
    """A place of 6 ms, and one of 1 ms between the same two kinds of entries, mostly hidden."""
    kind = np.repeat([0, 1], 5)
    nothing = np.zeros(10)
    some = Gaps(
        np.arange(10), kind, 0 * kind, 0 * kind, *[nothing > 0] * 2, *[nothing] * 2, nothing[None]
    )
    work, unseen = np.array([6.0, 1.0])[kind], np.arange(10) >= 7
    assert some.lengths(work, unseen).tolist() == [6, 1]


def test_a_place_where_devices_always_idle_works_no_longer_than_its_longest_gap():
    """As behind a gather that is issued at once behind another, where others have work behind."""
    some = gaps([0.01, 0.02, 4, 4], [0] * 4, kind=[0, 0, 1, 1], idle=[True] * 2 + [False] * 2)
    work, unseen = some.work(shares([], []))
    assert (some.lengths(work, unseen) / MS).tolist() == pytest.approx([0.02, 4])


@pytest.mark.parametrize("since_ns", [0, -1000 * MS])
def test_gathers_that_begin_as_they_are_issued_before_compute_gets_there_tell_nothing(since_ns):
    """Four times a scatter is issued 1 ms before a gather, and compute reaches it 9 ms later."""
    turn = np.arange(8) // 2
    issued, scatters = (turn * 20 + np.arange(8) % 2) * MS, np.arange(8) % 2 == 0
    slack = 9 * MS * scatters
    table = {
        "lane": 0 * turn, "seq": np.arange(8), "operation": np.arange(8), "slack_ns": slack,
        "enter_ns": issued + slack + since_ns,
        "computed_ns": np.full(8, NAN), "on_device": turn >= 0,
    }  # fmt: skip
    kinds = {"queue": 0 * turn, "op": np.where(scatters, int(Op.REDUCE_SCATTER), GATHER)}
    kinds = Columns({**kinds, "message": turn < 0})
    assert issued_beside(Columns(table), kinds).tolist() == [False, True] * 4
    later = table["enter_ns"] + 9 * MS * ~scatters  # all as compute gets there
    in_order = Columns(table | {"enter_ns": later, "slack_ns": later - since_ns - issued})
    assert not issued_beside(in_order, kinds).any()
    at_once = Columns(table | {"enter_ns": issued + since_ns, "slack_ns": 0 * slack})
    assert not issued_beside(at_once, kinds).any()


def test_reductions_of_another_backward_are_usually_entered_behind_a_wait_for_those_before():
    """Two models are trained within a step: each reduction lies in a backward of its own."""
    rows, table, found = two(REDUCE, REDUCE, (5, 4))
    rows = rows.with_column("inside", 1 + np.arange(24))
    assert (usual_shares(rows, table, found)[:, 0] == 0).all()


def test_messages_sent_are_usually_not_waited_for():
    rows, table, found = two(int(Op.SEND), int(Op.SEND), (5, 4))
    rows = rows.with_column("sends", np.ones(24, bool))
    assert np.isnan(usual_shares(rows, table, found)).all()


@pytest.mark.parametrize(("end", "waits"), [(4, [0, 0]), (25, [NAN, NAN])])
def test_a_message_is_awaited_at_once_unless_the_program_receives_ahead(end, waits):
    """The second of two is over before the next step's first is posted, or 5 ms later."""
    rows, table, found = two(int(Op.SEND), int(Op.SEND), (5, end))
    table = table.with_column("message", np.ones(24, bool))
    share = usual_shares(rows, table, found)
    assert share[:, 0].tolist() == pytest.approx(waits, nan_ok=True)


@pytest.mark.parametrize("hidden", [True, False])
def test_a_message_is_awaited_after_the_work_that_lasts_as_long_whenever_it_comes(hidden):
    """A ring's turns of 10 ms of work each, and messages that come after 3 to 8, in place of work
    after them."""
    random = np.random.default_rng(0)
    came, work = random.uniform(3, 8, (30, 4)), random.normal(10, 0.1, (30, 4))
    turns = np.cumsum(work if hidden else came + work, axis=1)
    enter = 100 * np.arange(30)[:, None] + np.concatenate([0 * turns[:, :1], turns[:, :-1]], axis=1)
    table = operations([int(Op.SEND)] * 120).with_column("message", np.ones(120, bool))
    rows = steps_of(enter, enter + came, on_device=np.ones(120, bool))
    found = infer_waits(rows, table, rows.leave_ns)
    assert (found.ahead.reshape(30, 4)[:, :3] == 1).all()
    assert (found.worked.reshape(30, 4)[:, :3] == hidden).all()


@pytest.mark.parametrize(("end", "follows"), [(10, True), (9.99, True), (9.9, False)])
def test_an_operation_that_ends_with_its_gap_runs_on_the_stream_of_compute(end, follows):
    rows, _, found = two(GATHER, REDUCE, (end, 4))
    assert _in_stream(rows, found)[0].tolist() == [follows, False]


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


def test_entries_that_hosts_issue_at_once_are_reached_in_order_though_clocks_wander():
    """After 10 ms of compute, lane 2's 14, four all-reduces of 1 ms follow each other, issued .01
    ms apart; the host's clock loses .02 ms beside the device's from one kernel to the next."""
    steps, buckets = 12, 4
    work = np.array([10.0, 10.0, 14.0])[:, None] * (1 + 0.01 * np.cos(np.arange(steps)))
    begun = np.cumsum(work.max(axis=0) + buckets) - work.max(axis=0) - buckets
    first = begun + work
    over = first.max(axis=0)[:, None] + 1 + np.arange(buckets)
    enter = np.stack([np.concatenate([each[:, None], over[:, :-1]], axis=1) for each in first])
    rows, table = entries_of(enter, np.stack([over] * 3))
    issued = np.tile((begun[:, None] - 0.01 * np.arange(buckets)).reshape(-1), 3)
    slack = rows.enter_ns - np.rint((issued - 5) * MS).astype(np.int64)
    moved = with_reached(rows.with_column("slack_ns", slack), table)
    assert (moved.enter_ns < rows.enter_ns).sum() == 3 * steps * (buckets - 1)
    assert (np.diff(moved.enter_ns.reshape(3, -1)) >= 0).all()


def test_a_reduction_between_replicas_begins_after_the_scatter_before_it_while_compute_goes_on():
    """Weights are kept gathered: of four layers of 10 ms, lane 2's of 14, each scatters for .3 ms,
    then reduces for 1 in another queue, and waits for that after the next layer's work; for the
    last of a step at once, so that nothing tells when compute reached it."""
    steps, layers, pace = 12, 4, np.array([1.0, 1.0, 1.4])
    random, now, times = np.random.default_rng(5), np.zeros(3), []
    for _ in range(steps):
        reduced = 0.0
        for _ in range(layers):
            done = np.maximum(now + 10 * pace * (1 + 0.01 * random.standard_normal(3)), reduced)
            scattered, now = done.max() + 0.3, done
            reduced = scattered + 1
            times += [(done, scattered), (0 * done + scattered, reduced)]
        now = np.maximum(now, reduced) + 20 * pace
    enter = np.array([one for one, _ in times]).T.reshape(3, steps, -1)
    leave = np.array([[over] * 3 for _, over in times]).T.reshape(enter.shape)
    rows, table = entries_of(enter, leave)
    issued = np.repeat(5.0 * np.arange(steps * layers), 2) + np.tile([0, 0.02], steps * layers)
    slack = rows.enter_ns - np.rint((np.tile(issued, 3) - 500) * MS).astype(np.int64)
    turn = np.arange(len(table)) % 2
    table = table.with_column("op", np.where(turn, 1, 5)).with_column("queue", turn)
    moved = with_reached(rows.with_column("slack_ns", slack), table)
    reduces = np.flatnonzero(turn[rows.operation] & (rows.operation % 8 < 7))
    since = moved.enter_ns[reduces] - rows.enter_ns[reduces - 1]
    assert (since < 0.2 * MS).all()  # as compute reached the scatter
    assert (moved.after[reduces] == rows.operation[reduces] - 1).all()
    assert (moved.after[reduces - 1] == -1).all()


def test_operations_one_after_the_other_do_not_run_on_the_stream_of_compute():
    """Two of three kernels follow at once on the one before, as in a stream of compute; the third
    lane's compute comes later."""
    _, began, over = reduced_in_turn([1.0, 1.0, 1.2])
    rows, _ = entries_of(began, over)
    kinds = np.tile(np.arange(4), 36)
    assert not _in_stream(rows, gaps_between(rows, rows.leave_ns, kinds, kinds))[0].any()


@pytest.mark.parametrize("held", [True, False])
def test_a_layer_behind_which_hosts_read_the_loss_waits_for_a_gather_that_comes_late(held):
    """Gathers of 2 ms are issued one ahead of layers of 6 ms. In each fifth step lane 2 comes 80 ms
    late to the last one, or all hosts read the loss 80 ms late; the next gather follows that."""
    steps, noise = np.arange(40), np.random.default_rng(0).uniform(0, 0.2, (3, 40))
    late = 80.0 * (steps % 5 == 0)
    last = 12 + late * (np.arange(3) == 2)[:, None] * held
    over = np.broadcast_to(last.max(axis=0) + 2, last.shape)
    layers = np.maximum(last + 6, over) + 6
    read = np.where(held, layers, layers + late) + noise
    enter = np.stack([0 * last, 0 * last, 6 + 0 * last, last, read], axis=2)
    leave = np.stack([1 + 0 * last, 2 + 0 * last, 8 + 0 * last, over, 0 * last], axis=2)
    leave[:, :, 4] = read.max(axis=0) + 2
    begun = 200.0 * steps[:, None]
    rows, table = entries_of(begun + enter, begun + leave)
    reads = np.tile(np.arange(5) == 4, 120)
    slack = np.where(reads, 0.01 * MS, 9 * MS).astype(np.int64)
    rows = rows.with_column("slack_ns", slack)
    table = table.with_column("op", np.full(len(table), GATHER))
    found = infer_waits(rows, table, np.zeros(len(table)))
    assert found.idle[reads].all()
    ahead, worked = (each.reshape(3, 40, 5)[:, :, 3] for each in (found.ahead, found.worked))
    assert ((ahead == 1) == held).all()
    assert (worked == held).all()


def test_a_loss_reduced_after_the_last_bucket_shows_that_compute_waits_for_that():
    """Gradients are accumulated for 100 ms before four buckets of 2 ms, 6 ms apart. The loss is
    reduced as the last one is over, for which lanes 0 and 1 wait for lane 2."""
    begun, reached = 150 * np.arange(12.0)[:, None], np.array([100, 106, 112, 118])
    late = 1 + np.array([0, 0, 0.2])[:, None, None] * (np.arange(12)[:, None] % 3)
    enter = begun + late * reached
    over = enter.max(axis=0) + 2
    loss = np.stack([over[:, -1:]] * 3)
    enter = np.concatenate([enter, loss], axis=2)
    rows, table = entries_of(enter, np.concatenate([np.stack([over] * 3), loss + 0.1], axis=2))
    made = infer_waits(rows, table, np.zeros(len(table)))
    assert made.ahead.reshape(3, -1)[:, :-5].tolist() == [[0, 0, 0, 1, 1] * 11] * 3


def test_idle_compute_tells_after_which_share_of_its_work_it_waited():
    """3 of 8 ms of compute, idle from 13 to 15 as the gather ends, then 5 more until 20."""
    rows, _, _ = two(GATHER, REDUCE, (5, 4))
    turn = np.tile([True, False], 12)
    done = np.arange(24) * 8 * MS  # 8 in every gap
    rows = rows.with_column("computed_ns", done.astype(float))
    rows = rows.with_column("idled_ns", np.where(turn, 2.0 * MS, 0.0))
    rows = rows.with_column("freed_ns", np.where(turn, done + 3.0 * MS, 0.0))
    found = gaps_between(rows, rows.leave_ns, *[np.tile([0, 1], 12)] * 2)
    share, told = _shares_by_idle_time(rows, found)
    assert share[0, 0] == pytest.approx(3 / 8)
    assert np.isnan(share[0, 1:]).all()
    assert told.tolist() == [True, False]


def test_gathers_that_hosts_hold_back_for_compute_tell_when_it_got_there():
    """Of a step's eight layers of 10 ms, lane 2's of 14, each ends with a scatter. Once two more
    are issued after a scatter, as compute comes to it, the host issues the next gather: one that
    takes 12 ms, so that most begin only as the one before is over."""
    layers, steps, pace = 8, 6, np.array([1.0, 1.0, 1.4])[:, None]
    done = (10.0 * np.arange(1, layers * steps + 1) + 100 * (np.arange(layers * steps) // 8)) * pace
    issued, over = done + 0.01, np.zeros_like(done)
    for layer in range(layers * steps):
        began = np.maximum(issued[:, layer], over[:, layer - 1] if layer else 0)
        over[:, layer] = began.max() + 12
    began = np.maximum(issued, np.pad(over, ((0, 0), (1, 0)))[:, :-1])
    # in order of issue: the scatter of a layer, then the gather that awaits the scatter two before
    first = lambda of: np.pad(of, ((0, 0), (2, 0)))[:, :-2]  # noqa: E731
    enter = np.stack([done, first(began)], axis=2)[:, 2:].reshape(3, -1)
    leave = np.stack([done + 1, first(over)], axis=2)[:, 2:].reshape(3, -1)
    hosts = np.stack([first(issued) - 0.01, first(issued)], axis=2)[:, 2:].reshape(3, -1)
    rows, table = entries_of(enter[:, None], leave[:, None])
    slack = np.rint(rows.enter_ns - hosts.reshape(-1) * MS).astype(np.int64)
    turn = np.arange(len(table)) % 2
    table = table.with_column("op", np.where(turn, int(Op.ALL_GATHER), 5))
    moved = with_reached(rows.with_column("slack_ns", slack), table.with_column("queue", turn))
    gathers = turn[rows.operation] == 1
    assert (rows.enter_ns[gathers] / MS - hosts.reshape(-1)[gathers]).max() > 5
    assert moved.enter_ns[gathers] / MS == pytest.approx(hosts.reshape(-1)[gathers])
    assert (moved.slack_ns[gathers] == -1).all()  # nothing of the host
    assert (moved.slack_ns[~gathers] > 0).all()


def test_gathers_in_a_stream_of_their_own_come_when_compute_is_where_they_wait_for_it():
    """Of a step's six layers of 10 ms, lane 2's of 12, each ends with a scatter of 1 ms and awaits
    its gather of 4, two layers before. That is in a stream of its own and comes after all before it
    in its group: the end of the gather before it hides that its layer was done before."""
    layers, steps, pace = 6, 8, np.array([1.0, 1.0, 1.2])
    done, entered, over, ops = np.zeros((layers, 3)), [], [], []
    for step in range(steps):
        free, gathered = 90.0 * step, np.full(layers + 2, 90.0 * step)

        def enter(op, came):
            free = max(over[-1][0] if over else 0.0, came.max()) + (4.0 if op == 4 else 1.0)
            for made, value in ((ops, op), (entered, came + 0 * pace), (over, free + 0 * pace)):
                made.append(value)
            return free

        for layer in range(-2, layers):
            if layer >= 0:
                begun = np.maximum(done[layer - 1] if layer else free, gathered[layer])
                done[layer] = begun + 10 * pace
                enter(5, done[layer].copy())
            if layer + 2 < layers:
                waits = done[layer - 1] if layer > 0 else free + 0 * pace
                came = np.maximum(gathered[layer + 1] if layer > -2 else free, waits)
                gathered[layer + 2] = enter(4, came)
    enter, leave = (np.array(each).T.reshape(3, steps, -1) for each in (entered, over))
    rows, table = entries_of(enter, leave)
    rows = rows.with_column("slack_ns", np.full(len(rows), 99 * MS))
    moved = with_reached(rows, table.with_column("op", np.array(ops)))
    scatters = (np.array(ops) == 5)[rows.operation].reshape(enter.shape)
    moved = moved.enter_ns.reshape(enter.shape) / MS
    assert moved[scatters] == pytest.approx(enter[scatters])
    done, gathers = enter[:, :, 2::2][:, :, :4], [5, 7, 9]
    assert (enter[:, :, gathers] - done[:, :, :3]).min() > 1
    assert moved[:, :, gathers] == pytest.approx(done[:, :, :3])


def test_scatters_in_a_stream_of_their_own_hide_when_compute_was_done_before_them():
    """Of a step's six layers of 10 ms, lane 2's of 13, each ends with a scatter of 1.7 ms, and with
    a gather of 1.5 for the next step; both are in streams of their own. The others' scatters begin
    as lane 2 has scattered its layer before, and their last layers are hidden."""
    layers, steps, pace = 6, 8, np.array([1.0, 1.0, 1.3])
    found, free = [], {4: np.zeros(3), 5: np.zeros(3)}

    def enter(op, came):
        entered = np.maximum(came, free[op])
        free[op] = np.full(3, entered.max() + (1.5 if op == 4 else 1.7))
        found.append((entered, free[op], came))

    for step in range(steps):
        done = np.full(3, 100.0 * step)
        enter(4, done)
        for _ in range(layers):
            done = done + 10 * pace
            enter(5, done)
            enter(4, done)
    enter, leave, truth = (
        np.array(each).T.reshape(3, steps, -1) for each in zip(*found, strict=True)
    )
    rows, table = entries_of(enter, leave)
    rows = rows.with_column("slack_ns", np.full(len(rows), 999 * MS))
    ops = np.tile([4, *[5, 4] * layers], steps)
    moved = with_reached(rows, table.with_column("op", ops)).enter_ns.reshape(enter.shape) / MS
    assert (enter - truth)[:2].max() > 6
    assert moved == pytest.approx(truth, abs=0.05)


def test_gathers_stay_that_compute_awaits_one_after_the_other():
    """Each of a step's eight layers of 10 ms waits for its gather of 2 and issues the next one, and
    the last four end with a scatter. Lane 2 pauses for 40 ms in one of three steps. All comes in
    the order of issue: that others enter a gather as the one before ends tells what they waited
    for."""
    steps, now, free, found = 12, np.zeros(3), 0.0, []

    def enter(op):
        nonlocal free
        free = max(free, float(now.max())) + 2
        found.append((now, np.full(3, free), np.full(3, op)))
        return free

    for step in range(steps):
        coming = enter(4)
        for layer in range(8):
            now = np.maximum(now, coming)
            coming = enter(4) if layer < 7 else coming
            now = now + 10 + np.array([0, 0, 40.0 * (step % 3 == 1 and layer == 1)])
            if layer >= 4:
                enter(5)
        now = np.maximum(now, free) + 5
    enters, leaves, ops = (np.array(each).T for each in zip(*found, strict=True))
    rows, table = entries_of(*(each.reshape(3, steps, -1) for each in (enters, leaves)))
    rows = rows.with_column("slack_ns", np.full(len(rows), 999 * MS))
    moved = with_reached(rows, table.with_column("op", ops[0].astype(int)))
    assert (moved.enter_ns == rows.enter_ns).all()
