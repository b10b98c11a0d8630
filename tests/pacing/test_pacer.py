import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from evenstep.pacing import (
    CONTROLLERS,
    Pacer,
    PacerSettings,
    Plan,
    Reason,
    Slowest,
    StepObservation,
)
from evenstep.pacing.pacer import SHORTEST_DELAY_NS
from evenstep.pacing.random_trial import ALWAYS, SPANS

MS = 1_000_000


def pacer(**fields: object) -> Pacer:
    chosen = {"mode": "on", "run_id": "r", "world": 4, "guarded": False, **fields}
    return Pacer(PacerSettings(**chosen))


def early(step: int, **fields: object) -> StepObservation:
    """A step of 100 ms in which this rank waited 8 ms."""
    found = {
        "step_ns": 100 * MS,
        "work_ns": 87 * MS,
        "wait_ns": 8 * MS,
        "in_flight_ns": 13 * MS,
        "floor_lower_ns": 5 * MS,
    }
    return StepObservation(step, **{**found, **fields})


def drive(made: Pacer, steps: range, **fields: object) -> list[int]:
    """Steps of an early rank; the delays that were held."""
    delays = []
    for step in steps:
        delays.append(made.decide(step).delay_ns)
        made.observe(early(step, **fields))
    return delays


def paced(**fields: object) -> Pacer:
    """A pacer that has found out that its rank is early."""
    made = pacer(**fields)
    drive(made, range(100))
    assert made.decide(100).delay_ns > 0
    return made


OBSERVATIONS = st.builds(
    StepObservation,
    step=st.integers(0, 500),
    step_ns=st.integers(-(10**6), 10**11),
    work_ns=st.integers(-(10**9), 10**11),
    wait_ns=st.none() | st.integers(-(10**9), 10**11),
    margin_ns=st.integers(-(10**6), 10**9),
    in_flight_ns=st.none() | st.integers(0, 10**11),
    floor_lower_ns=st.none() | st.integers(0, 10**9),
    delay_ns=st.integers(-(10**6), 10**10),
    spread_ns=st.none() | st.integers(0, 10**11),
    steady=st.booleans(),
    batch=st.sampled_from([None, 32, 32, 64]),
    slowest=st.none() | st.builds(Slowest, *[st.integers(0, 500)] * 2, st.integers(0, 10**11)),
)


class Adversary(RuleBasedStateMachine):
    """Whatever host, network and other ranks say: no delay beyond the bound, none once killed."""

    def __init__(self) -> None:
        super().__init__()
        self.step = 0
        self.pacers = [
            pacer(controller=name, sharing=sharing, guarded=guarded, objective=objective)
            for name in CONTROLLERS
            for sharing in (False, True)
            for guarded, objective in ((False, "throughput"), (True, "stability"))
        ]

    @rule(seen=OBSERVATIONS, repeat=st.integers(1, 40))
    def watch(self, seen: StepObservation, repeat: int) -> None:
        self.observe(seen, repeat)

    def observe(self, seen: StepObservation, repeat: int) -> None:
        for _ in range(repeat):
            self.step += 1
            self.decide_and_check()
            for made in self.pacers:
                made.observe(seen._replace(step=self.step))

    @rule(
        ahead=st.integers(-5, 100),
        length=st.integers(-1, 64),
        span=st.sampled_from(SPANS),
    )
    def publish(self, ahead: int, length: int, span: int) -> None:
        for made in self.pacers:
            first = self.step + ahead
            made.adopt(Plan(first, first + length, 0, 4, span))

    @rule(which=st.integers(0, 4 * len(CONTROLLERS) - 1))
    def kill(self, which: int) -> None:
        self.pacers[which].kill()

    @invariant()
    def decide_and_check(self) -> None:
        for made in self.pacers:
            decision = made.decide(self.step)
            limit = 0 if made.killed else made.bound_ns
            assert 0 <= decision.delay_ns <= limit <= 10**10


Adversary.TestCase.settings = settings(max_examples=20, stateful_step_count=12, deadline=None)
test_an_adversary_never_gets_more_than_the_bound = Adversary.TestCase


@given(st.lists(OBSERVATIONS, max_size=100), st.sampled_from(CONTROLLERS), st.booleans())
def test_observing_proposes_what_on_holds_for_the_same_observations(history, name, share) -> None:
    # A host in mode observe realises nothing, so both are told of no delay.
    on, observe = (pacer(mode=m, controller=name, sharing=share) for m in ("on", "observe"))
    for step, seen in enumerate(history):
        held, proposed = on.decide(step), observe.decide(step)
        assert proposed.proposed_ns == held.delay_ns
        assert proposed.delay_ns == 0
        assert proposed.reason == held.reason
        for made in (on, observe):
            made.observe(seen._replace(step=step, delay_ns=0))


def test_off_holds_nothing_and_says_so() -> None:
    made = pacer(mode="off")
    assert sum(drive(made, range(200))) == 0
    assert made.decide(200).reason is Reason.OFF


