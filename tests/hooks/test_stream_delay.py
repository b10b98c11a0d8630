"""A delay on the stream of a device whose clock the test turns; no host may be made to wait."""

import pytest

from evenstep.hooks.torch.device import DeviceTimer
from evenstep.hooks.torch.stream_delay import (
    CALIBRATIONS,
    LEAST_NS,
    MOST_PENDING,
    CaptureGate,
    StreamDelay,
)
from evenstep.trace.spool.layout import WORD_HELD, Kind
from tests.hooks.fake_cuda import FakeCuda, FakeGraph

MS = 1_000_000


class Bench:
    """A stream delay on a fake device that waits `ghz` cycles in a nanosecond."""

    def __init__(self, spool) -> None:
        self.spool = spool
        self.cuda = FakeCuda()
        self.gate = CaptureGate(FakeGraph)
        self.delay = StreamDelay(self.cuda, 0, spool, self.gate)

    def calibrate(self) -> None:
        for _ in range(CALIBRATIONS):
            assert not self.delay.hold(MS, 0)
            self.cuda.now_ms += 10
            self.delay.poll()

    def hold(self, delay_ns: int) -> int:
        seq = self.spool.put(1, 1, int(Kind.PACING), held_ns=delay_ns)
        assert self.delay.hold(delay_ns, seq)
        return seq

    def held_ns(self, seq: int) -> int:
        return self.spool.words[self.spool.word_of(seq) + WORD_HELD]


@pytest.fixture
def bench(spool):
    made = Bench(spool)
    yield made
    made.gate.remove()


def test_before_it_is_calibrated_nothing_is_held(bench):
    assert not bench.delay.hold(5 * MS, 1)


def test_the_first_wait_is_left_out_since_it_loads_the_kernel(bench):
    bench.cuda.loading_ms = 3.0
    bench.calibrate()
    assert bench.delay.cycles_per_ns == pytest.approx(bench.cuda.ghz, rel=1e-3)


def test_nothing_is_launched_under_the_lock_that_a_capture_waits_for(bench, monkeypatch):
    held = []
    monkeypatch.setattr(bench.cuda, "_sleep", lambda _: held.append(bench.gate.lock.locked()))
    bench.calibrate()
    assert held == [False] * CALIBRATIONS


def test_what_is_queued_behind_starts_later_by_the_delay(bench):
    bench.calibrate()
    before = bench.cuda.now_ms
    bench.hold(5 * MS)
    assert bench.cuda.current.busy_until_ms == pytest.approx(before + 5, rel=0.01)


def test_a_delay_comes_after_the_work_that_is_queued(bench):
    bench.calibrate()
    bench.cuda.current.busy_until_ms = bench.cuda.now_ms + 40
    bench.hold(5 * MS)
    assert bench.cuda.current.busy_until_ms == pytest.approx(bench.cuda.now_ms + 45, rel=0.01)


def test_what_a_delay_took_is_written_once_it_has_ended(bench):
    bench.calibrate()
    bench.cuda.ghz /= 2  # the clock has dropped since
    seq = bench.hold(5 * MS)
    bench.delay.poll()
    assert bench.held_ns(seq) == 5 * MS
    bench.cuda.now_ms += 20
    bench.delay.poll()
    assert bench.held_ns(seq) == pytest.approx(10 * MS, rel=0.01)


def test_a_clock_that_changes_is_followed(bench):
    bench.calibrate()
    bench.cuda.ghz /= 2
    for _ in range(8):
        seq = bench.hold(5 * MS)
        bench.cuda.now_ms += 20
        bench.delay.poll()
    assert bench.held_ns(seq) == pytest.approx(5 * MS, rel=0.05)


def test_waits_too_short_to_tell_a_rate_change_none(bench):
    bench.calibrate()
    rate = bench.delay.cycles_per_ns
    bench.hold(LEAST_NS // 4)
    bench.cuda.now_ms += 1
    bench.delay.poll()
    assert bench.delay.cycles_per_ns == rate


def test_while_a_graph_is_captured_nothing_is_held_or_asked(bench):
    bench.calibrate()
    bench.cuda.capturing = True
    assert not bench.delay.hold(5 * MS, 1)
    graph = FakeGraph()
    graph.capture_begin()
    asked = bench.cuda.queries
    bench.delay.poll()
    assert bench.cuda.queries == asked


def test_a_device_that_does_not_get_on_is_not_queued_full(bench):
    bench.calibrate()
    for _ in range(MOST_PENDING):
        bench.hold(MS)
    assert not bench.delay.hold(MS, 1)


def test_a_devices_timer_holds_its_stream_once_it_has_calibrated(bench):
    timer = DeviceTimer(bench.cuda, 0, bench.spool, bench.gate)
    for _ in range(CALIBRATIONS):
        assert not timer.hold(5 * MS, 1)
        bench.cuda.now_ms += 10
        timer.poll()
    assert timer.hold(5 * MS, 1)
