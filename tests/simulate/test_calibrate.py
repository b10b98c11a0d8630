from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.cli.calibrate import observe
from evenstep.errors import TraceError
from evenstep.scenario import schema
from evenstep.scenario.parts import Job
from evenstep.scenario.scenario import parse
from evenstep.simulate.calibrate.calibrate import PHASES, Observed, calibrate
from evenstep.simulate.calibrate.links import ObservedCollectives, fit_line, fit_links, work_of
from evenstep.simulate.calibrate.noise import common_part, fit_noise, lasting_part
from evenstep.simulate.simulation import simulate, simulate_trace
from evenstep.trace.spool.layout import Kind
from tests.diagnose.programs import pipeline, ring
from tests.simulate.worlds import MS, scenario

BASE = ("cluster.nodes=8", "cluster.gpus_per_node=2", "cluster.nics_per_node=2",
        "work.input_ms=3", "work.forward_ms=30", "work.backward_ms=60", "work.optimizer_ms=5",
        "work.gradient_bytes=100MB", "work.buckets=8", "collectives.algorithm=ring",
        "run.steps=150")  # fmt: skip
CALM = {"kind": "normal", "sigma": 0.01}

#: What is asked, the noise in it, the kind of work found, how far the CV may be off.
ROUND_TRIPS = {
    "calm": ((), [], "ddp", 0.0),
    "normal": ((), [{"kind": "normal", "sigma": 0.03}], "ddp", 0.2),
    "lognormal": ((), [{"kind": "lognormal", "sigma": 0.15}], "ddp", 0.2),
    "hits": ((), [CALM, {"kind": "hits", "probability": 0.01, "delay_ms": 40}], "ddp", 0.1),
    "together": ((), [CALM, {"kind": "normal", "sigma": 0.03, "scope": "rack"}], "ddp", 0.2),
    "slow": ((), [CALM, {"kind": "slow", "ranks": "3,5", "factor": 1.2}], "ddp", 0.2),
    "collector": ((), [CALM, {"kind": "collector", "every": 20, "delay_ms": 30}], "ddp", 0.1),
    "input": ((), [{"kind": "lognormal", "sigma": 0.8, "phase": "input"}], "ddp", 0.2),
    "exposed": (("work.gradient_bytes=2GB",), [CALM], "ddp", 0.5),
    "serial": (("work.overlap=false", "work.gradient_bytes=400MB"), [CALM], "ddp", 0.3),
    "sharded": (("work.kind=fsdp", "work.gradient_bytes=600MB", "run.steps=60"), [CALM],
                "fsdp", 0.4),
    "tensor": (("work.kind=tensor", "work.tensor_parallel=2", "work.message_bytes=20MB",
                "run.steps=40"), [CALM], "tensor", 0.4),
    "pipeline": (("work.kind=pipeline", "work.pipeline_parallel=4", "work.tensor_parallel=2",
                  "work.layers=8", "work.micro_batches=6", "work.message_bytes=8MB",
                  "run.steps=20"), [CALM], "pipeline", 0.4),
    "stages": (("work.kind=pipeline", "work.pipeline_parallel=4", "work.micro_batches=4",
                "work.message_bytes=8MB", "run.steps=20"), [CALM], "pipeline", 0.4),
    "local": (("strategy.kind=local_sgd", "strategy.every=4", "work.gradient_bytes=400MB"), [CALM],
              "ddp", 0.1),
    "benchmark": (("work.kind=collective", "work.input_ms=0"), [CALM], "collective", 0.5),
}  # fmt: skip


def calibrated(*sets, noise=()):
    asked = scenario(*BASE, *sets, noise=list(noise))
    result, trace = simulate_trace(asked)
    return result, calibrate(observe(trace))


@pytest.mark.parametrize("name", ROUND_TRIPS)
def test_what_was_simulated_is_found_again(name):
    sets, noise, kind, off = ROUND_TRIPS[name]
    result, found = calibrated(*sets, noise=noise)
    again = simulate(parse(schema.plain(found.scenario))).step_time
    assert found.scenario.work.kind == kind
    assert again.mean_ns == pytest.approx(result.step_time.mean_ns, rel=0.02)
    assert again.cv == pytest.approx(result.step_time.cv, rel=off, abs=1e-4)


