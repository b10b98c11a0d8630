"""Critical path, blame and what checkpoints change, against worlds known by construction."""

import numpy as np
import pytest

from evenstep.diagnose.engine import dynamics
from evenstep.diagnose.lateness.case import open_case
from evenstep.diagnose.lateness.cost import Blame, blame, drift
from evenstep.diagnose.lateness.dynamics import dwells, entropy
from evenstep.diagnose.measure import effects
from evenstep.diagnose.measure.grid import step_grid
from evenstep.trace.spool.layout import Phase
from tests.diagnose.synthetic import MS, World


def told(world):
    return dynamics(open_case(world.trace()))


def turning(period, ranks=4, steps=60):
    """Every rank in turn is late for `period` steps."""
    turn = np.eye(ranks)[(np.arange(steps) // period) % ranks]
    return World(ranks=ranks, steps=steps).delayed(Phase.FORWARD, turn * 50 * MS)


STYLES = [
    World(ranks=8, noise=0.01, style=style) for style in ("overlapped", "blocking", "gathered")
] + [World(ranks=8, noise=0.01, style="grid", tensor_parallel=2)]


@pytest.mark.parametrize("world", STYLES, ids=lambda world: world.style)
def test_all_blame_adds_up_to_all_waiting(world):
    grid = step_grid(world.slow(3, Phase.BACKWARD, 20 * MS).trace())
    found = blame(grid)
    assert found.between(np.arange(found.shape[1])).sum() == pytest.approx(grid.wait_ns.sum())
    assert found.by_window().sum() == pytest.approx(grid.wait_ns.sum())


@pytest.mark.parametrize("world", STYLES, ids=lambda world: world.style)
def test_a_slow_rank_bounds_the_steps_in_its_phase(world):
    path = told(world.slow(3, Phase.BACKWARD, 20 * MS))["critical_path"]
    (first, *_) = path["bounds"]
    assert (first["rank"], first["phase"]) == (3, "backward")
    assert first["share"] > 0.9


def test_nobody_bounds_the_steps_of_a_quiet_run():
    path = told(World(noise=0.001))["critical_path"]
    assert path["unbound_share"] == 1.0
    assert (path["bounds"], path["entropy_bits"]) == ([], 0.0)


def test_a_bound_that_moves_every_step_has_all_the_entropy_there_is():
    path = told(turning(1))["critical_path"]
    assert path["entropy_bits"] == pytest.approx(2, abs=0.01)  # log2(4)
    assert path["entropy_normalized"] == pytest.approx(1, abs=0.01)
    assert path["moves_share"] == 1.0


def test_how_long_a_bound_stays_is_told():
    path = told(turning(12))["critical_path"]
    assert path["dwell_steps"]["mean"] == pytest.approx(12)
    assert path["dwell_steps"]["longest"] == {"rank": 0, "steps": 12, "first_step": 0}
    assert path["moves_share"] == pytest.approx(4 / 59)


def test_entropy_is_shannons():
    assert entropy(np.array([1, 1, 2])) == pytest.approx(1.5)
    assert entropy(np.array([5, 0])) == 0.0


def test_dwells_are_runs():
    who, length = dwells(np.array([2, 2, -1, 0, 0, 0]))
    assert (who.tolist(), length.tolist()) == ([2, -1, 0], [2, 1, 3])


def test_who_waits_for_whom_is_told_by_rank_and_by_node():
    world = World(ranks=4, ranks_per_node=2, noise=0.0).slow(3, Phase.BACKWARD, 20 * MS)
    found = told(world)["blame"]
    assert found["rank_seconds"] == pytest.approx(60 * 3 * 0.02)  # 60 steps, three ranks wait
    assert found["culprits"] == [{"rank": 3, "share": pytest.approx(1)}]
    assert {(pair["waiting"], pair["for"]) for pair in found["pairs"]} == {(0, 3), (1, 3), (2, 3)}
    assert found["nodes"][0] == {"waiting": "node0", "for": "node1", "share": pytest.approx(2 / 3)}


def test_blame_that_moves_to_another_rank_drifts():
    table = np.zeros((64, 4))
    table[:32, 1], table[32:, 2] = 40 * MS, 40 * MS
    grid = step_grid(World(steps=64).delayed(Phase.FORWARD, table).trace())
    assert drift(blame(grid)) == pytest.approx(1)


def test_node_blame_is_the_sum_over_its_ranks():
    victim, culprit = np.indices((4, 4)).reshape(2, -1)
    found = Blame(np.zeros(16, int), victim, culprit, np.arange(16.0), (1, 4))
    table = found.between(np.array([0, 0, 1, 1]))
    assert table.tolist() == [[0 + 1 + 4 + 5, 2 + 3 + 6 + 7], [8 + 9 + 12 + 13, 10 + 11 + 14 + 15]]


def test_a_large_delay_costs_every_other_rank_its_length_and_is_over_in_a_step():
    table = np.zeros((60, 8))
    table[30, 2] = 100 * MS
    event = told(World(ranks=8).delayed(Phase.FORWARD, table))["blame"]["largest_delay"]
    assert (event["step"], event["rank"], event["steps_to_decay"]) == (30, 2, 1)
    assert event["victims"] == [0, 1, 3, 4, 5, 6, 7]
    assert event["rank_seconds_per_second_of_delay"] == pytest.approx(7, rel=0.01)


def test_without_collectives_nobody_is_blamed():
    found = told(World(collectives=False))
    assert (found["blame"], found["critical_path"]) == (None, None)


# -- checkpoints -----------------------------------------------------------------------------------


def checkpointed(before, after, slow=0.0):
    """A checkpoint of all ranks at step 40; the common noise before and after it in ms."""
    steps = np.arange(80)
    table = np.where(steps < 40, before, after) * np.tile([0, 1, 0.5, 0.2], 20)
    work = np.repeat(table[:, None] * MS, 4, axis=1)
    work[41:, 1] += slow * MS
    writing = np.zeros((80, 4))
    writing[40] = 300 * MS
    world = World(steps=80).delayed(Phase.BACKWARD, work).delayed(Phase.CHECKPOINT, writing)
    return effects.checkpoints(step_grid(world.trace()))


@pytest.mark.parametrize(
    ("before", "after", "slow", "verdict"),
    [(2, 10, 0, "amplified"), (10, 2, 0, "reset"), (4, 4, 0, "unchanged"), (4, 4, 30, "amplified")],
)
def test_a_checkpoint_resets_leaves_or_amplifies(before, after, slow, verdict):
    found = checkpointed(before, after, slow)
    assert found[verdict] == 1
    assert found["events"][0]["step"] == 40


def test_slow_ranks_before_and_after_are_named():
    (event,) = checkpointed(2, 2, slow=30)["events"]
    assert event["slow_ranks"] == [[], [1]]


def test_a_run_without_checkpoints_has_nothing_to_tell():
    assert effects.checkpoints(step_grid(World().trace())) is None
