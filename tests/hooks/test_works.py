"""Batches of messages on a fake device: a message ends when its batch has been waited for."""

import gc
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from evenstep.agent.recording.entries import GroupState
from evenstep.agent.recording.recorder import Recorder
from evenstep.hooks.torch.device import DeviceTimer
from evenstep.hooks.torch.groups import Groups
from evenstep.hooks.torch.observer import Observer
from evenstep.hooks.torch.stream_delay import CaptureGate
from evenstep.hooks.torch.works import Batches
from evenstep.trace.spool.layout import WORD_DEVICE_ENTER, WORD_DEVICE_EXIT, WORD_EXIT, Op
from tests.hooks.fake_cuda import FakeCuda, FakeGraph

MS = 1_000_000
STATE = GroupState(1, "uid", (0, 1), 0)
ON_DEVICE = SimpleNamespace(is_cuda=True, dtype=torch.float32, get_device=lambda: 0)


class Work:
    """The work of a batch; the stream that waits for it is held until `end_ms`."""

    def __init__(self, cuda, end_ms):
        self.cuda, self.end_ms = cuda, end_ms

    def wait(self):
        stream = self.cuda.current
        stream.busy_until_ms = max(stream.busy_until_ms, self.end_ms)


class Bench:
    """A rank that sends and receives in batches, observed by Python's kernels."""

    def __init__(self, spool):
        self.spool, self.cuda, self.failures = spool, FakeCuda(), []
        self.gate = CaptureGate(FakeGraph)
        self.timer = DeviceTimer(self.cuda, 0, spool, self.gate)
        self.recorder = Recorder(spool)
        self.observer = Observer(torch, self.recorder, Groups(spool, dist), self.failures.append)
        self.observer.device_timer = lambda device: self.timer
        self.batches = Batches(self.observer, self.failures.append)
        cuda = self.cuda

        class Group:
            def _start_coalescing(self, device):
                del device

            def _end_coalescing(self, end_ms):
                return None if end_ms is None else Work(cuda, end_ms)

        self.group, self.type = Group(), Group
        self.undo = [self.batches.patch(Group), self.observer.patch_wait(Work, self.batches)]

    def close(self):
        for undo in (*self.undo, self.gate.remove, self.recorder.summaries.release):
            undo()

    def message(self, op):
        token = self.observer.begin_point_to_point(1, STATE, op, 8, 1, ON_DEVICE, 0)
        self.observer.end(token, None)
        return token[0]

    def batch(self, end_ms):
        """Send and receive; records and work."""
        self.group._start_coalescing("cuda")
        records = [self.message(Op.SEND), self.message(Op.RECV)]
        return records, self.group._end_coalescing(end_ms)

    def stamps(self, seq):
        self.timer.poll()
        base, words = self.spool.word_of(seq), self.spool.words
        return words[base + WORD_DEVICE_ENTER], words[base + WORD_DEVICE_EXIT]


@pytest.fixture
def bench(spool):
    made = Bench(spool)
    yield made
    made.close()
    assert made.failures == []


def test_messages_of_a_batch_end_when_the_stream_has_waited_for_it(bench):
    bench.cuda.now_ms = 2.0
    records, work = bench.batch(end_ms=9.0)
    bench.cuda.current.busy_until_ms = 5.0  # compute beside the transfer
    work.wait()
    bench.cuda.now_ms = 20.0
    assert [bench.stamps(seq) for seq in records] == [(2 * MS, 9 * MS)] * 2


def test_a_transfer_behind_the_work_of_its_stream_has_no_length(bench):
    bench.cuda.now_ms = 2.0
    records, work = bench.batch(end_ms=9.0)
    bench.cuda.current.busy_until_ms = 12.0  # compute that ends after the transfer
    work.wait()
    bench.cuda.now_ms = 20.0
    assert [bench.stamps(seq) for seq in records] == [(2 * MS, 2 * MS)] * 2


def test_a_message_outside_of_a_batch_ends_on_its_stream(bench):
    bench.batch(end_ms=9.0)[1].wait()
    bench.cuda.now_ms = 20.0
    bench.cuda.current.busy_until_ms = 30.0
    seq = bench.message(Op.SEND)
    bench.cuda.now_ms = 40.0
    assert bench.stamps(seq) == (30 * MS, 30 * MS)


def test_a_batch_nobody_can_wait_for_any_more_has_no_end_on_the_device(bench):
    records, work = bench.batch(end_ms=9.0)
    bench.batches.let_go()
    assert bench.spool.times(records[0])[1] == 0
    del work
    gc.collect()
    bench.batches.let_go()
    assert [bench.stamps(seq) for seq in records] == [(0, 0)] * 2
    assert bench.spool.words[bench.spool.word_of(records[0]) + WORD_EXIT] > 0


def test_a_batch_without_a_work_has_no_end_on_the_device(bench):
    records, _ = bench.batch(end_ms=None)
    assert [bench.stamps(seq) for seq in records] == [(0, 0)] * 2
    assert all(bench.spool.times(seq)[1] > 0 for seq in records)  # nobody is waited for in them


def test_a_batch_that_the_group_refuses_ends(bench):
    bench.group._start_coalescing("cuda")
    seq = bench.message(Op.SEND)
    with pytest.raises(TypeError):
        bench.group._end_coalescing()
    assert bench.stamps(seq) == (0, 0)
    assert bench.observer._batches == {}


def test_our_failure_does_not_reach_the_group(bench, monkeypatch):
    monkeypatch.setattr(bench.observer, "end_batch", lambda: 1 / 0)
    bench.observer.begin_batch()
    assert bench.group._end_coalescing(9.0).end_ms == 9.0
    assert [type(failure) for failure in bench.failures] == [ZeroDivisionError]
    bench.failures.clear()


def test_groups_are_restored(bench):
    patched = bench.type._end_coalescing
    bench.undo[0]()
    assert bench.type._end_coalescing is not patched