def test_work_is_found_as_it_was_asked():
    work = calibrated()[1].scenario.work
    assert (work.forward_ms, work.backward_ms, work.optimizer_ms, work.input_ms) == pytest.approx(
        (30, 60, 5, 3), rel=1e-3
    )
    assert (work.gradient_bytes, work.buckets, work.overlap) == (100_000_000, 8, True)


def test_sharded_parameters_are_counted_once():
    work = calibrated("work.kind=fsdp", "run.steps=20")[1].scenario.work
    assert (work.kind, work.gradient_bytes, work.buckets) == ("fsdp", 100_000_000, 8)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zero_bubble"])
def test_the_schedule_of_a_pipeline_is_found(schedule):
    work = calibrated(
        "work.kind=pipeline", "work.pipeline_parallel=2", "work.micro_batches=3",
        "work.message_bytes=1MB", f"work.schedule={schedule}", "run.steps=8",
    )[1].scenario.work  # fmt: skip
    assert (work.schedule, work.micro_batches) == (schedule, 3)


@pytest.mark.parametrize(
    "mesh",
    [
        {"tensor_parallel": 2, "context_parallel": 2, "key_share": 0.5},
        {"tensor_parallel": 2, "expert_parallel": 2},
        {"context_parallel": 2, "expert_parallel": 4},
    ],
    ids=["context", "experts", "both"],
)
def test_contexts_and_experts_of_a_pipeline_are_found(mesh):
    asked = {"message_bytes": 4_000_000, "layers": 4, "pipeline_parallel": 2, **mesh}
    result, found = calibrated(
        "work.kind=pipeline", "work.micro_batches=2", "run.steps=8",
        *(f"work.{name}={value}" for name, value in asked.items()),
    )  # fmt: skip
    assert {name: getattr(found.scenario.work, name) for name in asked} == asked
    again = simulate(parse(schema.plain(found.scenario))).step_time
    assert again.mean_ns == pytest.approx(result.step_time.mean_ns, rel=0.02)


@pytest.mark.parametrize(("stages", "chunks"), [(2, 2), (2, 3), (4, 2), (4, 3)])
def test_chunks_of_interleaved_stages_are_found(stages, chunks):
    """The last stage sends on to the first once for each chunk of layers but one; of two stages,
    both ways, backwards do, too."""
    result, found = calibrated(
        "work.kind=pipeline", f"work.pipeline_parallel={stages}", "work.micro_batches=4",
        f"work.interleaved={chunks}", "work.message_bytes=1MB", "run.steps=8",
    )  # fmt: skip
    work = found.scenario.work
    assert (work.pipeline_parallel, work.interleaved, work.micro_batches) == (stages, chunks, 4)
    again = simulate(parse(schema.plain(found.scenario))).step_time
    assert again.mean_ns == pytest.approx(result.step_time.mean_ns, rel=0.02)


def test_stages_without_phases_on_record_compute_one_after_the_other():
    asked = scenario(
        *BASE, "work.kind=pipeline", "work.pipeline_parallel=4", "work.message_bytes=8MB",
        "job.ranks=4", "work.optimizer_ms=0", "work.input_ms=0", "run.steps=8",
    )  # fmt: skip
    result, trace = simulate_trace(asked)
    bare = replace(trace, events=trace.events.select(trace.events.kind != Kind.PHASE))
    again = simulate(calibrate(observe(bare)).scenario).step_time
    assert again.mean_ns == pytest.approx(result.step_time.mean_ns, rel=0.02)


