"""When contention is acted on: the trial of a loss that falls, stays, or rises."""

from hypothesis import given
from hypothesis import strategies as st

from evenstep.pacing.trial import LONGEST_REST_STEPS, LOOK_STEPS, LossTrial

MS = 1_000_000
STEP = 100 * MS


def drive(trial: LossTrial, steps: int, off_ms: float, on_ms: float) -> list[bool]:
    """Steps whose loss depends on whether the trial is on."""
    found = []
    for _ in range(steps):
        found.append(trial.on)
        loss_ns = int((on_ms if trial.on else off_ms) * MS)
        trial.learn(loss_ns, STEP, loss_ns)
    return found


def test_the_first_steps_are_off() -> None:
    assert not any(drive(LossTrial(), LOOK_STEPS, 10, 1))


def test_a_loss_that_falls_keeps_it_on() -> None:
    trial = LossTrial()
    assert all(drive(trial, 5000, 10, 1)[LOOK_STEPS:])
    assert trial.word == "pays"


def test_less_than_half_a_percent_of_a_step_is_left_alone() -> None:
    trial = LossTrial()
    assert not any(drive(trial, 3000, 0.4, 0.0))
    assert (trial.trials, trial.word) == (0, "nothing to gain")


def test_a_loss_that_rises_by_a_step_in_all_ends_the_trial_within_few() -> None:
    # constant loss, σ = 0: the alarm rings when what was lost beyond μ exceeds its two steps
    on = drive(LossTrial(), LOOK_STEPS + 50, 10, 60)
    assert sum(on) <= 5


def test_a_loss_that_stays_ends_the_trial_at_the_look() -> None:
    on = drive(LossTrial(), 3 * LOOK_STEPS - 1, 10, 10)
    assert sum(on) <= LOOK_STEPS


@given(st.floats(9.6, 40.0))
def test_trials_that_fail_grow_rare(on_ms: float) -> None:
    # off times double to the cap: in K steps at most log2(cap / look) + K / cap trials
    trial = LossTrial()
    drive(trial, 20_000, 10, on_ms)
    assert trial.trials <= 6 + 20_000 / LONGEST_REST_STEPS


def test_a_world_that_changes_is_tried_again() -> None:
    trial = LossTrial()
    drive(trial, 1000, 10, 20)
    assert any(drive(trial, 2 * LONGEST_REST_STEPS, 10, 1)[LONGEST_REST_STEPS:])


def test_what_paid_and_turns_bad_is_ended() -> None:
    trial = LossTrial()
    drive(trial, 1000, 10, 1)
    assert not all(drive(trial, 200, 10, 30))
