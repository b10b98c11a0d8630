"""Each kind of step against a case worked out by hand; hops without latency, 12.5 GB/s."""

import numpy as np
import pytest

from evenstep.diagnose.engine import diagnose
from evenstep.errors import ConfigError
from evenstep.simulate.simulation import simulate, simulate_trace
from evenstep.trace.spool.layout import Kind, Op
from tests.simulate.worlds import MS, scenario

QUICK = (
    "cluster.nic_latency_us=0", "cluster.gpu_link_latency_us=0", "fabric.latency_us=0",
    "collectives.algorithm=ring", "run.steps=4",
)  # fmt: skip


def step_ms(*sets, **lists):
    return simulate(scenario(*QUICK, *sets, **lists)).step_time.mean_ns / MS


def ring_ms(ranks, megabytes, rounds=2.0):
    """rounds × (n - 1)/n S / B; 2 for an all-reduce."""
    return rounds * (ranks - 1) / ranks * megabytes / 12.5


def test_accumulated_gradients_are_exchanged_once():
    """Four micro-batches of 30 ms; the last's four buckets hide behind its backward of 20 ms but
    for the last one."""
    found = step_ms(
        "cluster.nodes=4", "work.micro_batches=4", "work.forward_ms=40", "work.backward_ms=80",
        "work.buckets=4", "work.gradient_bytes=25MB",
    )  # fmt: skip
    assert found == pytest.approx(120 + ring_ms(4, 25 / 4))


@pytest.mark.parametrize("every", [1, 2, 8])
def test_local_sgd_averages_behind_the_step_and_hides_nothing(every):
    found = step_ms(
        "cluster.nodes=4", "work.forward_ms=40", "work.backward_ms=60", "work.gradient_bytes=100MB",
        "strategy.kind=local_sgd", f"strategy.every={every}", "run.steps=8",
    )  # fmt: skip
    assert found == pytest.approx(100 + ring_ms(4, 100) / every)


def test_diloco_averages_the_parts_of_a_replica_apart_and_then_takes_its_outer_step():
    """Two islands of four ranks; each rank averages with its like over a ring of two."""
    found = step_ms(
        "cluster.nodes=8", "work.forward_ms=100", "work.gradient_bytes=50MB", "run.steps=20",
        "strategy.kind=diloco", "strategy.every=10", "strategy.island_ranks=4",
        "strategy.outer_ms=5",
    )  # fmt: skip
    assert found == pytest.approx(100 + (ring_ms(2, 50) + 5) / 10)


def test_islands_of_sharded_ranks_scatter_in_each_step_and_average_their_parts():
    """As the hybrid sharding below, but S/4 goes around the ring of two once in five steps."""
    sets = (
        "cluster.nodes=8", "work.kind=fsdp", "work.forward_ms=10", "work.backward_ms=20",
        "work.gradient_bytes=100MB", "strategy.kind=diloco", "strategy.every=5", "run.steps=10",
    )  # fmt: skip
    found = step_ms(*sets, "work.shard_ranks=4", "strategy.outer_ms=5")
    assert found == pytest.approx(30 + 3 * ring_ms(4, 100, 1) + (ring_ms(2, 25) + 5) / 5)
    for more, message in (
        ((), "averages replicas, of which there is one"),
        (("work.shard_ranks=4", "strategy.island_ranks=2"), "the parts of a replica are"),
        (("strategy.kind=asynchronous",), "hold parts of its parameters"),
    ):
        with pytest.raises(ConfigError, match=message):
            scenario(*sets, *more)


def test_hybrid_sharding_scatters_in_the_shard_and_reduces_its_part_among_replicas():
    """Two shards of four: two gathers and a scatter of 3/4 S, then S/4 around a ring of two; one
    layer, so that nothing hides but the gradients' way."""
    found = step_ms(
        "cluster.nodes=8", "work.kind=fsdp", "work.shard_ranks=4", "work.forward_ms=10",
        "work.backward_ms=20", "work.gradient_bytes=100MB",
    )  # fmt: skip
    assert found == pytest.approx(30 + 3 * ring_ms(4, 100, 1) + ring_ms(2, 25))


def test_replicas_reduce_a_layer_that_nobody_shards_once_its_gradients_are_there():
    """Two layers of 10 ms backward: the first's 4 ms are hidden, the second's are not."""
    found = step_ms(
        "cluster.nodes=2", "work.kind=fsdp", "work.shard_ranks=1", "work.forward_ms=10",
        "work.backward_ms=20", "work.buckets=2", "work.gradient_bytes=100MB",
    )  # fmt: skip
    assert found == pytest.approx(30 + ring_ms(2, 50))


