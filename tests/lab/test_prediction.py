"""The simulator's answer, where there is a closed form for it."""

import math

import pytest

from evenstep.errors import UsageError
from lab.prediction import is_link_world, predicted, predicted_gains
from lab.scenario import parse

LONE = {"network": {"link_gBps": 0.1}, "jobs": [{"compute_ms": 30, "gradient_bytes": 1_000_000}]}


def with_(data=None, **changes):
    return parse({**LONE, **(data or {}), **changes})


def job(**changes):
    return [{**LONE["jobs"][0], **changes}]


@pytest.mark.parametrize("buckets", [8, 5])  # of the worlds on a link, and of the engine
def test_a_lone_job_takes_its_compute_and_its_exchange(buckets):
    (found,) = predicted(with_(jobs=job(buckets=buckets)), steps=50)
    assert found.step_ms == pytest.approx(30 + 10, rel=1e-3)  # 1 MB once over .1 GB/s, two ranks
    assert found.cv == pytest.approx(0, abs=1e-3)


@pytest.mark.parametrize("buckets", [8, 5])
def test_two_drifting_jobs_are_as_the_closed_form_says(buckets):
    scenario = with_(jobs=job(buckets=buckets, copies=2, apart=0.02, jitter=0.005))
    compute, transfer = 30.3 + 0.17, 10  # mean compute, and .56 σ for the later of two ranks
    # transfers that start x apart delay each other by m − x, x uniform: T = c + m + m²/T
    mean = (compute + transfer + math.hypot(compute + transfer, 2 * transfer)) / 2
    variance = 2 * transfer**3 / (3 * mean) - (transfer**2 / mean) ** 2
    for found in predicted(scenario, steps=400):
        assert found.step_ms == pytest.approx(mean, rel=0.02)
        assert found.cv == pytest.approx(math.sqrt(variance) / mean, abs=0.02)


def test_a_fixed_cost_comes_on_top_of_every_bucket():
    (found,) = predicted(with_(jobs=job(buckets=4)), fixed_ns=100_000, steps=50)
    assert found.step_ms == pytest.approx(40.4, rel=1e-3)


def test_a_straggler_is_waited_for():
    fault = {"kind": "slow_rank", "ranks": "1", "delay_ms": 8}
    (found,) = predicted(with_(jobs=job(ranks=4, gradient_bytes=400_000), faults=[fault]), steps=50)
    assert found.step_ms == pytest.approx(30 + 8 + 6, rel=2e-3)  # a ring of four: 1.5 x 4 ms
    assert found.wait == pytest.approx(0.75 * 8 / 44, abs=0.005)  # three of four wait 8 ms


def test_a_throttled_uplink_is_the_bottleneck():
    network = {"leaves": 2, "link_gBps": 0.1}
    fault = {"kind": "throttled_link", "link": 1, "share": 0.5}
    (found,) = predicted(parse({**LONE, "network": network, "faults": [fault]}), steps=50)
    assert found.step_ms == pytest.approx(30 + 20, rel=2e-3)


def test_what_the_simulator_does_not_know_is_refused():
    fault = {"kind": "paused_rank"}
    with pytest.raises(UsageError, match="paused_rank"):
        predicted(with_(faults=[fault]))


def test_paced_worlds_are_predicted_too():
    scenario = with_(jobs=job(copies=2, apart=0.02, jitter=0.01, gradient_bytes=1_800_000))
    assert is_link_world(scenario)
    gains = predicted_gains(scenario, "token+unguarded")
    assert min(gains) > 0.03  # see the simulator's own tests for how much
    assert predicted_gains(with_(jobs=job(buckets=5)), "paper") is None