def test_the_kill_switch_ends_pacing_for_good() -> None:
    made = paced()
    made.kill()
    assert sum(drive(made, range(101, 300))) == 0
    assert made.decide(300).reason is Reason.KILLED


def test_the_first_steps_are_only_watched() -> None:
    assert sum(drive(pacer(), range(16))) == 0


def test_the_bound_is_a_share_of_the_median_step_and_never_above_the_cap(monkeypatch) -> None:
    made = paced(max_delay=0.02)
    assert made.bound_ns == 2 * MS  # 2 % of 100 ms
    monkeypatch.setattr("evenstep.pacing.pacer.LONGEST_DELAY_NS", MS)
    assert paced(max_delay=0.02).bound_ns == MS


def test_of_two_middle_steps_the_shorter_sets_the_bound() -> None:
    made = pacer()
    for step in range(16):
        made.observe(early(step, step_ns=(100 + 100 * (step % 2)) * MS))
    assert made.bound_ns == 10 * MS


def test_a_plan_for_a_step_that_was_asked_about_is_refused_with_pacing_off_too() -> None:
    made = pacer(mode="off", sharing=True)
    made.decide(70)
    assert not made.adopt(Plan(64, 95, 0, 4, 2))
    assert made.adopt(Plan(96, 127, 0, 4, 2))


def test_a_held_step_does_not_raise_the_bound() -> None:
    made = pacer()
    drive(made, range(50), step_ns=110 * MS, delay_ns=10 * MS)
    assert made.bound_ns == 10 * MS


def test_the_first_two_steps_of_a_job_are_not_calm() -> None:
    made = pacer()
    assert made.decide(0).reason is made.decide(1).reason is Reason.UNSTEADY
    made.observe(early(0))
    assert made.decide(1).reason is Reason.UNSTEADY
    made.observe(early(1))
    assert made.decide(2).reason is Reason.LEARNING


@pytest.mark.parametrize("steady_again", [1, 2])
def test_around_a_checkpoint_nothing_is_held(steady_again: int) -> None:
    made = paced()
    made.observe(early(100, steady=False))
    assert made.decide(101).reason is Reason.UNSTEADY
    drive(made, range(101, 101 + steady_again))
    assert (made.decide(101 + steady_again).delay_ns > 0) == (steady_again >= 2)


def test_a_checkpoint_step_does_not_enter_the_windows() -> None:
    made = paced()
    bound = made.bound_ns
    for step in range(100, 300):
        made.observe(early(step, step_ns=9000 * MS, steady=False))
    assert made.bound_ns == bound


def test_a_change_of_batch_starts_the_windows_anew() -> None:
    made = pacer()
    drive(made, range(100), batch=32)
    drive(made, range(100, 102), batch=64)
    assert made.bound_ns == 0
    assert sum(drive(made, range(102, 118), batch=64)) == 0


def test_the_odd_last_batch_of_an_epoch_is_no_change() -> None:
    made = pacer()
    drive(made, range(100), batch=32)
    made.observe(early(100, batch=7))
    drive(made, range(101, 104), batch=32)
    assert made.decide(104).delay_ns > 0


def test_what_is_lost_is_never_more_than_the_ledger_allows() -> None:
    # The floor is never exceeded, so each delay is booked: .5 % of time and twice the bound, of 4.
    made = pacer(guarded=True, controller="paper")
    drive_blind(made, 3000)
    ledger = made.ledger
    assert 0 < ledger.loss_ns <= ledger.allowance_ns
    assert ledger.allowance_ns <= (0.005 * 3000 * 100 * MS + 2 * 10 * MS) / 4


def drive_blind(made: Pacer, steps: int) -> None:
    for step in range(steps):
        delay = made.decide(step).delay_ns
        made.observe(early(step, in_flight_ns=5 * MS, delay_ns=delay))


def test_a_pacer_counts_what_was_held() -> None:
    made = pacer()
    for step in range(200):
        delay = made.decide(step).delay_ns
        made.observe(early(step, step_ns=100 * MS + delay, delay_ns=delay))
    assert made.steps == 200
    assert 0 < made.held_ns <= made.held_steps * made.bound_ns


def test_with_sharing_a_rank_without_a_plan_holds_nothing() -> None:
    made = pacer(sharing=True, rank=1)
    assert sum(drive(made, range(200), slowest=None)) == 0
    assert made.decide(200).reason is Reason.NO_PLAN


@given(st.sampled_from(SPANS), st.text(max_size=8))
@settings(max_examples=20)
def test_a_shared_plan_gives_every_rank_the_same_schedule(span: int, run_id: str) -> None:
    ranks = [pacer(sharing=True, rank=rank, run_id=run_id) for rank in range(4)]
    for rank, made in enumerate(ranks):
        made.adopt(Plan(64, 95, 0, 4, span))
        drive(made, range(64), step_ns=(100 + rank) * MS)
    for step in range(64, 96):
        assert len({made.decide(step).reason is Reason.GUARD_BLOCK for made in ranks}) == 1


