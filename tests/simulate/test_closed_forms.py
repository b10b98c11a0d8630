"""Strategies and noise against the closed forms of `simulate.formulas`, by simulation."""

import math

import numpy as np
import pytest

from evenstep import checkpoints
from evenstep.simulate import formulas
from evenstep.simulate.formulas import DAY_NS, OperatingConditions
from evenstep.simulate.simulation import simulate
from tests.simulate.goodput_events import simulate as simulate_weeks
from tests.simulate.worlds import MS, scenario

JOB = (
    "work.forward_ms=100", "work.gradient_bytes=1MB", "collectives.algorithm=ring",
    "work.samples_per_rank=1", "run.steps=1500",
)  # fmt: skip
JITTER = [{"kind": "normal", "sigma": 0.1, "phase": "forward"}]


def ran(ranks, *sets, noise=()):
    asked = scenario(f"cluster.nodes={ranks}", *JOB, *sets, noise=list(noise))
    return simulate(asked)


def transfer_ms(result):
    return result.collectives[0].alone_ns / MS


@pytest.mark.parametrize("ranks", [4, 16, 64])
def test_a_step_waits_for_the_slowest_of_n(ranks):
    """E[max of n] of normal draws: what is above the mean agrees to 3 standard errors."""
    result = ran(ranks, noise=JITTER)
    excess = result.step_time.mean_ns / MS - 100 - transfer_ms(result)
    expected = 10 * formulas.normal_exact(ranks)
    assert result.step_time.mean_ns / MS == pytest.approx(
        100 + transfer_ms(result) + expected, rel=0.02
    )
    assert excess == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("ranks", [4, 32])
def test_rare_hits_are_as_frequent_as_one_of_n_is_hit(ranks):
    """c + Dq with q = 1 - (1 - p)^n, and its CV."""
    hits = [{"kind": "hits", "probability": 0.02, "delay_ms": 50}]
    result = ran(ranks, "run.steps=4000", noise=hits)
    compute = 100 + transfer_ms(result)
    expected = formulas.rare_hit(ranks, compute=compute, delay=50, probability=0.02)
    assert result.step_time.mean_ns / MS == pytest.approx(expected.mean, rel=0.02)
    assert result.step_time.cv == pytest.approx(expected.cv, rel=0.06)


@pytest.mark.parametrize("spared", [1, 4])
@pytest.mark.parametrize("kind", ["backup_workers", "partial_reduce"])
def test_leaving_the_latest_out_waits_for_the_kth_of_n(kind, spared):
    """E[X_(k:n)] + m (Chen et al. 2016). What is late in a partial reduce is late in the next step
    too, so that its steps are longer: at most those of waiting for all."""
    result = ran(16, f"strategy.kind={kind}", f"strategy.backups={spared}", noise=JITTER)
    drawn = np.random.default_rng(1).standard_normal((100_000, 16))
    kth, last = (100 + 10 * np.sort(drawn)[:, [15 - spared, 15]].mean(axis=0)).tolist()
    step, expected = result.step_time.mean_ns / MS, kth + transfer_ms(result)
    if kind == "backup_workers":
        assert step == pytest.approx(expected, rel=0.02)
    else:
        assert expected * 0.98 <= step <= last * 1.02


@pytest.mark.parametrize("bound", [1, 4])
def test_bounded_lag_is_between_the_mean_and_a_barrier_every_so_often(bound):
    """A barrier every s + 1 steps forbids strictly more: μ + σ E[max]/√(s+1) (Ho et al. 2013)."""
    sets = ("strategy.kind=stale_synchronous", f"strategy.bound={bound}")
    result = ran(16, *sets, noise=JITTER)
    barrier = 100 + 10 * formulas.normal_exact(16) / math.sqrt(bound + 1)
    found = result.step_time.mean_ns / MS - transfer_ms(result)
    assert 100 * 0.98 <= found <= barrier * 1.02


def test_an_asynchronous_server_takes_gradients_at_the_sum_of_the_rates():
    slow = [{"kind": "slow", "ranks": "0-3", "factor": 2.0}]
    result = ran(16, "strategy.kind=asynchronous", "run.steps=100", noise=slow)
    m = transfer_ms(result)
    rate = 12 / (100 + m) + 4 / (200 + m)
    assert result.throughput == pytest.approx(1000 * rate, rel=0.02)
    assert result.convergence.staleness.mean == pytest.approx(16 - 1, rel=0.02)  # n − 1


@pytest.mark.parametrize("interval", [checkpoints.young, checkpoints.daly])
def test_checkpoints_leave_what_young_and_daly_say(interval):
    """C = 120 s, M = 6 h, R = 300 s: waste C/τ + τ/(2M) + R/M, to first order."""
    write, mtbf, restart = 120e9, 0.25 * DAY_NS, 300e9
    job = OperatingConditions(
        interval_ns=interval(write, mtbf), write_ns=write, mtbf_ns=mtbf, restart_ns=restart
    )
    found = simulate_weeks(job, horizon_ns=60 * DAY_NS, repeats=64).mean.useful
    first = 1 - checkpoints.waste(write, mtbf, interval=job.interval_ns, restart=restart)
    assert found == pytest.approx(first, rel=0.02)