def test_gathers_in_flight_slow_sharded_layers_down():
    """Two layers of 10 ms: 2 ms until the first is there, which does 2/1.5 ms of its work in the
    2 ms that the other takes; then backward's gathers and scatters, 2 ms each."""
    found = step_ms(
        "cluster.nodes=2", "work.kind=fsdp", "work.buckets=2", "work.forward_ms=20",
        "work.gradient_bytes=100MB", "work.overlap_slowdown=0.5",
    )  # fmt: skip
    assert found == pytest.approx(2 + (12 - 2 / 1.5) + 10 + 4 * 2)


def test_who_waits_for_a_slow_rank_of_another_replica_waits_wherever_parameters_are():
    """Gathers do not stand behind what waits for another shard's slow rank: of one shard that is
    slowed by 20 ms a rank is late alike."""

    def shares(shard_ranks):
        return simulate(scenario(
            *QUICK, "cluster.nodes=8", "work.kind=fsdp", "work.forward_ms=100", "work.buckets=8",
            "work.backward_ms=200", "work.gradient_bytes=100MB", f"work.shard_ranks={shard_ranks}",
            "noise=[{kind='slow', ranks='5', factor=1.2}]",
        )).shares  # fmt: skip

    whole, hybrid = shares(0), shares(4)
    assert hybrid.exposed_communication < whole.exposed_communication
    assert hybrid.wait == pytest.approx(whole.wait, rel=0.1)


def test_a_slow_rank_of_a_hybrid_sharded_job_is_found_in_what_it_recorded():
    """Replicas reduce on a queue of their own once the shards have scattered: nobody says so."""
    slow = {"kind": "slow", "ranks": "5", "factor": 1.2}
    noise = {"kind": "normal", "sigma": 0.005}
    sets = (
        "cluster.nodes=2", "cluster.gpus_per_node=4", "cluster.nics_per_node=4", "run.steps=20",
        "work.kind=fsdp", "work.shard_ranks=4", "work.forward_ms=50", "work.backward_ms=100",
        "work.buckets=4", "work.gradient_bytes=1GB",
    )  # fmt: skip
    late, trace = simulate_trace(scenario(*sets, noise=[slow, noise]))
    usual = simulate(scenario(*sets, noise=[noise]))
    worst = diagnose(trace).findings[0]
    assert worst.where.ranks == [5]
    lost = 1 - usual.step_time.mean_ns / late.step_time.mean_ns
    assert worst.severity == pytest.approx(lost, rel=0.1)


def test_experts_of_a_pipeline_exchange_twice_a_layer_each_way():
    """Two stages of two replicas, one layer each, two micro-batches: a forward is 1 ms and two
    exchanges of half of 12.5 MB, a backward 2 ms and as much; (m + p - 1) of both."""
    found = step_ms(
        "cluster.nodes=4", "work.kind=pipeline", "work.pipeline_parallel=2", "work.layers=2",
        "work.expert_parallel=2", "work.micro_batches=2", "work.forward_ms=2",
        "work.backward_ms=4", "work.message_bytes=12.5MB", "cluster.nic_gBps=1250",
    )  # fmt: skip
    exchange, hop = 12.5 / 2 / 1250, 12.5 / 1250
    alone = (2 + 2 - 1) * (3 + 4 * exchange) + 2 * hop
    assert alone <= found <= alone + 2 * hop  # a message may meet an exchange on a card


def test_the_busiest_expert_is_waited_for():
    sets = ("cluster.nodes=4", "work.kind=experts", "work.tensor_parallel=4", "work.forward_ms=8",
            "work.message_bytes=50MB")  # fmt: skip
    even, busy = (step_ms(*sets, f"work.expert_imbalance={share}") for share in (0, 0.5))
    assert even == pytest.approx(8 + 4 * 3 * 50 / 4 / 12.5)
    assert busy == pytest.approx(8 + 4 * 3 * 1.5 * 50 / 4 / 12.5)


def test_context_parallel_ranks_gather_keys_and_values():
    """Two ranks share a sequence: each layer gathers a quarter of 50 MB, both ways."""
    found = step_ms(
        "cluster.nodes=2", "work.kind=pipeline", "work.context_parallel=2", "work.layers=3",
        "work.forward_ms=10", "work.backward_ms=20", "work.message_bytes=50MB",
    )  # fmt: skip
    assert found == pytest.approx(30 + 2 * 3 * ring_ms(2, 12.5, 1))


