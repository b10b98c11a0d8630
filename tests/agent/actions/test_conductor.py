"""Who acts when: fed with steps, as the agent does."""

import random
from itertools import pairwise

import pytest

from evenstep.agent.actions.conductor import FACTS_STEPS, Action, Conductor, Facts
from evenstep.agent.recording.steps import ClosedStep
from evenstep.host.resources import ResourceUse
from evenstep.pacing import TrialBudget
from evenstep.trace.reader import read_spool
from evenstep.trace.spool.layout import Actuator, Kind
from evenstep.trace.spool.spool import Spool as RealSpool

MS = 1_000_000


class Made(Action):
    """An action that makes steps shorter."""

    name = "made"

    def __init__(self, gain: float = 0.05) -> None:
        self.gain = gain
        self.acts = False
        self.takes_ns = 0
        self.turns = 0

    def applies(self, facts: Facts) -> str:
        return "always" if facts.step_ns else ""

    def begin(self, step: int) -> None:
        assert not self.acts
        self.acts = True
        self.turns += 1

    def during(self, step: int, *, last: bool) -> int:
        assert self.acts
        return self.takes_ns

    def end(self, step: int) -> None:
        assert self.acts
        self.acts = False


class Spool:
    """What is said."""

    def __init__(self) -> None:
        self.facts: dict[str, object] = {}
        self.words: list[str] = []

    def add_fact(self, name: str, value: object) -> None:
        self.facts[name] = value

    def name_id(self, words: str) -> int:
        self.words.append(words)
        return 1

    def put(self, *values: object, **fields: object) -> int:
        return 0


class Job:
    def __init__(self, *gains: float) -> None:
        self.spool, self.draw, self.now, self.step = Spool(), random.Random(1), 0, 0
        self.actions = [Made(gain) for gain in gains]
        makers = {f"made-{n}": (lambda made=made: made) for n, made in enumerate(self.actions)}
        for name, made in zip(makers, self.actions, strict=True):
            made.name = name
        self.account = TrialBudget()
        self.conductor = Conductor(
            self.spool, seed="run/0", budget=self.account, place=(0, 1, 4), makers=makers
        )
        self.conductor.ask(makers, 0)

    def go(self, steps: int, *, unsteady: bool = False) -> "Job":
        for _ in range(steps):
            gain = sum(made.gain for made in self.actions if made.acts)
            took = int(100 * MS * (1 - gain) * self.draw.gauss(1, 0.02))
            closed = ClosedStep(self.step, self.now, self.now + took, [0] * 8)
            closed.unsteady = unsteady
            self.now += took
            self.step += 1
            self.conductor.end_step(closed, waited_ns=0)
        return self


def test_an_action_that_pays_goes_on() -> None:
    job = Job(0.05).go(1500)
    (told,) = job.conductor.account()
    assert (told["word"], told["action"]) == ("pays", "made-0")
    assert told["low"] <= 0.05 <= told["high"]
    assert job.spool.words[-1] == "made-0: pays (always)"


def test_an_action_that_harms_is_ended() -> None:
    job = Job(-0.05).go(1500)
    assert job.conductor.account()[0]["word"] == "does not pay"
    assert not job.actions[0].acts


def test_what_a_bounded_action_takes_is_what_its_trial_can_have_lost() -> None:
    job = Job(0.0)
    made = job.actions[0]
    made.bounded, made.takes_ns = True, MS
    job.conductor.ask([], 0)
    job.conductor.ask(["made-0"], 0)
    (part,) = job.go(200).conductor.parts
    assert part.trial._spent == pytest.approx(0.01 * part.acted_steps, rel=0.1)  # of 100 ms


def test_one_action_is_on_trial_at_a_time() -> None:
    job, most = Job(0.0, 0.0), 0
    for _ in range(1000):
        job.go(1)
        most = max(most, sum(made.acts for made in job.actions))
    assert most == 1