@pytest.mark.parametrize("more", [(), ("work.tensor_parallel=2", "work.layers=8")])
def test_stages_send_as_fast_as_they_did(more):
    """8 MB over a card of 12.5 GB/s and two latencies of 1 µs take .642 ms; eight micro-batches of
    four stages have 11 forwards and backwards of 15 ms and more than six messages one after the
    other. A link that takes no time would have left these out, 5 % of the step."""
    result, found = calibrated(
        "cluster.gpus_per_node=1", "cluster.nics_per_node=1", "work.kind=pipeline",
        "work.pipeline_parallel=4", "work.micro_batches=8", "work.message_bytes=8MB",
        "work.gradient_bytes=0", "run.steps=8", *more,
    )  # fmt: skip
    cluster = found.scenario.cluster
    took_us = 8e3 / cluster.nic_gBps + 2 * cluster.nic_latency_us
    assert took_us == pytest.approx(642, rel=0.01)
    again = simulate(parse(schema.plain(found.scenario))).step_time
    assert again.mean_ns == pytest.approx(result.step_time.mean_ns, rel=0.005)


def test_a_ring_of_messages_is_no_pipeline_of_as_many_chunks():
    """All send to the next rank, the last to the first: what interleaved stages do, too."""
    trace = ring(6, steps=8).run().trace()
    sized = trace.events.with_column("bytes_out", np.full(len(trace.events), 1000))
    found = calibrate(observe(replace(trace, events=sized)))
    assert (found.scenario.work.kind, found.scenario.work.pipeline_parallel) == ("ddp", 1)


def test_messages_of_a_pipeline_are_none_of_its_collectives():
    found = observe(pipeline(2, 2, 4, steps=8).run().trace())
    assert found.sends
    assert {one.operation for one in found.collectives} == {"all_reduce"}


@pytest.mark.parametrize("silent", [0, 1])
def test_a_pipeline_of_which_one_stage_has_no_messages_on_record_is_left_out(silent):
    trace = pipeline(2, 1, 4, steps=8).run().trace()
    theirs = (trace.events.kind == Kind.POINT_TO_POINT) & (trace.events["rank"] == silent)
    assert observe(replace(trace, events=trace.events.select(~theirs))).pipeline is None


def test_gradients_that_leave_in_the_last_of_several_backwards_are_found():
    result, found = calibrated("work.micro_batches=4", "work.gradient_bytes=600MB", "run.steps=8")
    assert found.scenario.work.micro_batches == 4
    again = simulate(parse(schema.plain(found.scenario))).step_time
    assert again.mean_ns == pytest.approx(result.step_time.mean_ns, rel=0.02)


@pytest.mark.parametrize(
    "sets",
    [("work.kind=tensor", "work.tensor_parallel=2"),
     ("work.kind=pipeline", "work.pipeline_parallel=2", "work.micro_batches=4")],
)  # fmt: skip
def test_replicas_side_by_side_on_nodes_take_as_long_again(sets):
    """Two groups, each with two of a node's four ranks and cards."""
    nodes = ("cluster.nodes=2", "cluster.gpus_per_node=4", "cluster.nics_per_node=4")
    result, found = calibrated(
        *nodes, *sets, "work.message_bytes=8MB", "work.gradient_bytes=1600MB", "run.steps=8"
    )
    again = simulate(parse(schema.plain(found.scenario))).step_time
    assert again.mean_ns == pytest.approx(result.step_time.mean_ns, rel=0.02)


def test_what_experts_send_to_other_nodes_is_on_the_links_between_them():
    """All-to-alls among 2 nodes of 4: half of the bytes stay on a node."""
    sets = ("cluster.nodes=2", "cluster.gpus_per_node=4", "cluster.nics_per_node=4")
    result, found = calibrated(
        *sets, "work.kind=experts", "work.tensor_parallel=8", "work.message_bytes=8MB",
        "run.steps=8",
    )  # fmt: skip
    assert found.scenario.cluster.nic_gBps == pytest.approx(12.5, rel=0.02)
    again = simulate(parse(schema.plain(found.scenario))).step_time
    assert again.mean_ns == pytest.approx(result.step_time.mean_ns, rel=0.01)


def test_hybrid_shards_are_found_as_they_were_asked():
    work = calibrated(
        "work.kind=fsdp", "work.shard_ranks=4", "work.micro_batches=2", "work.buckets=3",
        "run.steps=8",
    )[1].scenario.work  # fmt: skip
    found = work.shard_ranks, work.micro_batches, work.buckets
    assert found == (4, 2, 3)
    assert work.gradient_bytes == pytest.approx(100_000_000, rel=1e-6)


