"""Ranks that share cores: nobody's fault, unless there is evidence that it is."""

from dataclasses import replace

import numpy as np
import pytest

from evenstep.diagnose.engine import diagnose
from evenstep.trace.columns import Columns
from evenstep.trace.spool.layout import Kind, Phase
from tests.diagnose.synthetic import MS, World, with_scheduler

SEEDS = range(8)
AMPLIFIED = "synchronization_amplification"


def crowded(seed: int, steps: int = 60) -> World:
    """Four ranks that wait for one of two cores in every other step, 8 ms on average."""
    random = np.random.default_rng(seed)
    waits = random.exponential(8 * MS, (steps, 4)) * (random.random((steps, 4)) < 0.5)
    world = World(ranks=4, steps=steps, noise=0.02, seed=seed)
    return world.delayed(Phase.BACKWARD, waits, without_core=True)


def sampled(world: World):
    return with_scheduler(world.trace(), running=5, cores=2)


@pytest.mark.parametrize("seed", SEEDS)
def test_too_few_cores_are_one_finding_without_a_culprit(seed):
    found = [item for item in diagnose(sampled(crowded(seed))).findings if item.severity >= 0.05]
    assert [finding.mode for finding in found] == ["runtime_jitter"]
    assert found[0].where.ranks == ()
    # five were sampled; one of them is the thread that looked
    assert "CPU oversubscription: 4 runnable tasks on 2 cores" in found[0].cause


@pytest.mark.parametrize("seed", SEEDS)
def test_waits_of_most_ranks_are_too_few_cores_though_looks_met_few_tasks(seed):
    trace = with_scheduler(crowded(seed).trace(), running=3, cores=2)
    found = [item for item in diagnose(trace).findings if item.severity >= 0.05]
    assert [(one.title, one.where.ranks) for one in found] == [("CPU oversubscription", ())]
    assert "now and then more runnable tasks than 2 cores" in found[0].cause


@pytest.mark.parametrize("seed", SEEDS)
def test_who_computes_longer_waits_longer_for_a_core_and_is_named(seed):
    """Rank 1 computes 96 ms where the others do 64, and all wait as long for a core on average."""
    world, random = World(noise=0.02, seed=seed), np.random.default_rng(seed)
    waits = random.gamma(4, 64 * MS / 4, (60, 4)) * [1, 1.5, 1, 1]
    world = world.slow(1, Phase.BACKWARD, 32 * MS, computing=True)
    found = diagnose(sampled(world.delayed(Phase.BACKWARD, waits, without_core=True))).findings
    named = [one for one in found if one.where.ranks]
    assert [(one.mode, one.where.ranks) for one in named] == [("straggler", [1])]
    assert named[0].severity > 0.12  # .1 is what it computes longer, without the waits for it


@pytest.mark.parametrize(("counted", "asleep"), [(False, 0), (True, 0), (True, 16 * MS)])
def test_who_waits_for_a_core_is_not_slow_though_processor_time_counts_that_wait(counted, asleep):
    """As of a process whose other threads compute meanwhile: 20 ms beside its work of 64, and of
    what all ranks wait for otherwise."""
    how, alike = {"without_core": True, "computing": counted}, World(noise=0.02)
    alike = alike.delayed(Phase.FORWARD, asleep)
    world = alike.slow(1, Phase.BACKWARD, 20 * MS, **how)
    named = [one for one in diagnose(sampled(world)).findings if one.where.ranks]
    assert [(one.title, one.where.ranks) for one in named] == [("Scheduler on rank 1", [1])]
    assert named[0].severity == pytest.approx(world.lost_against(alike), rel=0.05)


@pytest.mark.parametrize("few", [False, True])
def test_late_batches_may_be_due_to_too_few_cores_where_these_are(few):
    world = (crowded(0) if few else World(noise=0.02)).delayed(Phase.INPUT, 20 * MS)
    (finding,) = (one for one in diagnose(sampled(world)).findings if one.mode == "input_pipeline")
    assert ("its workers wait for a core" in finding.cause) == few


