"""What a rank records: the hooks call it, it writes the spool and keeps the running step.

Everything here runs on the job's own threads. It takes no lock, starts nothing, and reads the
clock once per event. The collector's callbacks may fire inside any of these methods.
"""

from __future__ import annotations

import struct
import threading
from collections import deque
from itertools import count
from time import monotonic_ns, thread_time_ns, time_ns
from typing import TYPE_CHECKING

from evenstep.agent.recording.entries import GroupState, collective_recorder
from evenstep.agent.recording.phases import Compiled, PhaseStack, Word
from evenstep.agent.recording.steps import ClosedStep, StepClock, StepCollective
from evenstep.trace.spool.layout import (
    HOST_DEVICE,
    RECORD_WORDS,
    WORD_BYTES_IN,
    WORD_BYTES_OUT,
    WORD_GROUP_SEQ,
    WORD_KIND,
    WORD_PARENT,
    Flag,
    Kind,
    Phase,
)
from evenstep.trace.spool.spool import Spool
from evenstep.trace.spool.summary import COUNTERS, StepSummary, SummaryLog

if TYPE_CHECKING:
    from evenstep.host.resources import ResourceCounters, ResourceUse

#: Collectives of one step kept for the online wait estimate; beyond it the step's first ones count.
STEP_COLLECTIVES = 4096

_COLLECTIVE = int(Kind.COLLECTIVE)
_POINT_TO_POINT = int(Kind.POINT_TO_POINT)
_PAUSE, _STEP, _SPAN = int(Kind.PAUSE), int(Kind.STEP), int(Kind.SPAN)
_SAMPLE, _MARKER = int(Kind.SAMPLE), int(Kind.MARKER)
_HOST_BLOCKED = int(Flag.HOST_BLOCKED)
_SYNC, _LAST_ENTRY = int(Phase.SYNC), int(Word.LAST_ENTRY)

SHORTEST_WAIT_NS = 20_000
LONGEST_NAME = 200  # characters of a script's own: one table holds all names, groups and facts
COST_SAMPLE = 16  # one collective in so many has its own cost measured …
EVENT_SAMPLE = 13  # … one in so many of what marks phases and waits …
END_SAMPLE = 5  # … and of the ends of steps
COST_WINDOW = 64  # samples the mean is taken of
FORGOTTEN_NS = 1_000_000  # after so long without a call of ours, caches have forgotten us

_get_ident = threading.get_ident
_NOTHING = dict.fromkeys(COUNTERS, 0)


class OwnCost:
    """What calls of ours cost the threads that make them, from the thread time of one in a few.

    A mean of the latest samples: thread time stands still while the thread has no core, so nothing
    in it is not ours. `hot_ns` and `cold_ns` are what being called at all costs, which no clock of
    ours can see from inside: where calls come in a row, and where each finds caches cold.
    """

    def __init__(self, every: int) -> None:
        self.hot_ns = self.cold_ns = 0.0
        self._every = every  # calls, of which one is sampled: coprime to what comes in turn
        self._calls = count().__next__
        self._samples: deque[float] = deque(maxlen=COST_WINDOW)

    def began(self) -> int:
        """A call of ours begins: the thread's time if it is to be sampled, else 0."""
        return 0 if self._calls() % self._every else thread_time_ns()

    def add(self, sample_ns: float) -> None:
        """Take a sample, or the mean of several."""
        self._samples.append(sample_ns)

    def mechanism(self, hot_ns: float, cold_ns: float) -> None:
        """What being called costs."""
        self.hot_ns, self.cold_ns = hot_ns, cold_ns

    @property
    def each_ns(self) -> int | None:
        """Cost of a call in ns, as of late, where caches are cold; None before the first sample."""
        return self.of(1, FORGOTTEN_NS) if self._samples else None

    def of(self, calls: int, lasted_ns: int) -> int:
        """Cost in ns of so many calls in such a time."""
        if not (calls and self._samples):
            return 0
        called_ns = self.cold_ns if lasted_ns >= FORGOTTEN_NS * calls else self.hot_ns
        return round(calls * (called_ns + sum(self._samples) / len(self._samples)))


