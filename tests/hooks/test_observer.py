"""Our own failures stay ours; a failure of the backend stays the backend's."""

from __future__ import annotations

import os
import signal
import struct
import threading
import time
from collections.abc import Callable, Iterator
from itertools import chain, repeat
from typing import Any

import pytest
import torch
import torch.distributed as dist

from evenstep.agent.recording.entries import GroupState
from evenstep.agent.recording.phases import Word
from evenstep.agent.step_work import StepWork
from evenstep.hooks.torch.groups import Groups
from evenstep.hooks.torch.install import COMPILED, DISPATCHER, TorchHooks
from evenstep.hooks.torch.native import NativeGroups
from evenstep.hooks.torch.observer import Observer
from evenstep.hooks.torch.operations import positions
from evenstep.hooks.torch.works import Batches
from evenstep.trace.reader import read_spool
from evenstep.trace.spool.layout import HALF_FLAGS, HEARTBEAT_OFFSET, WORD_EXIT, Flag, Kind, Op
from tests.hooks.conftest import observed
from tests.test_walks import passed

Failures = list[Exception]


class OurError(Exception):
    """What our own code raises in these tests."""


def broken(*_: Any, **__: Any) -> Any:
    raise OurError


@pytest.fixture
def failures() -> Failures:
    return []


@pytest.fixture
def hooks_of(alone, recorder, mechanism, failures, session) -> Callable[[], TorchHooks]:
    """Makes hooks, and installs none."""

    def make() -> TorchHooks:
        groups = NativeGroups(session, dist) if session else Groups(recorder.spool, dist)
        return TorchHooks(torch, observed(recorder, failures.append), groups, session=session)

    return make


@pytest.fixture
def hooked(hooks_of) -> Iterator[Callable[[], TorchHooks]]:
    """Installs hooks on this process; they are gone after the test."""
    made = []

    def install() -> TorchHooks:
        hooks = hooks_of()
        made.append(hooks)
        hooks.install()
        return hooks

    yield install
    for hooks in made:
        hooks.remove()


@pytest.fixture
def in_python(mechanism) -> None:
    """Only for what Python's own kernels go through, or a session that can be armed again."""
    if mechanism == COMPILED:
        pytest.skip("compiled kernels are not in Python's hands")


def test_a_collective_reaches_the_spool_through_no_more_modules_than_before(hooked, mechanism):
    hooked().begins_step(2, spared=False)  # call sites are looked for in the first two
    tensor = torch.ones(4)
    dist.all_reduce(tensor)  # which meets its group
    walked = passed(lambda: dist.all_reduce(tensor))
    assert len(walked) <= (5 if mechanism == COMPILED else 9), walked  # docs/design.md has the list


def test_what_being_called_costs_is_measured_in_the_background_and_none_of_it_recorded(
    hooked, recorder, monkeypatch
):
    told = []
    monkeypatch.setattr(recorder.cost, "mechanism", told.append)
    hooks = hooked()
    hooks.poll()  # as at the end, on the training thread: there it is left
    assert told == []
    for _ in range(2):
        background = threading.Thread(target=hooks.poll)
        background.start()
        background.join()
    assert len(told) == 1
    assert 0 <= told[0] < 20  # about one in Python, less than half compiled
    assert recorder.issued(0, recorder.spool.last_number()) == []


@pytest.mark.parametrize("part", ["collective", "end"])
def test_a_failure_of_ours_changes_nothing_and_is_told_once(
    hooked, recorder, failures, monkeypatch, part, in_python
):
    monkeypatch.setattr(recorder if part == "collective" else Observer, part, broken)
    hooked()
    for _ in range(3):
        tensor = torch.arange(4.0)
        dist.all_reduce(tensor)
        assert tensor.tolist() == [0, 1, 2, 3]  # the sum over one rank
    assert [type(failure) for failure in failures] == [OurError]


def test_what_we_cannot_read_and_the_backend_refuses_is_no_failure_of_ours(
    hooked, recorder, failures, monkeypatch, mechanism
):
    if mechanism != DISPATCHER:
        pytest.skip("compiled kernels are not in Python's hands")
    monkeypatch.setattr(recorder, "collective", broken)
    hooked()
    with pytest.raises(RuntimeError):
        dist.all_gather_into_tensor(torch.ones(3), torch.ones(8))
    assert failures == []


