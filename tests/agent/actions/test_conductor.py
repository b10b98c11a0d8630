"""Who acts when: fed with steps, as the agent does."""

import random

import pytest

from evenstep.agent.actions.action import FACTS_STEPS, Action, Facts
from evenstep.agent.actions.conductor import Conductor
from evenstep.agent.recording.steps import ClosedStep
from evenstep.pacing import TrialBudget

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
