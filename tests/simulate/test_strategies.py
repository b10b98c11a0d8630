from statistics import NormalDist

import pytest

from evenstep.errors import ConfigError
from evenstep.simulate.simulation import simulate
from tests.simulate.worlds import MS, scenario

JOB = (
    "cluster.nodes=16", "work.forward_ms=100", "work.gradient_bytes=100MB",
    "collectives.algorithm=ring", "work.samples_per_rank=1",
)  # fmt: skip
JITTER = [{"kind": "normal", "sigma": 0.05, "phase": "forward"}]
SLOW = [{"kind": "slow", "ranks": "5", "factor": 1.5}]


def ran(*sets, noise=()):
    return simulate(scenario(*JOB, *sets, noise=list(noise)))


def test_a_run_too_short_for_one_average_is_refused():
    sets = ("strategy.kind=local_sgd", "strategy.every=8", "run.warm_up=2")
    with pytest.raises(ConfigError, match=r"strategy\.every is 8, but 7 steps are counted"):
        ran(*sets, "run.steps=9")
    assert ran(*sets, "run.steps=10").steps == 8


@pytest.mark.parametrize("every", [1, 4, 16])
def test_local_sgd_waits_and_exchanges_once_in_so_many_steps(every):
    """T_H = E[max Σ c]/H + m/H: the sum of H steps has deviation σ√H."""
    result = ran("strategy.kind=local_sgd", f"strategy.every={every}", "run.steps=1600",
                 noise=JITTER)  # fmt: skip
    slowest = 5 / every**0.5 * NormalDist().inv_cdf((16 - 0.375) / 16.25)
    expected = 100 + slowest + result.collectives[0].alone_ns / MS / every
    assert result.step_time.mean_ns / MS == pytest.approx(expected, rel=0.01)


def test_asynchronous_ranks_go_each_at_its_own_pace():
    """Σ 1/c_i: a slow rank costs its own share and no more."""
    result = ran("strategy.kind=asynchronous", noise=SLOW)
    m = result.collectives[0].alone_ns / MS
    expected = 15 / (100 + m) + 1 / (150 + m)
    assert result.throughput == pytest.approx(1000 * expected, rel=1e-6)


def test_a_stale_synchronous_job_ends_up_at_the_pace_of_its_slowest():
    free = ran("strategy.kind=asynchronous", noise=SLOW)
    bound = ran("strategy.kind=stale_synchronous", "strategy.bound=2", noise=SLOW)
    m = bound.collectives[0].alone_ns / MS
    assert bound.step_time.p50_ns / MS == pytest.approx(150 + m, rel=1e-6)
    assert bound.throughput < 0.75 * free.throughput


def test_bounded_lag_hides_what_is_late_now_and_then():
    tight = ran("strategy.kind=stale_synchronous", "run.steps=500", noise=JITTER)
    loose = ran("strategy.kind=stale_synchronous", "strategy.bound=4", "run.steps=500",
                noise=JITTER)  # fmt: skip
    assert loose.shares.wait < 0.5 * tight.shares.wait


def test_backup_workers_are_not_waited_for():
    result = ran("strategy.kind=backup_workers", "strategy.backups=1", noise=SLOW)
    m = result.collectives[0].alone_ns / MS
    assert result.step_time.p50_ns / MS == pytest.approx(100 + m, rel=1e-6)
    assert result.throughput == pytest.approx(15 * 1000 / (100 + m), rel=1e-6)


@pytest.mark.parametrize("kind", ["backup_workers", "partial_reduce"])
def test_an_exchange_without_its_latest_ranks_shares_links_like_any_other(kind):
    """With itself, as ranks that all enter together do, and with a neighbour."""
    asked = (
        "cluster.nodes=10", "job.ranks=8", "job.placement=random", "fabric.kind=leaf_spine",
        "fabric.nodes_per_leaf=4", "fabric.oversubscription=4", "work.kind=collective",
        "work.forward_ms=10", "work.gradient_bytes=500MB",
        "collectives.algorithm=halving_doubling", "run.steps=2",
    )  # fmt: skip
    alone_ns = simulate(scenario(*asked)).collectives[0].alone_ns
    asked += "strategy.backups=1", f"strategy.kind={kind}"
    found = simulate(scenario(*asked))
    assert found.step_time.mean_ns == pytest.approx(10 * MS + alone_ns, rel=1e-9)
    other = [{"node_count": 2, "compute_ms": 0, "message_bytes": 10**9}]
    beside = simulate(scenario(*asked, neighbours=other))
    assert beside.step_time.mean_ns > 10 * MS + 1.02 * alone_ns


def test_compression_sends_less_and_takes_time():
    plain = ran()
    small = ran("strategy.compression=0.25", "strategy.encode_ms=3")
    assert small.collectives[0].bytes == 0.25 * plain.collectives[0].bytes
    saved = plain.collectives[0].alone_ns - small.collectives[0].alone_ns
    gained = plain.step_time.mean_ns - small.step_time.mean_ns
    assert gained == pytest.approx(saved - 3 * MS, rel=1e-6)


