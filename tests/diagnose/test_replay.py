"""The replay against a world run again without the delay: its independent reference."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenstep.diagnose.lateness.replay import Removed, program, saved
from evenstep.diagnose.measure.grid import step_grid
from evenstep.trace.spool.layout import Kind, Op, Phase
from tests.diagnose.synthetic import MS, World

PROGRAMS = [
    World(style="overlapped"),
    World(style="blocking"),
    World(style="gathered", ranks=8),
    World(style="grid", tensor_parallel=2),
    World(style="grid", tensor_parallel=4, ranks=16),
]
WORLDS = st.builds(
    replace,
    st.sampled_from(PROGRAMS),
    steps=st.just(20),
    noise=st.floats(0, 0.1),
    transfer_ns=st.sampled_from([0.1 * MS, 2 * MS, 15 * MS]),
    seed=st.integers(0, 10**6),
)


def first_layer(plan, shape, rank, taken_ns):
    """Work taken out of one rank before its first collective of every step."""
    rows = np.zeros(len(plan.rows))
    part = plan.layers[0]
    mine = plan.rows.cell[part] % shape[1] == rank
    rows[part] = np.where(mine, taken_ns, 0)
    return Removed(rows, np.zeros(shape))


def gained(world, rank, taken_ns):
    grid = step_grid(world.trace())
    plan = program(grid)
    lead, end = saved(plan, first_layer(plan, grid.shape, rank, taken_ns))
    return np.median(end, axis=1) - np.median(lead, axis=1)


@settings(max_examples=60, deadline=None)
@given(WORLDS, st.integers(0, 3), st.sampled_from([5 * MS, 50 * MS]))
def test_taking_a_delay_out_again_saves_what_it_has_cost(world, rank, delay_ns):
    disturbed = world.slow(rank, Phase.FORWARD, delay_ns)
    cost = disturbed.length_ns() - world.length_ns()
    total = gained(disturbed, rank, delay_ns).sum()
    assert total == pytest.approx(cost, rel=0.1, abs=0.01 * disturbed.length_ns())


@settings(max_examples=20, deadline=None)
@given(WORLDS)
def test_taking_nothing_out_saves_nothing(world):
    assert np.abs(gained(world, 0, 0)).max() <= 2  # rounding of the stamps


def test_a_delay_hidden_by_the_transfer_before_it_saves_nothing():
    world = World(buckets=2, transfer_ns=60 * MS, steps=10)
    late = world.slow(1, Phase.BACKWARD, 10 * MS, bucket=1)
    grid = step_grid(late.trace())
    plan = program(grid)
    rows = np.zeros(len(plan.rows))
    rows[plan.layers[1]] = np.where(plan.rows.cell[plan.layers[1]] % 4 == 1, 10 * MS, 0)
    _, end = saved(plan, Removed(rows, np.zeros(grid.shape)))
    assert end[:, 0].max() == 0


def test_without_collectives_there_is_nothing_to_replay():
    grid = step_grid(World(collectives=False, steps=5).trace())
    plan = program(grid)
    _, end = saved(plan, Removed(np.zeros(0), np.zeros(grid.shape)))
    assert end.tolist() == np.zeros(grid.shape).tolist()


def test_a_broadcast_whose_root_is_not_known_waits_for_all():
    trace = World(style="blocking", steps=15, after_backward=((Op.BROADCAST, 1000),)).trace()
    rootless = np.where(trace.events.op == int(Op.BROADCAST), -1, trace.events.peer_or_root)
    kept = trace.events.kind == int(Kind.COLLECTIVE)
    columns = np.where(kept, rootless, trace.events.peer_or_root)
    trace.events = trace.events.with_column("peer_or_root", columns)
    plan = program(step_grid(trace))
    broadcasts = np.bincount(plan.rows.instance, plan.rows.deciding)
    assert broadcasts.min() == 4
