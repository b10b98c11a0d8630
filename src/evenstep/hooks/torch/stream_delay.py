"""Delay a device's stream: work queued later starts later, and the host does not wait.

A sleeping host does not hold a device that still has work queued. So the current stream gets a
kernel that waits (`torch.cuda._sleep`, which counts clock cycles) between two events. The first
delays run on a side stream, to measure the length of a cycle; until then the job is not delayed.
Each later one corrects it, since clocks change with power and heat.

All are launched by the training thread, which knows that it captures no graph: the first launch
loads the kernel, and no lock may be held that long. Events are polled from the background thread,
never synchronised; then the realised delay is written into its record.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from evenstep.hooks.wrapping import replace_attribute, undo
from evenstep.trace.spool.layout import WORD_HELD
from evenstep.trace.spool.spool import Spool

FIRST_CYCLES = 200_000  # of the calibration: about .1 ms at 2 GHz
CALIBRATIONS = 3  # a first launch loads the kernel and is left out
RATES = 7  # the newest measurements, of which the median is used
LEAST_NS = 20_000  # shorter delays are no measurement: the events cost about as much
MOST_PENDING = 512  # between two polls, a second apart: quick steps have hundreds
LONGEST_NS = 1_000_000_000


class _Pending(NamedTuple):
    """A delay whose end has not been recorded."""

    begin: Any
    end: Any
    cycles: int
    seq: int  # of its record; 0: a calibration


class StreamDelay:
    """Holds the current stream of one device. `cuda` is `torch.cuda`, or a stand-in of it.

    `hold` runs on the training thread, `poll` on the background one.
    """

    def __init__(self, cuda: Any, device: int, spool: Spool, gate: CaptureGate) -> None:
        self._cuda = cuda
        self._device = device
        self._spool = spool
        self._gate = gate
        self._side = cuda.Stream(device)
        self._pending: deque[_Pending] = deque()
        self._rates: deque[float] = deque(maxlen=RATES)  # cycles in a nanosecond
        self._calibrated = 0
        self.cycles_per_ns = 0.0  # 0: not known yet

    def hold(self, delay_ns: int, seq: int) -> bool:
        """Delay work queued from now on by `delay_ns`; False where that is not possible.

        The realised delay is written to record `seq`.
        """
        if not self._free():
            return False
        if self._calibrated < CALIBRATIONS or not self.cycles_per_ns:
            if not self._pending:
                self._wait(self._side, FIRST_CYCLES, 0)
            return False
        cycles = int(min(delay_ns, LONGEST_NS) * self.cycles_per_ns)
        self._wait(self._cuda.current_stream(self._device), cycles, seq)
        return True

    def poll(self) -> None:
        """Record the delays that have ended; never waits."""
        for _ in range(len(self._pending)):
            with self._gate.lock:
                if self._gate.captures or not self._pending[0].end.query():
                    return
                self._settle(self._pending.popleft())

    def _free(self) -> bool:
        """Whether a delay may be queued now."""
        room = len(self._pending) < MOST_PENDING
        captures = self._gate.captures or self._cuda.is_current_stream_capturing()
        return room and not captures

    def _wait(self, stream: Any, cycles: int, seq: int) -> None:
        cuda = self._cuda
        begin, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        with cuda.stream(stream):
            begin.record(stream)
            cuda._sleep(cycles)
            end.record(stream)
        self._pending.append(_Pending(begin, end, cycles, seq))

    def _settle(self, done: _Pending) -> None:
        took_ns = round(done.begin.elapsed_time(done.end) * 1e6)
        if done.seq:
            self._spool.patch(done.seq, WORD_HELD, took_ns)
        else:
            self._calibrated += 1
        first = not done.seq and self._calibrated == 1
        if took_ns >= LEAST_NS and not first:
            self._rates.append(done.cycles / took_ns)
            self.cycles_per_ns = sorted(self._rates)[len(self._rates) // 2]


class CaptureGate:
    """Keeps the background thread from querying the driver while a CUDA graph is captured.

    A capture fails when another thread queries an event meanwhile (`cudaStreamCaptureModeGlobal`,
    torch's default). `lock` is held for single queries only, so a capture begins without delay.
    """

    def __init__(self, graph_type: Any, on_change: Callable[[int], None] | None = None) -> None:
        self._on_change = on_change  # gets the number of captures
        self.lock = threading.Lock()
        self.captures = 0
        self._type = graph_type
        self._undo = [
            self._around("capture_begin", before=1, on_error=-1),
            self._around("capture_end", after=-1, on_error=-1),
        ]

    def remove(self) -> None:
        """Restore torch's own methods."""
        undo(self._undo)

    def _count(self, by: int) -> None:
        with self.lock:
            self.captures = max(self.captures + by, 0)
            if self._on_change is not None:
                self._on_change(self.captures)

    def _around(
        self, name: str, *, before: int = 0, after: int = 0, on_error: int = 0
    ) -> Callable[[], None]:
        original, count = getattr(self._type, name), self._count

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            count(before)
            try:
                result = original(*args, **kwargs)
            except BaseException:
                count(on_error)
                raise
            count(after)
            return result

        wrapper.__doc__, wrapper.__name__ = original.__doc__, name
        return replace_attribute(self._type, name, wrapper)
