"""The agent of one rank, put together without a job."""

import os
from types import SimpleNamespace

import pytest

from evenstep.agent.actions.action import Action
from evenstep.agent.rank import Agent
from evenstep.agent.recording.entries import GroupState
from evenstep.agent.recording.phases import Word
from evenstep.agent.settings.config import load
from evenstep.agent.settings.request import SettingsChange
from evenstep.trace.reader import read_spool
from evenstep.trace.spool.folder import RunFolder
from evenstep.trace.spool.identity import from_environment
from evenstep.trace.spool.layout import Op
from evenstep.trace.spool.spool import Spool


class LateStack:
    """A stack whose hooks want to know of each step."""

    name = "late"
    every = 1

    def hooks(self, agent):
        del agent
        self.steps, self.calls = [], []
        return SimpleNamespace(
            install=lambda: None, remove=lambda: self.calls.append("remove"),
            poll=lambda: self.calls.append("poll"), on_device=False,
            device_index=None, describe=lambda: {"mechanism": "none"},
            begins_step=lambda step, *, spared: self.steps.append((step, spared))
            or step + self.every,
        )  # fmt: skip


@pytest.fixture
def agent(tmp_path):
    spool = Spool.create(tmp_path / "s", {"rank": 0}, ring_bytes=100_000, summary_bytes=70_000)
    config = load(environ={}, folder=tmp_path)
    made = Agent(config, from_environment(os.environ), RunFolder(tmp_path), spool, [])
    yield made
    made.stop("the test is over")


def test_a_stack_that_comes_later_hears_of_steps_too(agent):
    stack = LateStack()
    agent.add_stack(stack)
    agent.end_step(agent.recorder.began_ns + 1000)
    assert stack.steps == [(1, True)]


def test_hooks_are_told_of_the_steps_that_they_ask_for_and_when_anything_is_requested(agent):
    stack = LateStack()
    stack.every = 3
    agent.add_stack(stack)
    for step in range(5):
        agent.end_step(agent.recorder.began_ns + 1000 * (step + 1))
    assert [step for step, _ in stack.steps] == [1, 4]
    agent._control.due.append(SettingsChange(1, "on", 0.1, 0.1))
    for step in range(5, 7):
        agent.end_step(agent.recorder.began_ns + 1000 * (step + 1))
    assert stack.steps[2:] == [(6, True), (7, False)]  # paced, so each collective is needed


def test_ending_a_step_costs_what_the_thread_spends_but_for_collected_garbage(agent, monkeypatch):
    recorder = agent.recorder
    spent = iter([5_000, 9_000])  # when our code began, and when it has ended
    monkeypatch.setattr("evenstep.agent.rank.time.thread_time_ns", spent.__next__)
    recorder.words[Word.ATTENDED] = 100
    now_ns = recorder.began_ns + 1000
    recorder.pauses.extend([(now_ns - 500, now_ns, False), (now_ns + 200, now_ns + 1_700, False)])
    agent.end_step(now_ns)
    assert recorder.words[Word.OWN_NS] == 4_000 - 1_500
    assert recorder.begin_step(now_ns + 1000, 0, agent._work.meter)[4] == 2_500
    assert recorder.words[Word.OWN_NS] == 0


def test_a_step_costs_what_calls_cost_in_it_however_late_it_is_settled(agent):
    """A step of slow calls after six of fast ones; all are settled when the last has ended."""
    recorder, spool = agent.recorder, agent.spool
    group = GroupState(spool.add_group({"uid": "u", "ranks": "0,1"}), "u", (0, 1), 0)
    recorder.words[Word.ATTENDED] = 100
    for step, call_ns in enumerate([2_000] * 6 + [7_000]):
        recorder.collective(recorder.began_ns + 1, group, Op.ALL_REDUCE, 4, 4, 0, -1, 1)
        for _ in range(20):
            recorder.cost.add(call_ns)
        recorder.words[Word.OWN_NS] = 0
        agent.end_step(recorder.began_ns + 1000 * (step + 1))
    agent._work.process_pending()
    told = read_spool(spool.path).summaries["agent_ns"].tolist()
    assert told == [2_000] * 6 + [(60 * 2_000 + 20 * 7_000) // 80]  # by its own and 60 before


def test_a_sample_in_which_garbage_was_collected_is_none(agent):
    recorder = agent.recorder
    for collected in (False, True):
        recorder.event_cost.began()
        if collected:
            recorder.pause(1, 300_000_001, 2, 0, called=False)
        recorder.event_cost.add(300_000_000 if collected else 4_000)
    assert recorder.event_cost.each_ns == 4_000


def test_what_a_device_has_finished_is_read_once_more_before_the_hooks_are_removed(agent):
    stack = LateStack()
    agent.add_stack(stack)
    agent.stop("detached")
    assert stack.calls[-2:] == ["poll", "remove"]


def test_actions_are_told_how_long_a_rank_waits(agent, monkeypatch):
    seen = []

    class Watching(Action):
        name = "power"

        def applies(self, facts):
            seen.append(facts.waited_ns)
            return ""

    agent._conductor.makers["power"] = Watching
    agent._conductor.ask(["power"], 0)
    monkeypatch.setattr("evenstep.agent.actions.conductor.FACTS_STEPS", 4)
    rows = agent._work._rows
    for wait_ns in (None, 100, 300):
        rows.append(SimpleNamespace(wait_ns=wait_ns))
    for step in range(6):
        agent.end_step(agent.recorder.began_ns + 1000 * (step + 1))
    assert seen == [200]


def test_a_forked_child_ends_actions_without_a_search_for_their_intervals(agent, monkeypatch):
    monkeypatch.setattr(agent._conductor, "account", pytest.fail)
    agent.disarm()
    assert agent.stopped


def test_a_failure_reaches_nobody_even_if_an_action_cannot_be_ended(agent, monkeypatch):
    def fails(step=0):
        raise OSError(step)

    monkeypatch.setattr(agent._conductor, "end_all", fails)
    agent.give_up(ValueError("ours"))
    assert agent.failure == "ValueError: ours"
    monkeypatch.undo()


def test_a_request_for_later_does_not_hold_up_a_newer_one(agent):
    later, now, next_one = (
        SettingsChange(number, mode, first_step=first)
        for number, mode, first in ((1, "on", 10**9), (2, "off", 0), (3, "on", 10**9))
    )
    agent._control.due.extend([later, now, next_one])
    agent.end_step(agent.recorder.began_ns + 1000)
    assert list(agent._control.due) == [next_one]
    assert agent._work.pace.pacer.settings.mode == "off"


def test_actions_that_are_asked_for_stay_until_others_are(agent):
    tried = []
    for number, change in enumerate([{"act": "power"}, {"threshold": 0.2}, {"act": "off"}]):
        agent._control.due.append(SettingsChange(number + 1, "off", **change))
        agent.end_step(agent.recorder.began_ns + 1000)
        tried.append([part.action.name for part in agent._conductor.parts])
    assert tried == [["power"], ["power"], []]
