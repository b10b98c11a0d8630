import pytest

from evenstep.simulate.simulation import simulate
from tests.simulate.worlds import scenario

JOB = ("cluster.nodes=2", "work.forward_ms=90", "work.samples_per_rank=1", "run.steps=4")


def test_energy_is_power_times_the_time_in_each_state():
    """Two ranks, one twice as slow: it computes all the time, the other spins for half of it."""
    asked = scenario(
        *JOB, "work.gradient_bytes=1", "energy.compute_watts=700", "energy.spin_wait_watts=300",
        "energy.price_per_hour=2", noise=[{"kind": "slow", "factor": 2.0}],
    )  # fmt: skip
    found = simulate(asked).energy
    assert found["joules"] == pytest.approx(4 * 0.09 * (700 * 3 + 300), rel=1e-3)
    assert found["joules_per_unit"] == pytest.approx(found["joules"] / 8, rel=1e-6)
    assert found["cost"] == pytest.approx(2 * 4 * 0.18 / 3600 * 2, rel=1e-3)


def test_node_and_building_are_added_to_every_state():
    """Two ranks, .36 s, 600 W and 200 W of the node, times 1.25."""
    power = ("energy.compute_watts=600", "energy.node_share_watts=200", "energy.pue=1.25")
    found = simulate(scenario(*JOB, *power)).energy
    assert found["joules"] == pytest.approx(2 * 0.36 * 800 * 1.25)
    assert (found["mean_watts"], found["joules_waiting"]) == pytest.approx((1000, 0))


def test_without_power_nothing_is_said_about_energy():
    result = simulate(scenario(*JOB))
    assert (result.energy, result.goodput) == (None, None)


def test_failures_leave_what_the_closed_form_says():
    """RSC-1 (Kokolis et al. 2025): 6.5 a 1000 node-days, 16,384 GPUs: 1.8 h."""
    asked = scenario(
        "cluster.nodes=2048", "cluster.gpus_per_node=8", "work.forward_ms=90", "run.steps=1",
        "reliability.failures_per_1000_node_days=6.5", "reliability.spares=40",
    )  # fmt: skip
    found = simulate(asked).goodput
    assert found["mtbf_ns"] / 3.6e12 == pytest.approx(1.8, rel=0.01)
    shares = ("useful", "writing", "lost", "restarting", "waiting", "slowed")
    assert sum(found[name] for name in shares) == pytest.approx(1, abs=0.01)
    interval = (2 * 60 * found["mtbf_ns"] / 1e9) ** 0.5  # Young 1974; first order: C/τ + τ/2M + R/M
    lost = 60 / interval + interval * 1e9 / 2 / found["mtbf_ns"] + 360e9 / found["mtbf_ns"]
    assert found["useful"] == pytest.approx(1 - lost, abs=0.03)


CLUSTER = ("cluster.nodes=16", "cluster.gpus_per_node=8", "work.forward_ms=90", "run.steps=1")


def test_parts_that_fail_add_up_to_the_rate_of_the_job():
    """16 nodes × (8 × 20 + 40) failures in 10^6 hours: 0.0768 a day; 160 of 200 by GPUs."""
    parts = [
        {"name": "GPU", "failures_per_million_hours": 20, "per_node": 8},
        {"name": "software", "failures_per_million_hours": 40, "hardware": False},
    ]
    found = simulate(scenario(*CLUSTER, reliability={"parts": parts})).goodput
    assert found["interruptions_per_day"] == pytest.approx(16 * 200 * 24e-6, rel=1e-3)
    assert found["by_cause"] == pytest.approx({"GPU": 0.8, "software": 0.2})


def test_a_node_that_stays_slow_costs_what_it_adds_until_somebody_notices():
    """One in 62.5 days of the job, a day long at half speed: half of 1/62.5 is lost."""
    slow = ("reliability.slow_nodes_per_1000_node_days=1", "reliability.slow_factor=2",
            "reliability.notice_s=86400", "reliability.restart_s=0")  # fmt: skip
    found = simulate(scenario(*CLUSTER, *slow)).goodput
    assert found["slowed"] == pytest.approx(0.5 / 62.5, rel=0.03)
    assert found["useful"] == pytest.approx(1 - found["slowed"] - found["writing"], abs=1e-3)


def test_a_useful_sample_carries_what_failures_use():
    asked = (*CLUSTER, "work.samples_per_rank=1", "energy.price_per_hour=2",
             "energy.compute_watts=500", "reliability.failures_per_1000_node_days=50")  # fmt: skip
    result = simulate(scenario(*asked))
    used, weeks = result.energy, result.goodput
    expected = used["cost_per_unit"] / weeks["useful"]
    assert used["cost_per_useful_unit"] == pytest.approx(expected)
    down = weeks["restarting"] + weeks["waiting"]
    drawn = used["joules_per_unit"] * (1 - down) / weeks["useful"]
    assert used["joules_per_useful_unit"] == pytest.approx(drawn)


def test_power_of_communication_alone_is_accounted():
    """Two ranks exchange 100 MB over 12.5 GB/s and do nothing else: 8 ms at 250 W each."""
    asked = scenario(
        "cluster.nodes=2", "cluster.nic_latency_us=0", "collectives.algorithm=ring",
        "work.kind=collective", "work.gradient_bytes=100MB", "run.steps=1",
        "energy.communicate_watts=250",
    )  # fmt: skip
    assert simulate(asked).energy["joules"] == pytest.approx(2 * 250 * 0.008)
