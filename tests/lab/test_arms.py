"""Arms and whose turn it is."""

from collections import Counter
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.errors import UsageError
from lab.arms import AGAIN, BASELINE, Schedule, arm
from lab.board import BEFORE, OVER, Board
from lab.run import arms_for


@given(st.integers(1, 5), st.integers(1, 20), st.integers(0, 3), st.integers(0, 2**32))
def test_every_arm_has_one_block_in_each_round(arms, rounds, warm_up, seed):
    schedule = Schedule((arm(BASELINE),) * arms, rounds, warm_up, seed)
    for number in range(rounds + warm_up):
        blocks = range(number * arms, (number + 1) * arms)
        assert sorted(map(schedule.arm_at, blocks)) == list(range(arms))
        assert {schedule.round_of(block) for block in blocks} == {number}


def test_no_arm_has_a_place_of_its_own():
    schedule = Schedule((arm(BASELINE),) * 4, 400, 0, seed=7)
    first = Counter(schedule.arm_at(4 * number) for number in range(400))
    assert all(first[which] > 60 for which in range(4))  # 100 expected, deviation 9


def test_before_and_after_it_is_the_first_arms_turn():
    schedule = Schedule((arm(BASELINE), arm("slack")), 2, 0, seed=1)
    assert [schedule.arm_at(block) for block in (BEFORE, OVER, 4)] == [0, 0, 0]


def test_the_baseline_comes_first_and_twice():
    assert [one.name for one in arms_for(["slack", "baseline", "paper", "slack"])] == [
        BASELINE, AGAIN, "slack", "paper",
    ]  # fmt: skip


def test_modifiers_change_the_settings():
    common = {"rank": 1, "world": 4, "sharing": False, "guarded": True}
    assert not arm("slack").settings(**common).sharing
    assert arm("slack+sharing").settings(**common).sharing
    assert not arm("paper+unguarded+sharing").settings(**common).guarded
    assert arm(BASELINE).settings(**common).mode == "off"


@pytest.mark.parametrize("name", ["quick", "slack+", "slack+quick", "baseline+sharing", ""])
def test_an_arm_that_does_not_exist_is_refused(name):
    with pytest.raises(UsageError, match="baseline, slack, paper, token"):
        arm(name)


def test_a_tier_has_arms_of_its_own():
    assert arm("blocking", ("blocking",)).own == "blocking"
    assert arm("blocking", ("blocking",)).settings().mode == "off"


def test_a_board_shows_the_same_to_everybody(tmp_path):
    path = tmp_path / "board"
    with closing(Board.create(path)) as one, closing(Board(path)) as other:
        assert other.block == BEFORE
        one.show(12)
        assert other.block == 12
