"""The seam between a framework's callback and the agent, without a framework."""

import copy
import gc
import importlib
import inspect
import logging
import pickle
import sys
import types
import weakref

import pytest

from evenstep.agent.recording.recorder import Recorder
from evenstep.agent.stacks import Tested
from evenstep.attachment import agent
from evenstep.frameworks import accelerate, deepspeed
from evenstep.frameworks import loop as loops
from evenstep.frameworks.loop import Loop
from evenstep.trace.reader import read_spool
from evenstep.trace.spool.layout import Phase
from evenstep.trace.spool.spool import Spool

TESTED = Tested("stack", "2.4", "2.10")


class Rank:
    """As much of an agent as a loop needs."""

    def __init__(self, path):
        header = {"rank": 0}
        self.spool = Spool.create(path, header, ring_bytes=100_000, summary_bytes=70_000)
        self.recorder = Recorder(self.spool)
        self.failure = ""
        self.ended = []

    def end_step(self, now_ns, _began_ns=0):
        self.ended.append(self.recorder.clock.samples)
        self.recorder.clock.end_step(now_ns)

    def give_up(self, error):
        self.failure = str(error)


@pytest.fixture
def rank(tmp_path, monkeypatch):
    made = Rank(tmp_path / "rank-00000.spool")
    monkeypatch.setattr(agent, "_agent", made)
    monkeypatch.setattr(agent, "_at_detach", [])
    yield made
    made.recorder.summaries.release()
    made.spool.shut()


@pytest.fixture
def loop():
    return Loop(TESTED)


@pytest.mark.parametrize("version", ["2.4", "2.4.1", "2.9.0", "2.10.7+cpu"])
def test_a_version_between_the_ends_was_tested(version):
    assert TESTED.outside(version) == ""


@pytest.mark.parametrize("version", ["2.3.9", "2.11.0", "3.0", "unknown", "1"])
def test_a_version_outside_is_named_with_what_was_tested(version):
    found = TESTED.outside(version)
    assert f"found stack {version}" in found
    assert "2.4 to 2.10" in found


def test_a_version_outside_is_said_in_the_log_and_in_the_trace(loop, rank, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "stack", types.SimpleNamespace(__version__="3.1"))
    facts = {}
    monkeypatch.setattr(rank.spool, "add_fact", facts.__setitem__)
    with caplog.at_level(logging.WARNING, logger="evenstep"):
        assert loop.attach({})
        assert loop.attach({})
    assert caplog.text.count("found stack 3.1") == 1
    assert "found stack 3.1" in facts["callback"]


def test_batches_of_a_step_add_up_whoever_has_loaded_more(loop, rank):
    rank.recorder.clock.input_ends(0, 99)  # read ahead
    loop.batch(8)
    loop.batch(8)
    assert rank.recorder.clock.samples == 16
    rank.end_step(1)
    loop.batch(4)
    assert rank.recorder.clock.samples == 4


def test_a_step_ends_with_the_samples_that_are_known(loop, rank):
    rank.recorder.clock.input_ends(0, 5)
    loop.step_ends(12)
    loop.step_ends(0)
    assert rank.ended == [12, 0]


def test_what_is_known_afterwards_is_counted_once(loop, rank):
    """All since the mark, and none of it twice: the account is as if it had been known before."""
    stack = rank.recorder.stack
    mark = loop.mark()
    ((_, since_ns, _),) = mark
    stack.enter(Phase.CHECKPOINT, since_ns + 10)
    stack.leave(since_ns + 20)
    loop.reclassify(Phase.CHECKPOINT, mark)
    assert stack.leaf_ns[Phase.CHECKPOINT] == stack.boundary_ns - since_ns
    found = read_spool(rank.spool.path).records
    assert found["group_seq"].sum() == stack.leaf_ns[Phase.CHECKPOINT]


def test_who_waits_for_the_one_that_saves_saves_no_longer(loop, rank):
    stack = rank.recorder.stack
    mark = loop.mark()
    ((_, since_ns, _),) = mark
    waited_ns = stack.count(Phase.SYNC, since_ns, since_ns + 10)
    loop.reclassify(Phase.CHECKPOINT, mark)
    assert stack.leaf_ns[Phase.SYNC] == waited_ns > 0
    assert sum(stack.leaf_ns) == stack.boundary_ns - since_ns


def test_nothing_is_added_to_the_account_while_the_job_waits(loop, rank):
    """Where compiled kernels record, the background thread applies what a callback reports."""
    recorder, owner = rank.recorder, Owner()
    loop.around(owner, "save", Phase.CHECKPOINT)
    recorder.defer(later=True)
    loop.batch(8)
    mark = loop.mark()
    owner.save(1)
    loop.reclassify(Phase.CHECKPOINT, mark)
    loop.batch(4)
    assert recorder.behind == 6
    assert (recorder.clock.samples, recorder.behind) == (12, 0)
    (_, since_ns, _), stack = mark[0], recorder.stack
    assert stack.leaf_ns[Phase.CHECKPOINT] == stack.boundary_ns - since_ns


def test_what_began_in_another_step_is_let_be(loop, rank):
    mark = loop.mark()
    rank.end_step(mark[0][1] + 1)
    loop.reclassify(Phase.CHECKPOINT, mark)
    assert rank.recorder.stack.leaf_ns[Phase.CHECKPOINT] == 0


