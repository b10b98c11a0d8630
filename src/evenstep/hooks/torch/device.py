"""Measure when a collective ran on a device, without any wait.

An event on the current stream at issue marks the device's arrival. Its end:

- Where the backend returns no Work, it ran on the current stream (NCCL, blocking calls, torch 2.8
  and later): an event there, right after the call.
- In a batch, after the Work has been waited for: see `works`.
- Else by the Work's future: NCCL completes it when the collective is enqueued, and torch runs its
  callbacks on a stream that already waits for the collective (`ivalue::Future`, `invokeCallback`).
  An event on that stream is passed when the collective ends. gloo completes it in a thread of its
  own when the collective has ended: an event on a stream without work is passed then.

Never by `Work.wait`, not even on a side stream: it releases the tensors that NCCL's Work holds for
the allocator, it ends a barrier by blocking the host, and it takes the Work from functional
collectives. A cost of the future is that torch marks the outputs as used by that stream, as it did
for every collective before 2.8: their memory is reused a little later when freed early.

Events are polled from the background thread, never synchronised. Times are nanoseconds since a
reference event of that device. CUDA returns elapsed time as a 32-bit float of milliseconds, so the
reference is renewed every second and the offsets are added up: otherwise the resolution after an
hour would be a quarter of a millisecond.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from threading import get_ident
from time import monotonic_ns
from typing import Any

from evenstep.hooks.torch.stream_delay import CaptureGate, StreamDelay
from evenstep.trace.spool.layout import WORD_DEVICE_ENTER, WORD_DEVICE_EXIT
from evenstep.trace.spool.spool import Spool

REFERENCE_LIFE_NS = 900_000_000  # 32-bit milliseconds resolve 61 ns in a second
PENDING_LIMIT = 8192  # beyond it collectives are recorded without device times
AT_ONCE_NS = 20_000  # a stream passes two events in a row sooner
UNFINISHED_LIMIT = 32  # so many unfinished ones end a poll: later ones are hardly finished


@dataclass(slots=True, eq=False)
class ReferenceEvent:
    """An event that times are measured from, `offset_ns` after the device's first one."""

    event: Any
    previous: ReferenceEvent | None  # until the distance to it has been read
    made_ns: int
    offset_ns: float = 0.0

    def settled(self) -> bool:
        """Whether the device has passed it, so that `offset_ns` is known."""
        if not self.event.query():
            return False
        previous = self.previous
        if previous is not None:  # only a settled reference is renewed
            self.offset_ns = previous.offset_ns + previous.event.elapsed_time(self.event) * 1e6
            self.previous = None
        return True

    def nanoseconds(self, event: Any) -> int:
        """Time of a passed event since the device's first reference."""
        return round(self.offset_ns + float(self.event.elapsed_time(event)) * 1e6)


@dataclass(slots=True, eq=False)
class DeviceMark:
    """A collective's arrival on a device and, once issued, its end."""

    timer: DeviceTimer
    begin: Any
    reference: ReferenceEvent  # recorded before `begin`
    end: Any = None
    reached: Any = None  # of a batch: its stream before it waited
    seq: int = 0


class DeviceTimer:
    """Device stamps of one device's collectives. `cuda` is `torch.cuda`, or a stand-in of it.

    `begin` and `end` run on issuing threads, `poll` on one background thread.
    """

    def __init__(
        self,
        cuda: Any,
        device: int,
        spool: Spool,
        gate: CaptureGate,
        clock: Callable[[], int] = monotonic_ns,
    ) -> None:
        self.device = device
        self.skipped = 0  # collectives without device times
        self._cuda = cuda
        self._spool = spool
        self._gate = gate
        self._clock = clock
        self._pending: deque[DeviceMark] = deque()
        self._free: deque[Any] = deque(maxlen=2 * PENDING_LIMIT)  # events that were read
        self._delay: StreamDelay | None = None  # made at the first use
        self._side = cuda.Stream(device)  # for references only: they do not queue behind work
        self._reference = self._new_reference(None, clock())

    def begin(self) -> DeviceMark | None:
        """Mark the device's arrival at the collective; None where that is not possible."""
        if len(self._pending) >= PENDING_LIMIT or self._cuda.is_current_stream_capturing():
            self.skipped += 1
            return None
        return DeviceMark(self, self.now(), self._reference)

    def end(self, seq: int, mark: DeviceMark, work: Any) -> None:
        """Mark the end of an issued collective, now or by its future."""
        mark.seq = seq
        if work is None:
            self.passed(mark)
            return

        issuer = get_ident()

        def completed(_: Any) -> None:
            try:
                self.passed(mark, ended=get_ident() != issuer)
            except Exception:  # the device has failed, and the job gets its own error
                self.skipped += 1

        try:
            future = work.get_future()
        except RuntimeError:  # a backend without futures
            self.skipped += 1
            self._spool.close(seq, self._clock())
            return
        future.add_done_callback(completed)

    def hold(self, delay_ns: int, seq: int) -> bool:
        """Delay the current stream; False where that is not possible, or not calibrated yet.

        The realised delay is written to record `seq`.
        """
        if self._delay is None:
            self._delay = StreamDelay(self._cuda, self.device, self._spool, self._gate)
        return self._delay.hold(delay_ns, seq)

    def poll(self) -> None:
        """Write the stamps of finished collectives; never waits."""
        if self._delay is not None:
            self._delay.poll()
        unfinished: list[DeviceMark] = []
        for _ in range(len(self._pending)):
            mark = self._pending.popleft()
            with self._gate.lock:
                if self._gate.captures or not self._written(mark):
                    unfinished.append(mark)
            if self._gate.captures or len(unfinished) >= UNFINISHED_LIMIT:
                break
        self._pending.extendleft(reversed(unfinished))
        with self._gate.lock:
            if not self._gate.captures:
                reference, now_ns = self._reference, self._clock()
                if now_ns - reference.made_ns > REFERENCE_LIFE_NS and reference.settled():
                    self._reference = self._new_reference(reference, now_ns)

    def _written(self, mark: DeviceMark) -> bool:
        reference = mark.reference
        if not (reference.settled() and mark.end.query()):
            return False
        spool, seq = self._spool, mark.seq
        enter, leave = reference.nanoseconds(mark.begin), reference.nanoseconds(mark.end)
        if mark.reached is not None and leave - reference.nanoseconds(mark.reached) <= AT_ONCE_NS:
            leave = enter  # it did not wait: when the transfer ended behind its work is not known
        spool.patch(seq, WORD_DEVICE_ENTER, max(enter, 1))
        spool.patch(seq, WORD_DEVICE_EXIT, max(leave, enter, 1))
        spool.close(seq, self._clock())
        self._free += (mark.begin, mark.end)
        return True

    def _new_reference(self, previous: ReferenceEvent | None, now_ns: int) -> ReferenceEvent:
        event = self._cuda.Event(enable_timing=True)
        event.record(self._side)
        return ReferenceEvent(event, previous, now_ns)

    def passed(self, mark: DeviceMark, *, ended: bool = False) -> None:
        """The collective ends when the current stream gets here, or has `ended` already."""
        mark.end = self.now(self._side if ended else None)
        self._pending.append(mark)

    def now(self, stream: Any = None) -> Any:
        """Record an event, new or reused, on this stream or the current one of the device."""
        try:
            event = self._free.pop()
        except IndexError:
            event = self._cuda.Event(enable_timing=True)
        event.record(self._cuda.current_stream(self.device) if stream is None else stream)
        return event
