import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.pacing.waits import (
    EPOCH,
    MOST_LEFT,
    QUANTUM_NS,
    Floor,
    FloorSamples,
    FloorTable,
    fit_line,
)

GROUP, ALL_REDUCE = 0, 1


def samples_of(floors: FloorTable, nbytes: int, group: int = GROUP) -> FloorSamples:
    return floors.samples_of((group, ALL_REDUCE, nbytes, 1))


def add(floors: FloorTable, nbytes: int, in_flight: int, follows: bool, group: int = GROUP) -> None:
    """As the estimator of waits does."""
    samples = samples_of(floors, nbytes, group)
    (samples.followed if follows else samples.led).append(in_flight)
    samples.left -= 1
    if samples.left <= 0:
        floors.floor_of(samples)


def table(*samples: tuple[int, int, bool]) -> FloorTable:
    floors = FloorTable()
    for sample in samples:
        add(floors, *sample)
    return floors


def floor_of(floors: FloorTable, nbytes: int) -> Floor:
    floor = floors.floor_of(samples_of(floors, nbytes))
    assert floor is not None
    return floor


def test_only_ever_first_in_its_step_a_size_has_no_floor() -> None:
    floors = table(*[(100, 50_000_000, False)] * 50)
    assert floors.floor_of(samples_of(floors, 100)) is None


def test_back_to_back_collectives_show_the_floor_that_first_ones_hide() -> None:
    floors = table(*[(100, 50_000_000, False), (100, 1_000_000, True)] * 5)
    assert floor_of(floors, 100).value_ns == 1_000_000


def test_a_size_only_ever_first_lies_on_the_line_through_back_to_back_ones() -> None:
    # a = 100 µs, b = 2 ns per byte
    seen = [(10_000, 120_000, True), (100_000, 300_000, True)] * 3
    floors = table(*seen, *[(1_000_000, 50_000_000, False)] * 3)
    assert floor_of(floors, 1_000_000).value_ns == 2_100_000


def test_a_single_known_size_leaves_half_of_the_estimate_open() -> None:
    floor = floor_of(table(*[(1000, 1_000_000, True)] * 3, (4000, 10**9, False)), 4000)
    assert floor.lower_ns == floor.value_ns // 2


def test_floors_of_one_operation_say_nothing_of_another() -> None:
    floors = table(*[(1000, 1_000_000, True)] * 3)
    assert floors.floor_of(floors.samples_of((GROUP, ALL_REDUCE + 1, 1000, 1))) is None


def test_a_network_that_became_slower_is_believed_after_two_epochs() -> None:
    samples = [(100, 1_000_000, True)] * EPOCH + [(100, 3_000_000, True)] * 2 * EPOCH
    assert floor_of(table(*samples), 100).value_ns == 3_000_000


def test_memory_is_bounded_however_many_sizes_come() -> None:
    floors = FloorTable(max_keys=8)
    for nbytes in range(1000):
        add(floors, nbytes, 1000, False, nbytes % 3)
    assert len(floors.samples) == 8
    assert all(len(samples.current) <= 3 for samples in floors.samples.values())


@pytest.mark.parametrize("seed", range(3))
def test_the_true_floor_lies_above_the_lower_bound(seed: int) -> None:
    # Independent: 300 worlds of floor 1 ms plus exponential noise; the bound promises 90 %.
    draw = random.Random(seed)
    held = 0
    for _ in range(300):
        samples = [(100, 1_000_000 + int(draw.expovariate(1e-5)), True) for _ in range(30)]
        held += floor_of(table(*samples), 100).lower_ns <= 1_000_000
    assert held >= 255  # 270 expected; three deviations are 16


@given(st.lists(st.tuples(st.integers(0, 10**9), st.booleans()), min_size=1, max_size=600))
def test_a_floor_never_exceeds_the_least_of_the_last_epoch(samples: list) -> None:
    floors = table(*[(100, *sample) for sample in samples])
    floor = floors.floor_of(samples_of(floors, 100))
    if floor is not None:
        assert 0 <= floor.lower_ns <= floor.value_ns <= min(t for t, _ in samples[-EPOCH:])
        assert floor.margin_ns > floor.value_ns - floor.lower_ns


@given(st.integers(0, 10**6), st.integers(0, 100), st.sets(st.integers(1, 10**7), min_size=2))
def test_a_fit_returns_the_line_its_points_lie_on(a: int, b: int, sizes: set[int]) -> None:
    latency, per_byte = fit_line([(size, a + b * size) for size in sorted(sizes)])
    assert latency == pytest.approx(a, abs=1 + 1e-6 * b * max(sizes))
    assert per_byte == pytest.approx(b, abs=1e-3)


def test_a_known_floor_is_weighed_anew_once_in_so_many_samples() -> None:
    floors = table(*[(1000, 1_000_000, True)] * 4 * MOST_LEFT)
    samples, weighed = samples_of(floors, 1000), []
    for each in range(2 * MOST_LEFT):
        before = samples.floor
        add(floors, 1000, 900_000 - each, follows=True)
        weighed.append(samples.floor is not before)
    assert sum(weighed) == 2


def test_one_odd_batch_of_noise_moves_its_median_by_half_at_most() -> None:
    floors, seen = table(*[(100, 1_000_000, True)] * 4 * MOST_LEFT), []
    for _ in range(4):
        for _ in range(MOST_LEFT):
            add(floors, 100, 5_000_000, follows=True)
        seen.append(samples_of(floors, 100).noise_ns)
    assert seen == [10_000, 20_000, 30_000, 45_000]  # by 1/2 of itself, or of the quantum


@pytest.mark.parametrize(
    ("points", "line"),
    [
        ([(1000, 2000)], (0.0, 2.0)),  # one size: all of it is bandwidth …
        ([(0, 2000)], (2000.0, 0.0)),  # … unless it has no bytes
        ([(0, 100), (100, 300)], (100.0, 2.0)),
        ([(100, 300), (300, 100)], (200.0, 0.0)),  # larger is never quicker
        ([(100, 100), (300, 1000)], (0.0, 2.75)),  # nothing takes less than no time
    ],
)
def test_a_line_has_no_negative_latency_and_no_negative_slope(points, line) -> None:
    assert fit_line(points) == pytest.approx(line)


def test_the_tail_of_bursts_is_a_slow_median() -> None:
    samples, seen = FloorSamples((GROUP, ALL_REDUCE, 100, 2)), []
    for half_ns in (1600, 4500, 4500, 1, 1598):  # of the second of two members, as long as both
        samples.add_tail(200, half_ns, 100, 0)
        seen.append(samples.tail_ns)
    samples.add_tail(200, 0, 100, 0)  # ended together: no pace
    assert seen == [3200, 3300, 3403, 3297, 3194]  # a thirty-second of itself each time


@pytest.mark.parametrize(
    ("value", "lower", "noise", "margin"),
    [
        (QUANTUM_NS, QUANTUM_NS, 0, QUANTUM_NS),
        (100 * QUANTUM_NS, 90 * QUANTUM_NS, 0, 20 * QUANTUM_NS),
        (100 * QUANTUM_NS, 90 * QUANTUM_NS, 5 * QUANTUM_NS, 25 * QUANTUM_NS),
    ],
)
def test_a_margin_is_what_is_open_and_a_tenth_or_thrice_the_noise(value, lower, noise, margin):
    samples = FloorSamples((GROUP, ALL_REDUCE, 100, 1))
    samples.noise_ns = noise
    assert samples.floor_at(value, lower) == (value, lower, margin)
