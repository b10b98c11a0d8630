"""What a rank records: the hooks call it, it writes the spool and keeps the running step.

Everything here runs on the job's own threads. It takes no lock, starts nothing, and reads the
clock once per event. The collector's callbacks may fire inside any of these methods.
"""

from __future__ import annotations

import struct
import threading
from collections import deque
from time import monotonic_ns, time_ns

from evenstep.agent.entries import STEP_COLLECTIVES, GroupState, collective_recorder
from evenstep.agent.phases import PhaseStack
from evenstep.agent.steps import ClosedStep, StepClock, StepCollective
from evenstep.trace.spool.layout import HOST_DEVICE, Flag, Kind
from evenstep.trace.spool.spool import Spool
from evenstep.trace.spool.summary import COUNTERS, StepSummary, SummaryLog

_POINT_TO_POINT = int(Kind.POINT_TO_POINT)
_PAUSE, _STEP, _SPAN = int(Kind.PAUSE), int(Kind.STEP), int(Kind.SPAN)
_SAMPLE, _MARKER = int(Kind.SAMPLE), int(Kind.MARKER)
_HOST_BLOCKED = int(Flag.HOST_BLOCKED)

SHORTEST_WAIT_NS = 20_000
LONGEST_NAME = 200  # characters of a script's own: one table holds all names, groups and facts
COST_SAMPLE = 16  # one collective in so many has its own cost measured
COST_WINDOW = 255  # samples the median is taken of
COST_RENEWAL = 16  # samples after which it is taken anew

_get_ident = threading.get_ident
_NOTHING = dict.fromkeys(COUNTERS, 0)