@pytest.mark.parametrize("seed", SEEDS)
def test_batches_that_wait_for_a_core_as_ranks_do_are_no_slow_pipeline(seed):
    """Where a rank waits long for a core, its loader does: 10 ms of input on average, beside 12 ms
    of waits. A pipeline that takes as long whatever the cores do is named."""
    random = np.random.default_rng(seed)
    load = random.exponential(1, (60, 1)) * random.uniform(0.7, 1.3, (2, 60, 4))
    crowd = World(noise=0.02, seed=seed)
    crowd = crowd.delayed(Phase.BACKWARD, 12 * MS * load[0], without_core=True)
    starved = crowd.delayed(Phase.INPUT, 10 * MS * load[1])
    found = [item for item in diagnose(sampled(starved)).findings if item.severity >= 0.05]
    assert found[0].title == "CPU oversubscription"
    assert found[0].severity == pytest.approx(starved.injected_share(), rel=0.15)
    assert "input_pipeline" not in [item.mode for item in found]
    slow = crowd.delayed(Phase.INPUT, 25 * MS * random.lognormal(0, 0.3, (60, 4)))
    (late,) = (one for one in diagnose(sampled(slow)).findings if one.mode == "input_pipeline")
    assert late.severity == pytest.approx(slow.lost_against(crowd), rel=0.1)


