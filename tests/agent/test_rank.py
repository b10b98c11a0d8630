"""The agent of one rank, put together without a job."""

import os
import sys
import threading
from types import SimpleNamespace

import pytest

from evenstep.agent.actions.conductor import Action
from evenstep.agent.rank import LOOK_STEPS, Agent
from evenstep.agent.recording.entries import GroupState
from evenstep.agent.recording.phases import Word
from evenstep.agent.settings.config import load, resolve
from evenstep.agent.settings.request import SettingsChange
from evenstep.agent.stacks import Hooks, RankInWorld
from evenstep.trace.reader import read_spool
from evenstep.trace.spool.folder import RunFolder
from evenstep.trace.spool.identity import from_environment
from evenstep.trace.spool.layout import Kind, Op
from evenstep.trace.spool.spool import Spool
from tests.agent.test_sharing import FakeStore


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


class Everything(Hooks):
    """Hooks that write down what is done to them."""

    def __init__(self, *, on_device=False, index=None, fails=()):
        self.calls, self.fails = [], fails
        self._on_device, self._index = on_device, index

    on_device = property(lambda self: self._on_device)
    device_index = property(lambda self: self._index)

    def _call(self, *what):
        self.calls.append(what)
        if what[0] in self.fails:
            raise OSError(f"cannot {what[0]}")

    def install(self):
        self._call("install")

    def disarm(self):
        self._call("disarm")

    def remove(self):
        self._call("remove")

    def pause_by(self, gate):
        self._call("pause_by", gate)

    def hold_device(self, delay_ns, seq):
        self._call("hold", delay_ns, seq)
        return self._on_device

    def describe(self):
        return {"mechanism": "told"}


def stack_of(hooks, name="told"):
    return SimpleNamespace(name=name, hooks=lambda agent: hooks)


def made(folder, *stacks, rank=0, world=2, **settings):
    folder.mkdir(exist_ok=True)
    spool = Spool.create(folder / "s", {"rank": rank}, ring_bytes=100_000, summary_bytes=70_000)
    identity = from_environment({"RANK": str(rank), "WORLD_SIZE": str(world)})
    config = resolve(settings, {}, {})
    return Agent(config, identity, RunFolder(folder), spool, stacks)


@pytest.fixture
def patient(monkeypatch):
    """Threads are waited for until they have ended, on however busy a machine."""
    monkeypatch.setattr("evenstep.agent.rank.CLOSING_TIMEOUT_S", 300.0)


@pytest.fixture
def life(tmp_path, patient):
    """An agent of one stack, started; it is stopped at the end."""
    del patient
    lives = []

    def start(hooks, **settings):
        lives.append(made(tmp_path / str(len(lives)), stack_of(hooks), **settings))
        lives[-1].start()
        return lives[-1]

    yield start
    for each in lives:
        each.stop("the test is over")


def test_what_is_started_is_stopped_and_the_trace_says_so(life):
    hooks = Everything()
    agent = life(hooks)
    threads = {thread.name for thread in threading.enumerate()}
    assert {"evenstep-sampler", "evenstep-heartbeat"} <= threads
    assert agent._pauses.installed
    facts = read_spool(agent.spool.path).facts
    assert facts["hooks"]["mechanism"] == "told"
    assert facts["pace"]["mode"] == "observe"
    assert "act" not in facts
    agent.stop("detached")
    agent.stop("again")
    assert hooks.calls == [("install",), ("remove",)]
    assert agent.stopped
    assert not agent._pauses.installed
    left = {thread.name for thread in threading.enumerate()}
    assert not {"evenstep-sampler", "evenstep-heartbeat"} & left
    facts = read_spool(agent.spool.path).facts
    assert facts["closed"]["reason"] == "detached"
    assert facts["cost"]["background_cpu_ns"] >= 0


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_rank_0_alone_leads_its_job_in_changes_of_settings(life, rank):
    assert life(Everything(), rank=rank, world=3)._control._leads == (rank == 0)