class Owner:
    training = True

    def save(self, times):
        """Saves."""
        if times > 2:
            raise ValueError(times)
        return times * "x"


def test_a_method_is_a_phase_until_it_is_released(loop, rank):
    owner = Owner()
    loop.around(owner, "save", Phase.CHECKPOINT)
    assert (owner.save(2), owner.save.__doc__) == ("xx", "Saves.")
    counted = rank.recorder.stack.leaf_ns[Phase.CHECKPOINT]
    assert counted > 0
    loop.release()
    assert owner.save(1) == "x"
    assert rank.recorder.stack.leaf_ns[Phase.CHECKPOINT] == counted
    assert "save" not in vars(owner)


@pytest.fixture
def watched(loop, rank):
    """An object whose method is a phase."""
    owner = Owner()
    loop.around(owner, "save", Phase.CHECKPOINT)
    return owner


def test_detaching_gives_methods_back(watched):
    for undo in agent._at_detach:
        undo()
    assert vars(watched) == {}


def test_what_somebody_else_has_put_there_since_stays(loop, watched):
    watched.save = max
    loop.release()
    assert watched.save is max


def test_a_method_of_the_object_itself_comes_back(loop, rank):
    owner = Owner()
    owner.save = min
    loop.around(owner, "save", Phase.CHECKPOINT)
    assert owner.save([3, 2]) == 2
    loop.release()
    assert vars(owner) == {"save": min}


@pytest.mark.parametrize("copied", [lambda it: pickle.loads(pickle.dumps(it)), copy.deepcopy])
def test_a_watched_object_can_be_copied_and_its_copy_is_told_of_nobody(copied, watched, rank):
    made = copied(watched)
    assert made.save(2) == "xx"
    assert made.save.__self__ is made
    assert rank.recorder.stack.leaf_ns[Phase.CHECKPOINT] == 0


def test_a_replaced_method_has_the_signature_it_had(watched):
    assert inspect.signature(watched.save) == inspect.signature(Owner().save)


class Engine(Owner):
    """A DeepSpeed engine, as far as it is observed."""

    world_size = 1
    global_steps = global_samples = 0

    def step(self):
        self.global_steps += 1
        self.global_samples += 8


def test_observing_an_engine_twice_counts_its_steps_once(rank):
    engine = Engine()
    for _ in range(2):
        deepspeed.observe(engine)
    engine.step()
    assert rank.ended == [8]


@pytest.mark.parametrize("observe", [deepspeed.observe, accelerate.observe])
def test_an_observed_object_is_freed_when_the_script_drops_it(rank, observe):
    engine = Engine()
    freed = weakref.ref(engine)
    observe(engine)
    del engine
    gc.collect()
    assert freed() is None


def test_steps_are_the_callbacks_also_where_the_agent_comes_later(loop, rank, monkeypatch):
    monkeypatch.setattr(agent, "_agent", None)
    monkeypatch.setattr(agent, "attach", lambda **_: True)
    loop.attach({}, marks_steps=True)
    monkeypatch.setattr(agent, "_agent", rank)
    loop.batch(1)
    assert rank.recorder.manual


def test_an_error_of_the_method_passes_and_ends_its_phase(loop, rank):
    owner = Owner()
    loop.around(owner, "save", Phase.CHECKPOINT)
    with pytest.raises(ValueError, match="3"):
        owner.save(3)
    assert len(rank.recorder.stack) == 0


def test_a_method_that_is_not_there_is_let_be(loop):
    loop.around(Owner(), "load", Phase.CHECKPOINT)
    loop.release()


def test_without_an_agent_nothing_happens(loop):
    loop.batch(8)
    loop.step_ends(8)
    loop.evaluation_begins()
    loop.reclassify(Phase.CHECKPOINT, loop.mark())


def test_a_failure_of_ours_is_given_up_and_training_goes_on(loop, rank, monkeypatch):
    monkeypatch.setattr(rank.recorder.clock, "mode_changes", None)
    loop.evaluation_begins()
    assert "not callable" in rank.failure


def test_another_thread_changes_nothing(loop, rank, monkeypatch):
    monkeypatch.setattr(loops.threading, "get_ident", lambda: -1)
    loop.batch(8)
    assert rank.recorder.clock.samples == 0


@pytest.mark.parametrize(
    ("module", "needed"),
    [("lightning", "lightning.pytorch.callbacks"), ("transformers", "transformers")],
)
def test_a_callback_without_its_package_is_one_sentence(module, needed, monkeypatch):
    hooks = importlib.import_module(f"evenstep.frameworks.{module}")
    monkeypatch.delitem(vars(hooks), "EvenstepCallback", raising=False)
    monkeypatch.setitem(sys.modules, needed, None)
    with pytest.raises(ImportError, match=f"pip install {module}"):
        _ = hooks.EvenstepCallback


class Events:
    """What a framework's events mean."""


def test_a_callback_is_of_both_kinds_and_can_be_sent_to_a_spawned_rank():
    made = loops.callback("Made", Events, lambda: "argparse", "Namespace")("Made")
    sent = pickle.loads(pickle.dumps(made(out="here")))
    assert type(sent) is made
    assert isinstance(sent, Events)
    assert sent.out == "here"
