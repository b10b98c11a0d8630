from statistics import NormalDist

import numpy as np
import pytest

from evenstep.simulate.fabric.noise import NoiseSources
from evenstep.simulate.simulation import set_up, simulate
from evenstep.trace.spool.layout import Phase
from tests.simulate.worlds import MS, scenario

JOB = (
    "work.forward_ms=100", "work.gradient_bytes=8", "collectives.algorithm=ring",
    "cluster.nic_latency_us=0",
)  # fmt: skip


def noise_sources(asked):
    return NoiseSources(asked, set_up(asked).placement)


def forward(disturbance):
    """Length of a forward of 1 ns, on every rank."""
    factor = disturbance.factor.get(Phase.FORWARD, 1.0)
    return factor + disturbance.delay_ns.get(Phase.FORWARD, 0.0)


def drawn(number, world=64, **noise):
    """Length of a forward of 1 ns in every step, on every rank."""
    asked = scenario(f"cluster.nodes={world}", *JOB, noise=[noise])
    noises = noise_sources(asked)
    steps = [
        noises.with_daemons(s, noises.at(s), *np.full((2, world), [[(s - 1) * 1e8], [s * 1e8]]))
        for s in range(number)
    ]
    return np.array([forward(step) * np.ones(world) for step in steps])


@pytest.mark.parametrize(
    ("noise", "mean", "deviation"),
    [
        ({"kind": "normal", "sigma": 0.05}, 1.0, 0.05),
        ({"kind": "lognormal", "sigma": 0.1}, 1.0, 0.10025),  # √(e^σ² − 1)
        ({"kind": "pareto", "alpha": 4.0, "scale": 0.1}, 1.1, 0.1414),  # √(α/(α−2)) of the excess
        ({"kind": "drift", "sigma": 0.05, "steps": 5.0}, 1.0, 0.05),
        ({"kind": "recorded", "values": [0.8, 1.2]}, 1.0, 0.2),
    ],
)
def test_a_noise_has_the_mean_and_deviation_it_promises(noise, mean, deviation):
    found = drawn(2000, **noise)
    assert found.mean() == pytest.approx(mean, rel=0.01)
    assert found.std() == pytest.approx(deviation, rel=0.05)


def test_hits_come_as_often_as_they_should():
    found = drawn(2000, kind="hits", probability=0.02, delay_ms=3.0)
    assert (found > 1e6).mean() == pytest.approx(0.02, rel=0.1)
    assert found.max() == pytest.approx(3e6, rel=1e-6)


def test_a_daemon_takes_its_share_of_the_time():
    """A 5 ms run every 1,000 ms, seen in steps of 100 ms."""
    found = drawn(1000, kind="daemon", period_ms=1000.0, delay_ms=5.0)
    assert (found[1:] > 1e6).mean() == pytest.approx(0.1, rel=0.02)


def test_a_daemon_of_a_node_delays_the_rank_that_begins_there():
    """A period lies between the two moments of rank 0 on node 3, and nobody else has begun."""
    asked = scenario(
        "cluster.nodes=4", "job.placement=given", "job.nodes='3,0,1,2'", *JOB,
        noise=[{"kind": "daemon", "scope": "node", "period_ms": 700, "delay_ms": 30}],
    )  # fmt: skip
    now, noises = np.array([1e9, *[np.nan] * 3]), noise_sources(asked)
    found = noises.with_daemons(1, noises.at(1), now - 700 * MS, now)
    assert found.delay_ns[Phase.FORWARD].tolist() == [30 * MS, 0, 0, 0]


def test_drift_is_correlated_from_step_to_step():
    """e^(-1/steps)."""
    found = drawn(2000, kind="drift", sigma=0.05, steps=5.0) - 1
    correlation = (found[1:] * found[:-1]).mean() / (found**2).mean()
    assert correlation == pytest.approx(np.exp(-1 / 5), rel=0.02)


def test_heat_builds_up():
    found = drawn(400, kind="thermal", ranks="3", factor=1.2)
    ranks = found[:, 3]
    assert ranks[0] == 1
    assert ranks[200] == pytest.approx(1 + 0.2 * (1 - np.exp(-1)))
    assert (found[:, 4] == 1).all()


def test_what_a_node_has_in_common_its_ranks_have_in_common():
    asked = scenario("cluster.nodes=4", "cluster.gpus_per_node=2", *JOB,
                     noise=[{"kind": "normal", "sigma": 0.1, "scope": "node"}])  # fmt: skip
    found = forward(NoiseSources(asked, set_up(asked).placement).at(0))
    assert (found[::2] == found[1::2]).all()
    assert len(set(found)) == 4


def test_the_slow_rank_takes_turns():
    found = drawn(16, world=4, kind="rotating", every=4, factor=1.5)
    slow = found.argmax(axis=1)
    assert sorted(slow[::4]) == [0, 1, 2, 3]
    assert (slow.reshape(4, 4) == slow[::4, None]).all()


def test_noise_begins_and_ends_when_it_should():
    found = drawn(10, kind="slow", ranks="0", factor=2.0, first_step=3, last_step=5)
    assert np.flatnonzero(found[:, 0] > 1).tolist() == [3, 4, 5]


@pytest.mark.parametrize("ranks", [16, 256])
def test_the_slowest_of_many_is_as_slow_as_blom_says(ranks):
    """Blom 1958: E[max of n] ≈ μ + σ Φ⁻¹((n - .375)/(n + .25))."""
    asked = scenario(f"cluster.nodes={ranks}", *JOB, "run.steps=2000",
                     noise=[{"kind": "normal", "sigma": 0.05, "phase": "forward"}])  # fmt: skip
    expected = 100 + 5 * NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25))
    assert simulate(asked).step_time.mean_ns / MS == pytest.approx(expected, rel=0.005)


def test_slower_nodes_are_slower_in_every_step():
    asked = scenario("cluster.nodes=4", *JOB, "run.steps=2",
                     'cluster.kinds=[{nodes="2", factor=1.5}]')  # fmt: skip
    assert simulate(asked).step_time.mean_ns / MS == pytest.approx(150, rel=1e-4)


def test_samples_of_unequal_length_take_as_long_as_their_lengths_and_squares_say():
    """Lengths 1 and 3, half by length: factors 0.5 × (1/2 + 1/5) and 0.5 × (3/2 + 9/5)."""
    asked = scenario(
        "cluster.nodes=2000", "work.sequence_lengths=[1, 3]", "work.attention_share=0.5"
    )
    found = noise_sources(asked).at(0).factor
    assert np.unique(found[Phase.FORWARD]) == pytest.approx([0.35, 1.65])
    assert (found[Phase.FORWARD] == found[Phase.BACKWARD]).all()


def test_ranks_with_more_samples_are_less_unequal():
    """The mean of n independent draws has 1/√n of their deviation: here .65 / 4."""
    asked = scenario(
        "cluster.nodes=4000", "work.sequence_lengths=[1, 3]", "work.attention_share=0.5",
        "work.samples_per_rank=16",
    )  # fmt: skip
    found = noise_sources(asked).at(0).factor[Phase.FORWARD]
    assert found.std() == pytest.approx(0.65 / 4, rel=0.05)
    assert found.mean() == pytest.approx(1, abs=0.01)