class OwnCost:
    """What one collective costs us on the thread that issues it, from one in `COST_SAMPLE`.

    The median of the latest samples: a sample during which the thread lost its core says nothing
    about our code.
    """

    def __init__(self) -> None:
        self._samples: deque[int] = deque(maxlen=COST_WINDOW)
        self._fresh = 0
        self._median_ns = 0

    def add(self, sample_ns: int) -> None:
        """Take a sample."""
        self._samples.append(sample_ns)
        self._fresh += 1

    @property
    def median_ns(self) -> int | None:
        """Cost of a collective in ns; None before the first sample. Renewed every few samples."""
        if not self._samples:
            return None
        if self._fresh >= COST_RENEWAL or not self._median_ns:
            self._fresh = 0
            self._median_ns = sorted(self._samples)[len(self._samples) // 2]
        return self._median_ns


class Recorder:
    """Writes one rank's spool. `clock` belongs to the training thread, `ident` says which it is."""

    def __init__(self, spool: Spool) -> None:
        now = monotonic_ns()
        self.spool = spool
        self.stack = PhaseStack(spool)
        self.clock = StepClock(self.stack, now)
        self.ident = _get_ident()
        self.summaries = SummaryLog(spool.summary_view(), spool.regions.summary_capacity)
        self.collectives: list[StepCollective] = []
        self.pauses: list[tuple[int, int]] = []
        self.counted = _NOTHING.copy()
        self.cost = OwnCost()
        self.blocking: dict[int, int] = {}  # thread -> its last collective that blocks the caller
        self._threads: dict[int, int] = {self.ident: 0}
        self._put = spool.put
        self.collective = collective_recorder(self)

    # -- collectives -----------------------------------------------------------------------------

    def thread(self, ident: int) -> int:
        """Our number of a thread: 0 is the training thread."""
        known = self._threads.get(ident)
        if known is None:
            known = self._threads[ident] = min(len(self._threads), 0xFFFF)
        return known

    def point_to_point(
        self,
        enter_ns: int,
        group: GroupState,
        op: int,
        nbytes: int,
        flags: int,
        peer: int,
        dtype: int,
        order: int,
        tag: int,
        device: int = HOST_DEVICE,
    ) -> int:
        """A send or receive is issued; `order` is its number among those of its pair and tag."""
        stack = self.stack
        thread = self._threads.get(_get_ident(), 0)
        return self._put(
            enter_ns, 0, _POINT_TO_POINT, op, stack.step, stack.parent, group.index, order,
            nbytes, nbytes, flags, peer, dtype, 0, thread, 0, 0, tag & 0xFFFFFFFF, 0, device,
        )  # fmt: skip

    def host_waited(self, enter_ns: int, exit_ns: int, *, ident: int) -> None:
        """A thread was blocked in `Work.wait`. Its own blocking collective ends with it."""
        seq = self.blocking.pop(ident, 0)
        if not seq and exit_ns - enter_ns < SHORTEST_WAIT_NS:  # what it waited for had ended
            if ident == self.ident:
                self.clock.last_entry_ns = 0
            return
        if seq:
            self.spool.add_flags(seq, _HOST_BLOCKED)
            self.spool.close(seq, exit_ns)
        if ident == self.ident:
            times = self.spool.times(seq) if seq else None
            self.clock.blocked(times[0] if times else enter_ns, exit_ns, record=not seq)

    # -- the rest --------------------------------------------------------------------------------

    def pause(self, enter_ns: int, exit_ns: int, generation: int, collected: int) -> None:
        """The collector stopped this process. May be called from anywhere, at any time."""
        self._put(
            enter_ns, exit_ns, _PAUSE, generation, self.stack.step, self.stack.parent,
            payload=collected & 0xFFFFFFFF,
        )  # fmt: skip
        self.counted["pause_ns"] += exit_ns - enter_ns
        self.counted["pauses"] += 1
        if len(self.pauses) < STEP_COLLECTIVES:
            self.pauses.append((enter_ns, exit_ns))

    def span_begins(self, name: str) -> int:
        """A user's span; returns its record for `spool.close`."""
        stack = self.stack
        thread = self._threads.get(_get_ident(), 0)
        return self._put(
            monotonic_ns(), 0, _SPAN, 0, stack.step, stack.parent,
            thread=thread, name=self.spool.name_id(name[:LONGEST_NAME]),
        )  # fmt: skip

    def sample(self, metric: str, device: int, value: float) -> None:
        """A measurement of the host or a device."""
        self._value(_SAMPLE, metric, value, device)

    def marker(self, name: str, value: float) -> None:
        """A number the user logs for this step (loss, gradient norm)."""
        self._value(_MARKER, name, value, -1)

    def _value(self, kind: int, name: str, value: float, device: int) -> None:
        now = monotonic_ns()
        bits = struct.unpack("<Q", struct.pack("<d", value))[0]
        self._put(
            now, now, kind, 0, self.stack.step, 0, bytes_in=bits,
            name=self.spool.name_id(name[:LONGEST_NAME]), device=device,
        )  # fmt: skip

    # -- steps -----------------------------------------------------------------------------------

    def end_step(
        self, now_ns: int, resources: tuple[int, ...], held_ns: int, run_delay_ns: int = 0
    ) -> ClosedStep:
        """Close the step: its record now, its summary once `store_summary` is called.

        `resources` are the step's (cpu_ns, minor faults, major faults, involuntary switches,
        voluntary switches); `held_ns` the pacing delay spent inside it; `run_delay_ns` how long
        the training thread was without a core though ready.
        """
        closed = self.clock.end_step(now_ns)
        cpu_ns, minor, major, involuntary, voluntary = resources
        self._put(
            closed.start_ns, now_ns, _STEP, 0, closed.number, run_delay_ns // 1000, 0, cpu_ns,
            minor, major,
            peer=min(involuntary, 0x7FFFFFFF), payload=min(closed.samples, 0xFFFFFFFF),
            held_ns=held_ns,
        )  # fmt: skip
        counted, self.counted = self.counted, _NOTHING.copy()
        counted.update(
            cpu_ns=cpu_ns, minor_faults=minor, major_faults=major, held_ns=held_ns,
            involuntary_switches=involuntary, voluntary_switches=voluntary,
            samples=closed.samples,
        )  # fmt: skip
        closed.realtime_ns, closed.held_ns, closed.run_delay_ns = time_ns(), held_ns, run_delay_ns
        closed.counted = counted
        closed.collectives, self.collectives = self.collectives, []
        closed.pauses, self.pauses = self.pauses, []
        return closed

    def store_summary(self, closed: ClosedStep) -> None:
        """Write a step's summary."""
        counted = closed.counted
        counted["collectives"] += len(closed.collectives)
        counted["bytes"] += sum(seen[3] for seen in closed.collectives)
        self.summaries.append(
            StepSummary(
                closed.number,
                closed.number,
                closed.start_ns,
                closed.end_ns,
                closed.realtime_ns,
                closed.phase_ns,
                [max(counted[name], 0) for name in COUNTERS],
            )
        )
