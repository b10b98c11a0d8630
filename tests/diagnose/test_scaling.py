import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.diagnose.modes.intervention import FACTORS
from evenstep.diagnose.modes.scaling_collapse import collapse
from evenstep.diagnose.predict.scaling import Law, curve, fit, last_doubling, stretches

SIZES = np.array([1, 2, 4, 8, 16, 32, 64])
#: Throughput in samples/s by nodes of the published evaluation's baseline (table 1).
PUBLISHED = ([4, 8, 16, 32, 64], [1024, 1980, 3600, 5800, 8200])


def shapes(throughput, sizes=SIZES):
    return [(one.shape, one.begins) for one in stretches(curve(sizes, throughput))]


@given(st.floats(0.1, 1e6), st.floats(0, 0.5), st.floats(0, 0.01), st.integers(3, 7))
def test_the_law_is_found_again_in_its_own_points(rate, contention, coherency, sizes):
    law = Law(rate, contention, coherency)
    found = fit(SIZES[:sizes], law.throughput(SIZES[:sizes]))
    assert found.rate == pytest.approx(rate, rel=1e-3)
    assert found.contention == pytest.approx(contention, rel=1e-3, abs=1e-6)
    assert found.coherency == pytest.approx(coherency, rel=1e-3, abs=1e-7)


@given(st.lists(st.floats(0.1, 1e4), min_size=7, max_size=7))
def test_no_points_whatever_give_a_negative_cost(throughput):
    law = fit(SIZES, np.array(throughput))
    assert law.rate > 0
    assert min(law.contention, law.coherency) >= 0


def test_throughput_peaks_where_gunther_says():
    # N* = sqrt((1 - σ)/κ) = sqrt(.96/.0006) = 40
    law = Law(1.0, 0.04, 0.0006)
    assert law.peak == pytest.approx(40)
    assert law.marginal(40) == pytest.approx(0, abs=1e-12)


def test_what_never_falls_has_no_peak_and_what_is_linear_no_knee():
    assert Law(1.0, 0.1, 0.0).peak is None
    assert Law(1.0, 0.0, 0.0).knee is None


def test_past_the_knee_a_rank_adds_less_than_half():
    # with σ alone dX/dN = (1 - σ)/(1 + σ(N-1))²: half at N = 1 + (√(2(1-σ)) - 1)/σ
    law = Law(1.0, 0.1, 0.0)
    assert law.knee == pytest.approx(1 + (np.sqrt(1.8) - 1) / 0.1, rel=1e-2)


def test_two_sizes_carry_contention_only():
    law = fit(np.array([1, 2]), np.array([1.0, 1.6]))
    # X(2)/X(1) = 2/(1 + σ)
    assert (law.contention, law.coherency) == (pytest.approx(0.25), 0.0)


def test_a_fall_from_one_size_to_the_next_is_coherency():
    law = fit(np.array([1, 2]), np.array([1.0, 0.8]))
    # X(2)/X(1) = 2/(1 + 2κ)
    assert (law.contention, law.coherency) == (0.0, pytest.approx(0.75))


@pytest.mark.parametrize("throughput", [[1000, 300], [1000, 300, 60]])
def test_a_fall_steeper_than_any_law_has_one_all_the_same(throughput):
    """From one node of 8 to two, 30 %: even κ alone gives 7/15, and no speed of one rank."""
    sizes = np.array([8, 16, 32])[: len(throughput)]
    law = fit(sizes, np.array(throughput, float))
    assert (law.rate, law.contention) == (1000, 0)
    assert law.peak < sizes[0]


def test_shapes_are_told_apart():
    assert shapes(10.0 * SIZES) == [("linear", 1)]
    assert shapes(Law(10, 0.2, 0).throughput(SIZES)) == [("sublinear", 1), ("plateau", 32)]
    assert shapes(Law(10, 0, 0.002).throughput(SIZES))[-1] == ("post-linear", 32)


@pytest.mark.parametrize("first", [8, 16, 32, 64])
def test_a_fall_at_one_size_is_a_cliff(first):
    throughput = np.where(first <= SIZES, 0.5, 1.0) * Law(10, 0.01, 0).throughput(SIZES)
    assert ("cliff", first) in shapes(throughput)


@pytest.mark.parametrize("coherency", [0, 1e-5, 1e-4, 1e-3])
@pytest.mark.parametrize("seed", range(5))
def test_a_smooth_law_with_noise_has_no_cliff_and_does_not_oscillate(coherency, seed):
    noise = 1 + 0.01 * np.random.default_rng(seed).standard_normal(len(SIZES))
    found = shapes(Law(10, 0.02, coherency).throughput(SIZES) * noise)
    assert not {"cliff", "oscillatory"} & {shape for shape, _ in found}


def test_every_other_size_slower_is_an_oscillation():
    assert shapes(SIZES * np.tile([1.0, 0.75], 4)[:7]) == [("oscillatory", 1)]


def test_the_published_baseline_turns_sublinear_at_eight_nodes():
    found = stretches(curve(*PUBLISHED))
    assert [(one.shape, one.begins) for one in found] == [("linear", 4), ("sublinear", 8)]
    # log2(3600/1980)
    assert found[1].exponent == pytest.approx(0.8625, abs=1e-4)


def test_the_last_doubling_has_its_worth_and_its_price():
    found = last_doubling(curve(*PUBLISHED))
    # (8200 - 5800)/32 a node against 1024/4 a node of the smallest run
    assert found.gain == pytest.approx(8200 / 5800 - 1)
    assert found.marginal == pytest.approx((2400 / 32) / 256)
    assert found.marginal_cost == pytest.approx(256 / 75)


def test_sizes_measured_twice_count_by_their_mean():
    found = curve([2, 1, 2], [3.0, 2.0, 5.0])
    assert found.ranks.tolist() == [1, 2]
    assert found.throughput.tolist() == [2.0, 4.0]


@pytest.mark.parametrize("throughput", [[1.0, 0.0], [1.0, np.nan], [1.0]])
def test_a_table_that_is_no_curve_is_refused(throughput):
    with pytest.raises(ValueError, match="a positive throughput"):
        curve([1, 2], throughput)


def test_no_number_of_a_law_lies_beside_its_own_interval():
    draws = np.array([[10.0, 19.0, 35.0]] * 20)
    found = curve([1, 2, 4], [10.0, 19.9, 39.0], draws).interval("knee")
    assert found["low"] <= found["value"] <= found["high"]


def test_the_interval_of_a_law_covers_it():
    law, random = Law(10, 0.05, 0.001), np.random.default_rng(0)
    truth = law.throughput(SIZES)
    draws = truth * (1 + 0.01 * random.standard_normal((200, len(SIZES))))
    found = curve(SIZES, draws[0], draws).interval("peak")
    assert found["low"] < law.peak < found["high"]


def test_larger_sizes_lose_what_the_law_takes_of_a_rank_beside_the_smallest_size():
    sizes, contention = np.array([4, 8, 16, 32]), 0.1
    (finding,) = collapse(curve(sizes, Law(10.0, contention, 0.0).throughput(sizes)), "samples")
    assert [one.ranks for one in finding.effect.projected] == [32 * by for by in FACTORS]
    for one in finding.effect.projected:
        left = (1 + contention * 3) / (1 + contention * (one.ranks - 1))
        assert one.share == pytest.approx(1 - left, abs=1e-3)
