"""The device timer against a device whose clock the test turns."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evenstep.agent.recording.entries import GroupState
from evenstep.hooks.torch import device
from evenstep.hooks.torch.device import DeviceTimer
from evenstep.hooks.torch.groups import Groups
from evenstep.hooks.torch.observer import Observer
from evenstep.hooks.torch.stream_delay import CaptureGate
from evenstep.trace.spool.layout import (
    WORD_DEVICE_ENTER,
    WORD_DEVICE_EXIT,
    WORD_EXIT,
    Flag,
    Kind,
    Op,
)
from tests.hooks.fake_cuda import FakeCuda, FakeGraph, FakeWork

MS = 1_000_000
ROUNDING_NS = 31  # half a unit of the last place of a 32-bit float between 512 and 1024 ms


class Bench:
    """A timer on a fake device, and records for it to stamp."""

    def __init__(self, spool) -> None:
        self.spool = spool
        self.cuda = FakeCuda()
        self.gate = CaptureGate(FakeGraph)
        self.timer = DeviceTimer(self.cuda, 0, spool, self.gate, clock=self.clock)

    def clock(self) -> int:
        return int(self.cuda.now_ms * MS) + 1

    def issue(self, end_ms: float | None) -> int:
        """A collective that arrives where the stream stands; None: on the stream itself."""
        seq = self.spool.put(self.clock(), 0, Kind.COLLECTIVE)
        mark = self.timer.begin()
        assert mark is not None
        self.timer.end(seq, mark, None if end_ms is None else FakeWork(self.cuda, end_ms))
        return seq

    def stamps(self, seq: int) -> tuple[int, int]:
        base = self.spool.word_of(seq)
        words = self.spool.words
        return words[base + WORD_DEVICE_ENTER], words[base + WORD_DEVICE_EXIT]

    def pass_ms(self, duration_ms: float) -> None:
        self.cuda.now_ms += duration_ms
        self.timer.poll()


@pytest.fixture
def bench(spool):
    made = Bench(spool)
    yield made
    made.gate.remove()


def test_arrival_and_end_are_those_of_the_device_not_of_the_host(bench):
    bench.cuda.current.busy_until_ms = 3.0  # the host runs 3 ms ahead
    seq = bench.issue(end_ms=5.0)
    bench.pass_ms(10.0)
    assert bench.stamps(seq) == (3 * MS, 5 * MS)


def test_without_a_work_the_collective_ran_on_the_current_stream(bench):
    seq = bench.spool.put(1, 0, Kind.COLLECTIVE)
    mark = bench.timer.begin()
    bench.cuda.current.busy_until_ms = 2.0  # the call queued 2 ms
    bench.timer.end(seq, mark, None)
    bench.pass_ms(2.0)
    assert bench.stamps(seq) == (1, 2 * MS)  # 0 would say unknown


def test_a_future_that_another_thread_completes_says_that_the_collective_has_ended(bench):
    """As gloo's: its current stream has work queued that the collective did not wait for."""
    callbacks = []
    work = SimpleNamespace(get_future=lambda: SimpleNamespace(add_done_callback=callbacks.append))
    seq = bench.spool.put(1, 0, Kind.COLLECTIVE)
    bench.timer.end(seq, bench.timer.begin(), work)
    bench.cuda.current.busy_until_ms = 30.0
    bench.cuda.now_ms = 4.0
    thread = threading.Thread(target=callbacks[0], args=(None,))
    thread.start()
    thread.join()
    bench.pass_ms(1.0)
    assert bench.stamps(seq) == (1, 4 * MS)


def test_nothing_is_stamped_before_the_device_is_through(bench):
    seq = bench.issue(end_ms=5.0)
    bench.pass_ms(4.9)
    assert bench.stamps(seq) == (0, 0)
    assert bench.spool.times(seq)[1] == 0
    bench.pass_ms(0.1)
    assert bench.stamps(seq)[1] == 5 * MS
    assert bench.spool.times(seq)[1] > 0