def test_what_pauses_between_buckets_comes_and_goes_while_hooks_are_in_place(hooked, failures):
    passed = []
    hooks = hooked()
    for gate in (None, lambda: passed.append(1), None):
        hooks.pause_by(gate)
        dist.all_reduce(torch.ones(1))
        passed.append(0)
    assert (passed, failures) == ([0, 1, 0, 0], [])


class Stopped(Exception):  # noqa: N818 (a script's own)
    """What a script's handler of a signal raises."""


def test_a_signal_that_comes_while_a_gate_holds_a_rank_is_not_lost(hooks_of, mechanism, failures):
    if mechanism != COMPILED:
        pytest.skip("Python's own kernels raise what the handler raised")

    def stop(*_: Any) -> None:
        raise Stopped

    before = signal.signal(signal.SIGUSR1, stop)
    hooks = hooks_of()
    hooks.install()
    dist.all_reduce(torch.ones(1))  # meets the group
    hooks.pause_by(lambda: signal.raise_signal(signal.SIGUSR1))

    def reduce() -> None:
        dist.all_reduce(torch.ones(1))
        time.sleep(5)

    try:
        with pytest.raises(Stopped):
            reduce()
    finally:
        signal.signal(signal.SIGUSR1, before)
        hooks.remove()
    assert failures == []


def test_a_gate_that_goes_while_it_is_looked_at_is_no_failure(
    hooked, failures, monkeypatch, in_python
):
    """Pacing is switched off by the training thread while another one issues a collective."""
    hooked()
    passed = []
    reads = chain([lambda: passed.append(1)], repeat(None))
    monkeypatch.setattr(Observer, "gate", property(lambda _: next(reads)), raising=False)
    dist.all_reduce(torch.ones(1))
    assert (passed, failures) == ([1], [])


def test_a_failure_while_waiting_is_ours_alone(hooked, failures, monkeypatch, mechanism):
    monkeypatch.setattr(Batches if mechanism == COMPILED else Observer, "waited", broken)
    hooked()
    dist.all_reduce(torch.ones(1))
    dist.all_reduce(torch.ones(1))
    assert [type(failure) for failure in failures] == [OurError]


def test_a_wait_enters_python_only_while_there_is_something_to_tell(
    hooked, failures, monkeypatch, mechanism, recorder
):
    if mechanism != COMPILED:
        pytest.skip("Python's own kernels wait in Python")
    told = []
    monkeypatch.setattr(Batches, "waited", lambda _, work: told.append(work))
    hooks = hooked()
    dist.all_reduce(torch.ones(1))  # nothing is known before the first
    dist.all_reduce(torch.ones(1))
    assert (len(told), failures) == (1, [])
    monkeypatch.setattr(hooks._native.session.functions, "batch", lambda *_: 7)
    assert hooks._native.end_batch() == 7
    dist.all_reduce(torch.ones(1))
    assert len(told) == 2
    flags = [row[4] for row in recorder.issued(0, recorder.spool.last_number())]
    schema = torch.ops.c10d.allreduce_.default._schema
    is_told = positions(schema)[1] is not None  # not by torch 2.6
    blocked = Flag.HOST_BLOCKED if is_told else 0
    assert [flag & Flag.HOST_BLOCKED for flag in flags] == [blocked] * 3


def test_a_wait_that_fails_raises_what_the_backend_raised(hooked, failures, monkeypatch):
    c10d = torch._C._distributed_c10d

    def refused(_: Any, *__: Any) -> Any:
        raise TimeoutError("the peer is gone")

    monkeypatch.setattr(c10d.Work, "wait", refused)
    hooked()
    with pytest.raises(TimeoutError, match="the peer is gone"):
        dist.all_reduce(torch.ones(1))
    assert failures == []


def test_a_group_that_cannot_be_hooked_is_still_made(hooked, failures, monkeypatch):
    monkeypatch.setattr(Groups, "renew", broken)
    hooked()
    late = dist.new_group([0])
    dist.all_reduce(torch.ones(1), group=late)
    assert [type(failure) for failure in failures] == [OurError]


