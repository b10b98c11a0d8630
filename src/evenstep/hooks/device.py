"""When a collective really ran on a device, without making anybody wait.

An event on the current stream at issue is the device's arrival. A private side stream that waits
on the Work and then records an event gives its end. Both are polled from the background thread,
never synchronised; neither the compute stream nor the host is held. Times are nanoseconds since a
reference event of that device. CUDA returns elapsed time as a 32-bit float of milliseconds, so the
reference is renewed every few seconds and the offsets are added up: otherwise an hour's run would
be told in steps of a quarter of a millisecond.
"""

from __future__ import annotations

from collections import deque
from time import monotonic_ns
from typing import Any

from evenstep.trace.layout import WORD_DEVICE_ENTER, WORD_DEVICE_EXIT
from evenstep.trace.spool import Spool

REFERENCE_LIFE_NS = 4_000_000_000
PENDING_LIMIT = 8192  # beyond it collectives go without device times rather than hold more events


class Pending:
    """A collective whose events have not been read yet."""

    __slots__ = ("begin", "end", "reference", "seq")

    def __init__(self, seq: int, begin: Any, end: Any, reference: Reference) -> None:
        self.seq = seq
        self.begin = begin
        self.end = end
        self.reference = reference


class Reference:
    """An event that times are measured from, `offset_ns` after the device's first one."""

    __slots__ = ("event", "made_ns", "offset_ns", "previous")

    def __init__(self, event: Any, previous: Reference | None, made_ns: int) -> None:
        self.event = event
        self.previous = previous  # until its distance has been read
        self.made_ns = made_ns
        self.offset_ns = 0.0

    def settled(self) -> bool:
        """Whether the device has passed it, so that `offset_ns` is known."""
        if self.previous is None:
            return bool(self.event.query())
        if not (self.event.query() and self.previous.settled()):
            return False
        distance = self.previous.event.elapsed_time(self.event) * 1e6
        self.offset_ns = self.previous.offset_ns + distance
        self.previous = None
        return True

    def nanoseconds(self, event: Any) -> int:
        """Time of a passed event since the device's first reference."""
        return int(self.offset_ns + self.event.elapsed_time(event) * 1e6)


class DeviceTimer:
    """Device stamps of one device's collectives. `cuda` is `torch.cuda`, or a stand-in of it."""

    def __init__(self, cuda: Any, spool: Spool, wait: Any) -> None:
        self._cuda = cuda
        self._spool = spool
        self._wait = wait  # the original Work.wait
        self._pending: deque[Pending] = deque()
        self._free: list[Any] = []
        self._side = cuda.Stream()
        self._reference = Reference(self._event(), None, monotonic_ns())
        self._reference.event.record()
        self.skipped = 0

    def begin(self) -> Any:
        """An event where the device will issue the collective; None where none can be taken."""
        if len(self._pending) >= PENDING_LIMIT or self._cuda.is_current_stream_capturing():
            self.skipped += 1
            return None
        event = self._event()
        event.record()
        return event

    def end(self, seq: int, begin: Any, work: Any) -> None:
        """The collective is issued: have the side stream mark its end."""
        event = self._event()
        with self._cuda.stream(self._side):
            self._wait(work)
            event.record()
        self._pending.append(Pending(seq, begin, event, self._reference))

    def poll(self) -> None:
        """Write the stamps of what the device has finished; never waits for it."""
        now = monotonic_ns()
        while self._pending:
            first = self._pending[0]
            if not (first.reference.settled() and first.end.query()):
                break
            self._pending.popleft()
            enter, leave = map(first.reference.nanoseconds, (first.begin, first.end))
            self._spool.patch(first.seq, WORD_DEVICE_ENTER, max(enter, 1))
            self._spool.patch(first.seq, WORD_DEVICE_EXIT, max(leave, 1))
            self._spool.close(first.seq, now)
            self._free += (first.begin, first.end)
        if now - self._reference.made_ns > REFERENCE_LIFE_NS and self._reference.settled():
            self._renew(now)

    def _renew(self, now_ns: int) -> None:
        reference = Reference(self._cuda.Event(enable_timing=True), self._reference, now_ns)
        with self._cuda.stream(self._side):
            reference.event.record()
        self._reference = reference

    def _event(self) -> Any:
        return self._free.pop() if self._free else self._cuda.Event(enable_timing=True)
