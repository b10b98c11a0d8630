"""What a trial makes of steps, beside a plain account of all of them that forgets nothing."""

import random
from itertools import groupby, pairwise
from math import sqrt
from typing import NamedTuple

import pytest

from evenstep.pacing import random_trial
from evenstep.pacing.account import CREDIT, TrialBudget, TrialVerdict
from evenstep.pacing.random_trial import (
    ALARM,
    BLOCK_STEPS,
    FIRST_REST_STEPS,
    LEARNING_STEPS,
    LONGEST_REST_STEPS,
    MOST_LENGTHENED,
    MOST_PAIRS,
    OUTLIER,
    EvidenceProcess,
    RandomTrial,
)

MEAN = 100.0  # of a step


class Step(NamedTuple):
    block: int
    took: float
    acted: bool
    loss: float


class Block(NamedTuple):
    index: int
    acted: bool
    losses: list[float]
    counted: list[float]  # of the losses; and the whole steps
    wholes: list[float]

    @property
    def mean(self) -> float:
        return sum(self.counted) / len(self.counted)


def blocks(history: list[Step], first_left_out: int) -> list[Block]:
    """All blocks but the last, which is not over."""
    found = []
    for index, rows in groupby(history, key=lambda step: step.block):
        steps = list(rows)
        kept = [step for step in steps if step.acted is steps[0].acted]
        losses = [min(step.loss, OUTLIER * MEAN) for step in kept]
        wholes = [min(step.took, OUTLIER * MEAN) for step in kept]
        counted = slice(first_left_out, None)
        found.append(Block(index, kept[0].acted, losses, losses[counted], wholes[counted]))
    return found[:-1]


def pairs(history: list[Step], scale: int) -> list[tuple[float, float]]:
    """Gain and cost of each pair, as the module's text defines them."""
    long = [step._replace(block=step.block >> scale) for step in history]
    found, after, unseen, before_switched = [], [], 0, False
    closed = blocks(long, 1)
    unseen += len(closed[0].losses) * closed[0].acted
    for before, now in pairwise(closed):
        unseen += len(now.losses) * now.acted
        if now.index != before.index + 1 or min(len(before.counted), len(now.counted)) < 4:
            before_switched = False
            continue
        switched = now.acted is not before.acted
        if before_switched and not now.acted and not switched:
            after.append(before.mean - now.mean)
        if switched and now.index % 2:
            off, on = (before, now) if now.acted else (now, before)
            found.append(pair(off, on, unseen - len(on.losses), after, BLOCK_STEPS << scale))
            unseen = 0
        before_switched = switched
    return found


def pair(off: Block, on: Block, unseen: int, after: list[float], steps: int):
    unit = (sum(off.wholes) / len(off.wholes) + sum(on.wholes) / len(on.wholes)) / 2
    cost = sum(on.losses) - len(on.losses) * off.mean + unseen * (on.mean - off.mean)
    if len(after) >= 3:
        mean = sum(after) / len(after)
        spread = sum((each - mean) ** 2 for each in after) / (len(after) - 1)
        if abs(mean) > 2.5 * sqrt(spread / len(after)):
            cost += 1.75 * mean * steps
    return (off.mean - on.mean) / unit, cost / unit


class NoEvidence(EvidenceProcess):
    """Of an action that is never judged."""

    def add(self, difference: float) -> None:
        pass


def follower(scale: int) -> RandomTrial:
    """One that takes pairs and leaves it to others to judge."""
    trial = RandomTrial(TrialBudget(), seed="pairs", scale=scale)
    trial.leads, trial.mean_ns = False, MEAN
    trial._learned, trial.account.steps = LEARNING_STEPS, 10**9
    return trial


@pytest.mark.parametrize("span", [2, 4, 16])
@pytest.mark.parametrize(("scale", "debt", "seed"), [(4, 0.0, 1), (4, 15.0, 2), (4, -15.0, 3)])
def test_pairs_are_those_of_all_steps_with_gaps_outliers_and_debts(span, scale, debt, seed) -> None:
    trial, draw = follower(scale), random.Random(seed)
    trial.follow(span, scale)
    trial._against = NoEvidence()
    history: list[Step] = []
    told, at, acted_before = [], 0, False
    for _ in range(16 * 6 * BLOCK_STEPS << scale):
        at += 1 if draw.random() < 0.999 else draw.choice([2, 100, 200])
        block = at // BLOCK_STEPS
        acted = trial.acts(block) ^ (draw.random() < 0.002)
        start = at % (BLOCK_STEPS << scale) == 0
        acted_before = trial.acts(block - (1 << scale)) if start else acted_before
        took = MEAN * draw.choice([0.9, 1.0, 1.1]) * (draw.random() < 0.99 or 9.0)
        loss = took * draw.choice([0.5, 0.6]) - 3.0 * acted + debt * acted_before
        history.append(Step(block, took, acted, loss))
        number = trial.last_pair[0]
        trial.learn(*history[-1])
        if trial.last_pair[0] != number:
            told.append(trial.last_pair)
    assert trial.span == span
    expected = pairs(history, scale)
    assert len(expected) >= 4
    assert [number for number, _, _ in told] == list(range(1, len(expected) + 1))
    for (_, gain, cost), (gain_alike, cost_alike) in zip(told, expected, strict=True):
        assert gain == pytest.approx(gain_alike)
        assert cost == pytest.approx(cost_alike)


