"""The vocabulary of faults: what a rank asks, and what it is told."""

import pytest

from lab.faults import KINDS, Fault, RankFaults


def extra_ms(fault, rank, step, phase="backward", world=4):
    return 1e3 * RankFaults([fault], rank, world).extra_s(phase, step)


def test_a_slow_rank_is_slow_in_its_phase_alone():
    fault = Fault(kind="slow_rank", ranks="2", phase="forward", delay_ms=5)
    assert extra_ms(fault, 2, 0, "forward") == pytest.approx(5)
    assert extra_ms(fault, 2, 0, "backward") == 0
    assert extra_ms(fault, 1, 0, "forward") == 0


def test_a_burst_is_there_for_a_part_of_each_period():
    fault = Fault(kind="slow_rank", ranks="0", every=30, during=10)
    hit = [step for step in range(60) if extra_ms(fault, 0, step)]
    assert hit == [*range(10), *range(30, 40)]


def test_a_fault_has_a_first_and_a_last_step():
    fault = Fault(kind="slow_rank", ranks="0", first_step=5, last_step=7)
    assert [step for step in range(20) if extra_ms(fault, 0, step)] == [5, 6, 7]


def test_a_ramp_grows_to_twice_the_delay_and_stays():
    fault = Fault(kind="slow_rank", ranks="0", delay_ms=10, ramp_steps=100)
    assert [extra_ms(fault, 0, step) for step in (0, 50, 100, 900)] == pytest.approx(
        [0, 10, 20, 20]
    )


def test_of_rotating_ranks_each_has_its_turn():
    fault = Fault(kind="rotating_rank", delay_ms=3, every=2)
    for step in range(16):
        late = [rank for rank in range(4) if extra_ms(fault, rank, step)]
        assert late == [step // 2 % 4]


def test_collectors_run_at_steps_of_their_own():
    fault = Fault(kind="collector", delay_ms=4, every=20)
    steps = [
        next(step for step in range(20) if RankFaults([fault], rank, 4).collects_s(step))
        for rank in range(4)
    ]
    assert steps == [0, 5, 10, 15]


def test_lengths_differ_between_ranks_and_steps_and_repeat():
    fault = Fault(kind="uneven_lengths", delay_ms=10)
    drawn = [[extra_ms(fault, rank, step) for rank in range(4)] for step in range(50)]
    assert len({value for row in drawn for value in row}) == 200
    assert all(0 <= value <= 10 for row in drawn for value in row)
    assert drawn[7][2] == extra_ms(fault, 2, 7)
    assert drawn[7][2] == pytest.approx(2 * extra_ms(fault, 2, 7, "forward"))


def test_only_rank_0_saves_and_evaluates():
    fault = Fault(kind="checkpoint", delay_ms=50, every=20)
    assert RankFaults([fault], 0, 4).alone_s("checkpoint", 20) == pytest.approx(0.05)
    assert RankFaults([fault], 0, 4).alone_s("evaluation", 20) == 0
    assert RankFaults([fault], 1, 4).alone_s("checkpoint", 20) == 0


def test_every_kind_says_what_it_means():
    assert all(meaning.text and meaning.fabrics for meaning in KINDS.values())
