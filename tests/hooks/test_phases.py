"""Steps where optimizers call each other, and where one raises."""

from __future__ import annotations

import contextlib
import gc
import inspect
import io
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import pytest
import torch
import torch.distributed.fsdp
from torch.nn.parallel import DistributedDataParallel
from torch.optim import optimizer as optimizers

from evenstep.agent.recording.phases import MOST_EVENTS, Word
from evenstep.agent.recording.recorder import OwnCost
from evenstep.hooks.torch import library
from evenstep.hooks.torch.phases import PhaseHooks, batch_length, skipped_by_scaler
from evenstep.trace.reader import read_spool
from evenstep.trace.spool.layout import Kind, Phase


class Careful(torch.optim.SGD):
    """A subclass as scripts write them: it looks at something, then does what SGD does."""

    def step(self, closure=None):
        return super().step(closure)


@pytest.fixture
def hooks_of(mechanism, recorder, session):
    """Makes and installs hooks whose first argument is what is called at the end of a step."""
    made = []

    def install(on_step):
        hooks = PhaseHooks(torch, recorder, on_step, pytest.fail, session=session)
        recorder.words[Word.ATTENDED] = 1 << 40  # compiled hooks begin the next step themselves
        recorder.ended = on_step
        if session is not None:
            session.arm()
            # Collectives are not what is tested, groups not known.
            session.functions.set_apart(session.functions.open(64), None)
            recorder.defer(later=True)
        made.append(hooks)
        hooks.install()
        return hooks

    yield install
    for hooks in made:
        hooks.remove()
    if session is not None:
        session.close()
        session.functions.set_apart(None, None)
        recorder.defer(later=False)


@pytest.fixture
def steps(hooks_of, recorder):
    """Reads how many steps were taken to end."""
    ended = []
    hooks_of(lambda *told: ended.append(told[0]))

    def read():
        recorder.catch_up()
        return len(ended)

    return read


def optimizer(kind):
    weight = torch.nn.Parameter(torch.ones(2))
    torch.optim.SGD([weight], lr=0.1)  # from here on torch calls the hooks for SGD's own step, too
    return kind([weight], lr=0.1)


@pytest.mark.parametrize("kind", [torch.optim.SGD, Careful])
def test_an_optimizer_ends_one_step_though_its_step_calls_the_one_it_replaces(steps, kind):
    made = optimizer(kind)
    for _ in range(3):
        made.step()
    assert steps() == 3


def test_a_step_that_raised_does_not_hide_the_ones_after_it(steps):
    made = optimizer(Careful)

    def broken():
        raise ArithmeticError

    with contextlib.suppress(ArithmeticError):
        made.step(broken)
    made.step()
    made.step()
    assert steps() == 2


def test_a_step_that_raised_keeps_neither_its_frame_nor_its_optimizer_alive(steps):
    made = optimizer(Careful)
    freed = weakref.ref(made)

    def broken():
        raise ArithmeticError

    with contextlib.suppress(ArithmeticError):
        made.step(broken)
    del made
    gc.collect()
    assert freed() is None
    optimizer(Careful).step()
    assert steps() == 1


def test_buckets_that_were_awaited_in_their_broadcast_are_no_wait_after_it(
    hooks_of, recorder, monkeypatch
):
    """`Work.wait` sets the word for the newest collective to 0, which no wait begins at."""

    def awaited():
        recorder.words[Word.LAST_ENTRY] = 0

    monkeypatch.setattr(torch.distributed, "_broadcast_coalesced", awaited)
    hooks_of(lambda *_: None)
    waits = []
    monkeypatch.setattr(recorder, "host_waited", lambda *times, **_: waits.append(times))
    recorder.words[Word.LAST_ENTRY] = 5
    torch.distributed._broadcast_coalesced()
    assert waits == []


def test_another_optimizer_inside_a_step_ends_none(steps):
    outer, inner = optimizer(torch.optim.SGD), optimizer(torch.optim.SGD)
    outer.step(lambda: inner.step())
    assert steps() == 1


def test_the_hooks_of_optimizers_have_a_file_of_source(hooks_of):
    """Without one, Dynamo warns whoever compiles an optimizer's step, before it leaves it alone."""
    hooks_of(print)
    found = (optimizers._global_optimizer_pre_hooks, optimizers._global_optimizer_post_hooks)
    files = [Path(inspect.getfile(hook)).name for hooks in found for hook in hooks.values()]
    assert files == ["phases.py", "phases.py"]


def train(model, optimizer, batches):
    """Steps of a model, one of which fails in backward; the error must be the script's own."""

    def fail(_):
        raise ArithmeticError

    for number in range(batches):
        optimizer.zero_grad()
        loss = model(torch.ones(2, 4)).sum()
        if number == 1:
            loss.register_hook(fail)
            with pytest.raises(ArithmeticError):
                loss.backward()
            continue
        loss.backward()
        optimizer.step()


