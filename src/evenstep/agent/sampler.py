"""The agent's background thread: samples sources at a bounded rate and a bounded cost."""

from __future__ import annotations

import logging
import math
import signal
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from evenstep.trace.spool.files import Bell, Held

if TYPE_CHECKING:
    from evenstep.host.sources.source import Reading, Source

log = logging.getLogger(__name__)

Emit = Callable[[str, int, float], None]


def pause_s(cost_ns: int, *, period_s: float, share: float) -> float:
    """Seconds to rest after work of `cost_ns`, so that it uses at most `share` of one core."""
    return max(period_s, cost_ns / 1e9 / share)


class Sampler:
    """Reads `sources` and runs `task` about every `period_s` within `budget` of one core.

    The budget is halved: one half for the sources, which are read less often when they cost more;
    the other for the task. `between` runs between two rounds, for work that cannot wait so long
    and costs next to nothing; it returns in how many seconds to run again. A source that fails is
    dropped, logged once and listed in `absent`; a value that has not changed is emitted again only
    every `repeat_ticks`. No emission begins after `stop` has returned. Starts once.
    """

    def __init__(
        self, sources: Sequence[Source], emit: Emit, *, period_s: float = 1.0,
        budget: float = 0.01, task: Callable[[], None] | None = None,
        between: Callable[[], float] | None = None, repeat_ticks: int = 10,
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], int] = time.thread_time_ns,
    ) -> None:  # fmt: skip
        self.cost_ns = 0  # CPU time of the thread so far, opening the sources included
        self.failure: str | None = None  # why the thread ended by itself
        self._emit = emit
        self._period_s = period_s
        self._share = budget / 2
        self._repeat_ticks = repeat_ticks
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._waiting = list(sources)  # not opened yet, or not available yet
        self._open: list[Source] = []
        self._task = task
        self._between = between
        self._absent: dict[str, str] = {}
        self._sources_due_s = 0.0
        self._round = 0
        self._emitted: dict[tuple[str, int], tuple[float, int]] = {}  # value and round
        self._armed = True  # False in a forked child, where the thread does not exist
        self._stopping = threading.Event()
        self._bell = Bell()
        self._files: list[Held] = []
        self._gate = threading.Lock()  # held by this thread while it emits, by others only briefly
        self._thread: threading.Thread | None = None

    @property
    def absent(self) -> dict[str, str]:
        """Sources without readings, each with its reason: for the report's limits."""
        return dict(self._absent)

    def start(self) -> None:
        """Begin in the background; opening slow drivers costs the caller nothing."""
        if self._armed and self._thread is None:
            self._thread = threading.Thread(target=self._run, name="evenstep-sampler", daemon=True)
            self._thread.start()

    def stop(self, timeout_s: float = 2.0) -> bool:
        """End the thread; False if it is still blocked in a driver."""
        thread = self._thread
        if not self._armed or thread is None:
            return True
        self._stopping.set()
        self.wake()
        if thread is threading.current_thread():  # called from a task
            return True
        thread.join(timeout_s)
        if self._gate.acquire(timeout=timeout_s):  # lets an emission under way finish
            self._gate.release()
        if not thread.is_alive():
            self._armed = False
            self._bell.close()
        return not thread.is_alive()

    def add(self, sources: Sequence[Source]) -> None:
        """Read these sources too; on this thread."""
        self._waiting += sources

    def wake(self) -> None:
        """Run `between` now; from any thread."""
        self._bell.ring()

    def wake_on(self, file: Held) -> None:
        """Run `between` as soon as a file can be read."""
        self._files.append(file)

    def disarm(self) -> None:
        """For a forked child: touches neither the thread nor a lock somebody may have held."""
        self._armed = False

    def _run(self) -> None:
        # The process's signals must interrupt system calls of its main thread, not ours.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            rest_s = 0.0
            while not self._pause(rest_s):
                rest_s = self._rest(self.tick())
        except Exception as error:  # the receiver of the samples failed
            self.failure = f"{type(error).__name__}: {error}"
            log.warning("evenstep: sampling ended: %s", self.failure)
        finally:
            self._close()

    def _rest(self, rest_s: float) -> float:
        """Run `between` until the next round is due; return the seconds left to wait."""
        due_s = self._clock() + rest_s
        while self._between is not None:
            left_s = due_s - self._clock()
            pause_s = self._between()
            if left_s <= 0 or self._pause(max(0.0, min(pause_s, left_s))):
                break
        return max(0.0, due_s - self._clock())

    def _pause(self, pause_s: float) -> bool:
        """Wait until it is time or something wakes the thread; return whether to stop."""
        if not self._stopping.is_set():
            self._bell.wait(math.ceil(pause_s * 1e3), *self._files)
        return self._stopping.is_set()

    def tick(self) -> float:
        """Run one round; return the seconds until the next is due."""
        began_ns = self._cpu_clock()
        self._run_task()
        task_ns = self._cpu_clock() - began_ns
        if self._clock() >= self._sources_due_s:
            self._open_waiting()
            self._sample()
        self.cost_ns = self._cpu_clock()
        return pause_s(task_ns, period_s=self._period_s, share=self._share)

    def _run_task(self) -> None:
        if (task := self._task) is None or self._stopping.is_set():
            return
        try:
            task()
        except Exception as error:
            self._task = None
            name = getattr(task, "__qualname__", repr(task))
            self._drop(name, f"{type(error).__name__}: {error}")

    def _open_waiting(self) -> None:
        """Open the sources that are available; one that may be later (CUDA unused yet) stays."""
        from evenstep.host.sources.source import SourceUnavailable

        waiting, self._waiting = self._waiting, []
        for source in waiting:
            if self._stopping.is_set():
                return
            try:
                source.open()
            except SourceUnavailable as reason:
                self._absent[source.name] = str(reason)
                if reason.may_come:
                    self._waiting.append(source)
            except Exception as error:
                self._drop(source.name, f"{type(error).__name__}: {error}")
            else:
                self._absent.pop(source.name, None)
                self._open.append(source)

    def _sample(self) -> None:
        began_ns = self._cpu_clock()
        self._round += 1
        for source in tuple(self._open):
            if self._stopping.is_set():
                return
            self._deliver(self._read(source))
        rest_s = pause_s(self._cpu_clock() - began_ns, period_s=0.0, share=self._share)
        self._sources_due_s = self._clock() + rest_s

    def _read(self, source: Source) -> list[Reading]:
        try:
            return source.read()
        except Exception as error:
            from evenstep.host.sources.source import SourceUnavailable

            self._open.remove(source)
            known = isinstance(error, SourceUnavailable)
            self._drop(source.name, str(error) if known else f"{type(error).__name__}: {error}")
            return []

    def _deliver(self, readings: list[Reading]) -> None:
        for metric, device, value in readings:
            last = self._emitted.get((metric, device))
            if last and last[0] == value and self._round - last[1] < self._repeat_ticks:
                continue
            self._emitted[metric, device] = (value, self._round)
            with self._gate:
                if self._stopping.is_set():
                    return
                self._emit(metric, device, value)

    def _drop(self, name: str, reason: str) -> None:
        self._absent[name] = reason
        log.warning("evenstep: %s is not sampled any more: %s", name, reason)

    def _close(self) -> None:
        for source in self._open:
            try:
                source.close()
            except Exception as error:
                log.debug("evenstep: closing %s: %s", source.name, error)
