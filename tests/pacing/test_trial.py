"""When contention is acted on: the trial of a loss that falls, stays, or rises."""

from hypothesis import given
from hypothesis import strategies as st

from evenstep.pacing.trial import (
    BLOCK_STEPS,
    CREDIT,
    FEWEST_CLEAR,
    FEWEST_PAIRS,
    LEARNING_STEPS,
    LONGEST_REST_STEPS,
    OUTLIER,
    PAIR,
    SHARE,
    LossTrial,
)

MS = 1_000_000
STEP = 100 * MS
#: blocks have room for 12 steps of 100 ms: 1.6 s, 16 steps
PAIR_STEPS = PAIR * 16
TRIAL_STEPS = LEARNING_STEPS + (FEWEST_PAIRS + 1) * PAIR_STEPS


class Clock:
    """A trial with steps of 100 ms, one after the other, whose loss depends on what it does."""

    def __init__(self) -> None:
        self.trial = LossTrial()
        self.now = 0
        self.spent = 0.0  # steps lost against doing nothing

    def drive(self, steps: int, off_ms: float, on_ms: float) -> list[bool]:
        found = []
        for _ in range(steps):
            acted = self.trial.acts(self.now)
            loss_ns = int((on_ms if acted else off_ms) * MS)
            self.spent += acted * (on_ms - off_ms) * MS / STEP
            self.trial.learn(loss_ns, 0, STEP, int(off_ms * MS), began_ns=self.now, acted=acted)
            self.now += STEP
            found.append(acted)
        return found


def test_the_first_steps_are_left_alone() -> None:
    assert not any(Clock().drive(LEARNING_STEPS, 10, 1))


def test_then_of_each_pair_of_blocks_one_is_acted_in() -> None:
    clock = Clock()
    clock.drive(LEARNING_STEPS, 10, 1)
    first = clock.drive(FEWEST_CLEAR * PAIR_STEPS, 10, 1)
    assert sum(first) == len(first) / 2


def test_a_loss_that_falls_is_acted_on_in_all_but_one_block_of_each_span() -> None:
    clock = Clock()
    clock.drive(5000, 10, 1)
    assert clock.trial.word == "pays"
    # from any step on, five spans of 32 blocks of 16 steps hold five blocks without; one may be cut
    acted = clock.drive(32 * 16 * 5, 10, 1)
    assert abs(sum(acted) - 31 * 16 * 5) <= 16


def test_less_than_half_a_percent_of_a_step_is_left_alone() -> None:
    clock = Clock()
    assert not any(clock.drive(3000, 0.4, 0.0))
    assert (clock.trial.trials, clock.trial.word) == (0, "nothing to gain")


def test_a_loss_that_rises_ends_the_trial_at_the_first_look() -> None:
    clock = Clock()
    clock.drive(TRIAL_STEPS, 10, 60)
    assert not clock.trial.open


def test_an_outlier_counts_as_a_few_steps() -> None:
    # one step of an hour in an acted block: at most OUTLIER steps of loss, which is no verdict
    clock = Clock()
    clock.drive(TRIAL_STEPS - PAIR_STEPS, 10, 8)
    clock.drive(1, 3_600_000, 3_600_000)
    clock.drive(100, 10, 8)
    assert clock.trial.booked <= OUTLIER


@given(st.floats(10.5, 100.0))
def test_what_trials_lose_stays_within_the_account(on_ms: float) -> None:
    # Each comparison may use what is left once more, and is looked at only after two pairs.
    clock = Clock()
    steps = 20_000
    clock.drive(steps, 10, on_ms)
    two_pairs = PAIR_STEPS * (on_ms - 10) * MS / STEP
    assert clock.spent <= 2 * CREDIT + SHARE * steps + two_pairs


@given(st.floats(10.5, 40.0))
def test_trials_that_fail_grow_rare(on_ms: float) -> None:
    # rests double to the cap: in K steps at most log2(cap / 300) + K / cap trials and the first
    clock = Clock()
    clock.drive(20_000, 10, on_ms)
    assert clock.trial.trials <= 6 + 20_000 / LONGEST_REST_STEPS


