"""A run too large to hold, gone through in pieces, against the same run looked at whole."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from evenstep.diagnose.engine import diagnose
from evenstep.diagnose.lateness.case import open_case
from evenstep.diagnose.lateness.delays import Cause
from evenstep.diagnose.measure import grid
from evenstep.diagnose.measure.grid import step_grid
from evenstep.trace.spool.layout import Kind, Phase
from evenstep.trace.trace import ByKind
from tests.diagnose.synthetic import MS, World

CELLS = ("start_ns", "end_ns", "blocked_ns", "wait_ns", "hidden_ns", "pause_ns", "collectives")
NOISY = World(noise=0.02, steps=80, ranks=6)
WORLDS = [
    NOISY.slow(1, Phase.BACKWARD, 30 * MS),
    replace(NOISY, style="blocking").slow(2, Phase.OPTIMIZER, 20 * MS),
    replace(NOISY, style="grid", tensor_parallel=2).slow(3, Phase.FORWARD, 25 * MS),
    replace(NOISY, on_device=True).slow(0, Phase.BACKWARD, 25 * MS),
]


def in_pieces(function, trace):
    """What a function finds, and what it finds as if memory were short."""
    whole = function(trace)
    with pytest.MonkeyPatch.context() as small:
        small.setattr(grid, "WINDOW_RECORDS", len(trace.events) // 3)
        small.setattr(grid, "_SAMPLE_RECORDS", len(trace.events) // 4)
        return whole, function(trace)


@pytest.fixture(scope="module", params=WORLDS)
def delays(request):
    return in_pieces(lambda trace: open_case(trace).delays, request.param.trace())


def test_every_cell_is_the_same(delays):
    whole, parts = (found.grid for found in delays)
    assert not parts.sampled.all()
    assert all(
        np.median(np.abs(getattr(whole, name) - getattr(parts, name))) <= 1000 for name in CELLS
    )
    assert all(np.array_equal(whole.phase_ns[phase], parts.phase_ns[phase]) for phase in Phase)


def test_every_delay_costs_the_same(delays):
    whole, parts = delays
    assert all(np.array_equal(whole.cells(cause), parts.cells(cause)) for cause in Cause)
    assert whole.all_loss_ns.sum() == pytest.approx(parts.all_loss_ns.sum(), rel=0.05)
    assert whole.rest_ns.sum() == pytest.approx(parts.rest_ns.sum(), abs=0.01 * whole.grid.total_ns)


def test_the_verdict_is_the_same():
    whole, parts = in_pieces(diagnose, WORLDS[0].trace())
    assert parts.findings[0].where == whole.findings[0].where
    assert parts.findings[0].severity == pytest.approx(whole.findings[0].severity, rel=0.05)


def test_the_sample_lies_all_over_the_run():
    _, parts = in_pieces(step_grid, WORLDS[0].trace())
    known = np.flatnonzero(parts.sampled)
    assert known[0] == 0
    assert known[-1] == len(parts.steps) - 1
    assert set(parts.graph.operations.step) == set(parts.steps[known])


def test_a_value_of_sampled_steps_is_carried_to_the_nearest_others():
    grid = step_grid(World(steps=20).trace())
    grid.sampled = np.isin(np.arange(len(grid.steps)), [2, 10])
    value = np.where(grid.sampled, np.arange(len(grid.steps)), 0)
    assert grid.spread(value).tolist() == [2] * 7 + [10] * (len(grid.steps) - 7)


def test_pieces_are_small_but_for_steps_of_very_many_records():
    def longest(steps, per_step):
        trace = SimpleNamespace(
            events=range(steps * per_step), table=SimpleNamespace(per_step=lambda: per_step)
        )
        return max(last - first for first, last in grid._pieces(trace, steps))

    assert longest(960, 2500) == 80  # 200,000 records
    assert longest(1000, 40_000) == 16  # of which two more are read
    assert longest(100, 400_000) == 1


def test_when_ranks_began_is_told_without_their_calls():
    case = open_case(NOISY.trace())
    steps = ByKind({Kind.STEP: case.trace.of_kind(Kind.STEP)})
    known = replace(case, trace=replace(case.trace, events=steps)).late_start_ns
    assert np.array_equal(known, case.late_start_ns)
    assert len(known) == NOISY.ranks


def test_a_pause_in_none_of_the_steps_compared_in_full_holds_up_none_of_these():
    def saved(trace):
        case = open_case(trace)
        return case.saved(case.all_relieved(np.ones(case.grid.shape, bool))).sum()

    late = NOISY.slow(1, Phase.BACKWARD, 30 * MS)
    once = np.zeros((80, 6))
    once[5, 2] = 200 * MS
    paused = late.delayed(Phase.BACKWARD, once, collector=True)
    (_, without), (_, found) = (in_pieces(saved, world.trace()) for world in (late, paused))
    assert found == pytest.approx(without, rel=0.05)
