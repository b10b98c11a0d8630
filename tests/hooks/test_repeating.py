"""What repeats in a program's calls, and where its steps end."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.hooks.repeating import (
    FEWEST_CALLS,
    FEWEST_MESSAGES,
    LONGEST,
    MESSAGE,
    REPEATS,
    Cycle,
    repetition,
)

WIDTH = 4


def followed(calls, width=WIDTH):
    """Where steps ended, as numbers of calls; the trace ends after them."""
    cycle, ends = Cycle(), []
    for number, call in enumerate(calls):
        if cycle.known:
            ends += [number] * cycle.ends(width, call)
        else:
            ends += [step[-1] for step in cycle.learn(width, call, number)[:-1]]
    return ends + [step[-1] for step in cycle.conclude()[:-1]]


def test_one_call_a_step_ends_a_step_with_every_call():
    assert followed("a" * 50) == list(range(50))


def test_what_comes_before_the_loop_is_a_step_of_its_own():
    assert followed("xyz" + "ab" * 30) == [2, *range(4, 63, 2)]


def test_an_inner_loop_of_equal_calls_is_no_step():
    assert followed(("g" * 10 + "l") * 12) == list(range(10, 132, 11))


def test_calls_that_come_in_between_lengthen_one_step():
    ends = followed("ab" * 20 + "ev" + "ab" * 5)
    assert ends == [*range(1, 40, 2), *range(43, 52, 2)]


def test_a_few_steps_are_told_when_the_trace_ends():
    assert followed("abc" * 3) == [2, 5, 8]


def test_two_repetitions_are_a_coincidence():
    assert followed("abcabc") == []


def test_another_loop_is_learnt_after_the_first():
    *_, before, last = followed("ab" * 20 + "xyz" * 60)
    assert (last - before, last >= 40 + 180 - 3) == (3, True)


def test_messages_count_only_where_nothing_else_repeats():
    assert followed("sr" * (FEWEST_CALLS // 2 + 1), width=MESSAGE)  # told at the end
    cycle = Cycle()
    for number in range(FEWEST_MESSAGES - 1):
        assert cycle.learn(MESSAGE, "m", number) == []
    cycle.learn(2, "g", 0)
    assert cycle.learn(MESSAGE, "m", 1) == []
    assert not cycle.known


def test_a_wider_group_takes_the_lead():
    cycle = Cycle()
    told = [cycle.learn(width, width, number) for number, width in enumerate([2, 4] * 40)
            if not cycle.known]  # fmt: skip
    steps = next(steps for steps in told if steps)
    assert all(number % 2 for step in steps for number in step)  # only the wide ones


@given(
    unit=st.lists(st.integers(0, 5), min_size=1, max_size=12),
    prefix=st.lists(st.integers(6, 9), max_size=5),  # no more than what repeats: half of it all
    times=st.integers(5, 20),
)
def test_every_repetition_is_found_with_a_period_that_divides_it(unit, prefix, times):
    start, period = repetition([*prefix, *unit * times], 4)
    assert start <= len(prefix)
    assert period
    assert len(unit) % period == 0


@given(st.lists(st.integers(0, 3), max_size=80))
def test_a_repetition_is_one(calls):
    start, period = repetition(calls, 3)
    tail = calls[start:]
    assert period == 0 or (tail[period:] == tail[:-period] and len(tail) >= 3 * period)


@given(st.lists(st.integers(0, 2), max_size=150))
def test_every_call_is_in_one_step_at_most_and_in_order(calls):
    ends = followed(calls)
    assert ends == sorted(set(ends))


@pytest.mark.parametrize("period", [1, 3, 7, 40])
def test_the_period_is_told(period):
    cycle = Cycle()
    calls = list(range(period)) * 60
    for call in calls:
        if not cycle.known:
            cycle.learn(WIDTH, call, call)
    assert cycle.period == period


@pytest.mark.parametrize(("width", "fewest"), [(WIDTH, FEWEST_CALLS), (MESSAGE, FEWEST_MESSAGES)])
def test_a_repetition_is_told_with_the_first_call_that_makes_enough(width, fewest):
    cycle = Cycle()
    assert [cycle.learn(width, "g", number) for number in range(fewest - 1)] == [[]] * (fewest - 1)
    assert cycle.learn(width, "g", fewest - 1)
    assert (cycle.known, cycle.period) == (True, 1)
    cycle.forget()
    assert (cycle.known, cycle.learn(width, "g", 0)) == (False, [])


@pytest.mark.parametrize(("width", "fewest"), [(WIDTH, FEWEST_CALLS), (MESSAGE, FEWEST_MESSAGES)])
def test_what_was_forgotten_is_learnt_again(width, fewest):
    cycle = Cycle()
    for _ in range(2):
        told = [cycle.learn(width, number % 2, number) for number in range(fewest)]
        assert (any(told), cycle.known) == (True, True)
        cycle.forget()
        assert not cycle.known


def test_what_does_not_repeat_for_long_is_forgotten():
    cycle, calls = Cycle(), LONGEST + LONGEST // 2
    for number in range(calls):
        assert cycle.learn(WIDTH, number, number) == []
    steps = []
    for number in range(calls, calls + FEWEST_CALLS * 200):
        if steps := cycle.learn(WIDTH, "g", number):
            break
    assert sum(map(len, steps)) <= LONGEST + FEWEST_CALLS  # none of the first ones is left
    assert cycle.period == 1


def test_a_program_that_goes_on_to_something_else_has_no_step_until_that_repeats():
    """As soon as more calls than four repetitions and as many as are learnt from have come."""
    cycle = Cycle()
    for number in range(40):
        if not cycle.known:
            cycle.learn(WIDTH, number % 2, number)
        else:
            cycle.ends(WIDTH, number % 2)
    others = 0
    while cycle.known:
        assert not cycle.ends(WIDTH, "other")
        others += 1
    assert others == REPEATS * 2 + FEWEST_CALLS + 1


@given(st.lists(st.integers(0, 1), max_size=40), st.integers(1, 5))
def test_the_shortest_repetition_that_is_long_enough_is_found(seen, repeats):
    """By looking at each period and each beginning in turn."""
    expected = next(
        (
            (start, period)
            for period in range(1, len(seen) + 1)
            for start in range(len(seen) - period + 1)
            if all(seen[at] == seen[at + period] for at in range(start, len(seen) - period))
            and len(seen) - start >= repeats * period
            and 2 * (len(seen) - start) >= len(seen)
        ),
        (0, 0),
    )
    assert repetition(seen, repeats) == expected


@given(
    unit=st.lists(st.integers(0, 3), min_size=1, max_size=6),
    before=st.lists(st.integers(4, 6), max_size=6),
    times=st.integers(30, 60),
)
def test_steps_of_a_loop_end_where_it_begins_anew(unit, before, times):
    """As far apart as the shortest period of the unit, whatever came before the loop."""
    calls = [*before, *unit * times]
    period = next(p for p in range(1, len(unit) + 1)
                  if len(unit) % p == 0 and unit == unit[:p] * (len(unit) // p))  # fmt: skip
    ends = followed(calls)
    apart = {after - end for end, after in pairwise(ends)}
    assert apart <= {period} | ({ends[1] - ends[0]} if before else set())
    assert ends[-1] >= len(calls) - period
    assert len(ends) >= len(unit) * times // period
