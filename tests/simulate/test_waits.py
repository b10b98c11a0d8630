"""What ranks wait for each other, worked out by hand, in a simulation and in the diagnosis of its
trace: from when a rank is blocked until the last has entered, which no network shortens."""

import pytest

from evenstep.diagnose.engine import diagnose
from evenstep.simulate.simulation import simulate, simulate_trace
from evenstep.trace.spool.layout import Kind
from tests.simulate.worlds import scenario

RANKS = 8
LATE = {"kind": "slow", "ranks": "3", "factor": 1.2}  # of 90 ms: 18
JOB = (
    f"cluster.nodes={RANKS}", "cluster.nic_gBps=10", "cluster.nic_latency_us=0",
    "fabric.latency_us=0", "collectives.algorithm=ring", "work.forward_ms=30",
    "work.backward_ms=60", "work.gradient_bytes=80MB", "run.steps=24",
)  # fmt: skip
EXCHANGE_MS = 14  # of all gradients: 2 × 7/8 × 80 MB ÷ 10 GB/s
OTHERS = (RANKS - 1) / RANKS
#: Step, and the wait of each rank but the third in it, ms.
CASES = {
    # a rank comes 15 ms late to the first of ten buckets, which then fill the links for 140 ms: who
    # was done with its backward waits 15 ms for the last bucket, whatever is in flight
    "buckets": (
        ("work.gradient_bytes=800MB", "work.buckets=10"),
        [{"kind": "slow", "phase": "forward", "ranks": "3", "factor": 1.5}], 191, 15,
    ),
    # 3 ms of gathers nothing hides, 1.5 ms of the last scatter and .5 of its sum over the replicas:
    # the other replica waits for its sums, which wait for the slow rank's scatter
    "hybrid": (("work.kind=fsdp", "work.shard_ranks=4", "work.buckets=4"), [LATE], 113, 18),
    "plain": (("work.overlap=false",), [LATE], 90 + 18 + EXCHANGE_MS, 18),
    # nobody waits for it: its work is dropped, or its gradients come too late
    "backup": (
        ("work.overlap=false", "strategy.kind=backup_workers", "strategy.backups=1"),
        [LATE], 90 + EXCHANGE_MS, 0,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_simulation_and_diagnosis_agree_on_what_is_waited(name):
    sets, noise, step_ms, wait_ms = CASES[name]
    result, trace = simulate_trace(scenario(*JOB, *sets, noise=noise))
    assert result.step_time.mean_ns == pytest.approx(step_ms * 1e6)
    waited = OTHERS * wait_ms / step_ms
    assert result.shares.wait == pytest.approx(waited, abs=1e-9)
    found = diagnose(trace)
    assert found.summary["shares"]["wait"] == pytest.approx(waited, abs=1e-3)
    culprits = [rank for finding in found.findings for rank in finding.where.ranks]
    assert culprits == ([3] if wait_ms else [])


def test_ranks_at_their_bound_of_staleness_wait_for_the_slowest():
    """Ahead by as many steps as they may be, ranks of 104 ms go at the pace of one of 122 ms."""
    sets = ("strategy.kind=stale_synchronous", "strategy.bound=2", "run.steps=60")
    asked = scenario(*JOB, *sets, noise=[LATE])
    steady = simulate(scenario(*JOB, *sets, "run.warm_up=30", noise=[LATE])).shares
    assert steady.wait == pytest.approx(OTHERS * 18 / 122)
    worst = diagnose(simulate_trace(asked)[1]).findings[0]
    assert (worst.mode, worst.where.ranks) == ("straggler", [3])
    assert worst.severity == pytest.approx(18 / 122, abs=0.03)  # less at first: none waits yet


def test_waits_for_buckets_of_the_step_before_are_recorded():
    """Three of four buckets of 56 ms are still under way as the next forward begins."""
    sets = ("strategy.kind=priority", "work.gradient_bytes=1280MB", "work.buckets=4")
    result, trace = simulate_trace(scenario(*JOB, *sets))
    shares = diagnose(trace).summary["shares"]
    assert shares["other"] == pytest.approx(0, abs=1e-6)
    assert shares["compute"] == pytest.approx(result.shares.compute, abs=0.02)


def test_who_waits_for_a_bucket_of_the_step_before_waits_for_the_slow_rank():
    """Of four buckets the last, 3.5 ms that nothing hides, begins as the slow rank's backward ends:
    the others wait for it in all steps but the first."""
    asked = scenario(*JOB, "strategy.kind=priority", "work.buckets=4", noise=[LATE])
    result, trace = simulate_trace(asked)
    after = asked.run.steps - 1
    waited_ms = after * OTHERS * 18
    worked_ms = asked.run.steps * (90 + (1 - OTHERS) * 18)
    waited = waited_ms / (worked_ms + waited_ms + after * EXCHANGE_MS / 4)
    assert result.shares.wait == pytest.approx(waited)
    assert diagnose(trace).summary["shares"]["wait"] == pytest.approx(waited, abs=1e-3)


def test_links_to_a_busy_expert_are_not_slow():
    """It receives half more than the others, over links that carry all they can."""
    sets = (
        "work.kind=experts", "work.tensor_parallel=8", "work.message_bytes=80MB",
        "work.buckets=4", "work.expert_imbalance=0.5",
    )  # fmt: skip
    result, trace = simulate_trace(scenario(*JOB, *sets))
    assert result.step_time.mean_ns == pytest.approx((90 + 16 * 7 * 1.5) * 1e6)
    exchanges = trace.of_kind(Kind.COLLECTIVE)
    assert set(exchanges.bytes_out[exchanges["rank"] == 0]) == {120_000_000}
    assert set(exchanges.bytes_out[exchanges["rank"] != 0]) == {80_000_000}
    worst = diagnose(trace).findings[0]
    bandwidth = next(one for one in worst.evidence if one.metric == "bus_bandwidth")
    assert bandwidth.measured == pytest.approx(10, rel=1e-3)