def test_actions_of_the_settings_are_asked_for_at_the_start(life):
    agent = life(Everything(), act="power")
    assert read_spool(agent.spool.path).facts["act"] == {"asked": "power", "since_step": 0}
    agent.end_step(agent.recorder.began_ns + 1000)
    agent.stop("over")
    (told,) = read_spool(agent.spool.path).facts["actions"]
    assert told["action"] == "power"


def test_a_part_that_cannot_be_ended_is_said_and_the_others_are_ended(life, caplog):
    hooks = Everything(fails=("remove",))
    agent = life(hooks)
    agent.stop("over")
    assert [one.getMessage() for one in caplog.records] == [
        "evenstep: ending the told hooks: cannot remove"
    ]
    assert not agent._pauses.installed
    assert "closed" in read_spool(agent.spool.path).facts


def test_hooks_that_cannot_be_installed_are_removed_and_the_others_stay(life):
    agent = life(Everything())
    second = Everything(fails=("install",))
    with pytest.raises(OSError, match="cannot install"):
        agent.add_stack(stack_of(second, "second"))
    assert second.calls == [("install",), ("remove",)]
    assert not agent.failure
    again = Everything()
    agent.add_stack(stack_of(again))  # of a name that is observed
    agent.stop("over")
    agent.add_stack(stack_of(again, "third"))
    assert again.calls == []


def test_a_forked_child_and_a_failure_disarm_all_hooks(life):
    hooks = Everything()
    agent = life(hooks)
    agent.give_up(ValueError("ours"))
    agent.give_up(ValueError("a second one"))
    assert hooks.calls == [("install",), ("disarm",)]
    assert agent.failure == "ValueError: ours"
    assert read_spool(agent.spool.path).facts["failure"] == "ValueError: ours"
    late = Everything()
    agent.add_stack(stack_of(late, "late"))
    assert late.calls == []
    other = Everything()
    child = life(other)
    child._background.sampler.stop(300.0)
    child._heartbeat.stop(300.0)
    child.disarm()
    assert other.calls[1] == ("disarm",)
    assert child.stopped


def test_what_a_signals_handler_raises_is_not_ours(life):
    agent = life(Everything())
    with pytest.raises(KeyboardInterrupt):
        agent.give_up(KeyboardInterrupt())
    assert not agent.failure


def test_a_later_numbering_is_said_once_and_the_trace_keeps_its_own(life, caplog):
    agent = life(Everything(), rank=1, world=4)
    agent.note_place(RankInWorld(1, 4))
    assert "renumbered" not in read_spool(agent.spool.path).facts
    agent.note_place(RankInWorld(0, 2))
    agent.note_place(RankInWorld(0, 3))
    fact = read_spool(agent.spool.path).facts["renumbered"]
    assert fact == "rank 0 of 2 since step 0"
    (line,) = caplog.records
    assert "rank 1 of 4 is now 0 of 2: its trace goes on as rank 1" in line.getMessage()


@pytest.mark.parametrize("on_device", [True, False])
def test_a_device_is_held_where_there_is_one_and_by_the_hooks_that_can(life, on_device):
    hooks = Everything(on_device=on_device)
    agent = life(hooks)
    pace = agent._work.pace
    assert pace.can_hold is not on_device
    assert pace.on_stream(5, 7) is on_device
    assert hooks.calls[-1] == ("hold", 5, 7)


class Plain(Hooks):
    """Hooks of a stack that computes on no device and paces nothing."""

    def describe(self):
        return {"mechanism": "plain"}


def test_a_stack_without_a_device_holds_none_and_is_told_of_no_steps(life):
    agent = life(Plain())
    pace = agent._work.pace
    assert pace.can_hold
    assert pace.on_stream(5, 7) is False
    assert agent._background.device_index is None
    agent.gate_by(lambda: None)
    agent.end_step(agent.recorder.began_ns + 1000)
    assert agent.recorder.words[Word.ATTENDED] == 1 + LOOK_STEPS
    agent.give_up(ValueError("ours"))
    assert agent.failure == "ValueError: ours"