def test_slow_ranks_are_found():
    noise = [CALM, {"kind": "slow", "ranks": "3,5", "factor": 1.2}]
    slow = [one for one in calibrated(noise=noise)[1].scenario.noise if one.kind == "slow"]
    assert [(one.ranks, round(one.factor, 2)) for one in slow] == [("3,5", 1.2)]


@pytest.mark.parametrize("ranks", ["3", "2,5-6"])
def test_what_a_rank_does_beside_the_work_varies_no_more_than_that(ranks):
    """As a sleep of 30 ms beside 1 ms of work that is often disturbed, and then takes 10 ms; of
    several ranks that do the same it is one noise."""
    noise = [{"kind": "lognormal", "sigma": 1.0},
             {"kind": "hits", "ranks": ranks, "probability": 1.0, "delay_ms": 30}]  # fmt: skip
    sets = "work.forward_ms=.5", "work.backward_ms=.5", "work.optimizer_ms=.1", "work.input_ms=0"
    result, found = calibrated(*sets, noise=noise)
    (late,) = [one for one in found.scenario.noise if one.ranks]
    assert (late.kind, late.ranks, late.probability) == ("hits", ranks, 1.0)
    assert late.delay_ms == pytest.approx(30, rel=0.05)
    again = simulate(parse(schema.plain(found.scenario))).step_time
    assert again.mean_ns == pytest.approx(result.step_time.mean_ns, rel=0.03)
    assert again.p99_ns == pytest.approx(result.step_time.p99_ns, rel=0.2)


@pytest.mark.parametrize("load_ms", [3.0, 0.0])
def test_a_loader_that_is_slow_on_one_rank_is_slow_there_alone(load_ms):
    """Eight ranks, one of which loads 30 ms longer; the others 3 ms, or not at all."""
    loaded, nothing = np.full((20, 8), load_ms * MS), np.zeros((20, 8))
    loaded[:, 5] += 30 * MS
    phase = dict.fromkeys(PHASES, nothing) | {"input": loaded, "forward": nothing + 50 * MS}
    found = calibrate(Observed(
        name="", node=("a",) * 8, work_ns=loaded + 50 * MS, phase_ns=phase, pause_ns=nothing,
        step_ns=np.full(20, 80.0 * MS), collectives=(), overlapped=False,
    )).scenario  # fmt: skip
    (slow,) = found.noise
    assert (slow.kind, slow.phase, slow.ranks) == ("slow", "input", "5")
    assert slow.factor * found.work.input_ms == pytest.approx(30 + load_ms, rel=0.001)
    assert found.work.input_ms == pytest.approx(load_ms, abs=0.01 * 30)


def test_too_few_steps_are_refused():
    _, trace = simulate_trace(scenario(*BASE, "run.steps=5"))
    with pytest.raises(TraceError, match="needs 8 steps that all ranks finished, found 5"):
        calibrate(observe(trace))


# -- noise -----------------------------------------------------------------------------------------


def drawn(seed, shape=(400, 8)):
    return np.random.default_rng(seed), shape


@pytest.mark.parametrize("kind", ["normal", "lognormal", "pareto"])
def test_the_family_is_recognised(kind):
    random, shape = drawn(1)
    factors = {
        "normal": 1 + 0.05 * random.standard_normal(shape),
        "lognormal": np.exp(0.3 * random.standard_normal(shape)),
        "pareto": 1 + 0.05 * random.pareto(2.5, shape),
    }
    assert [noise.kind for noise in fit_noise(factors[kind])] == [kind]


def test_what_fits_no_family_is_kept_as_it_is():
    """Two equal peaks: neither is rare."""
    random, shape = drawn(2)
    factor = np.where(random.random(shape) < 0.5, 0.9, 1.1) + 0.01 * random.standard_normal(shape)
    (noise,) = fit_noise(factor)
    assert noise.kind == "recorded"
    assert np.std(noise.values) == pytest.approx(0.1, rel=0.05)


