"""Every action on and off a thousand times: nothing left changed, no step beyond its bound."""

import gc
import os
import random
import threading
from types import SimpleNamespace

import pytest

from evenstep.agent.actions import board, conductor, garbage, link
from evenstep.agent.actions.conductor import Facts, Power
from evenstep.agent.actions.cores import Cores
from evenstep.agent.actions.garbage import Garbage
from evenstep.agent.actions.link import LinkToken, StorageTurns
from evenstep.agent.recording.entries import GroupState
from evenstep.agent.recording.recorder import Recorder
from evenstep.errors import EvenstepError
from evenstep.pacing import TrialBudget
from evenstep.pacing.random_trial import ALWAYS
from evenstep.pacing.token import FEWEST_EXCHANGES, MOST_WAIT, Post
from evenstep.trace.reader import read_spool
from evenstep.trace.spool.layout import Actuator, Flag, Kind, Op, Phase
from evenstep.trace.spool.spool import Spool
from tests.agent.actions.test_actions import changed, masks_of_threads

MS = 1_000_000
STEP_NS = 100 * MS
FACTS = Facts(STEP_NS, MS, 10 * MS, 20 * MS, 60 * MS, 1, 2, 4)
NAMES = ("gc", "cores", "power", "token")


class Time:
    """A clock that stands still but for sleep."""

    def __init__(self) -> None:
        self.now_ns = 10**15

    def monotonic_ns(self) -> int:
        return self.now_ns

    def sleep(self, seconds: float) -> None:
        self.now_ns += round(seconds * 1e9)


class Job:
    """A rank's actions, and a neighbour that is always on the link and on the storage."""

    def __init__(self, folder, clock: Time) -> None:
        self.time = clock
        self.spool = Spool.create(folder / "rank-00000.spool", {"rank": 0, "world": 4},
                                  ring_bytes=1 << 20, summary_bytes=1 << 16)  # fmt: skip
        self.recorder = Recorder(self.spool)
        self.gate = None
        account = TrialBudget()
        self.conductor = conductor.Conductor(
            self.spool, seed="run/0", budget=account, place=(1, 2, 4),
            makers={"gc": Garbage, "cores": Cores, "power": Power},
            make_turns=lambda: (
                LinkToken(self.recorder, account, group="team", gate_by=self.gate_by),
                StorageTurns(self.recorder, account, group="team"),
            ),
        )  # fmt: skip
        self.others = [board.LinkBoard(board.board_path(f"team-{topic}"))
                       for topic in ("link", "input", "save")]  # fmt: skip

    def gate_by(self, gate) -> None:
        self.gate = gate

    def state(self) -> tuple:
        """What of the process an action may change, apart from its threads' cores."""
        slots = [len(each.posts(self.time.now_ns)) for each in self.others]
        return (gc.isenabled(), gc.get_freeze_count() > 0, gc.get_threshold(), slots,
                self.gate, list(self.recorder.clock.turns))  # fmt: skip

    def force(self) -> None:
        """Whatever its trial would say, each action acts now."""
        for part in self.conductor.parts:
            part.reason = part.action.applies(FACTS)
            part.trial.span, part.trial.mean_ns = ALWAYS, STEP_NS
        for turns in self.conductor.turns:
            for turn in turns.turns:
                turn.token.post = Post(alone_ns=60 * MS, step_ns=STEP_NS)
                turn.token._acts = True

    def step(self) -> None:
        """Read twice, exchange, write, each beside a neighbour; all waits keep one bound."""
        clock = self.recorder.clock
        busy = Post(self.time.now_ns, self.time.now_ns, 50 * MS, STEP_NS)
        for other in self.others:
            other.publish(busy, self.time.now_ns)
        self.recorder.held_ns = 0
        for act in (
            lambda now: (clock.input_begins(now), clock.input_ends(now, 1)),
            lambda now: (clock.input_begins(now), clock.input_ends(now, 1)),
            lambda now: self.gate and self.gate(),
            lambda now: (clock.begins(Phase.CHECKPOINT, now), clock.ends(now)),
        ):
            act(self.time.now_ns)
        assert self.recorder.held_ns <= MOST_WAIT * STEP_NS
        self.time.now_ns += STEP_NS
        self.conductor.end_step(self.recorder.end_step(self.time.now_ns), 0)