def test_one_that_hangs_does_not_hide_those_that_end(bench):
    hangs, ends = bench.issue(end_ms=1e9), bench.issue(end_ms=2.0)
    bench.pass_ms(3.0)
    assert bench.stamps(ends)[1] == 2 * MS
    assert bench.stamps(hangs) == (0, 0)


def test_a_poll_ends_after_so_many_unfinished_ones_and_keeps_their_order(bench, monkeypatch):
    monkeypatch.setattr(device, "UNFINISHED_LIMIT", 2)
    issued = [bench.issue(end_ms=end) for end in (1e9, 2e9, 3e9, 1.0)]
    before = bench.cuda.queries
    bench.pass_ms(5.0)
    assert bench.cuda.queries - before == 2 * 2  # a reference and an end each
    assert [mark.seq for mark in bench.timer._pending] == issued


def test_beyond_the_limit_collectives_go_without_times_and_are_counted(bench, monkeypatch):
    monkeypatch.setattr(device, "PENDING_LIMIT", 2)
    bench.issue(end_ms=9.0)
    bench.issue(end_ms=9.0)
    assert bench.timer.begin() is None
    assert bench.timer.skipped == 1


def test_events_are_used_again(bench):
    for _ in range(5):
        bench.issue(end_ms=bench.cuda.now_ms + 1.0)
        bench.pass_ms(1.0)
    assert len(bench.timer._free) == 2


def test_a_stream_under_capture_is_left_alone(bench):
    bench.cuda.capturing = True
    assert bench.timer.begin() is None


def test_no_event_is_asked_for_while_a_graph_is_captured_anywhere(bench):
    seq, graph = bench.issue(end_ms=1.0), FakeGraph()
    graph.capture_begin()
    before = bench.cuda.queries
    bench.pass_ms(5_000.0)
    assert bench.cuda.queries == before
    graph.capture_end()
    bench.pass_ms(0.0)
    assert bench.stamps(seq)[1] == MS
    assert graph.captures == ["begun", "ended"]


def test_a_capture_that_cannot_begin_does_not_stop_the_polling(bench):
    with pytest.raises(RuntimeError):
        FakeGraph().capture_begin(refuse=True)
    assert bench.gate.captures == 0


def test_the_gate_puts_back_what_it_replaced(spool):
    before = FakeGraph.capture_begin, FakeGraph.capture_end
    gate = CaptureGate(FakeGraph)
    assert FakeGraph.capture_begin is not before[0]
    gate.remove()
    assert (FakeGraph.capture_begin, FakeGraph.capture_end) == before


def test_after_an_hour_a_duration_is_still_told_to_a_tenth_of_a_microsecond(bench):
    # From one reference an hour is 3.6e6 ms, where a 32-bit float has steps of a quarter of a ms.
    for _ in range(3600):
        bench.pass_ms(999.7)
    bench.cuda.current.busy_until_ms = bench.cuda.now_ms + 700.0
    seq = bench.issue(end_ms=bench.cuda.now_ms + 700.123456)
    bench.pass_ms(999.7)
    enter, leave = bench.stamps(seq)
    assert leave - enter == pytest.approx(123_456, abs=2 * ROUNDING_NS + 1)


def test_renewing_the_reference_adds_less_than_its_rounding(bench):
    for _ in range(3600):
        bench.pass_ms(999.7)
    seq = bench.issue(end_ms=bench.cuda.now_ms + 1.0)
    arrived_ns = bench.cuda.now_ms * MS
    bench.pass_ms(1.0)
    assert bench.stamps(seq)[0] == pytest.approx(arrived_ns, abs=3600 * ROUNDING_NS)


def test_a_collective_across_a_renewal_keeps_the_reference_it_began_with(bench):
    seq = bench.issue(end_ms=2500.0)
    for _ in range(3):
        bench.pass_ms(1000.0)
    assert bench.stamps(seq) == (1, 2500 * MS)