def test_where_it_pays_a_trial_says_so_and_pacing_goes_on() -> None:
    made = pacer(guarded=True)
    draw = random.Random(1)
    for step in range(2000):
        delay = made.decide(step).delay_ns
        took = int((100 - (8 if delay else 0)) * MS * draw.gauss(1, 0.01))
        made.observe(early(step, step_ns=took, delay_ns=delay, wait_ns=8 * MS - delay // 2))
    assert made.trial.word == "pays"
    assert made.held_steps > 1200


def test_a_rank_that_is_never_early_tries_nothing() -> None:
    made = pacer(guarded=True)
    drive(made, range(1000), wait_ns=0)
    assert (made.trial.word, made.held_steps) == ("untested", 0)


def test_only_the_leading_rank_publishes() -> None:
    lead, other = pacer(sharing=True, rank=0), pacer(sharing=True, rank=1)
    assert lead.decide(32).plan == Plan(96, 127, 0, 4, ALWAYS)
    assert other.decide(32).plan is None


@pytest.mark.parametrize(("share", "held"), [(0.02, True), (0.3, False)])
def test_slack_below_the_threshold_is_left_alone(share: float, held: bool) -> None:
    assert any(drive(pacer(imbalance=share), range(200))) is held  # it waits 8 of 100 ms


def test_a_plan_has_as_many_steps_as_two_exchanges_take() -> None:
    made = pacer(sharing=True, exchange_ns=5_000 * MS)  # two are 100 steps
    drive(made, range(200))
    found = [plan for step in range(200, 600) if (plan := made.decide(step).plan) is not None]
    assert found
    assert {plan.last_step - plan.first_step + 1 for plan in found} == {128}


def test_a_lone_odd_batch_is_left_out_however_often_and_two_in_a_row_are_a_change() -> None:
    made = pacer()
    steady = [made._is_steady(early(0, batch=batch)) for batch in (8, 8, 3, 8, 3, 8)]
    assert steady == [False, True, False, True, False, True]
    assert made._batch == 8
    assert [made._is_steady(early(0, batch=3)) for _ in range(3)] == [False, False, True]
    assert made._batch == 3


@pytest.mark.parametrize(
    ("wanted", "bound", "held"),
    [
        (2 * SHORTEST_DELAY_NS, 3 * SHORTEST_DELAY_NS, 2 * SHORTEST_DELAY_NS),
        (2 * SHORTEST_DELAY_NS, 2 * SHORTEST_DELAY_NS, 2 * SHORTEST_DELAY_NS),
        (2 * SHORTEST_DELAY_NS, SHORTEST_DELAY_NS, SHORTEST_DELAY_NS),
        (2 * SHORTEST_DELAY_NS, SHORTEST_DELAY_NS - 1, 0),
        (SHORTEST_DELAY_NS, SHORTEST_DELAY_NS, SHORTEST_DELAY_NS),
        (SHORTEST_DELAY_NS - 1, SHORTEST_DELAY_NS, 0),
        (1, SHORTEST_DELAY_NS, 0),
        (0, SHORTEST_DELAY_NS, 0),
    ],
)
def test_nobody_is_held_beyond_the_bound_or_for_less_than_is_worth_it(wanted, bound, held) -> None:
    made = pacer()
    made.bound_ns = bound
    assert made._bounded(wanted, Reason.SLACK)[0] == held


def test_a_decision_says_which_limit_it_fell_to() -> None:
    made = pacer(guarded=True)
    made.bound_ns = 4 * SHORTEST_DELAY_NS
    made.ledger.credit_ns = 4 * 2 * SHORTEST_DELAY_NS  # of 4 ranks
    some = 3 * SHORTEST_DELAY_NS
    assert made._bounded(some, Reason.SLACK) == (2 * SHORTEST_DELAY_NS, Reason.SLACK)
    made.ledger.loss_ns = 2 * SHORTEST_DELAY_NS - 1
    assert made._bounded(some, Reason.SLACK) == (0, Reason.LEDGER)
    assert made._bounded(1, Reason.SLACK) == (0, Reason.BALANCED)
    assert made._bounded(0, Reason.LAST) == (0, Reason.LAST)


@pytest.mark.parametrize(("wish", "wanted"), [(SHORTEST_DELAY_NS, True), (9_999, False)])
def test_a_trial_is_wanted_for_the_shortest_delay_there_is(monkeypatch, wish, wanted) -> None:
    made = pacer(guarded=True)
    drive(made, range(20))
    monkeypatch.setattr(made._controller, "propose", lambda **_: (wish, Reason.SLACK))
    decided = made.decide(20)
    assert (decided.delay_ns, made.trial.wanted) == (0 if wanted else wish, wanted)
    assert decided.reason is (Reason.GUARD_OFF if wanted else Reason.SLACK)


def test_a_pacer_is_guarded_and_only_watches_unless_told_otherwise() -> None:
    made = Pacer(PacerSettings(mode="on", world=4))
    drive(made, range(100))
    assert made.trial.word == "on trial"
    assert Pacer(PacerSettings()).settings.mode == "observe"