@pytest.mark.parametrize(("debt", "scales"), [(10.0, [0, 1, 2, 3, 4]), (0.0, [0])])
def test_blocks_double_until_what_one_leaves_to_the_next_is_little_of_it(debt, scales) -> None:
    trial, draw = follower(0), random.Random(1)
    trial.follow(2, 0)
    trial._against, seen, steps = NoEvidence(), [], []
    for at in range(256 * BLOCK_STEPS << MOST_LENGTHENED):
        block = at // BLOCK_STEPS
        if trial.scale not in seen:
            seen.append(trial.scale)
            steps.append(trial.transition_steps)
        before = trial.acts(block - (1 << trial.scale))
        trial.learn(block, MEAN + debt * before + draw.gauss(0, 1), trial.acts(block))
    assert seen == scales
    assert steps == [1, *((BLOCK_STEPS << scale) // 2 for scale in scales[1:])]


def leader(word: str = "on trial", **settings: object) -> RandomTrial:
    trial = RandomTrial(TrialBudget(), seed="judge", **settings)
    trial.word, trial.span, trial.account.holder = word, 2, trial
    return trial


def test_a_leader_judges_by_the_mean_of_all_jobs_and_books_their_mean_loss() -> None:
    trial = leader()
    trial.peer_pairs = [(0.1, 0.5), (0.3, 0.1)]
    trial._enter(-0.1, 0.9)
    trial._enter(0.2, 0.25)  # peers count once
    assert trial.gains == pytest.approx([0.1, 0.2])
    assert trial.account.room() == pytest.approx(CREDIT - 0.75)
    assert trial.account.room(trial) == pytest.approx(CREDIT)
    alone = EvidenceProcess()
    alone.add(0.1)
    alone.add(0.2)
    assert trial._for.log == pytest.approx(alone.log)


@pytest.mark.parametrize(("word", "span"), [("on trial", 0), ("pays", 0)])
def test_a_trial_ends_as_soon_as_its_loss_exceeds_the_allowance(word: str, span: int) -> None:
    trial = leader(word)
    trial._enter(0.0, CREDIT)
    assert (trial.word, trial.span) == (word, 2)  # all of it, and not more
    trial._enter(0.0, 0.001)
    assert (trial.word, trial.span, trial.account.holder) == ("does not pay", span, None)
    assert trial.account.room() == pytest.approx(-0.001)


def test_a_costly_objective_is_granted_its_share_of_the_trials_steps() -> None:
    trial = leader(objective="stability", share=0.0105)
    trial.account.steps += 100  # of which a hundredth each, beside the job's credit and share
    granted = trial.account.granted
    trial._enter(0.0, granted + 0.99)
    assert trial.word == "on trial"
    trial._enter(0.0, 0.02)
    assert trial.word == "does not pay"


def test_a_bounded_action_is_booked_no_more_than_it_spent() -> None:
    trial = leader(bounded=True)
    trial.spend(5.0)  # not known yet how long a step is
    trial.mean_ns = 10.0
    trial.spend(5.0)
    trial.spend(2.0)
    trial._enter(0.0, 100.0)
    assert trial.account.room() == pytest.approx(CREDIT - 0.7)
    trial._enter(0.0, -99.9)
    assert trial.account.room() == pytest.approx(CREDIT - 0.1)


def test_a_trial_that_finds_nothing_ends_undecided_and_each_rest_is_twice_as_long() -> None:
    trial, rests = leader(), []
    for _ in range(6):
        trial.word, trial.span, trial.gains = "on trial", 2, [0.0] * (MOST_PAIRS - 2)
        trial._enter(0.0, 0.0)
        assert trial.word == "on trial"
        trial._enter(0.0, 0.0)
        assert (trial.word, trial.span) == ("undecided", 0)
        rests.append(trial._wake - trial.account.steps)
    doubled = [FIRST_REST_STEPS << n for n in range(6)]
    assert rests == [min(each, LONGEST_REST_STEPS) for each in doubled]


def test_a_proof_counts_once_aftereffects_have_been_looked_for_and_frees_the_account() -> None:
    trial = leader()
    trial._rest = LONGEST_REST_STEPS
    for _ in range(8):
        trial._enter(0.3, -1.0)
    assert trial.word == "on trial"  # what a block leaves to the next is not known
    trial._after = [0.0, 0.1, -0.1]
    trial._enter(0.3, -1.0)
    assert (trial.word, trial.account.holder, trial._rest) == ("pays", None, FIRST_REST_STEPS)
    known = leader(aftereffect=True)
    for _ in range(4):
        known._enter(0.3, -1.0)
    assert known.word == "on trial"  # 2^4 < 25 = 1 / (.05 · .8)
    known._enter(30.0, -1.0)
    known._enter(30.0, -1.0)
    assert known.word == "pays"


@pytest.mark.parametrize(("gain", "span"), [(-0.001, 4), (0.0, 16), (0.1, 16)])
def test_after_a_pair_that_lost_more_blocks_are_left_out(gain: float, span: int) -> None:
    trial = leader("pays", bounded=True)
    trial.gains, trial.span = [0.1] * 8, 8
    trial._enter(gain, 0.0)
    assert trial.span == span


def test_what_paid_for_long_is_ended_soon_after_it_begins_to_harm() -> None:
    """Evidence of harm begins anew while it pays: what was gained before excuses nothing."""
    trial = leader("pays")
    for _ in range(100):
        trial._pair(*two_blocks(100.0, 90.0))
    before = trial.last_pair[0]
    while trial.word == "pays":
        trial._pair(*two_blocks(90.0, 100.0))
    assert trial.last_pair[0] - before <= 8
    assert 2 ** (trial.last_pair[0] - before) > 1 / ALARM  # a pair doubles the evidence at most


def two_blocks(off: float, on: float):
    trial = follower(0)
    trial.span = 2
    made = []
    for block, took in enumerate((off, on)):
        for _ in range(BLOCK_STEPS):
            trial.learn(block, took, block == 1)
        made.append(trial._block)
    return made


@pytest.mark.parametrize(("steps", "pairs"), [(4, 0), (5, 1), (8, 1)])
def test_a_block_of_which_few_steps_were_seen_is_in_no_pair(steps: int, pairs: int) -> None:
    """The first does not count, and of four that do the mean is taken."""
    trial = follower(0)
    trial.follow(2, 0)
    trial._against = NoEvidence()
    acted = trial.acts(0)
    for block, seen in ((0, steps), (1, BLOCK_STEPS), (2, 1)):
        for _ in range(seen):
            trial.learn(block, MEAN, acted if block == 0 else not acted)
    assert trial.last_pair[0] == pairs


def test_a_rank_that_follows_a_loss_on_trial_keeps_all_evidence() -> None:
    """On trial, gains count against harm: only what is found to pay is watched anew."""
    trial = leader()
    for _ in range(20):
        trial._pair(*two_blocks(100.0, 90.0))
    assert trial.word == "on trial"
    assert trial._against.log < 0.0


def test_orders_that_go_on_leave_what_was_learnt_and_new_ones_begin_anew() -> None:
    trial = follower(0)
    trial.follow(2, 0)
    trial._acted = BLOCK_STEPS
    trial._pair(*two_blocks(100.0, 101.0))
    lost = trial._own_loss
    trial.follow(4, 0)
    assert trial._own_loss == lost > 0.0
    trial.follow(0, 0)
    assert trial._own_loss == lost
    trial.follow(2, 0)
    assert trial._own_loss == 0.0


def test_a_trial_remembers_a_bounded_number_of_gains() -> None:
    trial = leader("pays")
    for _ in range(9 * MOST_PAIRS):
        trial._for.add(0.0)
        trial._enter(0.0, 0.0)
    assert len(trial.gains) == 8 * MOST_PAIRS


def test_a_gain_that_no_step_can_have_is_an_open_end() -> None:
    trial = leader()
    for gain in (-2.5, -2.0):  # of the mean of both: 2 is all of one block
        trial.gains = [gain] * 12
        assert trial.verdict.gain == -float("inf")
        assert trial.verdict.low == -float("inf")
    trial.gains = [0.5] * 12
    assert 0.0 < trial.verdict.low <= trial.verdict.gain == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("losses", "variation"),
    [([2.0, 2.0], 1e-4), ([0.1] * 3, 1e-4), ([1.0, 3.0], 0.5), ([9.9, 10.1], 0.01)],
)
def test_steps_of_a_block_vary_by_their_deviation_but_never_by_nothing(losses, variation):
    block = random_trial._Block(0, acted=False)
    block.settled, block.sums = len(losses), sum(losses)
    block.squares = sum(loss * loss for loss in losses)
    assert block.variation == pytest.approx(variation)


def test_a_trial_that_has_shown_nothing_has_no_gain_and_no_limits():
    verdict = TrialVerdict("untested")
    assert (verdict.pairs, verdict.gain) == (0, 0.0)
    assert verdict.plain | {"word": ""} == verdict._asdict() | {
        "word": "", "low": None, "high": None,
    }  # fmt: skip