@pytest.mark.parametrize(("children", "told"), [(0, "what else runs"), (0.75, "fewer DataLoader")])
def test_cores_that_the_loaders_of_the_ranks_need_are_told_from_those_of_others(children, told):
    world = crowded(0)
    trace = with_scheduler(world.trace(), running=5, cores=4, children=children)
    steps = trace.of_kind(Kind.STEP)
    half = steps.with_column("group_seq", (steps.exit_ns - steps.enter_ns) // 2)  # of a core each
    trace.events = Columns.concatenate([trace.events.select(trace.events.kind != Kind.STEP), half])
    (finding,) = (one for one in diagnose(trace).findings if one.title == "CPU oversubscription")
    assert told in finding.options[0].action
    assert ("processes that they started 3" in finding.cause) == bool(children)  # 4 times 0.75


@pytest.mark.parametrize(("running", "told"), [(5, "fewer ranks"), (13, "move what else runs")])
def test_cores_for_which_ranks_compete_between_long_waits_are_not_laid_to_others(running, told):
    """Three ranks sleep for two thirds of the step while a fourth works, then compute beside it: on
    average all need fewer than 2 cores, and 4 while none sleeps."""
    waits = np.random.default_rng(0).exponential(30 * MS, (60, 4))
    world = World(noise=0.02).delayed(Phase.BACKWARD, waits, without_core=True)
    world = world.slow(1, Phase.BACKWARD, 200 * MS)
    trace = with_scheduler(world.trace(), running=running, cores=2)
    steps = trace.of_kind(Kind.STEP)
    used = np.where(steps["rank"] == 1, 260 * MS, 64 * MS)
    steps = steps.with_column("group_seq", used)
    trace.events = Columns.concatenate([trace.events.select(trace.events.kind != Kind.STEP), steps])
    (finding,) = (one for one in diagnose(trace).findings if one.title == "CPU oversubscription")
    assert told in finding.options[0].action


def test_a_cause_is_no_surer_than_its_cost():
    """Of two steps the cost of too few cores may be nothing."""
    (finding,) = diagnose(sampled(crowded(1, steps=2))).findings
    assert (finding.title, finding.options[0].low) == ("CPU oversubscription", 0.0)
    assert finding.confidence < 0.67  # 1 - exp(-1.5 value / (high - value))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_real_sleeper_among_them_is_named(seed):
    finding = diagnose(sampled(crowded(seed).slow(1, Phase.BACKWARD, 50 * MS))).findings[0]
    assert (finding.mode, finding.where.ranks) == ("straggler", [1])
    assert finding.when.pattern == "chronic"


@pytest.mark.parametrize("seed", SEEDS)
def test_too_few_cores_cost_no_more_than_the_waits_for_them_beside_a_sleeper(seed):
    world = crowded(seed).slow(1, Phase.BACKWARD, 50 * MS)
    trace = sampled(world)
    steps = trace.of_kind(Kind.STEP)
    waits = sum(delay.ns.sum() for delay in world.delays if delay.without_core)
    found = diagnose(trace).findings
    cores = sum(one.severity for one in found if one.mode == "runtime_jitter")
    assert 0 < cores <= waits / (steps.exit_ns - steps.enter_ns)[steps["rank"] == 0].sum()


def test_work_that_is_uneven_beyond_the_waits_for_cores_is_not_laid_to_them():
    world = crowded(1)
    uneven = 80 * MS * np.random.default_rng(9).random((60, 4))
    first, second = diagnose(sampled(world.delayed(Phase.FORWARD, uneven))).findings[:2]
    assert first.mode == "synchronization_amplification"
    assert second.title == "CPU oversubscription"
    assert second.severity < first.severity / 2


@pytest.mark.parametrize(("rate", "told"), [(2, True), (20, False)])
def test_transfers_that_take_far_longer_than_the_waits_for_cores_are_told_beside_them(rate, told):
    """`rate` is in GB/s."""
    world = replace(crowded(1), style="blocking", fabric=lambda move: move.size_bytes / rate)
    found = diagnose(sampled(world)).findings
    modes = [one.mode for one in found]
    assert ("bandwidth_bound" in modes, "runtime_jitter" in modes) == (told, True)


def test_batches_of_different_lengths_among_them_are_named():
    longer = 40 * MS * np.random.default_rng(9).random((60, 4))
    world = crowded(1).delayed(Phase.FORWARD, longer).delayed(Phase.BACKWARD, 2 * longer)
    assert diagnose(sampled(world)).findings[0].mode == "workload_imbalance"


def test_a_rotating_sleeper_among_them_is_told_from_the_crowd():
    turn = np.eye(4)[np.arange(60) % 4] * 60 * MS
    finding = diagnose(sampled(crowded(1).delayed(Phase.BACKWARD, turn))).findings[0]
    assert (finding.mode, finding.when.pattern) == ("straggler", "rotating")


def test_one_rank_without_a_core_on_a_host_with_enough_is_the_nodes_matter(worst):
    world = World(noise=0.005).slow(2, Phase.FORWARD, 30 * MS, without_core=True)
    finding = worst(world)
    assert (finding.mode, finding.layer, finding.where.ranks) == ("runtime_jitter", "node", [2])
    assert "without a core" in finding.cause


def test_enough_cores_are_not_called_too_few():
    trace = with_scheduler(World(noise=0.005).trace(), running=5, cores=2)
    assert not [item for item in diagnose(trace).findings if item.mode == "runtime_jitter"]


def test_cores_that_others_take_are_not_answered_by_fewer_ranks():
    alone = diagnose(sampled(crowded(0))).findings[0]
    assert "fewer ranks" in alone.options[0].action
    steps = World(ranks=2, steps=60, noise=0.02).delayed(
        Phase.BACKWARD, np.random.default_rng(1).exponential(8 * MS, (60, 2)), without_core=True
    )
    found = diagnose(with_scheduler(steps.trace(), running=9, cores=8)).findings
    crowded_out = next(one for one in found if one.mode == "runtime_jitter")
    assert crowded_out.options[0].action.startswith("move what else runs on node0")


def test_ranks_bound_to_a_core_each_have_them_all_between_them():
    trace = with_scheduler(crowded(0).trace(), running=6, cores=1)
    for rank, info in trace.ranks.items():
        info.facts["locality"] = {"cpu": {"allowed": f"{rank}"}}
    found = diagnose(trace).findings[0]
    assert "5 runnable tasks on 4 cores" in found.cause
    assert "move what else runs" in found.options[0].action


def test_facts_of_another_shape_name_no_cores():
    trace = sampled(crowded(0))
    trace.ranks[0].facts["locality"] = {"cpu": "0-3"}
    assert "tasks on 2 cores" in diagnose(trace).findings[0].cause


@pytest.mark.parametrize("seed", SEEDS)
def test_who_is_a_little_late_in_every_step_is_named_where_cores_are_short(seed):
    world = crowded(seed).slow(3, Phase.FORWARD, 5 * MS, computing=True)
    (found,) = (one for one in diagnose(sampled(world)).findings if one.where.ranks)
    assert (found.title, found.where.ranks) == ("Slow forward on rank 3", [3])
    assert found.severity == pytest.approx(world.lost_against(crowded(seed)), rel=0.2)


@pytest.mark.parametrize("seed", SEEDS)
def test_uneven_work_costs_what_it_does_though_all_wait_for_a_core(seed):
    """Waits that are as long on all ranks make all work longer, and none of it uneven."""
    spread = np.random.default_rng(seed).uniform(0, 40 * MS, (60, 4))
    world = World(noise=0.02, seed=seed).delayed(Phase.OTHER, spread)
    world = world.delayed(Phase.BACKWARD, np.full((60, 4), 20.0 * MS), without_core=True)
    (found,) = (one for one in diagnose(sampled(world)).findings if one.mode == AMPLIFIED)
    lost_ns = float((spread.max(axis=1) - spread.mean(axis=1)).sum())
    assert found.severity == pytest.approx(lost_ns / world.length_ns(), rel=0.1)
