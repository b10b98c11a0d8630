"""W1, W2 and W3: closed forms that a simulator of this kind must meet.

W1: T = 2(n-1)(α + S/n/B). W2 on a 4:1 leaf-spine: contiguous ranks 2(n-1)(4 µs + S/n/B), strided
ones 2(n-1)(4 µs + 4 S/n/B). W3: forward + backward of the slowest, or the series of all-reduces.
"""

import pytest

from evenstep.simulate.simulation import simulate
from tests.simulate.worlds import DDP, LEAF_SPINE, MS, SLOW_17, ring, scenario


def closed_form_ms(ranks, latency_us, gBps, size_bytes=1e8):  # noqa: N803
    return 2 * (ranks - 1) * (latency_us * 1e-3 + size_bytes / ranks / gBps / 1e6)


def step_ms(asked):
    return simulate(asked).step_time.mean_ns / MS


@pytest.mark.parametrize(("ranks", "published_ms"), [(64, 16.002), (1024, 20.076), (4096, 32.376)])
def test_a_ring_on_a_switch_takes_its_closed_form(ranks, published_ms):
    assert step_ms(ring(ranks)) == pytest.approx(published_ms, rel=1e-3)
    assert step_ms(ring(ranks)) == pytest.approx(closed_form_ms(ranks, 2, 12.5), rel=1e-3)


@pytest.mark.parametrize("ranks", [3, 48, 700])
def test_so_does_a_ring_of_another_size_speed_and_latency(ranks):
    asked = ring(ranks, "cluster.nic_gBps=40", "cluster.nic_latency_us=3", size_bytes=7_000_000)
    assert step_ms(asked) == pytest.approx(closed_form_ms(ranks, 6, 40, 7e6), rel=1e-3)


@pytest.mark.parametrize("ranks", [128, 256, 512])
def test_contiguous_ranks_do_not_feel_the_oversubscription(ranks):
    expected = closed_form_ms(ranks, 4, 12.5)
    assert step_ms(ring(ranks, *LEAF_SPINE)) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("ranks", [128, 256])
def test_strided_ranks_share_every_uplink_with_three_others(ranks):
    asked = ring(ranks, *LEAF_SPINE, "job.placement=scattered")
    expected = closed_form_ms(ranks, 4, 12.5 / 4)
    assert step_ms(asked) == pytest.approx(expected, rel=1e-3)


def test_half_the_oversubscription_halves_what_strided_ranks_lose():
    asked = ring(128, *LEAF_SPINE, "job.placement=scattered", "fabric.oversubscription=2")
    expected = closed_form_ms(128, 4, 12.5 / 2)
    assert step_ms(asked) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(
    ("backward_ms", "slow", "published_ms"),
    [(100, [], 152.2207), (10, [], 73.2075), (100, SLOW_17, 182.2207), (10, SLOW_17, 83.4075)],
    ids="ABCD",
)
def test_overlap_and_a_straggler_together_come_out_right(backward_ms, slow, published_ms):
    asked = scenario(*DDP, f"work.backward_ms={backward_ms}", noise=slow)
    assert step_ms(asked) == pytest.approx(published_ms, rel=1e-5)


def test_a_gibibyte_is_not_called_a_gigabyte():
    small = ring(8, "work.gradient_bytes=1GB")
    large = ring(8, "work.gradient_bytes=1GiB")
    assert large.work.gradient_bytes / small.work.gradient_bytes == 2**30 / 10**9


@pytest.mark.parametrize(("ranks", "power"), [(12, 8), (24, 16), (64, 64), (100, 64)])
def test_halving_doubling_takes_its_closed_form_and_twice_the_whole_to_fold_in(ranks, power):
    whole_ms, latency_ms = 8, 2e-3  # 100 MB at 12.5 GB/s
    folds = 2 * (ranks > power)
    rounds = 2 * (power.bit_length() - 1)
    expected = (folds + 2 * (1 - 1 / power)) * whole_ms + (folds + rounds) * latency_ms
    asked = ring(ranks, "collectives.algorithm=halving_doubling")
    assert step_ms(asked) == pytest.approx(expected, rel=1e-3)