def test_a_failure_of_the_backend_reaches_the_caller_and_is_marked(hooked, spool, failures):
    hooks = hooked()
    with pytest.raises(RuntimeError):
        dist.all_gather_into_tensor(torch.ones(3), torch.ones(8))
    hooks.remove()
    assert spool.halves[HALF_FLAGS] & Flag.FAILED
    assert spool.words[WORD_EXIT] > 0
    assert failures == []


def test_nobody_is_expected_to_wait_for_a_failed_collective(hooked, recorder):
    hooked()
    with pytest.raises(RuntimeError):
        dist.all_gather_into_tensor(torch.ones(3), torch.ones(8))
    dist.all_reduce(torch.ones(1))
    assert recorder.blocking == {}
    assert not recorder.spool.halves[HALF_FLAGS] & Flag.HOST_BLOCKED


def test_a_wait_that_raises_ends_its_collective_as_failed(recorder):
    class Work:
        def wait(self):
            raise RuntimeError("the peer is gone")

    observer = Observer(torch, recorder, Groups(recorder.spool, dist), print)
    state = GroupState(1, "uid", (0, 1), 0)
    observer.begin(1, state, Op.ALL_REDUCE, 4, 4, 0, -1, torch.ones(1))
    observer.patch_wait(Work, Batches(observer, pytest.fail))
    with pytest.raises(RuntimeError, match="the peer is gone"):
        Work().wait()
    assert recorder.spool.halves[HALF_FLAGS] & Flag.FAILED
    assert recorder.spool.times(1)[1] > 0


def test_a_blocking_call_ends_with_itself_only_where_the_backend_gives_nothing_to_wait_for(
    recorder,
):
    observer = Observer(torch, recorder, Groups(recorder.spool, dist), print)
    state = GroupState(1, "uid", (0, 1), 0)
    for given, ended in ((object(), False), (None, True)):
        token = observer.begin(1, state, Op.ALL_REDUCE, 4, 4, 0, -1, torch.ones(1))
        observer.end(token, given)
        assert (recorder.spool.times(token[0])[1] > 0) is ended


@pytest.mark.parametrize(("flags", "waited"), [(0, True), (int(Flag.ASYNC), False)])
def test_a_call_without_a_work_was_a_wait_unless_it_does_not_block(recorder, flags, waited):
    observer = Observer(torch, recorder, Groups(recorder.spool, dist), print)
    state = GroupState(1, "uid", (0, 1), 0)
    token = observer.begin(1, state, Op.ALL_REDUCE, 4, 4, flags, -1, torch.ones(1))
    observer.end(token, None)
    assert recorder.spool.times(token[0])[1] > 0
    assert bool(recorder.spool.halves[HALF_FLAGS] & Flag.HOST_BLOCKED) is waited


def test_a_wait_costs_what_we_do_around_it(recorder):
    class Work:
        def wait(self):
            until_ns = time.thread_time_ns() + 50_000_000
            while time.thread_time_ns() < until_ns:
                pass
            return True

    def ends_step():
        recorder.words[Word.STEP] += 1

    observer = Observer(torch, recorder, Groups(recorder.spool, dist), print)
    restore = observer.patch_wait(Work, Batches(observer, pytest.fail), ends_step)
    assert Work().wait() is True
    assert (recorder.words[Word.EVENTS], recorder.event_cost.each_ns) == (1, None)  # told apart
    restore()
    observer.patch_wait(Work, Batches(observer, pytest.fail))
    recorder.words[Word.STEP] = 0
    Work().wait()
    assert recorder.words[Word.EVENTS] == 2
    assert 0 < recorder.event_cost.each_ns < 50_000_000  # the wait itself is the backend's


def test_a_blocking_collective_nobody_was_seen_waiting_for_ends_with_the_next(recorder):
    observer = Observer(torch, recorder, Groups(recorder.spool, dist), print)
    state = GroupState(1, "uid", (0, 1), 0)
    for enter_ns in (10, 20):
        observer.begin(enter_ns, state, Op.ALL_REDUCE, 4, 4, 0, -1, torch.ones(1))
    assert recorder.spool.times(1) == (10, 20)
    assert recorder.spool.times(2) == (20, 0)


