"""Steps that start up are left out, and no others."""

from dataclasses import replace

import numpy as np
import pytest

from evenstep.diagnose.engine import diagnose
from evenstep.diagnose.measure.grid import warm_up_steps
from evenstep.trace.spool.layout import Kind, Phase
from evenstep.trace.store import reading
from evenstep.trace.store.writing import write_store
from tests.diagnose.synthetic import MS, World


def started(*first, usual=(100, 110, 105), count=30):
    """Steps of which the first took this long."""
    return np.array([*first, *(usual * count)][:count], float)


@pytest.mark.parametrize(
    ("first", "left_out"),
    [
        ((), 0),
        ((5000,), 1),
        ((5000, 200, 130), 3),
        ((5000, 5100, 200), 3),
        ((5000, 112), 1),
        ((105, 5000), 0),  # a run does not start up in its second step
        ((5000,) * 4, 0),  # nor in four
        ((200,) * 12, 0),  # slow for a while
    ],
)
def test_steps_start_up_that_are_longer_than_all_later_ones(first, left_out):
    assert warm_up_steps(started(*first)) == left_out
    assert warm_up_steps(started(*first)[:4]) == 0  # too few to leave any out
    assert warm_up_steps(started(*first), lambda _: True) == 0  # what all steps do, these do, too


@pytest.mark.parametrize(("steps", "left_out"), [(4, 0), (5, 1), (9, 1), (10, 2), (14, 2), (15, 3)])
def test_a_short_run_starts_up_too_in_a_fifth_of_its_steps(steps, left_out):
    assert warm_up_steps(started(5000, 900, 400)[:steps]) == left_out


@pytest.mark.parametrize(("stall", "left_out"), [(4000, 0), (9000, 0), (25_000, 1)])
def test_a_later_stall_of_another_length_makes_no_start_of_a_run_usual(stall, left_out):
    length = started(5000)
    length[20] = stall
    assert warm_up_steps(length) == left_out


def test_a_fault_in_the_first_steps_costs_what_it_takes():
    table = np.zeros((30, 4))
    table[:6, 1] = 60 * MS
    (found,) = diagnose((slow := World(steps=30).delayed(Phase.BACKWARD, table)).trace()).findings
    assert found.where.ranks == [1]
    assert found.severity == pytest.approx(slow.injected_share(), rel=0.05)


@pytest.mark.parametrize("phase", [Phase.CHECKPOINT, Phase.EVALUATION])
def test_stops_on_record_are_no_measure_of_how_long_steps_take(phase, tmp_path, monkeypatch):
    """A first step of 3 s beside stops of 2 s; a stop in the first step is none that starts up."""
    table = np.zeros((60, 4))
    table[[20, 40]] = 2000 * MS
    stopped, first = World().delayed(phase, table), np.zeros((60, 4))
    first[0] = 3000 * MS
    started = stopped.delayed(Phase.FORWARD, first)
    assert diagnose(started.trace()).summary["steps"] == 59
    write_store(started.trace(), tmp_path / "store")
    monkeypatch.setattr(reading, "LARGE_RECORDS", 0)  # left on disk
    assert diagnose(reading.load_store(tmp_path / "store")).summary["steps"] == 59
    early = World().delayed(phase, table + first)
    assert diagnose(early.trace()).summary["steps"] == 60


def test_hosts_that_wait_for_several_steps_at_once_do_not_tell_how_long_one_takes():
    """They issue ten steps in a fifth of their time: the first ones of a device take longer."""
    table = np.zeros((60, 4))
    table[0], table[1] = 300 * MS, 200 * MS
    trace = World(steps=60, on_device=True).delayed(Phase.BACKWARD, table).trace()
    events, steps = trace.events, trace.of_kind(Kind.STEP)
    start = np.zeros((4, 60), np.int64)
    start[steps["rank"], steps.step] = steps.enter_ns
    begun = start[events["rank"], events.step // 10 * 10]
    waits = (events.kind == int(Kind.STEP)) & (events.step % 10 == 9)
    waits |= events.kind == int(Kind.COLLECTIVE)  # the end is its device's
    ends = np.where(waits, events.exit_ns, begun + (events.exit_ns - begun) // 5)
    enter = begun + (events.enter_ns - begun) // 5
    found = diagnose(replace(trace, events=events.with_columns(enter_ns=enter, exit_ns=ends)))
    assert found.summary["steps"] == 58
    assert not found.findings


def test_a_start_is_none_of_the_steps_that_are_slow_now_and_then():
    """A batch that is late once takes longer than the second step."""
    first, batches = np.zeros((30, 4)), np.zeros((30, 4))
    first[:2], batches[[9, 17], 3] = 90 * MS, 300 * MS
    slow = World(steps=30).delayed(Phase.FORWARD, first).delayed(Phase.INPUT, batches)
    (found,) = diagnose(slow.trace()).findings
    assert (found.mode, found.where.ranks) == ("input_pipeline", [3])