@pytest.mark.parametrize(("layers", "fullest"), [(0, 0), (2, 1), (3, 2), (4, 2)])
def test_a_pipeline_goes_at_the_pace_of_the_stage_with_most_layers(layers, fullest):
    """Two stages of two ranks that share layers, a micro-batch; two all-reduces a layer, twice."""
    found = step_ms(
        "cluster.nodes=4", "work.kind=pipeline", "work.pipeline_parallel=2",
        "work.tensor_parallel=2", f"work.layers={layers}", "work.forward_ms=10",
        "work.backward_ms=20", "work.message_bytes=12.5MB",
    )  # fmt: skip
    hop = 12.5 / 12.5
    assert found == pytest.approx(2 * (30 + 4 * fullest * ring_ms(2, 12.5)) + 2 * hop)


def test_a_second_job_takes_its_share_of_the_links_while_it_exchanges():
    """Both rings cross one uplink; the other job never pauses, so ours has half of it."""
    found = step_ms(
        "cluster.nodes=4", "fabric.kind=leaf_spine", "fabric.nodes_per_leaf=2", "fabric.spines=1",
        "fabric.oversubscription=2", "job.placement=given", "job.nodes=0,2", "work.forward_ms=0",
        "work.kind=collective", "work.gradient_bytes=125MB",
        neighbours=[{"nodes": "1,3", "compute_ms": 0, "message_bytes": 125_000_000, "jitter": 0}],
    )  # fmt: skip
    assert found == pytest.approx(2 * ring_ms(2, 125))


def test_storage_is_a_link_that_all_share():
    """Four ranks read 10 MB each at 10 GB/s together."""
    found = step_ms("cluster.nodes=4", "cluster.storage_gBps=10", "work.input_bytes=10MB",
                    "work.forward_ms=5")  # fmt: skip
    assert found == pytest.approx(5 + 4)


PIPELINE = (
    "cluster.nodes=4", "work.kind=pipeline", "work.pipeline_parallel=4", "work.micro_batches=8",
    "work.forward_ms=80", "work.backward_ms=160", "work.message_bytes=10MB", "run.steps=20",
)  # fmt: skip


def test_a_pipeline_records_its_messages():
    _, trace = simulate_trace(scenario(*PIPELINE))
    rows = trace.of_kind(Kind.POINT_TO_POINT)
    ops = np.bincount(rows.op, minlength=12)
    assert ops[Op.SEND] == ops[Op.RECV] == 20 * 8 * 2 * 3
    assert set(zip(rows["rank"].tolist(), rows.peer_or_root.tolist(), strict=True)) == {
        (0, 1), (1, 0), (1, 2), (2, 1), (2, 3), (3, 2),
    }  # fmt: skip


def test_a_slow_rank_of_a_pipeline_is_found_in_what_it_recorded():
    noise = [{"kind": "slow", "ranks": "2", "factor": 1.5}, {"kind": "normal", "sigma": 0.005}]
    worst = diagnose(simulate_trace(scenario(*PIPELINE, noise=noise))[1]).findings[0]
    assert worst.where.ranks == [2]


@pytest.mark.parametrize(
    "sets",
    [
        ("work.kind=fsdp", "work.shard_ranks=2", "work.gradient_bytes=0"),
        ("strategy.kind=priority", "work.gradient_bytes=0"),
        ("strategy.kind=priority", "work.gradient_bytes=1MB", "job.ranks=1"),
    ],
)
def test_a_job_with_nothing_to_exchange_computes(sets):
    found = step_ms("cluster.nodes=4", "work.forward_ms=10", "work.backward_ms=20", *sets)
    assert found == pytest.approx(30)


def test_a_job_takes_as_long_after_another_on_the_same_network():
    """Two shards of four are no group of eight, though their members stand in one order."""
    sets = (*QUICK, "cluster.nodes=8", "work.kind=fsdp", "work.gradient_bytes=100MB")
    alone = step_ms(*sets, "work.shard_ranks=4", "work.forward_ms=10", "run.seed=7")
    step_ms(*sets, "work.forward_ms=10")
    assert step_ms(*sets, "work.shard_ranks=4", "work.forward_ms=10") == pytest.approx(alone)
