"""A stand-in for `torch.cuda`: streams that are busy until a time, events that pass in order.

Anything that would make a host wait raises. Times are milliseconds of one device clock, which the
test advances; CUDA's elapsed time is a 32-bit float of milliseconds, and so is this one's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np


class HostWaitedError(AssertionError):
    """The host was made to wait for the device."""


class FakeStream:
    """A queue on the device, empty from `busy_until_ms` on."""

    def __init__(self) -> None:
        self.busy_until_ms = 0.0

    def synchronize(self) -> None:
        raise HostWaitedError


class FakeEvent:
    """Passed once the device's clock has reached what was queued before it."""

    def __init__(self, cuda: FakeCuda) -> None:
        self._cuda = cuda
        self.at_ms: float | None = None

    def record(self, stream: FakeStream) -> None:
        self.at_ms = max(self._cuda.now_ms, stream.busy_until_ms)

    def query(self) -> bool:
        self._cuda.queries += 1
        return self.at_ms is not None and self.at_ms <= self._cuda.now_ms

    def elapsed_time(self, end: FakeEvent) -> float:
        if not (self.query() and end.query()):
            raise RuntimeError("CUDA error: device not ready")
        assert self.at_ms is not None
        assert end.at_ms is not None
        return float(np.float32(end.at_ms - self.at_ms))

    def synchronize(self) -> None:
        raise HostWaitedError


class FakeGraph:
    """`torch.cuda.CUDAGraph`, as far as captures go."""

    def __init__(self) -> None:
        self.captures: list[str] = []

    def capture_begin(self, refuse: bool = False) -> None:
        if refuse:
            raise RuntimeError("a capture is under way")
        self.captures.append("begun")

    def capture_end(self) -> None:
        self.captures.append("ended")


class FakeCuda:
    """One process's view of its devices. The current stream is that of the issuing thread."""

    def __init__(self, now_ms: float = 0.0) -> None:
        self.now_ms = now_ms
        self.queries = 0
        self.capturing = False
        self.ghz = 1.7
        self.loading_ms = 0.0  # what the first kernel takes longer
        self.current = FakeStream()

    def Event(self, enable_timing: bool) -> FakeEvent:  # noqa: N802
        assert enable_timing
        return FakeEvent(self)

    def Stream(self, device: int) -> FakeStream:  # noqa: N802
        return FakeStream()

    def current_stream(self, device: int) -> FakeStream:
        return self.current

    def is_current_stream_capturing(self) -> bool:
        return self.capturing

    def synchronize(self) -> None:
        raise HostWaitedError

    def _sleep(self, cycles: int) -> None:
        """A kernel that waits, behind what the current stream holds already."""
        began_ms = max(self.now_ms, self.current.busy_until_ms)
        self.current.busy_until_ms = began_ms + cycles / self.ghz / 1e6 + self.loading_ms
        self.loading_ms = 0.0

    def stream(self, stream: FakeStream) -> Any:
        return self.on(stream)

    @contextmanager
    def on(self, stream: FakeStream) -> Iterator[None]:
        """Make another stream the current one."""
        held, self.current = self.current, stream
        yield
        self.current = held


class FakeWork:
    """A collective on a stream of its own that ends at `end_ms`, with NCCL's kind of future."""

    def __init__(self, cuda: FakeCuda, end_ms: float) -> None:
        self._cuda = cuda
        self._end_ms = end_ms

    def get_future(self) -> FakeWork:
        return self

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Complete since it was enqueued; callbacks run on a stream that waits for its end."""
        side = FakeStream()
        side.busy_until_ms = self._end_ms
        with self._cuda.on(side):
            callback(self)

    def wait(self) -> None:
        raise HostWaitedError
