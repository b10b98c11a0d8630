from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from evenstep.diagnose.graph.streams import FASTEST_DRIFT
from evenstep.diagnose.lateness.case import open_case
from evenstep.diagnose.lateness.cost import Costs, _excess
from evenstep.diagnose.lateness.delays import Cause, _hidden
from evenstep.diagnose.lateness.oscillation import late_in_turns, oscillation
from evenstep.diagnose.lateness.thresholds import above_others
from evenstep.trace.spool.layout import Phase
from tests.diagnose.graph.by_hand import Run, streams
from tests.diagnose.synthetic import MS, World

SHAPES = array_shapes(min_dims=2, max_dims=2, min_side=2, max_side=9)


@given(arrays(np.int64, SHAPES, elements=st.integers(-50, 50)))
def test_above_others_is_the_distance_to_the_upper_median_of_the_others(values):
    number = values.shape[1]
    others = [np.sort(np.delete(values, rank, axis=1), axis=1) for rank in range(number)]
    medians = [row[:, (number - 1) // 2] for row in others]
    assert np.array_equal(above_others(values), values - np.stack(medians, axis=1))


def test_of_three_ranks_one_that_is_fast_makes_the_others_not_late():
    assert above_others(np.array([[7, 7, 4]])).tolist() == [[0, 0, -3]]


def test_a_rank_alone_is_above_nobody():
    assert above_others(np.array([[7], [9]])).tolist() == [[0], [0]]


def test_noise_is_that_of_a_ranks_own_work():
    world = World(noise=0.02, steps=400)
    # independent phases of 20, 40, 4 and 0.2 ms, each with a deviation of 2 %
    expected = 0.02 * np.sqrt(20**2 + 40**2 + 4**2 + 0.2**2) * MS
    assert open_case(world.trace()).delays.noise_ns == pytest.approx(expected, rel=0.15)


def test_noise_is_not_raised_by_the_delays_it_is_to_be_told_from():
    calm = open_case(World(noise=0.02, steps=400).trace()).delays.noise_ns
    turn = np.eye(4)[np.arange(400) % 4] * 50 * MS
    busy = World(noise=0.02, steps=400).delayed(Phase.FORWARD, turn)
    assert open_case(busy.trace()).delays.noise_ns == pytest.approx(calm, rel=0.25)


def test_only_the_disturbed_cells_are_late():
    table = World().everywhere()
    table[[10, 20], [1, 2]] = 30 * MS
    delays = open_case(World(noise=0.005).delayed(Phase.FORWARD, table).trace()).delays
    steps, ranks = np.nonzero(delays.cells(Cause.WORK))
    assert list(zip(delays.grid.steps[steps], ranks, strict=True)) == [(10, 1), (20, 2)]


def test_work_that_grows_on_all_ranks_is_no_noise_that_hides_a_late_one():
    """Forward of all ranks grows by 1 ms a step; noise is .5 ms, its spread over steps 17 ms."""
    table = World().everywhere() + np.arange(60)[:, None] * MS
    table[20:25, 1] += 20 * MS
    delays = open_case(World(noise=0.01).delayed(Phase.FORWARD, table).trace()).delays
    steps, ranks = np.nonzero(delays.cells(Cause.WORK))
    assert delays.grid.steps[steps].tolist() == [20, 21, 22, 23, 24]
    assert ranks.tolist() == [1] * 5


def test_what_late_cells_cost_is_what_was_put_into_them():
    table = World().everywhere()
    table[[10, 20], [1, 2]] = 30 * MS, 50 * MS
    delays = open_case(World().delayed(Phase.OPTIMIZER, table).trace()).delays
    assert delays.all_loss_ns.sum() == 80 * MS
    assert delays.all_loss_ns.sum(axis=0).tolist() == [0, 30 * MS, 50 * MS, 0]


def test_a_device_hides_what_its_host_is_held_up_by_and_its_steps_do_not_show():
    """Pauses of 7 to 9 ms lengthen a device's steps of 10 by 3 to 4; of a host, nothing counts."""
    work, pause = np.full((10, 2), 10.0), np.zeros((10, 2))
    pause[5:] = np.array([[8], [7], [9], [8], [9]])
    work[5:, 1] += [3, 3, 4, 3, 4]
    found = _hidden(_grid(work, device=[False, True]), pause, [])
    assert found[5:].tolist() == [[0, 5], [0, 4], [0, 5], [0, 5], [0, 5]]


def test_one_calm_step_is_not_what_a_device_usually_works():
    """Rank 0 is held up by 30 ms in all steps but one, in which it writes for 60; that shows."""
    held, work = np.full((10, 2), [30.0, 0.0]), np.full((10, 2), [90.0, 60.0])
    held[4, 0], work[4, 0] = 0, 120
    assert not _hidden(_grid(work, device=[True, True]), held, [np.arange(2)]).any()


def test_a_device_that_is_held_up_in_every_step_hides_what_it_does_not_work_longer_than_others():
    """Held up by 30 to 34 ms in every step, rank 1 works 10 ms longer than rank 0; of four steps
    nothing is told."""
    held = np.stack([np.zeros(5), np.arange(30.0, 35.0)], axis=1)
    work = np.array([[50.0, 60.0]] * 5)
    found = _hidden(_grid(work, device=[True, True]), held, [np.arange(2)])
    assert found[:, 1].tolist() == [20, 21, 22, 23, 24]
    assert not _hidden(_grid(work[:4], device=[True, True]), held[:4], [np.arange(2)]).any()


def test_ranks_that_are_all_held_up_tell_nothing_of_what_their_devices_hide():
    """Two of a program of their own in every step, by 30 ms; the other two compute 10 ms less."""
    held, work = np.full((10, 4), [30.0, 30.0, 0, 0]), np.full((10, 4), [60.0, 60.0, 50.0, 50.0])
    grid, apart = _grid(work, device=[True] * 4), [np.arange(2), np.arange(2, 4)]
    assert not _hidden(grid, held, apart).any()
    assert _hidden(grid, held, [np.arange(4)])[0].tolist() == [20, 20, 0, 0]


def _grid(work, *, device):
    return SimpleNamespace(work_ns=work, graph=SimpleNamespace(device=np.array(device)))


def test_ranks_late_in_every_other_step_are_late_in_these_steps_alone():
    """By 15 ms of 64 in turn, four times the noise of a step: not a little in most steps."""
    table = np.zeros((80, 4))
    table[::2, 0] = table[1::2, 1] = 15 * MS
    world = World(steps=80, noise=0.08).delayed(Phase.BACKWARD, table)
    found = open_case(world.trace())
    delays, due = found.delays, table[found.grid.steps] > 0
    assert not delays.chronic.any()
    assert np.mean(delays.cells(Cause.WORK) == due) > 0.97
    assert delays.late_ns[Cause.WORK].sum() == pytest.approx(due.sum() * 15 * MS, rel=0.1)


def test_of_two_ranks_the_one_that_is_slow_in_less_than_half_of_the_steps_is_late_in_these():
    """By 16 ms of 82, less than five times the noise, in the last 80 steps; else ahead by 2 ms."""
    work = np.random.default_rng(0).normal([80, 82], 3.5, (200, 2))
    work[120:, 0] += 18
    late = open_case(streams(work).trace()).delays.cells(Cause.WORK)
    assert late[-80:, 0].mean() > 0.8
    assert not late[:-80, 0].any()
    assert not late[:, 1].any()


@pytest.mark.parametrize("length", [1, 2])
def test_two_ranks_that_are_slow_in_turns_are_late_in_theirs(length):
    """By 15 % of 85 ms, less than five times the noise of their difference of 3.4 ms; 2.4 ms of
    each are noise, of which the later one is 1.9 ms above the mean with or without it."""
    work = np.random.default_rng(0).normal(85, 2.4, (108, 2))
    due = np.arange(108)[:, None] // length % 2 == np.arange(2)
    slow = work * np.where(due, 1.15, 1.0)
    delays = open_case(streams(slow).trace()).delays
    assert np.mean(delays.cells(Cause.WORK) == due) > 0.98
    lost = (slow.max(axis=1) - work.max(axis=1)).sum() * MS
    assert delays.loss_ns[Cause.WORK].sum() == pytest.approx(lost, rel=0.06)


def test_ranks_that_take_turns_have_one_period():
    """By 25 ms with noise of 9, three steps each: by themselves only one of them shows its own."""
    due = np.arange(77)[:, None] // 3 % 3 == np.arange(4)
    excess = 25.0 * due + np.random.default_rng(1).normal(0, 9, (77, 4))
    assert sum(oscillation(one) is not None for one in excess.T) == 1
    assert np.array_equal(late_in_turns(excess, 4.0), due)


def test_slowness_in_turns_leaves_the_noise_of_every_place_as_it_is():
    """Lane 1 works 20 % longer at all of 12 places in every third step; in step 9 it stops for
    20 ms at one place besides, which is taken there."""
    own = np.random.default_rng(0).normal(10, 1.0, (60, 4, 12))
    slow, cells = own.copy(), np.zeros((60, 4), bool)
    cells[::3, 1] = True
    slow[::3, 1] *= 1.2
    slow[9, 1, 5] += 60
    left = (slow - _excess(slow, cells))[cells]
    usual = np.arange(20) != 3
    assert (left - own[cells])[usual].std() < 0.5
    assert left[3, 5] < 12
    assert left[usual].mean() == pytest.approx(10, rel=0.02)


def test_less_work_before_one_operation_makes_up_for_no_lateness_at_the_next():
    """Lane 1 works 8 ms less than lane 0 before a step's first all-reduce, 20 ms more before its
    second: 12 ms more in all, for which lane 0 waits 20 ms."""
    run, begin = Run(2), 0.0
    for step in range(8):
        for number, works in enumerate([(18, 10), (10, 30)]):
            over = begin + max(works) + 2
            for rank, work in enumerate(works):
                run.collective(rank, step, 2 * step + number, begin + work, over)
                run.wait(rank, step, begin + work + 0.5, over)
            begin = over
        for rank in range(2):
            run.step(rank, step, begin - 52, begin)
    costs, late = Costs(run.graph()), np.array([[0.0, 12 * MS]] * 8)
    gained = costs.saved([costs.relieved(Cause.WORK, late, np.array([False, True]), 0 * late)])
    assert gained[0, 1:] / MS == pytest.approx(20, abs=0.01)


def test_what_a_device_does_after_the_last_operation_of_a_late_step_is_taken_with_it():
    """Lane 1 works 20 ms more before the all-reduce of step 4 and 3 ms more behind it, which is
    seen before that of step 5."""
    work = np.full((9, 4), 10.0)
    work[4, 1], work[5, 1] = 30.0, 13.0
    costs, late = Costs(streams(work).graph()), np.zeros((9, 4))
    late[4, 1] = 20 * MS
    gained = costs.saved([costs.relieved(Cause.WORK, late, np.zeros(4, bool), 0 * late)])[0] / MS
    assert gained.tolist() == pytest.approx([0, 0, 0, 0, 20, 3, 0, 0, 0], rel=2 * FASTEST_DRIFT)


def test_what_is_on_record_does_not_go_with_the_work_of_a_rank_that_is_always_late():
    """Lane 1 is late by 30 ms in every step: 20 of them without a core, 10 with more to do."""
    work = np.full((9, 4), 10.0)
    work[:, 1] = 40.0
    costs, late, chronic = Costs(streams(work).graph()), np.zeros((9, 4)), np.arange(4) == 1
    late[:, 1] = 10 * MS
    for recorded, gained in [(2 * late, 10), (0 * late, 30)]:
        change = costs.relieved(Cause.WORK, late, chronic, recorded)
        assert costs.saved([change])[0, 1:] / MS == pytest.approx(gained, rel=0.001)