def test_a_world_that_changes_is_tried_again() -> None:
    clock = Clock()
    clock.drive(1000, 10, 12)
    assert any(clock.drive(2 * LONGEST_REST_STEPS, 10, 1)[LONGEST_REST_STEPS:])


def test_what_paid_and_turns_bad_is_ended() -> None:
    clock = Clock()
    clock.drive(2000, 10, 1)
    clock.drive(20 * 16 * 16, 10, 30)
    assert not clock.trial.open


def test_a_loss_that_grows_with_blocks_and_without_alike_ends_it_too() -> None:
    clock = Clock()
    clock.drive(2000, 10, 1)
    assert clock.trial.open
    clock.drive(200, 30, 30)  # 20 ms of 100 more than before: 15 steps are lost in 77
    assert not clock.trial.open


def test_jobs_whose_steps_differ_little_act_at_the_same_times() -> None:
    trials = [LossTrial(), LossTrial()]
    for trial, step in zip(trials, (70 * MS, 95 * MS), strict=True):
        for n in range(2 * LEARNING_STEPS):
            trial.learn(step // 5, 0, step, step // 5, began_ns=n * step, acted=False)
    times = range(10**12, 10**12 + 10**11, 10**8)
    assert [trials[0].acts(t) for t in times] == [trials[1].acts(t) for t in times]
    assert 0 < sum(trials[0].acts(t) for t in times) < len(times)


def test_a_block_has_room_for_the_steps_it_is_made_for() -> None:
    trial = LossTrial()
    for n in range(LEARNING_STEPS):
        trial.learn(MS, 0, 7 * MS, MS, began_ns=n * 7 * MS, acted=False)
    acting = [trial.acts(n * 7 * MS) for n in range(4000)]
    runs = [len(run) for run in "".join("x" if a else " " for a in acting).split()]
    assert min(runs[1:-1]) >= BLOCK_STEPS


def drive_worlds(clock: Clock, steps: int, loss_ms) -> None:
    """Steps whose loss follows from whether the step is acted in."""
    for _ in range(steps):
        acted = clock.trial.acts(clock.now)
        clock.trial.learn(
            int(loss_ms(acted) * MS), 0, STEP, 10 * MS, began_ns=clock.now, acted=acted
        )
        clock.now += STEP


def test_jobs_that_have_come_apart_and_stay_apart_go_on_being_paced() -> None:
    # 20 ms of 100 are lost until acted once; from then on blocks without are as good as those with
    clock, met = Clock(), [True]

    def loss_ms(acted: bool) -> float:
        met[0] = met[0] and not acted
        return 20 if met[0] else 2

    drive_worlds(clock, 3000, loss_ms)
    assert clock.trial.word == "pays"


def test_what_costs_more_than_not_acting_is_ended_though_the_world_became_better() -> None:
    clock = Clock()
    clock.drive(LEARNING_STEPS, 20, 20)  # before; then the world improves by itself
    clock.drive(TRIAL_STEPS, 5, 9)
    assert clock.trial.word != "pays"


def test_a_loss_that_was_not_known_well_is_not_taken_for_fallen() -> None:
    # before: bursts of 8 steps in 32; after: the same world, and pauses that change nothing
    clock, burst = Clock(), [0]

    def loss_ms(acted: bool) -> float:
        burst[0] += 1
        return (60 if burst[0] // 8 % 4 == 0 else 5) + 2 * acted

    drive_worlds(clock, 20_000, loss_ms)
    assert clock.trial.word != "pays"


def test_what_was_before_is_learned_anew_now_and_then() -> None:
    clock, words, met = Clock(), set(), [True]
    for _ in range(2 * LONGEST_REST_STEPS):
        acted = clock.trial.acts(clock.now)
        met[0] = not acted if not clock.trial.open else met[0] and not acted
        loss_ns = (20 if met[0] else 2) * MS
        clock.trial.learn(loss_ns, 0, STEP, 10 * MS, began_ns=clock.now, acted=acted)
        clock.now += STEP
        words.add(clock.trial.word)
    assert "learning anew" in words
    assert clock.trial.word == "pays"
