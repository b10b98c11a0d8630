"""Whose turn it is on a link: told from outside, in nanoseconds of one clock."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.pacing import TrialBudget
from evenstep.pacing.random_trial import BLOCK_STEPS, LEARNING_STEPS
from evenstep.pacing.token import (
    FEWEST_EXCHANGES,
    LOOK_STEPS,
    MILLION,
    MOST_WAIT,
    SHORTEST_BLOCK_NS,
    SHORTEST_POLL_NS,
    Post,
    Token,
)

MS = 1_000_000
NOW = 10**12
STEP_NS, ALONE_NS = 200 * MS, 60 * MS
THERE = Post(asked_ns=NOW - 30 * MS, entered_ns=NOW - 20 * MS, alone_ns=50 * MS, step_ns=STEP_NS)


@pytest.fixture
def token():
    """Of a job that acts: exchanges of 60 ms in steps of 200."""
    made = Token(TrialBudget(), guarded=False)
    made.post = Post(alone_ns=ALONE_NS, step_ns=STEP_NS)
    made._acts = True
    return made


def test_alone_an_exchange_begins_at_once(token):
    assert token.ask(NOW, [Post(step_ns=STEP_NS)]) == 0
    assert (token.post.asked_ns, token.post.entered_ns) == (NOW, NOW)


@pytest.mark.parametrize(
    ("other", "waits"),
    [
        (THERE, True),
        (THERE._replace(alone_ns=111 * MS), False),  # 91 ms are left: above 1.5 exchanges of 60
        (THERE._replace(alone_ns=110 * MS), True),  # 90 ms
        (THERE._replace(entered_ns=NOW - 199 * MS), True),  # it ought to have left 149 ms ago …
        (THERE._replace(entered_ns=NOW - 201 * MS), False),  # … and after three exchanges is gone
        (THERE._replace(entered_ns=0), True),  # it asked before us
        (THERE._replace(entered_ns=0, asked_ns=NOW + 1), False),
        (THERE._replace(entered_ns=0, asked_ns=NOW - STEP_NS), False),  # a step ago: it is gone
        (THERE._replace(entered_ns=0, asked_ns=0), False),  # it computes
        (THERE._replace(alone_ns=0), False),  # nobody knows how long it takes
    ],
)
def test_who_is_ahead_is_waited_for_while_that_is_worth_it(token, other, waits):
    assert bool(token.ask(NOW, [other])) is waits
    assert bool(token.post.entered_ns) is not waits


@pytest.mark.parametrize("entered_ns", [NOW - 10**6 * MS, 0])
def test_a_job_that_is_dead_or_computes_hides_none_behind_it(token, entered_ns):
    other = THERE._replace(entered_ns=entered_ns, asked_ns=0)
    assert token.ask(NOW, [other, THERE]) > 0


def test_it_is_asked_again_after_half_of_what_is_left(token):
    now = NOW
    while wait := token.ask(now, [THERE]):  # it will have left in 30 ms, and does in 29
        ahead = max(30 * MS - (now - NOW), 50 * MS // 16)
        assert wait == max(ahead // 2, ALONE_NS // 64)
        now += wait
        if now > NOW + 29 * MS:
            break
    assert now - NOW < 32 * MS


def test_nobody_waits_longer_than_the_bound(token):
    now = NOW
    while wait := token.ask(now, [THERE._replace(entered_ns=now)]):
        now += wait
    assert now - NOW == token.waited_ns == MOST_WAIT * STEP_NS


@pytest.mark.parametrize(("held_ms", "most_ms"), [(20, 30), (50, 0), (70, 0)])
def test_what_the_step_was_held_before_counts_towards_the_bound(token, held_ms, most_ms):
    now = NOW
    while wait := token.ask(now, [THERE._replace(entered_ns=now)], held_ms * MS):
        now += wait
    assert now - NOW == most_ms * MS  # of 50


def test_a_host_that_sleeps_for_longer_than_told_keeps_the_bound_too(token):
    now = NOW
    while wait := token.ask(now, [THERE._replace(entered_ns=now)]):
        now += wait + 3 * MS
    assert 0.8 * MOST_WAIT * STEP_NS < token.waited_ns <= MOST_WAIT * STEP_NS


def test_few_long_steps_do_not_lengthen_the_bound(token):
    for step in range(LOOK_STEPS):
        token.end_step(step, 20 * STEP_NS if step % 3 == 0 else STEP_NS, NOW, [])
    assert token.post.step_ns == STEP_NS


@given(st.lists(st.lists(st.integers(0, 20 * MS), max_size=40), min_size=2, max_size=20))
def test_a_wait_exceeds_its_bound_only_by_more_oversleep_than_ever_before(exchanges):
    token = Token(TrialBudget(), guarded=False)
    token._acts, token.post = True, Post(alone_ns=ALONE_NS, step_ns=STEP_NS)
    now, known_ns = NOW, 0
    for oversleeps in exchanges:
        left_ns, began, new_ns = iter(oversleeps), now, 0
        while wait := token.ask(now, [THERE._replace(entered_ns=now)]):
            late_ns = next(left_ns, 0)
            now, new_ns = now + wait + late_ns, max(new_ns, late_ns)
        assert token.waited_ns <= MOST_WAIT * STEP_NS + max(0, new_ns - known_ns)
        assert now == began + token.waited_ns
        known_ns = max(known_ns, new_ns)
        token.leave(now + ALONE_NS)
        now += STEP_NS


@pytest.mark.parametrize(("starved_ms", "most_ms"), [(0, 50), (20, 30), (60, 0)])
def test_a_rank_that_waits_for_cores_waits_less_for_its_turn(token, starved_ms, most_ms):
    for step in range(5):
        token.end_step(step, STEP_NS, NOW, [], starved_ns=starved_ms * MS)
    token._acts, now = True, NOW
    while wait := token.ask(now, [THERE._replace(entered_ns=now)]):
        now += wait
    assert now - NOW == most_ms * MS


def test_a_job_that_does_not_act_never_waits(token):
    token._acts = False
    assert token.ask(NOW, [THERE]) == 0


def test_an_exchange_alone_is_the_quickest_tenth_of_those_there_were(token):
    lengths = [70, 50, 90, 80, 60, 70, 80, 90]
    assert len(lengths) == FEWEST_EXCHANGES
    seen = []
    for number, length in enumerate(lengths):
        begin = NOW + number * STEP_NS
        token.ask(begin, [])
        token.leave(begin + length * MS)
        seen.append(token.post.alone_ns)
    assert seen == [ALONE_NS] * (FEWEST_EXCHANGES - 1) + [50 * MS]
    token.leave(NOW)  # nobody had entered: nothing to learn
    assert len(token._exchanges) == FEWEST_EXCHANGES
    assert (token.post.asked_ns, token.post.entered_ns) == (0, 0)


def test_the_first_of_a_link_sets_blocks_of_its_longest_steps(token):
    token.end_step(1, STEP_NS, NOW, [Post(step_ns=3 * STEP_NS), Post(step_ns=1)])
    least = BLOCK_STEPS * 3 * STEP_NS
    assert least <= token.post.block_ns < 2 * least
    assert token.post.block_ns % SHORTEST_BLOCK_NS == 0
    assert token._block == NOW // token.post.block_ns


def test_the_others_follow_its_orders(token):
    orders = Post(step_ns=STEP_NS, span=8, scale=2, block_ns=7 * MS)
    for step in range(2 * LEARNING_STEPS):
        token.end_step(step, STEP_NS, NOW, [orders], leader=orders)
        assert (token.post.block_ns, token.trial.leads) == (7 * MS, False)
        assert (token.post.span > 0) == (step + 1 >= LEARNING_STEPS)
    assert (token.post.span, token.post.scale) == (8, 2)


def test_what_a_neighbour_says_of_a_pair_counts_once_and_not_what_was_before_us(token):
    told = Post(step_ns=STEP_NS, pairs=3, gain=MILLION // 10, cost=MILLION // 100)
    for pairs in (3, 3, 4, 4):
        token._lead(STEP_NS, [told._replace(pairs=pairs)])
    assert list(token.trial.peer_pairs) == [(0.1, 0.01)]


@pytest.mark.parametrize(
    ("met", "alone_ms", "wanted"),
    [(2, 60, True), (1, 60, False), (2, 1, False), (2, 2, True)],  # a hundredth of 200
)
def test_a_trial_is_wanted_where_others_are_met_and_the_exchange_is_no_trifle(
    token, met, alone_ms, wanted
):
    token.post = token.post._replace(alone_ns=alone_ms * MS)
    for step in range(LOOK_STEPS):
        token._met += step < met
        token.end_step(step, STEP_NS, NOW + step * STEP_NS, [])
    assert token.trial.wanted is wanted
    assert token._met == 0


def test_unguarded_it_acts_once_it_has_looked(token):
    token._acts = False
    for step in range(LOOK_STEPS + 1):
        assert not token._acts
        token.end_step(step, STEP_NS, NOW, [])
    assert token._acts


def test_what_a_host_overslept_is_forgotten_after_so_many_exchanges(token):
    now, waits = NOW, []
    for turn in range(LOOK_STEPS + 2):
        ahead = THERE._replace(entered_ns=now, asked_ns=now - 1)
        while wait := token.ask(now, [ahead]):
            now += wait + (30 * MS if turn == 0 else 0)
        waits.append(token.waited_ns)
        token.leave(now + ALONE_NS)
        now += STEP_NS
    most_ns = MOST_WAIT * STEP_NS
    assert max(waits[1:LOOK_STEPS]) <= most_ns - 30 * MS
    assert waits[-1] == most_ns


class Pair:
    """Two jobs that come to their link together, one a little before the other, in turns.

    An exchange takes 30 ms alone; two at once keep half of the goodput and take 120. So a step of
    100 ms of compute lasts 220 ms, and 160 where the second waits for the first.
    """

    def __init__(self) -> None:
        self.jobs = [Token(TrialBudget()) for _ in range(2)]
        self.now, self.step = NOW, 0
        self.compute_ns = 100 * MS
        self.waited: list[tuple[int, int, int, bool]] = []  # span, length of a block, block, waited

    def go(self, steps: int) -> "Pair":
        for _ in range(steps):
            self._exchange(*(self.jobs if self.step % 2 else self.jobs[::-1]))
        return self

    def _exchange(self, first: Token, second: Token) -> None:
        leads, now = self.jobs[0].post, self.now
        block = now // leads.block_ns if leads.block_ns else 0
        assert first.ask(now, [second.post]) == 0
        again = now + 1
        while wait := second.ask(again, [first.post]):
            again = again + wait
            if again >= now + 30 * MS:
                first.leave(now + 30 * MS)
        waited = again > now + 1
        self.waited.append((leads.span, leads.block_ns, block, waited))
        took = (60 if waited else 120) * MS
        if not waited:
            first.leave(now + took)
        second.leave(now + took)
        self.now = now + took + self.compute_ns
        others = [job.post for job in self.jobs[::-1]]
        for job, other, leader in zip(self.jobs, others, (None, self.jobs[0]), strict=True):
            job.end_step(
                self.step, self.now - now, self.now, [other], leader.post if leader else None, took
            )
        self.step += 1


@pytest.fixture(scope="module")
def pair():
    return Pair().go(1200)


def test_jobs_that_gain_by_turns_find_it_out_and_leave_few_blocks_out(pair):
    assert [job.trial.word for job in pair.jobs] == ["pays", "pays"]
    assert [job.post.span for job in pair.jobs] == [16, 16]
    assert sum(waited for *_, waited in pair.waited[-300:]) > 250


def test_all_jobs_of_a_link_act_in_the_same_blocks_of_the_clock(pair):
    """The second waits in all steps that begin in a block, or in none, whichever job it is."""
    of_block: dict[tuple[int, int, int], set[bool]] = {}
    for span, length_ns, block, waited in pair.waited:
        if span:
            of_block.setdefault((span, length_ns, block), set()).add(waited)
    alike = [len(found) == 1 for found in of_block.values()]
    changes = sum(one[:2] != next_[:2] for one, next_ in pairwise(pair.waited))
    assert len(alike) > 50
    assert alike.count(False) <= changes  # within the block in which new orders came


def test_what_a_job_says_of_a_pair_is_what_the_exchanges_gained_by_the_step(pair):
    for job in pair.jobs:
        assert job.post.pairs > 5
        assert job.post.gain == pytest.approx(MILLION * 60 / 190, rel=0.02)  # 120 - 60 of 160 … 220
        acted = -job.post.cost * 190 / 60 / MILLION  # steps with turns since the pair before
        assert BLOCK_STEPS <= acted <= 16 * 2 * BLOCK_STEPS


def test_a_block_keeps_its_length_while_a_trial_goes_on():
    pair = Pair().go(LOOK_STEPS + LEARNING_STEPS)
    assert {job.trial.word for job in pair.jobs} == {"on trial"}
    before, pair.compute_ns = [job.post.block_ns for job in pair.jobs], 1000 * MS
    pair.go(LOOK_STEPS)
    assert {job.trial.word for job in pair.jobs} == {"on trial"}
    assert [job.post.block_ns for job in pair.jobs] == before


def test_who_has_just_come_says_nothing_and_tries_nothing_where_nobody_is_met():
    job, now = Token(TrialBudget()), NOW
    assert (tuple(job.post), job.waited_ns) == ((0,) * len(Post._fields), 0)
    for step in range(2 * LEARNING_STEPS):
        assert job.ask(now, [Post()]) == 0
        job.leave(now + ALONE_NS)
        now += STEP_NS
        job.end_step(step, STEP_NS, now, [Post()])
        assert (job.trial.word, job.post.span) == ("untested", 0)


def test_the_shortest_wait_is_a_share_of_the_own_exchange(token):
    ahead = THERE._replace(entered_ns=NOW - 4 * MS, alone_ns=4 * MS)  # a sixteenth of it is left
    assert token.ask(NOW, [ahead]) == ALONE_NS // 64


def test_the_shortest_wait_is_what_a_host_can_sleep():
    token = Token(TrialBudget(), guarded=False)
    token.post, token._acts = Post(alone_ns=MS, step_ns=STEP_NS), True
    ahead = THERE._replace(asked_ns=NOW - MS, entered_ns=NOW - MS, alone_ns=MS + 1)
    assert token.ask(NOW, [ahead]) == SHORTEST_POLL_NS