def test_a_reference_the_device_has_not_passed_is_not_renewed(bench):
    bench.timer._side.busy_until_ms = 4_500.0
    bench.pass_ms(1_000.0)
    waiting = bench.timer._reference
    bench.pass_ms(3_000.0)
    assert bench.timer._reference is waiting
    bench.pass_ms(1_000.0)
    assert bench.timer._reference is not waiting
    assert waiting.offset_ns == 4_500 * MS


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(st.lists(st.tuples(st.floats(0, 400), st.floats(0, 400), st.floats(0, 1500)), max_size=30))
def test_whatever_the_order_of_ends_every_collective_gets_its_own_times(spool, plan):
    bench = Bench(spool)
    expected = {}
    for gap_ms, duration_ms, rest_ms in plan:
        start = bench.cuda.now_ms + gap_ms
        bench.cuda.current.busy_until_ms = start
        expected[bench.issue(end_ms=start + duration_ms)] = (start * MS, (start + duration_ms) * MS)
        bench.pass_ms(rest_ms)
    bench.pass_ms(10_000.0)
    bench.gate.remove()
    for seq, times in expected.items():
        # 10 s after its reference a 32-bit float of ms has steps of 977 ns
        assert bench.stamps(seq) == pytest.approx(times, abs=1000 + len(plan) * ROUNDING_NS * 16)


def test_issuing_and_polling_at_the_same_time_loses_nothing(bench):
    issued: list[list[int]] = [[], []]

    def issue(mine: list[int]) -> None:
        mine.extend(bench.issue(end_ms=None) for _ in range(200))

    threads = [threading.Thread(target=issue, args=(mine,)) for mine in issued]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        bench.timer.poll()
    bench.pass_ms(1.0)
    assert all(bench.stamps(seq) == (1, 1) for seq in issued[0] + issued[1])


# -- the observer's side ---------------------------------------------------------------------------


def cuda_tensor(index: int) -> SimpleNamespace:
    """What the observer asks a tensor."""
    return SimpleNamespace(dtype=torch.float32, is_cuda=True, get_device=lambda: index, nbytes=32)


@pytest.fixture
def observer(recorder, bench) -> Observer:
    made = Observer(torch, recorder, Groups(recorder.spool, None), print)
    made.asked = []
    made.device_timer = lambda index: made.asked.append(index) or bench.timer
    return made


@pytest.fixture
def state(recorder):
    return GroupState(1, "uid", (0, 1), 0)


def begin(observer, state, tensor):
    return observer.begin(1, state, Op.ALL_REDUCE, 32, 32, Flag.EXIT_UPPER_BOUND, -1, tensor)


def test_each_device_has_a_timer_of_its_own(observer, state):
    begin(observer, state, cuda_tensor(0))
    begin(observer, state, cuda_tensor(3))
    observer.begin_point_to_point(1, state, Op.SEND, 32, 1, cuda_tensor(5), 0)
    assert observer.asked == [0, 3, 5]


def test_a_device_collective_is_stamped_through_the_observer(observer, state, bench):
    token = begin(observer, state, cuda_tensor(0))
    observer.end(token, FakeWork(bench.cuda, 4.0))
    bench.pass_ms(5.0)
    assert bench.stamps(token[0]) == (1, 4 * MS)
    assert observer._marks == {}


def test_a_failed_device_collective_leaves_no_mark_behind(observer, state):
    observer.failed(begin(observer, state, cuda_tensor(0)))
    assert observer._marks == {}


def test_a_device_collective_without_times_ends_for_the_host_where_it_was_issued(
    observer, state, bench
):
    bench.cuda.capturing = True
    token = begin(observer, state, cuda_tensor(0))
    observer.end(token, FakeWork(bench.cuda, 4.0))
    assert bench.spool.words[bench.spool.word_of(token[0]) + WORD_EXIT] > 0
    assert bench.stamps(token[0]) == (0, 0)