class Recorder:
    """Writes one rank's spool. `clock` belongs to the training thread, `ident` says which it is."""

    def __init__(self, spool: Spool, compiled: Compiled | None = None) -> None:
        now = monotonic_ns()
        self.spool = spool
        self.stack = PhaseStack(spool, None if compiled is None else compiled.words)
        self.words = self.stack.words
        self.clock = StepClock(self.stack, now)
        self.ident = self.words[Word.TRAINING] = _get_ident()
        self.summaries = SummaryLog(spool.summary_view(), spool.regions.summary_capacity)
        self.after = 0  # the last record of the step before the running one
        self.step_flags = 0  # of the records of steps that end from now on
        #: of the collector, in order; each goes to the step in which it began
        self.pauses: deque[tuple[int, int]] = deque(maxlen=STEP_COLLECTIVES)
        self.cost = OwnCost(COST_SAMPLE)  # of a collective
        self.event_cost = OwnCost(EVENT_SAMPLE)  # of an event on the training thread
        self.end_cost = OwnCost(END_SAMPLE)  # of ending a step
        self.events = 0  # of the running step
        self.own_ns = 0  # of the thread's time in it that our probe took
        self.blocking: dict[int, int] = {}  # thread -> its last collective that blocks the caller
        self._threads: dict[int, int] = {self.ident: 0}
        self._compiled = compiled
        self._put = spool.put
        self.collective = collective_recorder(
            spool.slots, self.clock, training=self.ident, thread_of=self.thread, blocks=self._blocks
        )

    # -- collectives -----------------------------------------------------------------------------

    def thread(self, ident: int) -> int:
        """Our number of the calling thread, which is `ident`: 0 is the training thread."""
        if self._compiled is not None:
            return self._compiled.thread()
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
        thread = self.thread(_get_ident())
        return self._put(
            enter_ns, 0, _POINT_TO_POINT, op, stack.step, stack.parent, group.index, order,
            nbytes, nbytes, flags, peer, dtype, 0, thread, 0, 0, tag & 0xFFFFFFFF, 0, device,
        )  # fmt: skip

    def _blocks(self, ident: int, seq: int, enter_ns: int) -> None:
        """A call that blocks: what this thread was in before has ended, where nobody saw it."""
        left = self.blocking.get(ident)
        if left is not None:
            self.spool.close(left, enter_ns)
        self.blocking[ident] = seq

    def host_waited(self, enter_ns: int, exit_ns: int, *, ident: int) -> None:
        """A thread was blocked in `Work.wait`. Its own blocking collective ends with it."""
        seq = self.blocking.pop(ident, 0)
        if not seq and exit_ns - enter_ns < SHORTEST_WAIT_NS:  # what it waited for had ended
            if ident == self.ident:
                self.words[_LAST_ENTRY] = 0
            return
        if seq:
            self.spool.add_flags(seq, _HOST_BLOCKED)
            self.spool.close(seq, exit_ns)
        if ident == self.ident:
            times = self.spool.times(seq) if seq else None
            account = self.stack.count if seq else self.stack.add  # its record shows it, or not
            account(_SYNC, times[0] if times else enter_ns, exit_ns)
            self.words[_LAST_ENTRY] = 0

    def issued(self, after: int, upto: int) -> list[StepCollective]:
        """Collectives among the records after one and up to another, as far as the ring has them.

        In order of entry; each as (record, group, op, bytes, flags).
        """
        words, capacity = self.spool.words, self.spool.regions.ring_capacity
        found: list[StepCollective] = []
        for seq in range(max(after, upto - capacity) + 1, upto + 1):
            base = (seq - 1) % capacity * RECORD_WORDS
            last = words[base + 12]  # peer or root, device, kind, operation
            if last >> 48 & 0xFF == _COLLECTIVE and words[base] == seq:
                group, flags = words[base + 9] >> 32, words[base + 11] >> 48
                found.append((seq, group, last >> 56, words[base + 7], flags))
        return found

    # -- the rest --------------------------------------------------------------------------------

    def pause(self, enter_ns: int, exit_ns: int, generation: int, collected: int) -> None:
        """The collector stopped this process. May be called from anywhere, at any time."""
        self._put(
            enter_ns, exit_ns, _PAUSE, generation, self.stack.step, self.stack.parent,
            payload=collected & 0xFFFFFFFF,
        )  # fmt: skip
        self.pauses.append((enter_ns, exit_ns))

    def span_begins(self, name: str) -> int:
        """A user's span; returns its record for `spool.close`."""
        stack = self.stack
        thread = self.thread(_get_ident())
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
        self, now_ns: int, standing: ResourceCounters, held_ns: int = 0, upto: int = 0
    ) -> ClosedStep:
        """Close the step: its record now, all that can wait when it is settled.

        `standing` is where the kernel's counters are, `held_ns` the pacing delay spent inside, and
        `upto` its last record, where it is known only later that it ended; else the newest.
        """
        closed = self.clock.end_step(now_ns)
        closed.seq = seq = self._put(
            closed.start_ns, now_ns, _STEP, 0, closed.number, peer=0, held_ns=held_ns,
            payload=min(closed.samples, 0xFFFFFFFF), flags=self.step_flags,
        )  # fmt: skip
        closed.after, closed.upto = self.after, upto or seq
        self.after = closed.upto
        closed.held_ns, closed.standing = held_ns, standing
        closed.events, self.events = self.events, 0
        closed.own_ns, self.own_ns = self.own_ns, 0
        return closed

    def settle(self, closed: ClosedStep, used: ResourceUse) -> None:
        """Tell the rest of a step, in the order in which they ended; its record, too, learns it.

        Of its collectives the first `STEP_COLLECTIVES` are entered one by one.
        """
        found = self.issued(closed.after, closed.upto)
        pauses = []
        while self.pauses and self.pauses[0][0] <= closed.end_ns:
            pauses.append(self.pauses.popleft())
        counted = closed.counted = _NOTHING | {
            "pause_ns": sum(end - start for start, end in pauses),
            "pauses": len(pauses),
            "cpu_ns": used.cpu_ns,
            "minor_faults": used.minor_faults,
            "major_faults": used.major_faults,
            "held_ns": closed.held_ns,
            "involuntary_switches": used.involuntary_switches,
            "voluntary_switches": used.voluntary_switches,
            "samples": closed.samples,
            "collectives": len(found),
            "bytes": sum(seen[3] for seen in found),
        }
        lasted_ns = closed.end_ns - closed.start_ns
        counted["agent_ns"] = (
            closed.own_ns
            + self.event_cost.of(closed.events, 0)
            + self.end_cost.of(1, 0)
            + self.cost.of(len(found), lasted_ns)
        )
        closed.collectives, closed.pauses = found[:STEP_COLLECTIVES], pauses
        closed.run_delay_ns = used.run_delay_ns
        self._tell(closed.seq, used)

    def _tell(self, seq: int, used: ResourceUse) -> None:
        """Write what a step used into its record, where the ring still has it."""
        words, base = self.spool.words, self.spool.word_of(seq)
        if words[base] == seq:
            words[base + WORD_GROUP_SEQ] = used.cpu_ns
            words[base + WORD_BYTES_IN] = max(used.minor_faults, 0)
            words[base + WORD_BYTES_OUT] = max(used.major_faults, 0)
            words[base + WORD_PARENT] |= min(used.run_delay_ns // 1000, 0xFFFFFFFF)
            words[base + WORD_KIND] |= min(max(used.involuntary_switches, 0), 0x7FFFFFFF)

    def store_summary(self, closed: ClosedStep) -> None:
        """Write a settled step's summary."""
        counted = closed.counted
        self.summaries.append(
            StepSummary(
                closed.number,
                closed.number,
                closed.start_ns,
                closed.end_ns,
                closed.end_ns + time_ns() - monotonic_ns(),
                closed.phase_ns,
                [max(counted[name], 0) for name in COUNTERS],
            )
        )