@pytest.mark.parametrize("end", [lambda c: c.ask([], 0), lambda c: c.stop()])
def test_when_it_is_over_nothing_acts(end) -> None:
    job = Job(0.05).go(1500)
    end(job.conductor)
    assert not job.actions[0].acts


def test_what_an_action_did_is_on_record_when_it_is_ended_and_survives_toggles() -> None:
    job = Job(0.05).go(1500)
    pairs = job.conductor.account()[0]["pairs"]
    assert pairs > 0
    job.conductor.ask([], job.step)
    (fact,) = job.spool.facts["actions"]
    assert (fact["action"], fact["pairs"]) == ("made-0", pairs)
    job.conductor.ask(["made-0"], job.step)
    job.go(40).conductor.ask([], job.step)
    assert job.spool.facts["actions"] == [fact]
    job.conductor.stop()
    assert job.conductor.outcomes == [fact]


def test_the_interval_of_an_ended_action_is_searched_off_the_training_thread() -> None:
    later = []
    job = Job(0.05)
    job.conductor.soon = later.append
    job.go(1500).conductor.ask([], job.step)
    assert "actions" not in job.spool.facts
    (task,) = later
    task()
    assert job.spool.facts["actions"] == job.conductor.account()


def test_around_a_checkpoint_nothing_acts() -> None:
    job = Job(0.05).go(1500).go(1, unsteady=True)
    assert not job.actions[0].acts
    job.go(1)
    assert not job.actions[0].acts
    job.go(40)
    assert job.actions[0].turns > 2


def test_what_is_not_known_is_not_asked_for() -> None:
    job = Job(0.05)
    job.conductor.ask(["made-0", "sleep", ""], 5)
    assert [part.action.name for part in job.conductor.parts] == ["made-0"]
    assert job.spool.facts["act"] == {"asked": "made-0", "since_step": 5}


def test_all_actions_end_whatever_the_end_of_one_raises() -> None:
    job = Job(0.05, 0.05)
    for part in job.conductor.parts:
        part.action.begin(1)
        part.acting = True

    def fails(step: int) -> None:
        raise OSError(step)

    job.actions[0].end = job.actions[1].end = fails
    with pytest.raises(OSError, match="7"):
        job.conductor.end_all(7)
    assert not any(part.acting for part in job.conductor.parts)


def test_a_collection_that_the_script_calls_is_no_time_of_the_collector() -> None:
    job, seen = Job(0.0), []
    job.actions[0].applies = lambda facts: seen.append(facts) or ""
    for step in range(FACTS_STEPS):
        closed = ClosedStep(step, 0, 100 * MS, [0] * 8)
        closed.unsteady = False
        closed.pauses = [(0, 2 * MS, False), (3 * MS, 30 * MS, True)]
        job.conductor.end_step(closed, waited_ns=0)
    assert [(facts.paused_ns, facts.longest_pause_ns) for facts in seen] == [(2 * MS, 2 * MS)]


def test_facts_are_means_of_steady_steps_and_the_longest_pause_of_any() -> None:
    """Of twice as many steps as are looked at together, whose figures rise by one each, and of
    unsteady ones between them, which do not count."""
    job, seen = Job(0.0), []
    job.actions[0].applies = lambda facts: seen.append(facts) or ""
    for step in range(2 * FACTS_STEPS):
        for unsteady in (True, False):
            closed = ClosedStep(step, 1000, 1000 + (9999 if unsteady else 100 + step), [0] * 8)
            closed.unsteady = unsteady
            closed.pauses = [(0, 2 + step, False), (3, 7, False)]
            closed.used = ResourceUse(run_delay_ns=300 + step)
            job.conductor.end_step(closed, waited_ns=200 + step)
    middle, last = (FACTS_STEPS - 1) // 2, FACTS_STEPS - 1
    assert seen == [
        Facts(100 + mean, 2 + 4 + mean, 300 + mean, 200 + mean, 2 + longest, 0, 1, 4)
        for mean, longest in ((middle, last), (FACTS_STEPS + middle, FACTS_STEPS + last))
    ]


