"""Lanes of one program, and whose messages go where, on a few rows each."""

from types import SimpleNamespace

import numpy as np
import pytest

from evenstep.diagnose.graph.peers import (
    Peers,
    _away,
    _before,
    beginning,
    between_barriers,
    in_hand,
    message_ends,
    micro_batches,
    peers,
    work_by_direction,
)
from evenstep.trace.columns import Columns
from tests.diagnose.graph.by_hand import Run
from tests.diagnose.graph.test_build import behind
from tests.diagnose.synthetic import MS


def graph_of(rows, operations, lanes=3):
    columns = (
        Columns({name: np.array(of) for name, of in one.items()}) for one in (rows, operations)
    )
    rows, operations = columns
    return SimpleNamespace(ranks=np.arange(lanes), rows=rows, operations=operations)


#: Messages 0 from lane 0 to 1 and 2 from lane 2 to whom nobody knows; 1 is a collective.
SENT = graph_of(
    {"lane": [0, 1, 1, 2], "enter": [0, -1, 1, 2], "wait": [-1, 0, 1, -1], "index": [0] * 4},
    {"message": [True, False, True], "root": [0, 1, 2], "group": [0, 0, 0]},
)


def test_a_message_goes_from_who_sends_to_who_waits_for_it():
    source, target = message_ends(SENT)
    assert source.tolist() == [0, -1, 2, -1]
    assert target.tolist() == [1, -1, -1, -1]


def test_of_messages_to_nobody_knows_whom_no_direction_is_told():
    assert work_by_direction(SENT) == []


def test_receivers_are_counted_onward_within_the_group_around():
    """A ring of three: 0 to 1, 1 to 2, 2 to 0; and one of two beside it, 2 to 0 as well."""
    pairs = [(0, 1), (1, 2), (2, 0), (2, 0)]
    rows = {
        "lane": [one for pair in pairs for one in pair],
        "enter": [one for turn in range(4) for one in (turn, -1)],
        "wait": [one for turn in range(4) for one in (-1, turn)],
    }
    table = {"message": [True] * 4, "root": [0, 1, 2, 2], "group": [0, 0, 0, 1]}
    found = graph_of(rows, table)
    assert _away(found, message_ends(found)).tolist() == [1, 1, 1, 1, 0]
    turned = {"message": [True] * 4, "root": [1, 2, 0, 0], "group": [0, 0, 0, 1]}
    back = graph_of({**rows, "enter": rows["wait"], "wait": rows["enter"]}, turned)
    assert _away(back, message_ends(back)).tolist() == [2, 2, 2, 1, 0]


def test_what_was_received_is_of_the_next_row_until_the_lane_sends_or_waits_again():
    rows = {
        "lane": [0, 0, 0, 0, 1, 1], "at_ns": [1, 2, 3, 4, 0, 5], "wait": [7, -1, -1, 8, -1, 9],
        "enter": [-1] * 6, "ends": [False] * 6,
    }  # fmt: skip
    found = graph_of(rows, {})
    received = np.array([7, -1, -1, 8, -1, 9])
    none, sends = np.zeros(6, bool), np.array([0, 0, 1, 0, 0, 0], bool)
    assert _before(found, received, none, none).tolist() == [-1, 7, 7, 7, -1, -1]
    assert _before(found, received, sends, none).tolist() == [-1, 7, 7, -1, -1, -1]
    received[0], own = -1, np.array([1, 0, 0, 0, 0, 0], bool)  # waits only for what it sent
    assert _before(found, received, none, own).tolist() == [-1, -1, -1, -1, -1, -1]


@pytest.mark.parametrize(
    ("sent_ns", "begins"), [([0, 2, 9], [True, True, True]), ([0, 12, 22], [True, False, False])]
)
def test_who_sends_before_anything_came_begins_however_late(sent_ns, begins):
    """Three lanes around, all sends over at 10, 20 and 30: a ring of which the last lane is late,
    or stages of which each passes on what has come to it."""
    rows = {
        "lane": [0, 1, 1, 2, 2, 0], "enter": [0, -1, 1, -1, 2, -1], "wait": [-1, 0, -1, 1, -1, 2],
        "at_ns": [sent_ns[0], 10, sent_ns[1], 20, sent_ns[2], 30], "index": [0] * 6,
    }  # fmt: skip
    table = {
        "message": [True] * 3, "root": [0, 1, 2], "group": [0] * 3, "step": [5] * 3,
        "over_ns": [10, 20, 30],
    }  # fmt: skip
    found = graph_of(rows, table)
    found.steps = np.array([5])
    assert beginning(found).tolist() == begins


def test_lanes_of_one_program_are_peers_place_by_place():
    found = behind().graph()
    (all_,) = peers(found)
    assert all_.lanes.tolist() == [0, 1, 2]
    assert all_.segments.tolist() == [0, 1, 2]
    assert all_.there.all()
    own = all_.by_place(found.own_ns) / MS
    assert own.tolist() == [[[10, 5, 3], [12, 5, 3], [20, 5, 3]]] * 3