@pytest.fixture
def job(tmp_path, monkeypatch):
    clock = Time()
    for module in (link, board):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(board, "FOLDER", tmp_path)
    # A collection of all that pytest holds takes long, and is what it is.
    quick = {name: getattr(gc, name) for name in ("freeze", "unfreeze", "get_objects")}
    quick |= {name: getattr(gc, name) for name in ("isenabled", "get_freeze_count", "get_stats")}
    quick |= {name: getattr(gc, name) for name in ("get_threshold", "set_threshold")}
    monkeypatch.setattr(garbage, "gc", SimpleNamespace(collect=lambda generation=2: 0, **quick))
    made = Job(tmp_path, clock)
    yield made
    made.conductor.stop()
    made.recorder.summaries.release()
    made.spool.shut()


def descriptors() -> int:
    """How many files this process has open."""
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


def test_a_thousand_times_on_and_off_leave_nothing_changed(job):
    draw, held, acted = random.Random(1), 0, set()
    for other in job.others:
        other.publish(Post(), job.time.now_ns)
    before, masks, open_files = job.state(), masks_of_threads(), descriptors()
    threads = set(threading.enumerate())
    for number in range(1000):
        names = draw.sample(NAMES, draw.randint(1, len(NAMES)))
        job.conductor.ask(names, number)
        job.force()
        for _ in range(draw.randint(0, 3)):
            job.step()
            held += job.recorder.held_ns
            acted.update(part.action.name for part in job.conductor.parts if part.acting)
        job.conductor.ask([], number)
        for other in job.others:
            other.publish(Post(), job.time.now_ns)
        assert job.state() == before
        assert not changed(masks, masks_of_threads())
    assert descriptors() <= open_files + 2  # of a thousand: what others open is not ours
    assert set(threading.enumerate()) <= threads
    assert held > 0
    assert acted == {"gc", "cores"}  # power is planned only


def test_a_turn_on_storage_is_given_back_when_the_phase_is_over(job):
    job.conductor.ask(["token"], 1)
    job.force()
    (_, storage), clock = job.conductor.turns, job.recorder.clock
    saving = storage.turns[1]
    clock.begins(Phase.CHECKPOINT, job.time.now_ns)
    assert saving.asked_ns > 0
    clock.ends(job.time.now_ns + MS)
    assert saving.asked_ns == 0
    assert [turn.account()["of"] for turn in storage.turns] == ["input", "save"]


@pytest.fixture
def turns(job):
    """The turns of a job's link and of its storage, whose neighbours have all left."""
    for other in job.others:
        other.publish(Post(), job.time.now_ns)
    job.conductor.ask(["token"], 1)
    return job.conductor.turns


def exchange(job, *, awaits_all, ends_ms, steps=FEWEST_EXCHANGES):
    """Steps of 100 ms whose one collective enters 20 ms after their beginning, backward ending
    after 90; it ends `ends_ms` after its entry, None: nobody knows."""
    group, clock = GroupState(0, "g", (0, 1), 0), job.recorder.clock
    for _ in range(steps):
        begin_ns = job.time.now_ns
        clock.forward_begins(begin_ns, True, awaits_all)
        clock.forward_ends(begin_ns + 10 * MS)
        clock.backward_begins(begin_ns + 10 * MS)
        job.time.now_ns += 20 * MS
        job.gate()
        seq = job.recorder.collective(job.time.now_ns, group, Op.ALL_REDUCE, 8, 8, Flag.ASYNC, 0, 1)
        if ends_ms is not None:
            job.recorder.spool.close(seq, job.time.now_ns + ends_ms * MS)
        job.gate()  # of one more: a step asks once
        clock.backward_ends(begin_ns + 90 * MS)
        job.gate()  # what comes after backward is no exchange of its own
        job.time.now_ns = begin_ns + STEP_NS
        job.conductor.end_step(job.recorder.end_step(job.time.now_ns), 0)


@pytest.mark.parametrize(
    ("awaits_all", "ends_ms", "lasts_ms"), [(True, 30, 70), (False, 30, 30), (False, None, 80)]
)
def test_an_exchange_lasts_until_backward_its_last_collective_or_the_step_ends(
    job, turns, awaits_all, ends_ms, lasts_ms
):
    link = turns[0].turn
    exchange(job, awaits_all=awaits_all, ends_ms=ends_ms)
    post = link.token.post
    assert (post.alone_ns, post.asked_ns, post.entered_ns) == (lasts_ms * MS, 0, 0)
    assert (post.step_ns, link.asked_ns) == (STEP_NS, 0)
    assert link.token.steps == FEWEST_EXCHANGES - 1  # the first of all is not steady


def test_a_step_without_an_exchange_is_none_of_the_links(job, turns):
    job.conductor.end_step(job.recorder.end_step(job.time.now_ns), 0)
    job.conductor.end_step(job.recorder.end_step(job.time.now_ns + STEP_NS), 0)
    assert turns[0].turn.token.steps == 0
    assert job.conductor.account() == []
    exchange(job, awaits_all=True, ends_ms=1, steps=1)
    (told,) = job.conductor.account()
    assert (told["action"], told["of"], told["word"]) == ("token", "link", "untested")


