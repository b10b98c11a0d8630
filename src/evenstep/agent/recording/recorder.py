"""What a rank records: the hooks call it, it writes the spool and keeps the running step.

What runs on the job's own threads takes no lock, starts nothing, and reads the clock once per
event. The collector's callbacks may fire inside any of these methods.

What an event of the training thread means for the step's account can wait, and costs many times
what noting it does (every line of Python is fetched into cold caches). So where compiled kernels
record (`defer`), hooks note events, and whoever asks for the account first has them told, in order.
"""

from __future__ import annotations

import struct
import threading
from collections import deque
from collections.abc import Callable
from itertools import count
from sys import getswitchinterval
from time import monotonic_ns, sleep, thread_time_ns, time_ns
from typing import TYPE_CHECKING, Any

from evenstep.agent.recording.entries import GroupState, collective_recorder
from evenstep.agent.recording.phases import MOST_WAITS, Compiled, PhaseStack, Word
from evenstep.agent.recording.steps import ClosedStep, StepClock, StepCollective
from evenstep.trace.spool.layout import (
    HOST_DEVICE,
    RECORD_WORDS,
    WORD_BYTES_IN,
    WORD_BYTES_OUT,
    WORD_ENTER,
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
_STEP_WORD, _BEGAN = int(Word.STEP), int(Word.BEGAN)
_WAITS, _PAIRS = int(Word.WAITS), int(Word.WAIT_PAIRS)
_IN_PHASES = (_COLLECTIVE, _POINT_TO_POINT, _PAUSE, _SPAN)  # records that lie in one

SHORTEST_WAIT_NS = 20_000
LONGEST_NAME = 200  # characters of a script's own: one table holds all names, groups and facts
COST_SAMPLE = 16  # one collective in so many has its own cost measured …
STEP_SAMPLE = 5  # … and in one step of so many what marks its phases, waits, and ends it
COST_WINDOW = 64  # samples the mean is taken of
FORGOTTEN_NS = 5_000_000  # after so long without a call of ours, caches have forgotten us

_get_ident = threading.get_ident
_NOTHING = dict.fromkeys(COUNTERS, 0)


def _reading_ns() -> int:
    """What it costs to read the thread's clock: so much of an interval is not what it measures."""
    return min(-thread_time_ns() + thread_time_ns() for _ in range(32))


READING_NS = _reading_ns()


class OwnCost:
    """What calls of ours cost the threads that make them, from the thread time of one in a few.

    A mean of the latest samples: thread time stands still while the thread has no core, so nothing
    in it is not ours. `hot_ns` and `cold_ns` are what being called at all costs, which no clock of
    ours can see from inside: where calls come in a row, and where each finds caches cold; between
    the two it is told from the time between calls.
    """

    def __init__(self, every: int = 1) -> None:
        self.hot_ns = self.cold_ns = 0.0
        self._every = every  # calls, of which one is sampled: coprime to what comes in turn
        self._calls = count().__next__
        self._samples: deque[float] = deque(maxlen=COST_WINDOW)

    def began(self) -> int:
        """A call of ours begins: the thread's time if it is to be sampled, else 0."""
        return 0 if self._calls() % self._every else thread_time_ns()

    def add(self, sample_ns: float, *, readings: int = 0) -> None:
        """Take a sample, or the mean of several: of so many intervals, each between two readings of
        the clock."""
        self._samples.append(max(sample_ns - readings * READING_NS, 0))

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
        forgotten = min(lasted_ns / (FORGOTTEN_NS * calls), 1.0)  # as far as anybody knows
        called_ns = self.hot_ns + forgotten * max(self.cold_ns - self.hot_ns, 0.0)
        return round(calls * (called_ns + sum(self._samples) / len(self._samples)))


def give_way() -> bool:
    """Let the training thread have the interpreter; whether doing so again helps it.

    It does not where another thread computes: each turn of ours then costs whoever waits for the
    lock behind us up to a switch interval, so that all that is left had better take one turn.
    """
    began_ns = monotonic_ns()
    sleep(0)
    return monotonic_ns() - began_ns < getswitchinterval() * 1e9


#: What an event means, and what that is told: `tell(*given)`.
Event = tuple[Any, ...]


class Recorder:
    """Writes one rank's spool. `ident` says which thread trains.

    The account (`clock`, `stack`) is the training thread's to change, and whoever else looks at it
    has the events told first that were noted. `note` takes one: at once, or for later.
    """

    def __init__(self, spool: Spool, compiled: Compiled | None = None) -> None:
        now = monotonic_ns()
        self.spool = spool
        self._stack = PhaseStack(spool, None if compiled is None else compiled.words)
        self.words = self._stack.words
        self._clock = StepClock(self._stack, now)
        self.manual = False  # evenstep.step() or a framework's callback marks the steps
        self.note: Callable[[Event], None] = self._tell
        self._noted: deque[Event] = deque()
        self._telling = threading.RLock()  # a script's handler may interrupt who tells, and ask
        self.ident = self.words[Word.TRAINING] = _get_ident()
        self.words[_BEGAN] = now
        self.summaries = SummaryLog(spool.summary_view(), spool.regions.summary_capacity)
        self.after = 0  # the last record of the step before the running one
        self.step_flags = 0  # of the records of steps that end from now on
        #: of the collector, in order; each goes to the step in which it began
        self.pauses: deque[tuple[int, int]] = deque(maxlen=STEP_COLLECTIVES)
        self.cost = OwnCost(COST_SAMPLE)  # of a collective
        self.event_cost = OwnCost()  # of an event on the training thread
        self.end_cost = OwnCost()  # of ending a step
        self.events = 0  # of the running step
        self.sampled = True  # whether what it costs us is measured
        self.own_ns = 0  # of the thread's time in it that our probe took
        self.blocking: dict[int, int] = {}  # thread -> its last collective that blocks the caller
        self._threads: dict[int, int] = {self.ident: 0}
        self._compiled = compiled
        self.rest = None if compiled is None else compiled.rest  # of who beats
        self._put = spool.put
        self.collective = collective_recorder(
            spool.slots, self._clock, training=self.ident, thread_of=self.thread,
            blocks=self._blocks,
        )  # fmt: skip

    # -- the account -----------------------------------------------------------------------------

    @property
    def clock(self) -> StepClock:
        """What the events so far mean."""
        self.catch_up()
        return self._clock

    @property
    def stack(self) -> PhaseStack:
        """The phases that are open, after all events so far."""
        self.catch_up()
        return self._stack

    @property
    def step(self) -> int:
        """The step that is open on the training thread, whatever has been told of it."""
        return self.words[_STEP_WORD]

    @property
    def began_ns(self) -> int:
        """When that step began."""
        return self.words[_BEGAN]

    @property
    def behind(self) -> int:
        """Events that are noted and not told."""
        return len(self._noted)

    def defer(self, *, later: bool) -> None:
        """Have events told `later`, by whoever asks for the account, or as they come."""
        self.catch_up()
        self._stack.behind = later
        self.note = self._noted.append if later else self._tell

    def catch_up(self) -> bool:
        """Tell what was noted. Off the training thread, let that one go first between two.

        Whether doing so helps it.
        """
        polite = _get_ident() != self.ident
        if not self._stack.behind:
            return polite
        if not polite and self.words[_WAITS]:
            self.take_waits()
        with self._telling:
            while self._noted:
                self._tell(self._noted.popleft())
                polite = polite and give_way()
        return polite

    @staticmethod
    def _tell(event: Event) -> None:
        event[0](*event[1:])

    def take_waits(self) -> None:
        """Note the waits that compiled kernels have seen on the training thread, which this is."""
        words = self.words
        pairs = words[_PAIRS : _PAIRS + 2 * min(words[_WAITS], MOST_WAITS)].tolist()
        words[_WAITS] = 0
        for enter_ns, exit_ns in zip(pairs[::2], pairs[1::2], strict=True):
            self.note((self._stack.add, _SYNC, enter_ns, exit_ns))

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
        thread = self.thread(_get_ident())
        return self._put(
            enter_ns, 0, _POINT_TO_POINT, op, self.words[_STEP_WORD], self._stack.parent,
            group.index, order,
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
            account = self._stack.count if seq else self._stack.add  # its record shows it, or not
            self.note((account, _SYNC, times[0] if times else enter_ns, exit_ns))
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
            enter_ns, exit_ns, _PAUSE, generation, self.words[_STEP_WORD], self._stack.parent,
            payload=collected & 0xFFFFFFFF,
        )  # fmt: skip
        self.pauses.append((enter_ns, exit_ns))

    def span_begins(self, name: str) -> int:
        """A user's span; returns its record for `spool.close`."""
        thread = self.thread(_get_ident())
        return self._put(
            monotonic_ns(), 0, _SPAN, 0, self.words[_STEP_WORD], self._stack.parent,
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
            now, now, kind, 0, self.words[_STEP_WORD], 0, bytes_in=bits,
            name=self.spool.name_id(name[:LONGEST_NAME]), device=device,
        )  # fmt: skip

    # -- steps -----------------------------------------------------------------------------------

    def end_step(
        self,
        now_ns: int,
        standing: ResourceCounters,
        held_ns: int = 0,
        upto: int = 0,
        seq: int | None = None,
    ) -> ClosedStep:
        """Close the step: all that can wait is told when it is settled.

        `standing` is where the kernel's counters are, `held_ns` the pacing delay spent inside,
        `upto` its last record, where it is known only later that it ended, else the newest, and
        `seq` its own, where `begin_step` has written that.
        """
        closed = self._clock.end_step(now_ns)
        if seq is None:
            seq = self._put_step(closed.number, closed.start_ns, now_ns, held_ns)
        if closed.samples:
            self.spool.patch(seq, WORD_PARENT, min(closed.samples, 0xFFFFFFFF) << 32)
        closed.seq = seq
        closed.after, closed.upto = self.after, upto or seq
        self.after = closed.upto
        closed.held_ns, closed.standing = held_ns, standing
        return closed

    def _put_step(self, number: int, start_ns: int, end_ns: int, held_ns: int) -> int:
        words = self.words
        if words[_BEGAN] < end_ns:
            words[_BEGAN] = end_ns
        return self._put(
            start_ns, end_ns, _STEP, 0, number, peer=0, held_ns=held_ns, flags=self.step_flags
        )

    def begin_step(self, now_ns: int, held_ns: int = 0) -> tuple[int, int, int, int]:
        """What is recorded from here on belongs to the next step.

        Its number, the record of the step that has ended (written at once: who dies now has taken
        it), how many events of ours that had, and what our probe took of it.
        """
        if self.words[_WAITS]:
            self.take_waits()
        ended = self.words[_STEP_WORD]
        seq = self._put_step(ended, self.words[_BEGAN], now_ns, held_ns)
        self.words[_STEP_WORD] = step = ended + 1
        events, self.events = self.events, 0
        own_ns, self.own_ns = self.own_ns, 0
        self.sampled = step % STEP_SAMPLE == 0
        return step, seq, events, own_ns

    def settle(self, closed: ClosedStep, used: ResourceUse) -> None:
        """Tell the rest of a step, in the order in which they ended; its record, too, learns it.

        Of its collectives the first `STEP_COLLECTIVES` are entered one by one.
        """
        if closed.phases:
            self._place(closed)
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
        self._write_use(closed.seq, used)

    def _place(self, closed: ClosedStep) -> None:
        """Write into a step's records which phase each lies in, as is known only now."""
        words, word_of = self.spool.words, self.spool.word_of
        phases = sorted(closed.phases)
        first = max(closed.after, closed.upto - self.spool.regions.ring_capacity) + 1
        for seq in range(first, closed.upto + 1):
            base = word_of(seq)
            if words[base] != seq or words[base + WORD_KIND] >> 48 & 0xFF not in _IN_PHASES:
                continue
            enter_ns = words[base + WORD_ENTER]
            around = (each for begin, end, each in reversed(phases) if begin <= enter_ns < end)
            payload = words[base + WORD_PARENT] >> 32 << 32
            words[base + WORD_PARENT] = payload | next(around, 0) & 0xFFFFFFFF

    def _write_use(self, seq: int, used: ResourceUse) -> None:
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