def test_a_lane_that_did_not_wait_has_no_row_there():
    run = behind()
    run.rows = [row for row in run.rows if row["exit_ns"] - row["enter_ns"] != 1000]
    found = run.graph()
    # of what it ever waits for, rank 2 has nothing: another program
    assert [one.lanes.tolist() for one in sorted(peers(found), key=lambda one: len(one.lanes))] == [
        [2], [0, 1],
    ]  # fmt: skip


def test_work_by_place_is_written_back_where_it_came_from():
    found = behind().graph()
    (all_,) = peers(found)
    own = found.own_ns.copy()
    all_.assign(own, 2 * all_.by_place(own))
    assert own.tolist() == (2 * found.own_ns).tolist()


@pytest.mark.parametrize(
    ("came", "cut", "past"),
    [
        ([1, 4], [[3, 7], [7, 6]], [[5, 5]]),
        ([1, 5], [[3, 7], [7, 6]], [[5, 5]]),  # half of them wait: enough
        ([5, 5], [[10, 13]], []),  # nobody does
    ],
)
def test_work_is_cut_where_most_wait_for_everybody_and_other_waits_are_of_it(came, cut, past):
    """Two lanes at three places: one wait of all, over at 5; one of another kind from 8 to 10, and
    so counts with the work after it; and an end. Own work 3, 2, 3 and 7, 1, 3."""
    at = np.array([came[0], 8, 20, came[1], 8, 20])
    wait = np.array([0, 1, -1] * 2)
    part = Peers(
        np.arange(2), np.zeros(1, int), np.arange(6).reshape(1, 2, 3), np.ones((1, 2, 3), bool)
    )
    found = SimpleNamespace(
        rows=Columns({"wait": wait, "at_ns": at}),
        operations=Columns({"over_ns": np.array([5, 10])}),
    )
    own = np.array([3.0, 2, 3, 7, 1, 3])
    work, over = between_barriers(found, part, own, np.array([True, False]))
    assert work[:, 0].tolist() == cut
    assert over[:, 0].tolist() == past


def test_a_lane_that_was_in_no_wait_has_passed_no_barrier_at_a_known_time():
    rows = {"wait": np.array([0, -1, 0, -1, -1, -1]), "at_ns": np.array([1, 9, 2, 9, 9, 9])}
    there = np.array([[[1, 1], [1, 1], [0, 1]]], bool)
    part = Peers(np.arange(3), np.zeros(1, int), np.arange(6).reshape(1, 3, 2), there)
    found = SimpleNamespace(rows=Columns(rows), operations=Columns({"over_ns": np.array([5])}))
    work, over = between_barriers(found, part, np.full(6, 2.0), np.array([True]))
    assert work[:, 0].tolist() == [[2, 2, 0], [2, 2, 2]]
    np.testing.assert_array_equal(over[:, 0], [[5, 5, np.nan]])


def test_without_messages_there_are_no_micro_batches():
    assert micro_batches(behind().graph()) is None


@pytest.mark.parametrize(("groups", "apart"), [(((0, 1, 2),), 1), (((0, 1), (2,)), 2)])
def test_who_enters_what_others_do_not_has_another_program(groups, apart):
    run = Run(3, *groups)
    for step in range(3):
        since = 10 * step
        for number, members in enumerate(groups):
            for rank in members:
                run.collective(rank, step, step, since + 2 + rank, since + 6, group=number)
                run.wait(rank, step, since + 5, since + 6)
        for rank in range(3):
            run.step(rank, step, since, since + 10)
    assert len(peers(run.graph())) == apart


@pytest.mark.parametrize(("late", "handed"), [(0, 6), (1, 0)])
def test_a_message_is_in_hand_from_when_it_came_until_the_next_is_sent(late, handed):
    """Lane 0 sends after 8 what comes to lane 1 at 10, or as late. That works for 6 from 10 on and
    sends it to lane 2, where it is at 30; before anything came to it, it sent what nobody here
    received. Lane 3 recorded nothing."""
    rows = (  # lane, enter, wait, at_ns, own_ns
        (0, 0, -1, 8, 8), (0, -1, -1, 12, 4),
        (1, 2, -1, 3, 3), (1, -1, 0, 5, 2), (1, 1, -1, 16, 6), (1, -1, -1, 20, 4),
        (2, -1, 1, 7, 7), (2, -1, -1, 33, 3),
    )  # fmt: skip
    names = ("lane", "enter", "wait", "at_ns", "own_ns")
    rows = dict(zip(names, zip(*rows, strict=True), strict=True)) | {"index": [0] * 8}
    table = {
        "message": [True] * 3, "root": [0, 1, 1], "group": [0] * 3, "step": [5] * 3,
        "over_ns": [10 + late, 30, 9],
    }  # fmt: skip
    found = graph_of(rows, table, lanes=4)
    found.steps, found.own_ns = np.array([5]), np.array(rows["own_ns"], float)
    assert in_hand(found) == pytest.approx([8 / 12, handed / 15, 3 / 10, 0])
