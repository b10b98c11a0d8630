"""Slow steps at even distances, told from slow steps anywhere."""

import numpy as np
import pytest

from evenstep.diagnose.engine import diagnose
from evenstep.diagnose.lateness.oscillation import oscillation
from evenstep.diagnose.modes.synchronization import _few
from evenstep.statistics.spectrum import pulses
from evenstep.trace.spool.layout import Phase
from tests.diagnose.synthetic import MS, World


@pytest.mark.parametrize("period", [2, 3, 5, 8, 12])
def test_every_nth_value_is_found_with_its_height(period):
    series = np.random.default_rng(0).normal(10, 0.1, 6 * max(period, 4))
    series[1::period] += 5
    found = pulses(series)
    assert found.period == period
    assert np.array_equal(np.flatnonzero(found.places), np.arange(1, len(series), period))
    assert oscillation(series).lost_ns[1] == pytest.approx(5, abs=0.2)


@pytest.mark.parametrize("more", [0.0, 2.0])
def test_a_place_of_the_period_without_a_pulse_loses_what_it_has(more):
    series = np.full(40, 10.0)
    series[5::5] += 5
    series[0] += more
    seen = oscillation(series)
    assert seen.lost_ns.sum() == pytest.approx(7 * 5 + more)
    assert np.array_equal(np.flatnonzero(seen.slow), np.arange(5, 40, 5))


@pytest.mark.parametrize("find", [oscillation, _few])
@pytest.mark.parametrize("more", [0.0, 1.0])
def test_where_a_steps_last_work_counts_as_the_next_ones_slow_steps_lose_both(more, find):
    """Every tenth step is slow but for two, or few are."""
    random = np.random.default_rng(0)
    slow = np.arange(160) % 10 == 4
    slow[[24, 104]] = False
    series = random.normal(10, 0.05, 160) + 5 * slow + more * np.append(0, slow[:-1])
    seen = find(series)
    assert seen.lost_ns.sum() == pytest.approx(14 * (5 + more), rel=0.01)
    assert np.array_equal(seen.slow, slow)


def test_noise_of_the_steps_after_pulses_is_no_loss_of_theirs():
    random, lost = np.random.default_rng(0), []
    for _ in range(100):
        series = random.normal(10, 0.5, 80)
        series[5::10] += 5
        lost.append(oscillation(series).lost_ns.sum() / 8)
    assert np.mean(lost) == pytest.approx(5, abs=0.03)


def test_what_surely_counts_as_the_next_steps_is_lost_where_noise_hides_it_too():
    """Eight steps lose 5, and .4 in the next, whose median has an error of .2."""
    random, lost = np.random.default_rng(0), []
    for _ in range(100):
        series = random.normal(10, 0.5, 80)
        series[5::10] += 5
        series[6::10] += 0.4
        lost.append(oscillation(series, later=True).lost_ns.sum() / 8)
    assert np.mean(lost) == pytest.approx(5.4, abs=0.05)


def test_slow_steps_of_devices_cost_what_is_slow_behind_their_last_operation_too():
    """32 ms of forward, and of the optimizer 8: without these a fifth less."""
    world = World(steps=60, on_device=True, noise=0.01)
    extra = np.where(np.arange(60) % 5 == 2, MS, 0)[:, None]
    world = world.delayed(Phase.FORWARD, 32 * extra).delayed(Phase.OPTIMIZER, 8 * extra)
    finding = diagnose(world.trace()).findings[0]
    assert finding.mode == "synchronization_oscillation"
    assert finding.severity == pytest.approx(world.injected_share(), rel=0.05)


def test_slow_steps_are_slow_by_what_the_last_of_many_ranks_has_more():
    table, random = World(ranks=32).everywhere(), np.random.default_rng(0)
    table[4::5] = 40 * MS * random.normal(1, 0.15, table[4::5].shape)
    world = World(ranks=32, noise=0.03).delayed(Phase.FORWARD, table)
    finding = diagnose(world.trace()).findings[0]
    assert finding.mode == "synchronization_oscillation"
    assert finding.severity == pytest.approx(world.injected_share(), rel=0.1)


def test_the_chance_of_pulses_counts_every_set_of_places_that_is_as_unlikely():
    """Five high values of 31 in C(31, 5) = 169,911 ways: all five places of a period with five are
    those of period 6 from 1 to 5, and of period 7 from 0 to 2."""
    series = np.zeros(31)
    series[3::6] = 1
    assert pulses(series).chance == pytest.approx(8 / 169_911)


@pytest.mark.parametrize("length", [20, 50, 400])
def test_high_values_anywhere_are_no_pulses(length):
    random = np.random.default_rng(1)
    # a chance of 1e-4 each: one in 300 would be 3 %
    assert not any(pulses((random.random(length) < 0.2) * 1.0) for _ in range(300))


def test_a_single_high_value_is_no_pulse():
    assert pulses(np.eye(40)[7]) is None


def test_one_slow_step_in_eight_of_a_short_run_is_an_oscillation():
    table = World(steps=50).everywhere()
    table[5::8] = 40 * MS
    world = World(steps=50, noise=0.002).delayed(Phase.FORWARD, table)
    finding = diagnose(world.trace()).findings[0]
    assert finding.mode == "synchronization_oscillation"
    assert finding.severity == pytest.approx(world.injected_share(), rel=0.1)
