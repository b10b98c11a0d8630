"""Each stack with a rank that sleeps in every step: who is late, and by how much."""

from __future__ import annotations

from statistics import median

import numpy as np
import pytest

from evenstep.trace.spool.layout import Kind, Op, Phase
from tests.stacks.conftest import STACKS, STEPS

MICRO_BATCHES, ROUND = 4, 4  # of the pipeline; steps of a round of local SGD
SLOW = {"pipeline": 0}
LATE = {"pipeline": "workload_imbalance"}  # a stage of one rank: nobody does the same work
AGREES = 0.1


def slept_ms(ran, name):
    """What the slow rank slept in a step, by its own clock around each sleep."""
    each = median(ran[name].said["slept_ns"]) / 1e6
    return each * MICRO_BATCHES if name == "pipeline" else each


def collectives(ran, rank):
    rows = ran.trace.of_kind(Kind.COLLECTIVE)
    return rows.select(rows["rank"] == rank)


@pytest.mark.parametrize("name", sorted(STACKS.keys() - {"local_sgd", "pipeline"}))
def test_the_collective_after_the_sleep_is_waited_in_for_as_long_as_it_lasts(ran, name):
    wait_ms = ran[name].longest_wait_ms(0)
    assert wait_ms == pytest.approx(slept_ms(ran, name), rel=AGREES)


def test_a_stage_waits_for_the_activations_of_every_micro_batch(ran):
    wait_ms = ran["pipeline"].evidence(LATE["pipeline"])["wait_of_the_others"] / 1e6
    assert wait_ms == pytest.approx(slept_ms(ran, "pipeline"), rel=AGREES)


@pytest.mark.parametrize("name", sorted(STACKS.keys() - {"local_sgd", "pipeline"}))
def test_the_finding_says_what_a_whole_step_waits(ran, name):
    wait_ms = ran[name].evidence("straggler")["wait_of_the_others"] / 1e6
    assert wait_ms >= (1 - AGREES) * slept_ms(ran, name)


@pytest.mark.parametrize("name", STACKS)
def test_the_slow_rank_is_named_and_no_other(ran, name):
    assert ran[name].finding(LATE.get(name, "straggler"))["where"]["ranks"] == [SLOW.get(name, 1)]


def test_what_a_slow_stage_costs_is_what_it_sleeps(ran):
    share = ran["pipeline"].finding(LATE["pipeline"])["severity"]
    step_ms = ran["pipeline"].report["summary"]["step_time"]["mean_ns"] / 1e6
    assert share * step_ms == pytest.approx(slept_ms(ran, "pipeline"), rel=2 * AGREES)


@pytest.mark.parametrize("name", STACKS)
def test_every_rank_is_observed_to_the_end_without_a_failure(ran, name):
    trace = ran[name].trace
    assert sorted(trace.ranks) == [0, 1]
    assert not any("failure" in info.facts for info in trace.ranks.values())


@pytest.mark.parametrize("name", [name for name in STACKS if name != "mixed_precision"])
def test_a_step_is_an_iteration_of_the_loop(ran, name):
    steps = ran[name].trace.of_kind(Kind.STEP)
    assert np.bincount(steps["rank"]).tolist() == [STEPS, STEPS]


def test_steps_that_the_scaler_skips_are_none(ran):
    skipped = ran["mixed_precision"].said["skipped"]
    steps = ran["mixed_precision"].trace.of_kind(Kind.STEP)
    assert skipped > 0
    assert np.bincount(steps["rank"]).tolist() == [STEPS - skipped] * 2


def test_sharded_layers_are_gathered_for_forward_and_scattered_after_backward(ran):
    for name in ("fsdp2", "fsdp1"):
        kinds = set(collectives(ran[name], 0).op.tolist())
        assert {Op.ALL_GATHER, Op.REDUCE_SCATTER} <= kinds


def test_the_accumulating_backwards_send_nothing(ran):
    steps = ran["accumulation"].trace.of_kind(Kind.STEP)
    phases = ran["accumulation"].phases(0)
    assert phases.count(Phase.BACKWARD) == 3 * STEPS  # micro-steps
    assert phases.count(Phase.OPTIMIZER) == 2 * STEPS  # optimizers
    assert len(steps) == 2 * STEPS  # ranks


def test_recomputed_forwards_stay_inside_backward(ran):
    phases = ran["mixed_precision"].phases(0)
    assert phases.count(Phase.FORWARD) == phases.count(Phase.BACKWARD) == STEPS


def test_a_wait_for_a_functional_collective_is_seen(ran):
    assert ran["tensor_parallel"].phases(0).count(Phase.SYNC) >= STEPS
    assert ran["tensor_parallel"].report["summary"]["shares"]["wait"] > 0.2


def test_a_stage_computes_each_micro_batch_forward_and_backward(ran):
    for rank in (0, 1):
        phases = ran["pipeline"].phases(rank)
        assert phases.count(Phase.FORWARD) >= MICRO_BATCHES * STEPS
        assert phases.count(Phase.BACKWARD) >= MICRO_BATCHES * STEPS


def test_activations_and_gradients_are_messages(ran):
    messages = ran["pipeline"].trace.of_kind(Kind.POINT_TO_POINT)
    received = messages.select((messages.op == Op.RECV) & (messages["rank"] == 1))
    assert len(received) >= MICRO_BATCHES * STEPS
    assert set(received.peer_or_root.tolist()) == {0}


def test_a_round_of_local_steps_is_known_with_its_staleness(ran):
    loose = ran["local_sgd"].report["summary"]["asynchrony"]
    assert loose["steps_per_round"] == ROUND
    assert loose["staleness"]["max"] == ROUND - 1  # local steps since the last meeting
    assert loose["staleness"]["mean"] == pytest.approx((ROUND - 1) / 2)


def test_what_a_round_has_slept_is_waited_for_at_its_end(ran):
    wait_ms = ran["local_sgd"].evidence("straggler")["wait_of_the_others"] / 1e6
    assert wait_ms == pytest.approx(ROUND * slept_ms(ran, "local_sgd"), rel=AGREES)
