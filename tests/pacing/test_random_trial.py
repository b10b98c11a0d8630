"""The trial of an action: its order, its proof, its stop-loss."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.pacing.account import CREDIT, SHARE, TrialBudget
from evenstep.pacing.random_trial import (
    ALPHA,
    ALWAYS,
    BLOCK_STEPS,
    LEARNING_STEPS,
    LONGEST_SCALE,
    OUTLIER,
    PRECISION,
    RARE,
    EvidenceProcess,
    RandomTrial,
    interval,
    left_out,
)

BLOCKS = st.integers(0, 2**40)
SPANS = st.sampled_from([2, 4, 8, 16])


class Job:
    """A job whose steps are 1, with noise, less what acting gains."""

    def __init__(self, seed: int, gain: float = 0.0, sd: float = 0.03, correlation: int = 1):
        self.account = TrialBudget()
        self.trial = RandomTrial(self.account, seed=f"job-{seed}")
        self.gain, self.sd = gain, sd
        self.kept = math.exp(-1 / correlation) if correlation > 1 else 0.0
        self.draw = random.Random(seed)
        self.noise = self.draw.gauss(0, 1)
        self.lost = 0.0
        self.words: set[str] = set()

    def go(self, steps: int) -> "Job":
        for _ in range(steps):
            step = self.account.steps
            self.account.steps += 1
            acted = self.trial.acts(step // BLOCK_STEPS)
            fresh = math.sqrt(1 - self.kept**2) * self.draw.gauss(0, 1)
            self.noise = self.kept * self.noise + fresh
            gained = self.gain if acted else 0.0
            self.lost -= gained
            self.trial.learn(step // BLOCK_STEPS, 1 - gained + self.sd * self.noise, acted)
            self.words.add(self.trial.word)
        return self


@given(BLOCKS, SPANS)
def test_of_a_span_one_block_is_left_out(group: int, span: int) -> None:
    drawn = {left_out("run", group * span + n, span) for n in range(span)}
    assert len(drawn) == 1
    assert group * span <= drawn.pop() < (group + 1) * span


@given(BLOCKS, SPANS)
def test_who_leaves_out_one_of_a_span_leaves_it_out_of_its_pair_too(block: int, span: int) -> None:
    found = left_out("run", block, span)
    assert left_out("run", found, 2) == found


def test_two_runs_do_not_draw_the_same_order() -> None:
    orders = [[left_out(run, 2 * n, 2) % 2 for n in range(64)] for run in ("a", "b")]
    assert orders[0] != orders[1]


@pytest.mark.parametrize("correlation", [1, 10, 100])
def test_without_effect_pays_is_said_no_more_often_than_promised(correlation: int) -> None:
    said = sum("pays" in Job(n, correlation=correlation).go(2000).words for n in range(40))
    # 40 runs at 5 %: more than 6 would come by chance once in 300.
    assert said <= 6


def test_the_evidence_is_a_martingale_whatever_the_differences_are() -> None:
    # One more pair, its sign a coin: E[exp(λD) / cosh(λD)] = 1 for each |D| and λ.
    for size in (1e-3, 0.05, 3.0):
        for rate in (1.0, 16.0, 64.0):
            mean = sum(math.exp(s * rate * size) / math.cosh(rate * size) for s in (1, -1)) / 2
            assert mean == pytest.approx(1.0)


def test_the_interval_covers_a_constant_effect_at_all_times() -> None:
    missed = 0
    for seed in range(60):
        draw = random.Random(seed)
        gains: list[float] = []
        bad = False
        for looks in (1, 2, 3, 4, 6, 8, 12, 16, 22, 30):  # each a root search: not at all thirty
            gains += [0.02 + draw.gauss(0, 0.05) for _ in range(looks - len(gains))]
            _, low, high = interval(gains)
            bad |= not low <= 0.02 <= high
        missed += bad
    assert missed <= 60 * ALPHA * 2.5  # 3 expected at most; 8 is three deviations more


def test_what_was_refuted_once_stays_refuted_unless_the_effect_changes() -> None:
    draw = random.Random(7)
    steady = [0.1 + draw.gauss(0, 0.02) for _ in range(12)]
    noisy = [*steady, -0.3, 0.5, -0.25, 0.45]
    low, before = interval(noisy)[1], interval(steady)[1]
    assert low >= (1 - PRECISION) * before > 0.0
    assert interval(noisy[::-1])[1] < 0.0  # the noisy ones first: nothing was refuted
    turned = [*steady, *(-each for each in steady * 6)]
    mean, low, high = interval(turned)
    assert low < mean < high < before


def test_before_the_first_pair_there_is_no_evidence_and_a_pair_at_most_doubles_it() -> None:
    evidence = EvidenceProcess()
    assert evidence.log == 0.0
    evidence.add(1e6)
    assert evidence.log == pytest.approx(math.log(2))


def test_an_interval_of_nothing_is_everything() -> None:
    assert interval([]) == (0.0, -math.inf, math.inf)


def test_the_mean_of_an_interval_is_that_of_its_gains() -> None:
    assert [interval([0.5, 0.1, -0.3][:count])[0] for count in (1, 2, 3)] == pytest.approx(
        [0.5, 0.3, 0.1]
    )


def test_all_trials_of_an_action_share_the_error() -> None:
    trial, shares = RandomTrial(TrialBudget(), seed="run"), []
    for trial._trials in range(1, 2000):
        shares.append(math.exp(-trial._needed))
    assert 0.999 * ALPHA <= sum(shares) <= ALPHA  # 1/2 + 1/6 + 1/12 + … = 1
    assert 2**4 < 1 / shares[0] < 2**5  # a pair doubles the evidence at most: five are enough


@pytest.mark.parametrize("gain", [-0.01, -0.03, -0.10])
def test_what_harms_is_stopped_within_its_allowance(gain: float) -> None:
    jobs = [Job(n, gain).go(3000) for n in range(12)]
    pair = 2 * BLOCK_STEPS * max(0.03, -gain)
    allowed = CREDIT + SHARE * 3000 + pair + 1.0  # the last: of the mean over 12 noisy ends
    assert sum(job.lost for job in jobs) / len(jobs) <= allowed
    assert all("pays" not in job.words for job in jobs)


def test_what_helps_is_kept() -> None:
    job = Job(3, gain=0.05).go(4000)
    assert job.trial.word == "pays"
    assert -job.lost >= 0.8 * 0.05 * 4000
    assert job.trial.verdict.low <= 0.05 <= job.trial.verdict.high


def test_what_helps_clearly_is_soon_left_out_of_few_blocks() -> None:
    jobs = [Job(n, gain=0.1).go(600) for n in range(3)]
    assert min(-job.lost for job in jobs) >= 0.6 * 0.1 * 600
    assert {job.trial.span for job in jobs} == {16}


def test_what_has_begun_to_harm_is_given_up() -> None:
    job = Job(5, gain=0.05).go(2000)
    assert job.trial.word == "pays"
    gained = -job.lost
    job.gain = -0.05
    job.go(3000)
    assert job.trial.word != "pays"
    assert -job.lost > gained / 2


def test_a_debt_paid_in_the_next_block_is_seen() -> None:
    """Acting gains 2 % now and costs 3 % over the next few steps."""
    job, debt = Job(1, gain=0.02, sd=0.02), 0.0
    for _ in range(4000):
        step = job.account.steps
        job.account.steps += 1
        acted = job.trial.acts(step // BLOCK_STEPS)
        debt += 0.03 if acted else 0.0
        paid, debt = debt / 2, debt / 2
        job.lost += paid - (0.02 if acted else 0.0)
        took = 1 + paid - (0.02 if acted else 0.0) + 0.02 * job.draw.gauss(0, 1)
        job.trial.learn(step // BLOCK_STEPS, took, acted)
        job.words.add(job.trial.word)
    assert "pays" not in job.words
    assert job.lost < 12  # a quarter of what acting always would cost
    assert job.trial.last_pair[2] > 0.0  # what the pair without acting still paid is booked, too


def test_a_step_is_counted_once_whoever_numbers_it():
    account = TrialBudget()
    for step in range(100):
        account.tick(step)  # by the pacer
        account.tick(step + 1)  # by the conductor, which asks about the next one
        account.tick(step // 10)  # by the turns on storage, which count checkpoints
    assert account.steps == 101


def test_two_actions_take_turns_and_share_one_account() -> None:
    account = TrialBudget()
    trials = [RandomTrial(account, seed=name) for name in ("gc", "token")]
    draw, on_trial, lost = random.Random(2), 0, 0.0
    for step in range(4000):
        account.steps += 1
        block = step // BLOCK_STEPS
        acts = [trial.acts(block) for trial in trials]
        lost += 0.02 * sum(acts)
        took = 1 + 0.02 * sum(acts) + 0.02 * draw.gauss(0, 1)
        for trial, acted in zip(trials, acts, strict=True):
            trial.learn(block, took, acted)
        on_trial = max(on_trial, sum(trial.span > 0 for trial in trials))
    assert on_trial == 1
    assert lost <= CREDIT + SHARE * 4000 + 2


def test_nothing_is_tried_while_there_is_nothing_to_gain() -> None:
    job = Job(1, gain=-0.5)
    job.trial.wanted = False
    job.go(1000)
    assert job.lost == 0.0
    job.trial.wanted = True
    job.go(1 + BLOCK_STEPS * 8)
    assert job.lost > 0.0


def test_a_change_of_the_job_is_learned_anew() -> None:
    job = Job(3, gain=0.05).go(2000)
    job.trial.reset()
    assert (job.trial.word, job.account.holder) == ("untested", None)
    assert job.trial.mean_ns == 0.0
    assert not job.trial.acts(250)
    job.go(LEARNING_STEPS + 2)
    assert job.trial.word == "on trial"


def test_steadiness_may_cost_throughput_where_it_is_the_objective() -> None:
    words = []
    for objective in ("throughput", "stability"):
        account = TrialBudget()
        trial = RandomTrial(account, seed="s", objective=objective, share=0.006)
        draw = random.Random(4)
        for step in range(6000):
            account.steps += 1
            acted = trial.acts(step // BLOCK_STEPS)
            took = 1.002 + 0.01 * draw.random() if acted else 1 + 0.2 * draw.random() - 0.1
            trial.learn(step // BLOCK_STEPS, took, acted)
        words.append(trial.word)
    assert words[1] == "pays"


def test_part_of_a_step_is_compared_as_a_share_of_all_of_it() -> None:
    account = TrialBudget()
    trial = RandomTrial(account, seed="p")
    draw = random.Random(4)
    for step in range(2000):
        account.steps += 1
        acted = trial.acts(step // BLOCK_STEPS)
        exchange = 0.2 if acted else 0.3
        trial.learn(step // BLOCK_STEPS, 1 + draw.gauss(0, 0.3), acted, exchange)
    assert trial.verdict.gain == pytest.approx(0.1, rel=0.1)  # (.3 - .2) of a step of 1


@pytest.mark.parametrize(("outlier", "word"), [(RARE, "pays"), (OUTLIER, None)])
def test_pauses_that_are_rare_and_long_count_where_the_action_is_against_them(outlier, word):
    # A pause of 20 steps every 40, put off by acting, which pauses for 2 steps in each 128.
    account, draw = TrialBudget(), random.Random(5)
    trial = RandomTrial(account, seed="gc", scale=4, outlier=outlier, aftereffect=True)
    since, gains = 0, []
    for step in range(6000):
        account.steps += 1
        acted = trial.acts(step // BLOCK_STEPS)
        since = 0 if acted or since == 40 else since + 1
        took = draw.gauss(1, 0.05) + (2 * (step % 128 == 127) if acted else 20 * (since == 40))
        trial.learn(step // BLOCK_STEPS, took, acted)
        if step % 128 == 127 and trial.word == "pays":  # a verdict changes as a block ends
            gains.append(trial.verdict.gain)
    assert word is None or trial.word == word
    assert (max(gains, default=0) > 0.1) == (word == "pays")


def test_who_follows_says_what_the_leaders_orders_mean() -> None:
    trial = RandomTrial(TrialBudget(), seed="link")
    trial._learned = LEARNING_STEPS
    trial.account.steps = trial._wake
    for span, scale, word in (
        (2, 0, "on trial"),
        (8, 1, "pays"),
        (0, 1, "pays"),
        (2, 1, "on trial"),
    ):
        trial.follow(span, scale)
        assert (trial.span, trial.scale, trial.word) == (span, scale, word)
    for span, scale in ((3, 0), (2, -1), (2, LONGEST_SCALE + 1)):  # no orders of ours
        trial.follow(span, scale)
        assert (trial.span, trial.scale) == (2, 1)


def test_who_follows_is_stopped_at_twice_its_allowance_where_nothing_is_proven() -> None:
    # A block of 8 steps loses .9 each, the next .3 less than nothing, in units of the pair's mean:
    # .9 · 8 / 1.45 = 4.97, .3 · 8 / .85 = 2.82, and 4.97 - 2.82 + 4.97 > 2 · 3.1 > 4.97.
    job = Job(1, sd=0.0)
    job.trial.leads = False
    job.go(2 * LEARNING_STEPS).trial.follow(2, 0)
    while job.trial.span and job.trial.last_pair[0] < 9:
        job.gain = (-0.9, 0.3)[job.account.steps // (2 * BLOCK_STEPS) % 2]
        job.go(1)
    assert (job.trial.word, job.trial.last_pair[0]) == ("does not pay", 3)


@pytest.mark.parametrize("span", [2, 16])
def test_who_followed_goes_on_alone_when_the_leader_is_gone(span: int) -> None:
    job = Job(1, gain=0.05, sd=0.01)
    job.trial.leads = False
    job.go(2 * LEARNING_STEPS)
    job.trial.follow(span, 0)
    job.go(200)
    job.trial.leads = True
    assert job.go(2000).trial.word == "pays"


@pytest.mark.parametrize(("spent", "stopped"), [(0.001, False), (1.0, True)])
def test_a_bounded_action_is_stopped_for_what_it_spent_and_not_for_noise(spent, stopped) -> None:
    words = set()
    for seed in range(10):
        job = Job(seed, gain=0.3, sd=0.3, correlation=60)
        job.trial = trial = RandomTrial(job.account, seed=f"b-{seed}", scale=4, bounded=True)
        for _ in range(4000):
            job.go(1)
            trial.spend(spent * (trial.span > 0))
        words |= job.words
    assert ("does not pay" in words) == stopped


def test_once_a_bounded_action_pays_few_blocks_are_left_out_whatever_the_noise() -> None:
    job = Job(1, gain=1 / 3, sd=0.5)
    job.trial = trial = RandomTrial(job.account, seed="b", scale=4, aftereffect=True, bounded=True)
    while trial.verdict.low == -math.inf:
        job.go(1)
    assert (trial.word, trial.span, len(trial.gains)) == ("pays", 16, 6)


@pytest.mark.parametrize(("gained", "span"), [(6, 2), (7, 4), (13, 8), (26, 16)])
def test_spans_are_as_long_as_gains_cover_twice_the_noise_whatever_the_effect(gained, span) -> None:
    # Gains that deviate by .1: twice that of 32, 64 and 128 steps is 6.4, 12.8 and 25.6 steps.
    for scale in (0, 2):  # of blocks so often doubled the same deviation is of as many more steps
        trial = RandomTrial(TrialBudget(), seed="spans", scale=scale)
        trial.gains, trial._loss = [0.2, 0.4] * 3, -gained << scale
        assert trial._covered_span() == span


def test_blocks_of_a_span_are_booked_what_its_pair_has_shown() -> None:
    """Steps of every other pair are twice as long, acted in or not: nothing is lost or gained."""
    trial = RandomTrial(TrialBudget(), seed="pairs")
    trial.word, trial.span, trial.mean_ns = "pays", 4, 1.5
    booked = []
    for step in range(16 * BLOCK_STEPS):
        block = step // BLOCK_STEPS
        trial.learn(block, 1.0 + block // 2 % 2, trial.acts(block))
        booked.append(trial.last_pair)
    assert {pair[1:] for pair in booked} == {(0.0, 0.0)}
    assert booked[-1][0] >= 4


def test_a_gain_is_said_as_a_share_of_a_step_without() -> None:
    job = Job(1, gain=0.5, sd=0.001).go(1000)
    assert job.trial.verdict.gain == pytest.approx(0.5, abs=0.01)


def test_the_first_steps_of_a_block_do_not_count_in_its_mean_and_spread() -> None:
    trial = RandomTrial(TrialBudget(), seed="run")
    trial.span, trial.mean_ns = ALWAYS, 1.0
    assert trial.transition_steps == 1
    for step in (9.0, 1.0, 1.5, 2.0):
        trial.learn(0, step, trial.acts(0))
    block = trial._block
    assert (block.count, block.settled) == (4, 3)
    assert (block.sums, block.squares) == (4.5, 7.25)