def test_disarmed_hooks_record_nothing_and_cost_nothing(hooked, spool, recorder):
    hooks = hooked()
    hooks.disarm()
    for _ in range(64):
        dist.all_reduce(torch.ones(1))
    assert spool.words[0] == 0
    assert recorder.cost.each_ns is None
    assert hooks.begins_step(7, spared=False) == 8  # to look again whether they are armed


def test_removing_restores_what_was_replaced(hooks_of, recorder):
    c10d = torch._C._distributed_c10d
    held = dist.distributed_c10d
    group = c10d.ProcessGroup
    before = c10d.Work.wait, held._register_process_group, group._end_coalescing
    hooks = hooks_of()
    hooks.install()
    assert group._end_coalescing is not before[2]
    hooks.remove()
    assert (c10d.Work.wait, held._register_process_group, group._end_coalescing) == before
    dist.all_reduce(torch.ones(1))
    assert recorder.spool.words[0] == 0


def test_batches_without_anything_on_a_device_pass_through_either_mechanism(hooked, failures):
    hooks = hooked()
    recorder = hooks._native or hooks._observer
    recorder.begin_batch()
    dist.all_reduce(torch.ones(1))
    batch = recorder.end_batch()
    assert not batch
    recorder.batch_reached(batch)
    recorder.batch_ended(batch, True)
    assert failures == []


def test_hooks_can_be_installed_again_after_they_were_removed(hooked, recorder, in_python):
    hooked().remove()
    hooked()
    dist.all_reduce(torch.ones(1))
    assert len(recorder.issued(0, recorder.spool.last_number())) == 1  # not once per installation


def test_hooks_do_not_keep_a_destroyed_group_alive(hooked):
    import weakref

    hooked()
    late = dist.new_group([0])
    dist.all_reduce(torch.ones(1), group=late)
    gone = weakref.ref(late)
    dist.destroy_process_group(late)
    del late
    assert gone() is None


def test_a_message_nobody_waits_for_is_let_go_of(recorder, monkeypatch):
    monkeypatch.setattr("evenstep.hooks.torch.works.LIMIT", 2)
    observer = Observer(torch, recorder, Groups(recorder.spool, dist), print)
    works = [object() for _ in range(4)]
    for seq in range(1, 4):
        recorder.spool.put(1, 0, 2)
        observer._waited_for.keep(works[seq], seq)
    assert len(observer._waited_for) == 2
    assert recorder.spool.times(1)[1] > 0  # the oldest has an end
    assert recorder.spool.times(2)[1] == 0


def test_a_message_nobody_can_wait_for_any_more_is_let_go_of(recorder):
    observer = Observer(torch, recorder, Groups(recorder.spool, dist), print)
    recorder.spool.put(1, 0, 2)
    observer._waited_for.keep(object(), 1)
    observer.let_go()
    assert (len(observer._waited_for), recorder.spool.times(1)[1] > 0) == (0, True)


def test_what_compiled_kernels_cannot_read_disarms_them_and_the_job_goes_on(
    hooked, spool, failures, session, monkeypatch
):
    if session is None:
        pytest.skip("of compiled kernels")
    monkeypatch.setattr(NativeGroups, "_state_by_name", broken)
    hooks = hooked()
    tensor = torch.arange(4.0)
    dist.all_reduce(tensor)
    dist.all_reduce(tensor)
    hooks.poll()
    assert tensor.tolist() == [0, 1, 2, 3]
    assert [type(failure) for failure in failures] == [OurError]
    assert spool.words[0] == 0


@pytest.mark.parametrize("why", ["time", "step", "bell"])
def test_compiled_kernels_beat_until_it_is_time_the_step_is_late_or_a_bell_rings(
    mechanism, session, recorder, spool, why
):
    if session is None:
        pytest.skip("of compiled kernels")
    hour_ns = 3_600_000_000_000
    bell = os.eventfd(int(why == "bell"))
    due_ns = 1 if why == "time" else recorder.began_ns + hour_ns
    session.compiled.rest(due_ns, 1 if why == "step" else 0, bell)
    os.close(bell)
    (beat_ns,) = struct.unpack_from("<q", spool._view, HEARTBEAT_OFFSET)
    assert recorder.began_ns < beat_ns < recorder.began_ns + hour_ns


