"""Several causes at once: each explains its part, and the parts add up to what was lost."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenstep.diagnose.engine import diagnose
from evenstep.diagnose.lateness.case import Claims
from evenstep.diagnose.measure.grid import step_grid
from evenstep.diagnose.measure.overview import NAMES, regimes
from evenstep.diagnose.modes.catalog import MODES
from evenstep.trace.spool.layout import Phase
from tests.diagnose.synthetic import MS, World

STEPS = 120


def slow_fabric(move):
    return 8 * MS * (3 if 30 <= move.step < 70 else 1)


CONTENDED = World(steps=STEPS, noise=0.005, style="blocking", fabric=slow_fabric)
QUIET = replace(CONTENDED, fabric=lambda move: 8 * MS)


def severities(world: World) -> dict[str, float]:
    found: dict[str, float] = {}
    for finding in diagnose(world.trace()).findings:
        found[finding.mode] = found.get(finding.mode, 0) + finding.severity
    return found


def test_a_straggler_and_a_contended_fabric_share_the_loss():
    both = CONTENDED.slow(1, Phase.BACKWARD, 20 * MS)
    found = severities(both)
    assert found["fabric_contention"] == pytest.approx(
        both.lost_against(QUIET.slow(1, Phase.BACKWARD, 20 * MS)), rel=0.1
    )
    assert found["straggler"] == pytest.approx(both.injected_share(), rel=0.1)
    parts = found["fabric_contention"] + found["straggler"]
    assert parts == pytest.approx(both.lost_against(QUIET), rel=0.1)


def test_a_checkpoint_an_input_and_a_straggler_share_the_loss():
    table = CONTENDED.everywhere()
    table[10::20, 0] = 200 * MS
    world = QUIET.delayed(Phase.CHECKPOINT, table).slow(2, Phase.INPUT, 15 * MS)
    world = world.slow(3, Phase.FORWARD, 25 * MS)
    found = severities(world)
    parts = sum(found[mode] for mode in ("checkpoint_stall", "input_pipeline", "straggler"))
    assert parts == pytest.approx(world.injected_share(), rel=0.1)


@settings(max_examples=12, deadline=None)
@given(
    st.sampled_from(["overlapped", "blocking", "gathered", "grid"]),
    st.floats(0, 40),
    st.floats(0, 40),
    st.integers(0, 2**20),
)
def test_attributed_parts_are_never_more_than_the_whole(style, late_ms, moves_ms, seed):
    random = np.random.default_rng(seed)
    slow = random.random(40) < 0.3
    world = World(
        ranks=8,
        steps=40,
        noise=0.02,
        style=style,
        tensor_parallel=2 if style == "grid" else 1,
        seed=seed,
        fabric=lambda move: moves_ms * MS * (3 if slow[move.step] else 1) + MS,
    )
    table = world.everywhere()
    table[random.integers(0, 40, 15), random.integers(0, 8, 15)] = late_ms * MS
    found = diagnose(world.delayed(Phase.BACKWARD, table).slow(1, Phase.INPUT, 5 * MS).trace())
    assert sum(finding.severity for finding in found.findings) <= 1 + 1e-3


def test_what_is_claimed_is_gone():
    claims = Claims((2, 2), np.array([5.0, -1.0]))
    late = np.array([[True, False], [True, True]])
    assert claims.claim(late).sum() == 3
    assert claims.claim(late).sum() == 0


def test_every_mode_says_what_to_look_at_and_what_to_do():
    assert len({mode.name for mode in MODES}) == len(MODES)
    for mode in MODES:
        assert mode.symptom.endswith(".")
        assert mode.confirm.endswith(".")
        assert mode.look_at
        assert mode.remedy


def test_steps_are_classed_by_what_takes_most_of_them():
    found = regimes(step_grid(World(steps=63, transfer_ns=50 * MS, style="blocking").trace()))
    assert found == {
        "shares": dict(zip(NAMES, (0, 1, 0, 0), strict=True)),
        "changes": 0,
        "dwell_steps": {"transfer": 63},
        "period_steps": None,
    }


def test_regimes_that_alternate_have_dwell_times_and_a_period():
    table = World(steps=123).everywhere()
    table[:, 1] = np.where(np.arange(123) % 6 < 3, 100 * MS, 0)
    grid = step_grid(World(steps=123).delayed(Phase.FORWARD, table).trace())
    found = regimes(grid)
    assert found["dwell_steps"] == {"compute": 3, "wait": 3}
    assert found["shares"]["wait"] == pytest.approx(0.5, abs=0.03)
    assert found["period_steps"] == pytest.approx(6, rel=0.02)


def test_no_step_has_no_regime():
    trace = World(steps=1).trace()
    trace.events = trace.events.select(slice(0))
    assert regimes(step_grid(trace)) is None


def test_two_ranks_that_hide_one_another_share_what_both_cost():
    world = World(ranks=8).slow(1, Phase.BACKWARD, 30 * MS).slow(5, Phase.INPUT, 30 * MS)
    found = {finding.mode: finding.severity for finding in diagnose(world.trace()).findings}
    # 30 of 94.7 ms are gained by mending both, nothing by mending one
    assert found == pytest.approx({"straggler": 15 / 94.7, "input_pipeline": 15 / 94.7}, rel=0.02)


def test_a_remedy_gives_back_what_mending_it_alone_does_and_the_next_what_is_left():
    second = World(steps=60, noise=0.002).slow(2, Phase.BACKWARD, 20 * MS)
    both, calm = second.slow(1, Phase.INPUT, 40 * MS), World(steps=60, noise=0.002)
    first, other = diagnose(both.trace()).findings[:2]
    assert [first.where.ranks, other.where.ranks] == [[1], [2]]
    alone, whole = both.lost_against(second), both.lost_against(calm)
    assert first.options[0].gain == pytest.approx(alone, abs=0.02)
    assert first.options[0].gain + other.options[0].gain == pytest.approx(whole, abs=0.02)
    assert first.severity + other.severity == pytest.approx(whole, abs=0.02)
    assert first.severity > first.options[0].gain + 0.02  # hidden by it, the other's is its, too


def test_a_slow_node_is_not_hidden_by_batches_that_nobody_gets_in_time():
    world = World(ranks=8, ranks_per_node=4, noise=0.005, steps=60)
    late = np.random.default_rng(3).normal(1, 0.3, (60, 8)).clip(0) * 30 * MS
    late[:, 4:] = (late[:, 4:] - 9 * MS).clip(0)  # who comes later finds the batch readier
    waiting = world.delayed(Phase.INPUT, late)
    for rank in (4, 5, 6, 7):
        waiting = waiting.slow(rank, Phase.BACKWARD, 9 * MS)
    loader, node = diagnose(waiting.trace()).findings[:2]
    assert (loader.mode, loader.where.ranks) == ("input_pipeline", ())
    assert (node.mode, sorted(node.where.ranks)) == ("straggler", [4, 5, 6, 7])


def test_stops_of_all_ranks_and_one_that_is_always_slower_have_their_parts():
    calm = World(ranks=8, steps=80, noise=0.005)
    hit = np.random.default_rng(1).random((80, 8)) < 0.03
    stops = np.where(hit, 200 * MS, 0.0)
    slow = np.flatnonzero(hit.sum(axis=0) >= 2)[0]  # who is slower stops as well

    def lost(world: World, without: World) -> float:
        return world.lost_against(without) * world.length_ns() / both.length_ns()

    stopping = calm.delayed(Phase.BACKWARD, stops)
    slower = calm.slow(int(slow), Phase.FORWARD, 15 * MS)
    both = slower.delayed(Phase.BACKWARD, stops)
    nobody, rank = diagnose(both.trace()).findings[:2]
    assert (nobody.where.ranks, rank.where.ranks) == ((), [slow])
    assert nobody.severity == pytest.approx(
        (lost(both, slower) + lost(stopping, calm)) / 2, rel=0.05
    )
    assert rank.severity == pytest.approx((lost(both, stopping) + lost(slower, calm)) / 2, rel=0.1)
