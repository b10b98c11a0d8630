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