def test_compiled_kernels_tell_for_how_long_no_thread_of_the_process_ran(session):
    if session is None:
        pytest.skip("of compiled kernels")
    bell, (reads, writes) = os.eventfd(0), os.pipe()
    if not (child := os.fork()):
        os.write(writes, b"now")
        minute_ns = 60_000_000_000
        stood_ns = session.compiled.rest(time.monotonic_ns() + minute_ns, 0, bell)
        os.write(writes, struct.pack("<q", stood_ns))
        os._exit(0)
    os.read(reads, 3)
    time.sleep(0.5)
    os.kill(child, signal.SIGSTOP)
    time.sleep(1)
    os.kill(child, signal.SIGCONT)
    os.waitpid(child, 0)
    (stood_ns,) = struct.unpack("<q", os.read(reads, 8))
    assert stood_ns >= 1_000_000_000


@pytest.fixture
def marked(mechanism, recorder, hooked) -> Iterator[Callable[..., Any]]:
    """Ends a step as `evenstep.step()` does; returns what the account is told of it."""
    if mechanism != COMPILED:
        pytest.skip("of compiled kernels")
    told: list[Any] = []
    work = StepWork(recorder, pytest.fail, rank=0, samples_per_step=None, at_once=False)
    recorder.ended = lambda *ended: told.append(ended)
    assert recorder.marks is not None
    mark = recorder.marks(recorder, told.append)
    hooked()

    def end(began_ns: int) -> Any:
        mark(began_ns)
        recorder.catch_up()
        return told.pop()

    end.meter = work.meter  # type: ignore[attr-defined]
    yield end
    work.meter.close()


def test_compiled_code_ends_the_steps_that_a_script_marks(marked, recorder, spool):
    words, began_ns = recorder.words, recorder.began_ns
    assert marked(5) == 5  # the first mark is Python's
    recorder.manual = True
    words[Word.ATTENDED] = 1
    assert marked(6) == 6  # so is one with more to do
    words[Word.ATTENDED], words[Word.EVENTS], words[Word.OWN_NS] = 9, 3, 70
    for word in range(4):
        words[Word.COST_NS + word] = 11 + word
    before, cpu_ns = marked.meter.now(), time.thread_time_ns()
    end_ns, held_ns, step, seq, used, events, own_ns, spent = marked(cpu_ns)
    assert (held_ns, step, events, own_ns, spent) == (0, 1, 3, 70, (11, 12, 13, 14))
    assert 0 < words[Word.OWN_NS] <= time.thread_time_ns() - cpu_ns
    assert (recorder.step, recorder.began_ns, words[Word.EVENTS]) == (1, end_ns, 0)
    for low, count, high in zip(before, used, marked.meter.now(), strict=True):
        assert low - 1000 <= count <= high + 1000  # ns: Python's come in microseconds
    (record,) = read_spool(spool.path).records[-1:]
    assert [record[name] for name in ("seq", "kind", "step", "enter_ns", "exit_ns")] == [
        seq, Kind.STEP, 0, began_ns, end_ns
    ]  # fmt: skip


def test_a_step_marked_after_the_end_of_recording_or_by_another_thread_is_left_to_python(
    marked, recorder
):
    recorder.manual, recorder.words[Word.ATTENDED] = True, 9
    found: list[int] = []
    other = threading.Thread(target=lambda: found.append(marked(7)))
    other.start()
    other.join()
    assert found == [7]
    recorder.words[Word.ARMED] = 0
    assert marked(8) == 8
    assert recorder.step == 0


def test_counters_are_not_read_from_a_file_of_the_jobs_that_got_our_number(
    marked, recorder, tmp_path
):
    recorder.manual, recorder.words[Word.ATTENDED] = True, 9
    assert marked(1)[4][-1] < 10**15  # ns: of a thread that has lived for seconds
    theirs = tmp_path / "theirs"
    theirs.write_text(f"1 {10**15} 1\n")
    with theirs.open() as file:
        os.dup2(file.fileno(), number := marked.meter.fd)
    assert marked(1)[4][-1] == 0
    marked.meter.close()
    os.close(number)