def test_nothing_is_no_noise():
    assert fit_noise(np.ones((100, 4))) == []


def test_what_all_share_is_told_from_what_each_has():
    random, shape = drawn(3)
    own = 1 + 0.02 * random.standard_normal(shape)
    assert common_part(own) is None
    shared = common_part(own * (1 + 0.05 * random.standard_normal((shape[0], 1))))
    assert shared.std() == pytest.approx(0.05, rel=0.15)


def test_what_lasts_is_told_from_what_does_not():
    """An autoregression of σ = .05 and 10 steps, and noise of the same size beside it."""
    random, shape = drawn(4, (2000, 4))
    keep, state = np.exp(-1 / 10), np.zeros(shape)
    for step in range(1, shape[0]):
        fresh = random.standard_normal(shape[1])
        state[step] = keep * state[step - 1] + np.sqrt(1 - keep**2) * fresh
    noise = 0.05 * random.standard_normal(shape)
    assert lasting_part(1 + noise) is None
    sigma, steps = lasting_part(1 + noise + 0.05 * state)
    assert (sigma, steps) == pytest.approx((0.05, 10), rel=0.2)


# -- links -----------------------------------------------------------------------------------------


def seen(size_bytes, ranks=8, operation="all_reduce", transfer_ns=1.0, blocking=False):
    return ObservedCollectives(
        operation=operation, members=tuple(range(ranks)), bytes=size_bytes, per_step=1.0,
        transfer_ns=transfer_ns, floor_ns=transfer_ns, blocking=blocking,
    )  # fmt: skip


@given(st.floats(100, 1e5), st.floats(0.1, 400))
def test_latency_and_bandwidth_are_found_from_two_sizes(alpha, speed):
    """t = 2(n-1)(α + S/(nB))."""
    pair = [seen(size, transfer_ns=14 * (alpha + size / (8 * speed))) for size in (1e4, 1e8)]
    assert fit_line(pair) == pytest.approx((alpha, speed), rel=1e-3)


def test_one_size_is_all_bandwidth():
    assert fit_line([seen(8e6, transfer_ns=14e6)]) == (0.0, pytest.approx(1.0))


def test_one_size_has_the_latency_of_a_scenario_without_any():
    """Of 14 ms, 14 rounds take 2 µs each; a collective of 20 µs shows that they take less."""
    link = fit_links([seen(8e6, transfer_ns=14.028e6)], np.arange(8), 1).between_nodes
    assert link == (2000.0, pytest.approx(1.0, rel=1e-5))
    link = fit_links([seen(8e3, transfer_ns=20e3)], np.arange(8), 1).between_nodes
    assert link == (0.0, pytest.approx(0.7))


def test_a_size_that_was_not_measured_is_predicted_with_the_latency_of_its_rounds():
    """A ring of 16 is measured; one of 128 has 8 times as many rounds."""
    sets = ("cluster.nodes=16", "collectives.algorithm=ring", "work.gradient_bytes=20MB",
            "work.forward_ms=1", "run.steps=20")  # fmt: skip
    asked = scenario(*sets, noise=[{"kind": "normal", "sigma": 0.01}])
    fitted = calibrate(observe(simulate_trace(asked)[1])).scenario
    assert (fitted.work.backward_ms, fitted.work.optimizer_ms) == (0.0, 0.0)
    found, expected = (
        simulate(replace(one, cluster=replace(one.cluster, nodes=128), job=Job())).step_time.mean_ns
        for one in (fitted, asked)
    )
    assert found == pytest.approx(expected, rel=0.02)


def test_a_group_of_everybody_beside_small_ones_is_tensor_parallel():
    inner = [seen(1e6, ranks=2, blocking=True)]
    plan = work_of([*inner, seen(4e6)], 8, overlapped=False)
    assert (plan.kind, plan.fields["tensor_parallel"]) == ("tensor", 2)


def test_without_collectives_nobody_waits():
    plan = work_of([], 8, overlapped=False)
    assert plan.fields == {"gradient_bytes": 0}
    assert "do not wait" in plan.limits[0]
