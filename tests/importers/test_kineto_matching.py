"""Which call of a file holds a moment, and which calls of two ranks are one; by plain loops."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.importers.kineto.device import _enclosing
from evenstep.importers.kineto.grouping import _on_one_clock, _pairs
from evenstep.importers.kineto.table import in_sequence
from evenstep.trace.columns import Columns
from evenstep.trace.spool.layout import Flag, Kind, Op

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


@pytest.mark.parametrize("alone", [0, 1])
def test_a_call_without_its_other_is_left_out_of_a_pair_of_lanes(alone):
    met_twos = [(number, lane) for number in range(0, 40, 2) for lane in (0, 1)]
    assert pairs_of(*[[0, 1]] * 20, [alone]) == [met_twos]


#: (rank, group, step, operation, size, type) of calls in order of entry
CALLS = st.lists(
    st.tuples(
        st.integers(0, 2), st.integers(-1, 1), st.integers(0, 1),
        st.sampled_from([Op.ALL_REDUCE, Op.ALL_TO_ALL]), st.integers(1, 2),
        st.sampled_from([1, 1, 2]),
    ),
    max_size=14,
)  # fmt: skip


def table_of(calls, stated):
    rank, group, step, op, size, dtype = np.array(calls, np.int64).reshape(-1, 6).T
    enter = 10 * np.arange(len(rank)) + 5
    return Columns(
        rank=rank, group=group, step=step, op=op, bytes_in=size, bytes_out=3 * size, dtype=dtype,
        kind=np.full(len(rank), int(Kind.COLLECTIVE)), stated=np.array(stated, np.int64),
        enter_ns=enter, exit_ns=enter + 7, device_enter_ns=enter + 1, device_exit_ns=enter + 40,
        flags=0 * rank, peer_or_root=0 * rank - 1, payload=0 * rank,
    )  # fmt: skip


@given(CALLS)
def test_calls_without_a_number_are_one_where_all_ranks_of_a_step_issued_the_same(calls):
    """By plain loops: the n-th of a rank in a step and a group are those of the others, if in that
    step all ranks issued as many, each the same; only all-to-alls may differ in size."""
    table, limits = in_sequence(table_of(calls, [-1] * len(calls)))
    order = {}  # of each step and group, by rank the calls in order
    for rank, group, step, *what in calls:
        order.setdefault((group, step), {}).setdefault(rank, []).append(what)

    def alike(what):
        op, size, dtype = what
        return op, 0 if op == Op.ALL_TO_ALL else size, dtype

    agree = {
        place: place[0] >= 0 and len({tuple(map(alike, those)) for those in ranks.values()}) == 1
        for place, ranks in order.items()
    }
    lost = sum(
        len(those) for place, ranks in order.items() for those in ranks.values()
        if place[0] >= 0 and not agree[place]
    )  # fmt: skip
    assert limits == ([] if not lost else [
        f"{lost} collectives have no number in the files and are not the same on all ranks of a "
        "step: they are not matched between ranks"
    ])  # fmt: skip
    found, seen = {}, {}
    for row, enter in enumerate(table.enter_ns.tolist()):
        rank, group, step, *_ = calls[(enter - 5) // 10]
        assert table.group[row] == (group if agree[group, step] else -1)
        found[enter] = (int(table.group[row]), int(table.group_seq[row]))
    for at, (rank, group, step, *_) in enumerate(calls):
        if agree[group, step]:
            place = seen[rank, group, step] = seen.get((rank, group, step), -1) + 1
            assert found[10 * at + 5] == (group, (step << 20) + place)
    alone = [one for one in found.values() if one[0] < 0]
    assert len(set(alone)) == len(alone)


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1), st.integers(0, 3)), max_size=12))
def test_calls_of_one_rank_with_one_number_are_one(calls):
    """By plain loops: from the first entry to the last end, with the bytes of all."""
    rows = [(rank, group, 0, Op.ALL_REDUCE, 5 + at, 1) for at, (rank, group, _) in enumerate(calls)]
    table, limits = in_sequence(table_of(rows, [number for *_, number in calls]))
    together = {}
    for at, call in enumerate(calls):
        together.setdefault(call, []).append(at)
    assert limits == []
    names = ("rank", "group", "group_seq", "enter_ns", "exit_ns", "device_enter_ns",
             "device_exit_ns", "bytes_in", "bytes_out", "flags")  # fmt: skip
    found = sorted(zip(*(table[name].tolist() for name in names), strict=True))
    assert found == sorted(
        (
            *call, 10 * those[0] + 5, 10 * those[-1] + 12, 10 * those[0] + 6, 10 * those[-1] + 45,
            sum(5 + at for at in those), 3 * sum(5 + at for at in those),
            int(Flag.COALESCED) * (len(those) > 1),
        )
        for call, those in together.items()
    )  # fmt: skip


def test_who_has_no_calls_with_another_is_put_on_its_clock_by_a_third():
    """Profiles 0 and 1 each share a lane with profile 2 alone; by a false difference 8 of the 20
    calls of theirs coincide."""
    second = 1_000_000_000
    first = np.cumsum(np.arange(10, 30)) * 1_000_000
    other = first + np.where(np.arange(20) < 8, 5, 5 + 1.3 * np.arange(20)).astype(int) * 1_000_000
    lanes = [(0, 0, first), (1, 1, other + second), (2, 2, first), (2, 3, other)]
    calls = [
        Columns(
            profile=np.full(20, profile), lane=np.full(20, lane), end=end, kind=np.zeros(20, int)
        )
        for profile, lane, end in lanes
    ]
    found = _on_one_clock(Columns.concatenate(calls), "abc")
    assert len(set(found.clock.tolist())) == 1
    ends = {lane: found.end[found.lane == lane] for lane in range(4)}
    assert (abs(ends[0] - ends[2]) < 30_000).all()
    assert (abs(ends[1] - ends[3]) < 30_000).all()