@pytest.mark.parametrize("work", [("work.kind=ddp",), ("work.kind=fsdp", "work.shard_ranks=2")])
def test_compressed_averages_take_time_only_where_there_are_any(work):
    """In one of five steps a quarter of the bytes, and 3 ms; a shard's gradients stay as they are.

    By hand, with 12.5 GB/s and 2 µs a message in rings: an average of S among four is
    6 (2 µs + S/4 ÷ 12.5 GB/s), one of S/2 between two 2 (2 µs + S/4 ÷ 12.5 GB/s).
    """
    sets = ("cluster.nodes=4", "work.forward_ms=9", "work.gradient_bytes=100MB", "run.steps=5",
            "collectives.algorithm=ring", "strategy.kind=diloco", "strategy.every=5")  # fmt: skip
    whole, packed = (
        simulate(scenario(*sets, *work, *more)).step_time.mean_ns / MS
        for more in ([], ["strategy.compression=.25", "strategy.encode_ms=3"])
    )
    rounds = 6 if len(work) == 1 else 2
    assert whole - packed == pytest.approx((rounds * 0.75 * 25 / 12.5 - 3) / 5, rel=1e-6)


def test_so_do_collectives_alone():
    sets = ("cluster.nodes=4", "work.kind=collective", "work.gradient_bytes=1GB", "run.steps=2")
    whole = simulate(scenario(*sets)).step_time.mean_ns
    packed = simulate(scenario(*sets, "strategy.compression=0.5", "strategy.encode_ms=7"))
    assert packed.step_time.mean_ns == pytest.approx(whole / 2 + 7 * MS, rel=1e-3)


def test_pacing_a_lone_job_costs_no_more_than_its_ledger_allows():
    """Lemma 1: no delay can help; ε = .5 % and two bounds of 10 % of a step may be lost."""
    plain = ran("run.steps=300", noise=[*JITTER, *SLOW])
    paced = ran("run.steps=300", "strategy.kind=paced", noise=[*JITTER, *SLOW])
    longest = plain.step_time.mean_ns * (1 + 0.005) + 2 * 0.1 * plain.step_time.mean_ns / 300
    assert plain.step_time.mean_ns <= paced.step_time.mean_ns * (1 + 1e-9)
    assert paced.step_time.mean_ns <= longest
    assert paced.pacing["held_ns"] > 0


def test_shared_storage_makes_a_step_as_long_as_all_its_reads():
    result = ran("cluster.storage_gBps=10", "work.input_bytes=10MB")
    alone = ran().step_time.mean_ns
    assert result.step_time.mean_ns - alone == pytest.approx(16 * 1 * MS, rel=1e-6)


def test_sharded_layers_are_gathered_behind_compute_where_there_is_enough_of_it():
    """Three exchanges of (n-1)/n S, hidden but for the first gather and the last scatter."""
    sets = ("work.kind=fsdp", "work.backward_ms=200", "work.buckets=10")
    result = ran(*sets)
    gather = result.collectives[0].alone_ns
    assert result.step_time.mean_ns / MS == pytest.approx(300 + 3 * gather / MS, rel=1e-3)


def test_tensor_parallel_layers_wait_four_times_each():
    sets = ("cluster.gpus_per_node=2", "cluster.nodes=8", "work.kind=tensor", "work.buckets=3",
            "work.tensor_parallel=2", "work.message_bytes=30MB",
            "work.gradient_bytes=0")  # fmt: skip
    result = ran(*sets)
    one = result.collectives[0].alone_ns / MS
    assert result.step_time.mean_ns / MS == pytest.approx(100 + 4 * 3 * one, rel=1e-6)


@pytest.mark.parametrize("kind", ["backup_workers", "partial_reduce"])
def test_a_replica_that_is_not_waited_for_counts_with_all_its_ranks(kind):
    """8 replicas of 2 ranks, one spared: 14 of 16 ranks' samples, an eighth of the gradients."""
    mesh = ("work.kind=tensor", "work.tensor_parallel=2", "work.message_bytes=1")
    result = ran(*mesh, f"strategy.kind={kind}", "strategy.backups=1", "run.steps=4")
    assert result.convergence.discarded_share == 1 / 8
    assert result.throughput == pytest.approx(14 * 1e9 / result.step_time.mean_ns, rel=1e-6)


@pytest.mark.parametrize(("steps", "warm_up", "averages"), [(8, 0, 2), (10, 3, 2), (11, 4, 1)])
def test_an_outer_optimizer_is_compute_of_the_steps_that_have_one(steps, warm_up, averages):
    """Of 100 ms a step and 400 ms now and then, what is left is the exchange."""
    result = ran(
        "strategy.kind=diloco", "strategy.every=4", "strategy.outer_ms=400",
        f"run.steps={steps}", f"run.warm_up={warm_up}",
    )  # fmt: skip
    exchanged = result.collectives[0].alone_ns * averages / (steps - warm_up)
    assert result.efficiency == pytest.approx(1 - exchanged / result.step_time.mean_ns)


def test_of_an_interrupted_run_only_averages_that_were_taken_count_as_compute():
    """100 ms a step and 400 ms every fourth; stopped after six steps, five of them counted."""

    def stop(done, _):
        if done == 6:
            raise KeyboardInterrupt

    some = scenario(*JOB, "strategy.kind=diloco", "strategy.every=4", "strategy.outer_ms=400",
                    "run.steps=40", "run.warm_up=1")  # fmt: skip
    result = simulate(some, progress=stop)
    exchanged = result.collectives[0].alone_ns / 5
    assert (result.partial, result.steps) == (True, 5)
    assert result.efficiency == pytest.approx(1 - exchanged / result.step_time.mean_ns)
