from typing import Any, NamedTuple

import numpy as np
import pytest

from evenstep.diagnose.lateness.thresholds import FEWEST_STEPS
from evenstep.diagnose.levels import LISTED
from evenstep.diagnose.modes.intervention import pattern_of, when


def late(steps: int, ranks: int, *cells: tuple[int, int]):
    table = np.zeros((steps, ranks), bool)
    for step, rank in cells:
        table[step, rank] = True
    return table


class Steps(NamedTuple):
    """Of a grid, the steps' numbers and how long each took."""

    steps: Any
    step_ns: Any


def even(first: int, count: int) -> Any:
    return Steps(np.arange(first, first + count), np.full(count, 1e6))


@pytest.mark.parametrize(
    ("pattern", "cells"),
    [
        ("chronic", [(step, 1) for step in range(100)]),
        ("chronic", [(step, rank) for step in range(0, 100) for rank in (1, 3)]),
        ("chronic", [(step, 1) for step in range(0, 100, 2)]),
        ("rotating", [(step, step % 4) for step in range(100)]),
        ("rotating", [(step, step % 2) for step in range(100)]),
        ("bursty", [(step, 1) for step in (*range(10, 20), *range(50, 60))]),
        ("transient", [(step, step % 4) for step in (3, 40, 77)]),
    ],
)
def test_recurrence_has_a_name(pattern, cells):
    assert pattern_of(late(100, 4, *cells)) == pattern


def test_nothing_late_has_no_pattern():
    assert when(late(10, 2), even(0, 10)).steps == ()


def test_too_few_steps_have_their_steps_but_no_pattern():
    found = when(late(FEWEST_STEPS - 1, 2, (1, 0)), even(7, FEWEST_STEPS - 1))
    assert (found.steps, found.pattern) == ([(8, 8)], None)


def test_steps_are_ranges_in_the_runs_own_numbers():
    table = late(100, 4, (3, 0), (10, 1), (11, 1), (12, 2))
    assert when(table, even(500, 100)).steps == [(503, 503), (510, 512)]


def test_of_many_ranges_the_longest_are_listed_in_order():
    cells = [(step, 0) for step in range(0, 120, 3)] + [(100, 0), (101, 0)]
    ranges = when(late(130, 4, *cells), even(0, 130)).steps
    assert len(ranges) == LISTED
    assert (99, 102) in ranges
    assert ranges == sorted(ranges)


def test_single_steps_that_took_long_are_listed_before_more_steps_that_did_not():
    """As of a collector whose pauses grow: what the page marks is where time is lost."""
    short = [(step, 0) for at in range(0, 100, 10) for step in (at, at + 1)]
    took = np.full(200, 1e6)
    took[[150, 170]] = 3e9
    ranges = when(late(200, 4, *short, (150, 1), (170, 1)), Steps(np.arange(200), took)).steps
    assert ranges[-2:] == [(150, 150), (170, 170)]
    assert len(ranges) == LISTED
