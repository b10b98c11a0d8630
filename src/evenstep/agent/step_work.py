"""Process a step that has ended: estimate its wait, write its summary, share it.

Only pacing needs the result before the next step. Otherwise the training thread queues the step and
the background thread processes it.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from evenstep.agent.recording.phases import MOST_EVENTS, Word
from evenstep.agent.recording.recorder import Recorder, give_way
from evenstep.agent.recording.steps import ClosedStep
from evenstep.host.resources import ResourceMeter, resources_used
from evenstep.trace.spool.layout import WINDOW_STEPS

if TYPE_CHECKING:
    from evenstep.agent.exchange.messages import StepRow
    from evenstep.agent.exchange.sharing import Sharing
    from evenstep.agent.pace import PaceHost
    from evenstep.pacing import Decision

#: Steps and events that wait to be processed; beyond it the background thread is dead.
MOST_PENDING = 16_384
CROWDED = MOST_EVENTS // 2  # events; compiled hooks then let Python end the step
FIRST_STEP_NS = 1_000_000_000  # assumed length of a step before the first has ended


class StepWork:
    """The steps of one rank as they end; made on the training thread.

    `at_once`: each step is processed on that thread as it ends, and the delay before the next is
    applied. Otherwise steps are queued for `process_pending`. `make_pace` is called when the first
    is processed: what decides is imported after the start, by the background thread as a rule.
    """

    def __init__(
        self, recorder: Recorder, make_pace: Callable[[], PaceHost], *, rank: int,
        samples_per_step: int | None, at_once: bool,
    ) -> None:  # fmt: skip
        self.at_once = at_once
        self.sharing: Sharing | None = None  # taken back by the background thread
        self.wake: Callable[[], None] = lambda: None  # wakes that thread
        self.processed: Callable[[ClosedStep], None] = lambda _: None  # called with each step
        self.single_steps = False  # whether each window is one step
        #: The step that begins when the running window ends, and when that is expected.
        self._window_end = (0, 0)
        self._recorder = recorder
        self._make_pace = make_pace
        self.made_pace: PaceHost | None = None  # see `pace`
        self._rank = rank
        self._samples_per_step = samples_per_step
        self.meter = ResourceMeter(threading.get_native_id())
        if (fd := self.meter.fd) >= 0:
            file = os.fstat(fd)
            recorder.words[Word.SCHEDULE_DEVICE] = file.st_dev
            recorder.words[Word.SCHEDULE_INODE] = file.st_ino
            recorder.words[Word.SCHEDULE] = fd + 1
        recorder.ended = self._ended
        self._latest: Sequence[int] = self.meter.now()  # at the end of the latest step
        self._pending: deque[ClosedStep] = deque()  # ended, not processed yet
        self._newest: ClosedStep | None = None
        self._working = threading.RLock()  # reentrant: a signal handler may end a step
        self._rows: deque[StepRow] = deque(maxlen=WINDOW_STEPS)
        self._decision: Decision | None = None
        self._last: ClosedStep | None = None  # the last processed one
        # The latest begun step whose first collective was seen, and the time before that.
        self._entered = (-1, 0)
        self._first_ns = 0  # from the beginning of that step to the end of the collective

    @property
    def pace(self) -> PaceHost:
        """The pacer's host; for any thread."""
        with self._working:
            if self.made_pace is None:
                self.made_pace = self._make_pace()
            return self.made_pace

    def kill_pacer(self) -> None:
        """Pace no more; also in a forked child, so without a lock."""
        if self.made_pace is not None:
            self.made_pace.pacer.kill()

    @property
    def step_ns(self) -> int:
        """Length of the last processed step; a second before there is one."""
        rows = self._rows
        return rows[-1].step_ns if rows else FIRST_STEP_NS

    @property
    def window_due_ns(self) -> int:
        """When the running window should have ended (ns); 0 where nobody shares windows yet."""
        return self._window_end[1]

    @property
    def window_over(self) -> bool:
        """Whether it has ended, or should have; or too many events wait for its end."""
        number, due_ns = self._window_end
        over = self._recorder.step >= number or self._recorder.behind >= CROWDED
        return over or time.monotonic_ns() >= due_ns

    @property
    def waited_ns(self) -> int:
        """Mean wait of the latest processed steps, of those where it is known."""
        known = [row.wait_ns for row in tuple(self._rows) if row.wait_ns is not None]
        return sum(known) // max(len(known), 1)

    def durations(self) -> tuple[int, ...]:
        """Lengths of the latest processed steps; for any thread."""
        return tuple(row.step_ns for row in tuple(self._rows))

    def end(self, now_ns: int) -> int:
        """End a step and return the next one's number. May sleep when pacing."""
        recorder = self._recorder
        held_ns, recorder.held_ns = recorder.held_ns, 0
        ended = recorder.begin_step(now_ns, held_ns, self.meter)
        recorder.note((self._ended, now_ns, held_ns, *ended))
        if self.single_steps:
            self.wake()
        step = ended[0]
        if self.at_once:
            self.process_pending()
            if self._decision is not None:
                self.pace.hold(self._decision, step)
        return step

    def relieve(self) -> None:
        """Process the steps that wait if there are too many, or have them processed before the
        training thread finds no room for its events; on that thread."""
        if len(self._pending) + self._recorder.behind >= MOST_PENDING:
            self.process_pending()
        elif self._recorder.behind >= CROWDED:
            self.wake()

    def _ended(
        self, now_ns: int, held_ns: int, _: int, seq: int | None, at: Sequence[int],
        events: int, own_ns: int, spent: Sequence[int], upto: int = 0,
    ) -> None:  # fmt: skip
        """Queue a step at whose end the kernel's counters stood `at`, our costs at `spent`."""
        closed = self._newest = self._recorder.end_step(now_ns, held_ns, upto, seq)
        closed.events, closed.own_ns, closed.spent = events, own_ns, spent
        closed.used, self._latest, closed.counters = resources_used(self._latest, at), at, at
        self._pending.append(closed)

    def newest_step(self) -> ClosedStep | None:
        """The latest step with the fields that actions need: pauses, time without a core."""
        self._recorder.catch_up()
        closed = self._newest
        if closed is not None and not closed.counted:
            closed.pauses = self._recorder.pauses_since(closed.start_ns)
        return closed

    def end_past(self, end_ns: int, counters: Sequence[int], upto: int) -> None:
        """Close a step that ended in the past, at `end_ns`, with record `upto` as its last."""
        self._recorder.catch_up()
        self._ended(end_ns, 0, 0, None, counters, 0, 0, self._recorder.spent(), upto)
        if self.single_steps:
            self.wake()

    def process_pending(self) -> None:
        """Estimate, decide, summarize and share the steps that have ended."""
        turn_ns = self._recorder.catch_up()
        with self._working:
            while self._pending:
                self._process(self._pending.popleft())
                turn_ns = give_way(turn_ns)

    def share_begun_step(self) -> int:
        """Where windows are single steps, share one that ends with the open step's first collective
        and begins at that of the step before. Off the training thread.

        Return when the collective is expected (ns), 0 where none is awaited.
        """
        last, sharing, spool = self._last, self.sharing, self._recorder.spool
        if last is None or sharing is None or self.at_once or not self.single_steps:
            return 0
        if (number := last.number + 1) == self._entered[0]:
            return 0
        first = next(iter(self._recorder.issued(last.upto, spool.last_number())), None)
        enter_ns, exit_ns = (first and spool.times(first[0])) or (0, 0)
        if not exit_ns or self._recorder.step != number:
            return last.end_ns + self._first_ns
        self._first_ns = exit_ns - last.end_ns
        lasted_ns = enter_ns - last.end_ns
        before, self._entered = self._entered, (number, lasted_ns)
        if before[0] == last.number:
            step_ns = self._rows[-1].step_ns + lasted_ns - before[1]
            work_ns = max(self._rows[-1].work_ns + lasted_ns - before[1], 0)
            from evenstep.agent.exchange.messages import summarize

            made = {"step_ns": step_ns, "work_ns": work_ns, "wait_ns": exit_ns - enter_ns}
            row = self._rows[-1]._replace(**made, delay_ns=0, entry_ns=0, first=None)
            sharing.post(summarize([row], rank=self._rank, end=number + 1, begun=1))
        return 0

    def _process(self, closed: ClosedStep) -> None:
        recorder, sharing = self._recorder, self.sharing
        if self._samples_per_step is not None:
            closed.samples = self._samples_per_step
        recorder.settle(closed)
        row, _, self._decision = decided = self.pace.after_step(closed)
        if decided[2].plan is not None and sharing is not None:
            sharing.publish(decided[2].plan)
        recorder.store_summary(closed)
        self.processed(closed)
        self._rows.append(row)
        self._last = closed
        if sharing is not None:
            self._share(closed, sharing)
        if not self.at_once:
            self.pace.hold(self._decision, closed.number + 1)

    def _share(self, closed: ClosedStep, sharing: Sharing) -> None:
        """Share the window that ends with a step, if one does."""
        rows, end = list(self._rows), closed.number + 1
        usual_ns = sum(row.step_ns for row in rows) // len(rows)  # of short and long ones in turn
        steps = sharing.window_steps(usual_ns)
        self.single_steps = steps == 1
        if self.single_steps:  # the end of each wakes this thread
            self._recorder.words[Word.ATTENDED] = 0
        left = steps - end % steps
        self._window_end = (end + left, closed.end_ns + left * usual_ns + usual_ns // 2)
        if end % steps == 0:
            from evenstep.agent.exchange.messages import summarize

            sharing.post(summarize(rows[-steps:], rank=self._rank, end=end))