def phases_of(recorder):
    recorder.catch_up()
    found = read_spool(recorder.spool.path).records
    return found[found["kind"] == Kind.PHASE]


def test_phases_are_the_same_whoever_tells_them(alone, hooks_of, recorder):
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    hooks_of(lambda *_: None)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), 3)
    other = threading.Thread(target=lambda: model(torch.ones(2, 4)))
    other.start()
    other.join()
    with torch.no_grad():
        model.eval()(torch.ones(2, 4))
    phases = phases_of(recorder)
    told = [Phase(op) for op in phases["op"] if op != Phase.SYNC]
    once = [Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER]
    assert told == [*once, *once[:2], *once, Phase.EVALUATION]
    assert (phases["exit_ns"] >= phases["enter_ns"]).all()


def test_phases_are_told_as_they_come_where_somebody_waits_for_them(alone, hooks_of, recorder):
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    hooks_of(lambda *_: None)
    recorder.defer(later=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for steps in (1, 2):
        train(model, optimizer, 1)
        records = read_spool(recorder.spool.path).records
        told = records["op"][(records["kind"] == Kind.PHASE) & (records["op"] != Phase.SYNC)]
        assert told.tolist() == [Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER] * steps


def test_a_step_with_more_events_than_places_for_them_loses_none(alone, hooks_of, recorder):
    model = DistributedDataParallel(torch.nn.Linear(4, 4)).eval()
    hooks_of(lambda *_: None)
    for number in range(MOST_EVENTS + 10):  # begins and ends: twice as many events
        with torch.no_grad(), model.no_sync():
            model(torch.ones(1, 4))
        if number % 1000 == 0:
            torch.save(number, io.BytesIO())  # which Python tells, in between
    recorder.catch_up()
    assert recorder.stack.leaf_ns[Phase.CHECKPOINT] > 0
    assert recorder.behind == len(recorder.stack) == 0
    assert recorder.words[Word.NOTED] in (0, 2 * MOST_EVENTS + 20)


class Notes:
    """A recorder that keeps what it is told, without its times: what a phase clock is asked for."""

    def __init__(self):
        self.words, self.ident, self.sampled, self.manual = [0] * 64, threading.get_ident(), True, 0
        self.event_cost = OwnCost(memoryview(bytearray(16)).cast("Q"), 0)
        self.events, self.told, self.facts = 0, [], []
        self.clock = self.spool = self
        self.loader_workers = None

    def add_fact(self, key, value):
        self.facts.append((key, value))

    def __getattr__(self, name):
        return name  # what a clock would do, by its name

    def note(self, event):
        self.told.append((event[0], *(each for each in event[1:] if each < 10**6)))


@pytest.fixture
def notes():
    """What is noted while the hooks are in place, and what they say of themselves."""
    made = Notes()
    made.steps, made.failures, made.made = [], [], []
    hooks = made.hooks = PhaseHooks(
        torch, made, made.steps.append, made.failures.append, lambda: made.made.append(1)
    )
    hooks.install()
    yield made
    hooks.remove()
    assert hooks.armed is False


def test_the_fewest_workers_of_any_loader_are_noted(notes):
    samples = [torch.ones(2)] * 3
    for workers in (2, 2, 0, 1):
        iter(torch.utils.data.DataLoader(samples, num_workers=workers))
    assert notes.facts == [("loader_workers", 2), ("loader_workers", 0)]


def test_what_training_does_is_told_as_it_comes(notes):
    model, told = torch.nn.Sequential(torch.nn.Linear(2, 1)), notes.told
    batches = iter(torch.utils.data.DataLoader([torch.ones(2)] * 3, batch_size=3))
    assert told == [("input_begins",), ("input_ends", 0)]
    told.clear()
    batch = next(batches)
    assert told == [("input_begins",), ("input_ends", 3)]
    told.clear()
    model.train().eval().train(mode=True)
    assert told == [("mode_changes", mode) for mode in (True, False, True)]
    told.clear()
    model(batch).sum().backward()
    assert told == [("backward_begins", 0), ("backward_ends", 0)]
    told.clear()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert told == [("optimizer_begins",), ("ends",)]
    assert (len(notes.steps), len(notes.made), notes.failures) == (1, 1, [])
    told.clear()
    torch.save(obj={"a": 1}, f=io.BytesIO())
    assert told == [("begins", Phase.CHECKPOINT), ("ends",)]


def test_a_phase_ends_with_the_error_that_its_function_raises(notes):
    with pytest.raises(AttributeError):
        torch.save(lambda: 0, io.BytesIO())
    torch.save(1, io.BytesIO())
    assert notes.told == [("begins", Phase.CHECKPOINT), ("ends",)] * 2


def test_what_other_threads_do_is_not_of_this_one(notes):
    other = threading.Thread(target=torch.save, args=(1, io.BytesIO()))
    other.start()
    other.join()
    assert notes.told == []


def test_a_failure_of_our_own_ends_our_part_and_not_the_programs(notes):
    notes.note = lambda event: 1 / 0
    stream = io.BytesIO()
    torch.save(1, stream)
    torch.save(2, stream)
    assert [type(error) for error in notes.failures] == [ZeroDivisionError]
    assert not notes.hooks.armed
    assert stream.tell() > 0


def test_what_is_taken_out_leaves_everything_as_it_was(recorder):
    owners = [(torch, "save"), (torch.nn.Module, "train"), (torch.autograd, "_engine_run_backward")]
    before = [getattr(owner, name) for owner, name in owners]
    hooks = PhaseHooks(torch, recorder, pytest.fail, pytest.fail)
    hooks.install()
    assert all(
        getattr(owner, name) is not old for (owner, name), old in zip(owners, before, strict=True)
    )
    assert [getattr(owner, name).__name__ for owner, name in owners] == [
        old.__name__ for old in before
    ]
    hooks.remove()
    assert [getattr(owner, name) for owner, name in owners] == before


def test_what_is_hooked_can_be_inspected(hooks_of):
    hooks_of(print)  # trainers look at the parameters of a wrapped model's forward
    sharded = torch.distributed.fsdp.FullyShardedDataParallel
    for hooked in (torch.autograd._engine_run_backward, sharded.__new__(sharded).forward):
        assert inspect.signature(hooked).bind(1, 2, more=3)


class Odd:
    @property
    def shape(self):
        raise RuntimeError


@pytest.mark.parametrize(
    ("batch", "samples"),
    [
        (torch.ones(3, 2), 3),
        ({"ids": torch.ones(4, 2), "mask": torch.ones(5)}, 4),
        ([torch.tensor(1.0), (torch.ones(2, 9),)], 2),
        ([[[[[torch.ones(7)]]]]], 7),
        ([[[[[[torch.ones(7)]]]]]], 0),  # nobody nests so deep
        (torch.tensor(1.0), 0),
        ("text", 0),
        (Odd(), 0),
    ],
)
def test_a_batch_is_as_long_as_its_first_tensor(batch, samples):
    assert batch_length(batch) == samples


@pytest.mark.parametrize(("found", "skipped"), [(None, False), (0.0, False), (1.0, True)])
def test_a_step_that_a_scaler_skips_is_none(found, skipped):
    made = optimizer(torch.optim.SGD)
    if found is not None:
        made.found_inf = torch.tensor(found)
    assert skipped_by_scaler(made) is skipped


SIGNALLED = """
import _thread, functools, signal, sys, time
from pathlib import Path
import torch
from evenstep.agent.recording.collector import PauseWatch
from evenstep.agent.recording.phases import Event, Word
from evenstep.agent.recording.recorder import Recorder
from evenstep.hooks.torch.native import AROUND, new_session
from evenstep.trace.spool.spool import Spool

def expire(signum, frame): raise TimeoutError("too late")

signal.signal(signal.SIGINT, expire)
spool = Spool.create(Path(sys.argv[1]), {"rank": 0}, ring_bytes=100_000, summary_bytes=10_000)
session, _ = new_session(torch, spool)
recorder = Recorder(spool, session.compiled)
PauseWatch(lambda *pause: None).install()
session.arm()
recorder.defer(later=False)  # each event enters Python
kill = functools.partial(_thread.interrupt_main, signal.SIGINT)  # arrives, is not handled yet
packed = int.from_bytes([Event.FORWARD_BEGINS, Event.FORWARD_ENDS, 0], "little")
try:
    session.hook(AROUND, recorder, kill, packed)()
    time.sleep(5)
    print("lost")
except TimeoutError as error:
    print(error)
session.hook(AROUND, recorder, len, packed)("")
print(recorder.behind, recorder.words[Word.ARMED])
"""


def test_what_a_signals_handler_raises_as_a_compiled_hook_enters_python_is_not_lost(tmp_path):
    if (built := library.build_recorder(Path(torch.__file__).parent)).path is None:
        pytest.skip(built.reason)
    ended = subprocess.run(
        [sys.executable, "-c", SIGNALLED, tmp_path / "rank-00000.spool"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert (ended.stdout, ended.stderr) == ("too late\n0 1\n", "")


def test_after_the_hooks_an_optimizer_goes_without_a_word(notes):
    """Its end may be that of the interpreter, when nothing of ours can run."""
    parameter = torch.nn.Parameter(torch.ones(2))
    marking = torch.optim.SGD([parameter], lr=0.1)
    marking.step()
    assert notes.words[Word.MARKING] == id(marking)
    notes.hooks.remove()
    del marking
    assert notes.words[Word.MARKING] != 0