def test_another_thread_asks_for_no_turn(job, turns):
    thread = threading.Thread(target=job.gate)
    thread.start()
    thread.join()
    assert turns[0].turn.asked_ns == 0


def test_turns_on_storage_know_how_long_the_phases_take_and_how_often_they_come(job, turns):
    """Reading takes 12 ms of each step of 100, and a checkpoint 30 every other one."""
    reading, saving = turns[1].turns
    for step in range(2 * FEWEST_EXCHANGES):
        begin_ns, clock = job.time.now_ns, job.recorder.clock
        clock.input_begins(begin_ns)
        clock.input_ends(begin_ns + 12 * MS, 1)
        if step % 2:
            job.time.now_ns = begin_ns + 50 * MS
            clock.begins(Phase.CHECKPOINT, job.time.now_ns)
            job.time.now_ns += 30 * MS
            clock.ends(job.time.now_ns)
        job.time.now_ns = begin_ns + STEP_NS
        job.conductor.end_step(job.recorder.end_step(job.time.now_ns), 0)
    assert (reading.token.post.alone_ns, reading.token.post.step_ns) == (12 * MS, STEP_NS)
    assert reading.token.steps == FEWEST_EXCHANGES - 1  # of those without a checkpoint, less one
    assert (saving.token.post.alone_ns, saving.token.post.step_ns) == (30 * MS, 2 * STEP_NS)
    assert saving.token.steps == FEWEST_EXCHANGES - 1  # from the end of each to the next


@pytest.mark.usefixtures("turns")
def test_a_wait_for_the_turn_is_held_time_on_record(job):
    exchange(job, awaits_all=True, ends_ms=1, steps=1)  # nobody to wait for
    assert job.recorder.held_ns == 0
    job.force()
    begin_ns = job.time.now_ns
    job.others[0].publish(Post(begin_ns, begin_ns, 10 * MS, STEP_NS), begin_ns)
    job.gate()
    held_ns = job.time.now_ns - begin_ns
    assert held_ns == MOST_WAIT * STEP_NS  # it should have ended after 10 ms
    assert job.recorder.held_ns == held_ns
    job.others[0].publish(Post(), job.time.now_ns)
    job.recorder.clock.input_begins(job.time.now_ns)  # nobody reads: no wait, no record
    records = read_spool(job.spool.path).records
    (row,) = records[records["kind"] == Kind.PACING]
    assert (row["enter_ns"], row["exit_ns"], row["held_ns"]) == (
        begin_ns, begin_ns + held_ns, held_ns
    )  # fmt: skip
    assert (row["op"], row["flags"]) == (Actuator.BEFORE_EXCHANGE, Flag.APPLIED)


def test_turns_are_kept_while_they_are_asked_for_and_given_back_after(job, turns):
    kept = list(turns)
    job.conductor.ask(["gc", "token"], 2)
    assert turns == kept
    assert job.conductor.acts
    job.conductor.ask([], 3)
    assert turns == []
    assert not job.conductor.acts
    assert job.gate is None


def test_without_a_board_there_are_no_turns_and_it_is_said(job):
    def none():
        raise EvenstepError("no board in /dev/shm: full")

    def one_and_none():
        yield LinkToken(job.recorder, job.conductor.budget, group="team", gate_by=job.gate_by)
        none()

    for job.conductor.make_turns in (none, one_and_none):
        job.conductor.ask(["token"], 1)
        assert not job.conductor.acts
        assert job.gate is None
        assert job.recorder.clock.turns == []
        assert read_spool(job.spool.path).facts["token"] == "no board in /dev/shm: full"


@pytest.mark.parametrize("first", [True, False])
def test_the_first_job_on_a_link_leads_and_the_others_keep_to_its_blocks(job, first):
    """Another that has steps of 500 ms came before it, or after it."""
    beside, now = job.others[0], job.time.now_ns
    told = Post(step_ns=5 * STEP_NS, block_ns=77 * MS, span=ALWAYS, scale=3)
    if first:
        job.conductor.ask(["token"], 1)
        exchange(job, awaits_all=True, ends_ms=1, steps=2)
    beside.publish(told, job.time.now_ns)
    if not first:
        job.conductor.ask(["token"], 1)
    exchange(job, awaits_all=True, ends_ms=1, steps=2)
    assert job.time.now_ns > now
    post = job.conductor.turns[0].turn.token.post
    assert (post.block_ns == told.block_ns) is not first
    assert post.block_ns > 0
    beside.publish(Post(), job.time.now_ns)