@pytest.mark.parametrize(("rank", "asks"), [(0, ["link", "input", "save"]), (1, ["input", "save"])])
def test_rank_0_asks_for_the_link_and_every_rank_for_storage(
    life, tmp_path, monkeypatch, rank, asks
):
    monkeypatch.setattr("evenstep.agent.actions.board.FOLDER", tmp_path)
    hooks = Everything()
    agent = life(hooks, rank=rank, act="token", link_group="team")
    turns = [turn.topic for each in agent._conductor.turns for turn in each.turns]
    assert turns == asks
    gates = [call for call in hooks.calls if call[0] == "pause_by"]
    assert bool(gates) == bool(agent.gate) == (rank == 0)
    agent.stop("over")
    assert agent.gate is None
    assert (("pause_by", None) in hooks.calls) == (rank == 0)


def test_steps_that_ended_in_the_past_are_steps(life):
    agent = life(Everything())
    began, counters = agent.recorder.began_ns, agent.counters()
    assert counters[0] > 0  # this process has used a processor
    agent.end_past_step(began + 1000, counters, agent.spool.last_number())
    agent.end_step(began + 3000)
    agent._work.process_pending()
    rows = read_spool(agent.spool.path).summaries
    assert (rows["end_ns"] - rows["start_ns"]).tolist() == [1000, 2000]


class Probe:
    """Measures nothing; fails in its third step."""

    def __init__(self):
        self.steps = []

    def after(self, step):
        self.steps.append(step)
        if len(self.steps) == 3:
            raise RuntimeError("no memory left")
        return {"probe.compute_ns": 7.0}


@pytest.mark.parametrize(("index", "device"), [(None, -1), (3, 3)])
def test_a_probe_looks_after_each_step_until_it_fails(life, monkeypatch, index, device):
    probe, asked = Probe(), []
    monkeypatch.setattr("evenstep.agent.rank._make_probe", lambda *how: asked.append(how) or probe)
    agent = life(Everything(index=index), probe_every=4)
    for step in range(5):
        agent.end_step(agent.recorder.began_ns + 1000 * (step + 1))
    assert probe.steps == [1, 2, 3]
    assert asked == [(index, 4)]
    found = read_spool(agent.spool.path)
    rows = found.records[found.records["kind"] == Kind.SAMPLE]
    rows = rows[[found.names[int(row["name"])] == "probe.compute_ns" for row in rows]]
    assert rows["device"].tolist() == [device] * 2
    assert "no memory left" in found.facts["periodic probe"]


def test_a_job_without_torch_has_no_probe(life, monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    agent = life(Everything(), probe_every=1)
    agent.end_step(agent.recorder.began_ns + 1000)
    fact = read_spool(agent.spool.path).facts["periodic probe"]
    assert "it measures with torch" in fact


@pytest.mark.usefixtures("patient")
def test_a_life_leaves_no_descriptor_open(tmp_path):
    def opened():
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208

    counts = []
    for number in range(4):
        agent = made(tmp_path / str(number), stack_of(Everything()), act="cores")
        agent.start()
        agent.connect(FakeStore, 1)
        agent.connect(FakeStore, 2)
        agent.end_step(agent.recorder.began_ns + 1000)
        agent.stop("over")
        counts.append(opened())
    assert counts[1:] == counts[1:2] * 3  # whatever the first has imported


def test_what_is_to_be_known_of_its_file_is_in_the_trace(tmp_path, patient):
    del patient
    agent = made(tmp_path / "noted", stack_of(Everything()))
    agent.spool.note = "the disk was nearly full"
    agent.start()
    agent.stop("over")
    assert read_spool(agent.spool.path).facts["spool"] == "the disk was nearly full"


def test_a_trace_whose_end_cannot_be_written_is_named(life, monkeypatch, caplog):
    agent = life(Everything())
    write = agent.spool.add_fact

    def full(key, value):
        if key == "closed":
            raise OSError("no space left")
        return write(key, value)

    monkeypatch.setattr(agent.spool, "add_fact", full)
    agent.stop("over")
    (line,) = [one.getMessage() for one in caplog.records]
    assert line == f"evenstep: the end of {agent.spool.path} is missing: no space left"