def test_an_action_that_must_not_act_any_more_says_why_and_stays_off() -> None:
    job = Job(0.05).go(1500)
    made, (part,) = job.actions[0], job.conductor.parts
    assert made.acts
    made.note = "memory grew by 6.0 %"
    acted = part.acted_steps
    job.go(300)
    assert not made.acts
    assert part.acted_steps == acted
    assert job.spool.words[-1] == "made-0: memory grew by 6.0 % (always)"
    (told,) = job.conductor.account()
    assert (told["note"], told["reason"]) == ("memory grew by 6.0 %", "always")


def test_steps_that_it_acted_in_are_counted_and_it_acts_in_no_block_that_is_left_out() -> None:
    job, acted = Job(0.05), 0
    for _ in range(1500):
        job.go(1)
        acted += job.actions[0].acts
    (told,) = job.conductor.account()
    assert told["acted_steps"] == acted
    assert 0 < acted < 1500


def test_the_last_step_of_a_block_is_told_to_be_the_last() -> None:
    job, told = Job(0.0), {}
    made = job.actions[0]
    made.during = lambda step, *, last: told.setdefault(step, last) and 0
    ends = []
    made.end = lambda step: ends.append(step) or setattr(made, "acts", False)
    job.go(600)
    lasts = [step for step, last in told.items() if last]
    assert ends
    assert lasts[: len(ends)] == [step - 1 for step in ends]


def test_what_the_trial_of_an_action_says_is_on_record_when_it_changes(tmp_path) -> None:
    spool = RealSpool.create(tmp_path / "s", {"rank": 0}, ring_bytes=1 << 16, summary_bytes=1)
    job = Job(0.05)
    job.conductor.spool = spool
    job.go(1500)
    found = read_spool(spool.path)
    rows = found.records[found.records["kind"] == Kind.PACING]
    words = [found.names[int(row["name"])] for row in rows]
    assert words[-1] == "made-0: pays (always)"
    assert all(a != b for a, b in pairwise(words))
    assert set(rows["op"]) == {Actuator.NONE}
    assert (rows["enter_ns"] == rows["exit_ns"]).all()
    assert (rows["step"][1:] > rows["step"][:-1]).all()
    spool.shut()


def test_actions_that_run_their_own_trials_are_asked_for_in_the_order_of_the_request() -> None:
    job = Job(0.05)
    job.conductor.ask(["pace", "token", "made-0"], 7)
    assert job.spool.facts["act"] == {"asked": "pace,token,made-0", "since_step": 7}
    job.conductor.ask([], 9)
    assert job.spool.facts["act"] == {"asked": "off", "since_step": 9}
    assert not job.conductor.acts


def test_an_action_that_goes_on_keeps_its_trial() -> None:
    job = Job(0.05, 0.05)
    kept = job.conductor.parts[1]
    job.conductor.ask(["made-1"], 5)
    assert job.conductor.parts == [kept]
    job.go(1500)
    assert [one["action"] for one in job.conductor.account()] == ["made-0", "made-1"]


def test_the_longest_trial_of_an_action_is_the_one_on_record() -> None:
    """It was ended three times: first after few steps, then after many, then after few again."""
    job, pairs = Job(0.05), []
    for steps in (40, 1500, 300):
        job.go(steps)
        pairs.append(len(job.conductor.parts[0].trial.gains))
        job.conductor.ask([], job.step)
        job.conductor.ask(["made-0"], job.step)
    assert pairs[1] > pairs[2] >= pairs[0]
    (fact,) = job.spool.facts["actions"]
    assert fact["pairs"] == pairs[1]


def test_what_was_done_is_told_as_of_the_first_stop() -> None:
    job = Job(0.05).go(300)
    job.conductor.stop(job.step)
    told = job.conductor.outcomes
    job.conductor.ask([], job.step)
    job.conductor.stop(job.step)
    assert job.conductor.outcomes is told
