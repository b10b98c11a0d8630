import random
from math import log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.pacing import Stance, StepObservation
from evenstep.pacing.blocks import BLOCK_STEPS, block_is_paced
from evenstep.pacing.comparison import Cusum, PairedComparison
from evenstep.pacing.guard import FIRST_REST_STEPS, MOST_PAIRS, Guard


def guard(objective: str = "throughput", run_id: str = "r") -> Guard:
    return Guard(objective=objective, cost=0.006, run_id=run_id, attempt=0)


def drive(found: Guard, steps: range, time_of, *, held: bool = True, energy_of=None) -> Guard:
    """Feed steps whose time depends on whether they are paced, until the stance settles."""
    for step in steps:
        paced = found.paces(step)
        energy = None if energy_of is None else energy_of(paced)
        seen = StepObservation(step, max(1, int(time_of(paced))), 1, energy_mj=energy)
        found.learn(seen, paced=paced, held=paced and held)
        if found.stance is not Stance.BLOCKS:
            break
    return found


def noisy(seed: int, cv: float, gain: float = 0.0):
    draw = random.Random(seed)
    return lambda paced: 1e8 * max(0.1, draw.gauss(1.0, cv)) * (1 - gain if paced else 1)


@given(st.text(), st.integers(0, 9), st.integers(0, 10**6))
def test_of_each_pair_of_blocks_exactly_one_is_paced(run_id: str, attempt: int, pair: int) -> None:
    first, second = (block_is_paced(run_id, attempt, 2 * pair + i) for i in (0, 1))
    assert first != second


def test_the_order_within_pairs_is_balanced_and_differs_between_attempts() -> None:
    orders = [[block_is_paced("r", attempt, 2 * pair) for pair in range(400)] for attempt in (0, 1)]
    assert all(160 <= sum(order) <= 240 for order in orders)  # 200 ± 4 deviations
    assert orders[0] != orders[1]


def test_the_interval_has_the_width_of_the_formula() -> None:
    # Ten differences of ±1: mean 0, deviation sqrt(10/9); w worked out by hand: 1.2122 * 1.1674
    test = PairedComparison()
    for i in range(10):
        test.add((-1.0) ** i)
    s = (10 / 9) ** 0.5 * 1.15
    assert test.half_width == pytest.approx(s * (18 / 100 * log(18 / (8 * 0.0025))) ** 0.5)
    assert test.half_width == pytest.approx(1.2122 * 1.1066, rel=1e-3)


def test_nothing_is_concluded_from_four_pairs() -> None:
    test = PairedComparison()
    for _ in range(4):
        test.add(1.0)
    assert test.low == float("-inf")


@pytest.mark.parametrize("objective", ["throughput", "stability"])
@pytest.mark.parametrize("cv", [0.01, 0.1])
def test_pacing_that_does_nothing_is_kept_at_most_as_often_as_alpha(objective, cv) -> None:
    verdicts = [
        drive(guard(objective, str(seed)), range(1000), noisy(seed, cv)).word for seed in range(200)
    ]
    assert verdicts.count("pays") <= 10  # α = 5 % of 200


def test_a_gain_is_kept() -> None:
    found = drive(guard(), range(1000), noisy(1, 0.01, gain=0.05))
    assert (found.stance, found.word) == (Stance.ON, "pays")
    assert found.verdict.low <= -log(0.95) <= found.verdict.high


def test_a_loss_is_dropped() -> None:
    found = drive(guard(), range(1000), noisy(1, 0.01, gain=-0.02))
    assert (found.stance, found.word) == (Stance.OFF, "does not pay")


def test_noise_that_hides_the_effect_ends_undecided() -> None:
    found = drive(guard(), range(2000), noisy(3, 0.2))
    assert (found.stance, found.word) == (Stance.OFF, "undecided")
    assert found.verdict.pairs == MOST_PAIRS


def test_where_nobody_was_held_nothing_is_compared() -> None:
    found = drive(guard(), range(2000), noisy(1, 0.01, gain=0.05), held=False)
    assert (found.word, found.verdict.pairs) == ("untested", 0)


def test_what_was_dropped_is_tried_again_after_twice_the_time_each_time() -> None:
    found, rests = guard(), []
    step = 0
    for _ in range(3):
        drive(found, range(step, step + 1000), lambda paced: 1.1e8 if paced else 1e8)
        rests.append(found._wake_step)
        step = found._wake_step
        while found.stance is Stance.OFF:
            found.learn(StepObservation(step, 10**8, 1), paced=False, held=False)
            step += 1
        rests[-1] = step - rests[-1]
    assert all(rest <= 2 * BLOCK_STEPS for rest in rests)
    assert found._rest_steps == 8 * FIRST_REST_STEPS


def test_a_drift_while_pacing_brings_the_comparison_back() -> None:
    found = drive(guard(), range(1000), noisy(1, 0.01, gain=0.05))
    slower = noisy(2, 0.01, gain=-0.10)
    for step in range(1000, 1400):
        found.learn(StepObservation(step, int(slower(True)), 1), paced=True, held=True)
    assert found.stance is Stance.BLOCKS


def test_a_cusum_stays_silent_on_what_it_was_shown() -> None:
    draw = random.Random(0)
    alarm = Cusum([draw.gauss(0, 1) for _ in range(60)])
    assert not any(alarm.rings(draw.gauss(0, 1)) for _ in range(500))


def test_steadier_steps_are_kept_at_a_small_cost_and_not_at_a_large_one() -> None:
    def steadier(cost: float):
        draw = random.Random(5)
        return lambda p: 1e8 * (1 + cost + draw.gauss(0, 0.002) if p else 1 + draw.gauss(0, 0.02))

    assert drive(guard("stability"), range(1000), steadier(-0.001)).word == "pays"
    assert drive(guard("stability"), range(1000), steadier(0.05)).word == "too costly"


def test_steadier_steps_with_a_worse_tail_are_not_kept() -> None:
    draw = random.Random(5)

    def rarely_terrible(paced: bool) -> float:
        if not paced:
            return 1e8 * (1 + draw.gauss(0, 0.01))
        return 1e8 * (1.2 if draw.random() < 0.015 else 1 + draw.gauss(0, 0.0005))

    assert drive(guard("stability"), range(1000), rarely_terrible).word != "pays"


def test_energy_saved_at_the_same_speed_is_kept() -> None:
    found = drive(
        guard("energy"), range(1000), noisy(1, 0.002), energy_of=lambda p: 90 if p else 100
    )
    assert found.word == "pays"


def test_energy_without_power_samples_is_not_judged() -> None:
    assert drive(guard("energy"), range(1000), noisy(1, 0.01)).word == "no power samples"


def test_a_block_that_did_not_follow_the_schedule_is_left_out() -> None:
    found = guard()
    for step in range(800):
        seen = StepObservation(step, 10**8, 1)
        found.learn(seen, paced=found.paces(step) and step % 8 != 3, held=True)
    assert found.verdict.pairs == 0
