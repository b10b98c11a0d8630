"""Timers of trainers, line by line: of one rank's, and of all ranks after a step's line."""

import numpy as np
import pytest

from evenstep.importers.steps.records import WHOLE
from evenstep.importers.steps.timers import Timers
from evenstep.trace.ranks import MOST_RANKS
from evenstep.trace.spool.layout import Phase

NAN = float("nan")
ONE = "[2026-01-01] time (ms) | fwd: {} | bwd: {} | step: 5.00"


def told(timers, whole_s=None):
    """(rank, step, phase, seconds) of each part; where none begins is known."""
    rows = list(timers.rows(whole_s or {}))
    assert all(np.isnan(start) for _, _, start, _, _ in rows)
    return [(rank, step, part, round(seconds, 9)) for rank, step, _, seconds, part in rows]


def test_each_line_of_one_ranks_timers_is_a_step_that_lasts_until_the_next():
    timers = Timers()
    timers.take(ONE.format("10.5", 20), 0, None, 100.0)
    timers.take(ONE.format(7, 8), 1, None, NAN)
    timers.take(ONE.format(11, 21), 0, None, 100.05)
    timers.take(ONE.format(12, 22), 0, None, 100.07)  # less than its parts: no clock of steps
    parts = (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)
    assert told(timers) == [
        *((0, 1, int(part), s) for part, s in zip(parts, (0.0105, 0.02, 0.005), strict=True)),
        *((1, 1, int(part), s) for part, s in zip(parts, (0.007, 0.008, 0.005), strict=True)),
        (0, 2, WHOLE, 0.05),
        *((0, 2, int(part), s) for part, s in zip(parts, (0.011, 0.021, 0.005), strict=True)),
        *((0, 3, int(part), s) for part, s in zip(parts, (0.012, 0.022, 0.005), strict=True)),
    ]  # fmt: skip
    assert timers.limits() == []


def test_micro_batches_are_steps_only_where_no_timers_of_steps_are():
    timers = Timers()
    line = "time (ms) | fwd_microstep: 3.0 | bwd_microstep: 4.0 | step_microstep: 0.5"
    for _ in range(2):
        timers.take(line, 0, 7, NAN)
    parts = [(int(Phase.FORWARD), 0.003), (int(Phase.BACKWARD), 0.004),
             (int(Phase.OPTIMIZER), 0.0005)]  # fmt: skip
    assert told(timers) == [(0, step, *part) for step in (1, 2) for part in parts]
    assert timers.limits() == ["timers of this log are of micro-batches: each is taken for a step"]
    timers.take(ONE.format(6, 8), 0, 7, NAN)
    assert {step for _, step, *_ in told(timers)} == {7}
    assert timers.limits() == []


def test_a_line_of_timers_without_a_forward_is_no_step_unless_it_follows_one():
    timers = Timers()
    timers.take("time (ms) | save-checkpoint: 900.0", 0, None, 1.0)
    timers.take(ONE.format(1, 2), 0, None, 2.0)
    assert {step for _, step, *_ in told(timers)} == {1}
    timers.take("time (ms) | optimizer: 9.0", 0, 8, 3.0)
    timers.take("time (ms) | forward-compute: 1.0 | backward-compute: 2.0", 0, 8, 3.0)
    assert (0, 8, int(Phase.OPTIMIZER), 0.009) in told(timers)


REPORT = """\
times across ranks (ms):
    forward-compute:
        rank  0: 10.00
        rank  1: 12.00

    backward-compute:
        rank  0: 20.00
        Min: 20.0
        rank  1: 22.00
    batch-generator:
        rank  0: 1.00
        rank  1: 2.00
something else
        rank  0: 99.00
    forward-compute:
        rank  0: 98.00
"""


@pytest.mark.parametrize("number", [None, 30])
def test_timers_of_all_ranks_are_of_the_step_before_until_another_line(number):
    timers = Timers()
    for line in (REPORT + REPORT.replace("10.00", "30.00")).splitlines():
        timers.take(line, 5, number, NAN)
    first, last = (1, 2) if number is None else (30, 30)
    found = {place[:3]: place[3] for place in told(timers)}
    assert {rank for rank, *_ in found} == {0, 1}
    assert found[0, last, int(Phase.FORWARD)] == 0.03
    assert found[1, first, int(Phase.FORWARD)] == 0.012
    assert found[1, last, int(Phase.BACKWARD)] == 0.022
    assert found[0, first, int(Phase.INPUT)] == 0.001
    assert timers.reports == 2
    assert timers.limits() == []


def test_what_parts_leave_of_a_step_is_communication_and_forward_holds_no_input():
    timers = Timers()
    for line in REPORT.splitlines():
        timers.take(line, 0, 30, NAN)
    found = {place[:3]: place[3] for place in told(timers, {30: 0.050})}
    assert found == {
        (0, 30, int(Phase.INPUT)): 0.001, (0, 30, int(Phase.FORWARD)): 0.009,
        (0, 30, int(Phase.BACKWARD)): 0.02, (0, 30, int(Phase.SYNC)): 0.02,
        (1, 30, int(Phase.INPUT)): 0.002, (1, 30, int(Phase.FORWARD)): 0.010,
        (1, 30, int(Phase.BACKWARD)): 0.022, (1, 30, int(Phase.SYNC)): 0.016,
    }  # fmt: skip
    short = {place[:3]: place[3] for place in told(timers, {30: 0.001})}
    assert short[0, 30, int(Phase.SYNC)] == 0


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["max time across ranks (ms):", "    forward-compute ....: 10.0"], "the longest of all"),
        (
            ["(min, max) time across ranks (ms):", "    optimizer ....: (1.0, 2.0)"],
            "the longest of",
        ),
        (["time (ms) | optimizer: 9.0"], "of parts that all ranks end together"),
        (["nothing"], None),
    ],
)
def test_timers_that_name_no_rank_say_so(lines, said):
    timers = Timers()
    for line in lines:
        timers.take(line, 0, 4, NAN)
    limits = timers.limits()
    assert len(limits) == (said is not None)
    assert all(said in limit for limit in limits)


def test_a_rank_beyond_all_is_the_one_that_is_left_out():
    timers = Timers()
    timers.take("times across ranks (ms):", 0, 1, NAN)
    for name in ("forward-compute", "backward-compute"):
        timers.take(f"    {name}:", 0, 1, NAN)
        timers.take(f"    rank {MOST_RANKS + 5}: 1.0ms", 0, 1, NAN)
    assert {rank for rank, *_ in told(timers)} == {MOST_RANKS}
