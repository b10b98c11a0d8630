"""What is done with a step that has ended: its wait estimated, its summary written, it shared.

Only pacing needs its answer before the next step. Otherwise steps are worked through a few at a
time: code that runs once in tens of milliseconds runs from a cold cache, at several times its cost.
"""

from __future__ import annotations

import threading
import time
from collections import deque

from evenstep.agent.pace import PaceHost
from evenstep.agent.recorder import Recorder
from evenstep.agent.sharing import Sharing
from evenstep.agent.steps import ClosedStep
from evenstep.agent.windows import WINDOW_STEPS, StepRow, summarize
from evenstep.host.resources import Lap, ResourceMeter, RunDelay
from evenstep.pacing import Decision, Reason

PENDING_STEPS = 8  # at most so many wait to be worked through …
PENDING_NS = 1_000_000_000  # … and none for longer than this and a step


class StepWork:
    """The steps of one rank as they end, on the training thread that it was made on.

    `at_once`: each is worked through, and the decision on the next carried out, when it ends.
    """

    def __init__(
        self,
        recorder: Recorder,
        pace: PaceHost,
        *,
        rank: int,
        samples_per_step: int | None,
        at_once: bool,
    ) -> None:
        self.at_once = at_once
        self.sharing: Sharing | None = None  # taken back by the background thread
        self._recorder = recorder
        self._pace = pace
        self._rank = rank
        self._samples_per_step = samples_per_step
        self._meter = ResourceMeter()
        self._run_delay = RunDelay(threading.get_native_id())
        self._pending: list[ClosedStep] = []  # ended, not worked through yet
        self._rows: deque[StepRow] = deque(maxlen=WINDOW_STEPS)
        self._decision = Decision(0, "none", Reason.LEARNING)
        self._cost_ns = 0  # of what was done at the end of the step before
        self._floor_ns = 0  # of the step's first collective, as last known

    @property
    def step_ns(self) -> int:
        """How long the newest step that was worked through took; a second before there is one."""
        rows = self._rows
        return rows[-1].step_ns if rows else PENDING_NS

    def durations(self) -> tuple[int, ...]:
        """How long the latest steps took; for any thread."""
        return tuple(row.step_ns for row in tuple(self._rows))

    def end(self, now_ns: int) -> ClosedStep:
        """The marking optimizer has finished. May sleep when pacing."""
        closed = self._closed(now_ns, self.lap(), self._pace.take_held())
        closed.counted["agent_ns"] += self._cost_ns
        pending = self._pending
        oldest_ns = pending[0].end_ns
        if self.at_once or len(pending) >= PENDING_STEPS or now_ns - oldest_ns > PENDING_NS:
            self.through()
        self._cost_ns = time.monotonic_ns() - now_ns
        if self.at_once:
            self._pace.hold(self._decision, closed.number + 1)
        return closed

    def end_past(self, end_ns: int, used: tuple[Lap, int]) -> None:
        """Close a step of which it is known only now that it ended then; `used` is its `lap`."""
        closed = self._closed(end_ns, used, held_ns=0)
        closed.realtime_ns -= time.monotonic_ns() - end_ns

    def lap(self) -> tuple[Lap, int]:
        """What was used since the last lap, and for how long the thread had no core (ns)."""
        return self._meter.lap(), self._run_delay.lap() or 0

    def close(self) -> None:
        """Let go of what the kernel is asked through."""
        self._run_delay.close()

    def _closed(self, end_ns: int, used: tuple[Lap, int], held_ns: int) -> ClosedStep:
        lap, run_delay_ns = used
        if self._samples_per_step is not None:
            self._recorder.clock.samples = self._samples_per_step
        usage = (lap[0], lap[3], lap[4], lap[1], lap[2])
        closed = self._recorder.end_step(end_ns, usage, held_ns, run_delay_ns)
        self._pending.append(closed)
        return closed

    def through(self) -> None:
        """Estimate, decide, summarize and share the steps that ended since the last time."""
        pending, self._pending = self._pending, []
        sharing = self.sharing
        each = self._recorder.cost.median_ns or 0
        for closed in pending:
            row, wait, self._decision = self._pace.after_step(closed)
            if self._decision.plan is not None and sharing is not None:
                sharing.publish(self._decision.plan)
            self._floor_ns = wait.floor_lower_ns or self._floor_ns
            closed.counted["agent_ns"] += each * len(closed.collectives)
            self._recorder.store_summary(closed)
            self._rows.append(row)
            if (closed.number + 1) % WINDOW_STEPS == 0 and sharing is not None:
                self._post(closed.number // WINDOW_STEPS, sharing)
            if not self.at_once:
                self._pace.hold(self._decision, closed.number + 1)

    def _post(self, window: int, sharing: Sharing) -> None:
        report = summarize(
            list(self._rows),
            rank=self._rank,
            window=window,
            loss_ns=self._pace.pacer.account.booked_ns,
            floor_ns=self._floor_ns,
        )
        sharing.post(report)
