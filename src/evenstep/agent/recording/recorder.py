"""The recorder of a rank: called by the hooks, it writes the spool and the running step's account.

Code on the job's own threads takes no lock, starts no thread, and reads the clock once per event.
The collector's callbacks may fire inside any of these methods.

To apply an event of the training thread to the step's account costs many times as much as to note
it (every line of Python is fetched into cold caches), and can wait. So where compiled kernels
record (`defer`), hooks only note events, which are applied in order before the account is read.
"""

from __future__ import annotations

import struct
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from time import monotonic_ns, sleep, thread_time_ns, time_ns
from typing import TYPE_CHECKING, Any

from evenstep.agent.pulse.frames import first_outside
from evenstep.agent.recording.entries import GroupState, collective_recorder
from evenstep.agent.recording.phases import (
    EVENT_WORDS,
    MOST_EVENTS,
    Compiled,
    PhaseStack,
    Word,
)
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
    from evenstep.host.resources import ResourceMeter
    from evenstep.pacing.waits import Pause

#: Collectives of one step kept for the online wait estimate: its first ones.
STEP_COLLECTIVES = 4096

_COLLECTIVE = int(Kind.COLLECTIVE)
_POINT_TO_POINT = int(Kind.POINT_TO_POINT)
_PAUSE, _STEP, _SPAN = int(Kind.PAUSE), int(Kind.STEP), int(Kind.SPAN)
_SAMPLE, _MARKER = int(Kind.SAMPLE), int(Kind.MARKER)
_HOST_BLOCKED = int(Flag.HOST_BLOCKED)
_CALLED = int(Flag.CALLED)
_SYNC, _BACKWARD, _LAST_ENTRY = int(Phase.SYNC), int(Phase.BACKWARD), Word.LAST_ENTRY
_STEP_WORD, _BEGAN = Word.STEP, Word.BEGAN
_NOTED, _TOLD = Word.NOTED, Word.TOLD
_EVENTS, _MANUAL, _AT_ONCE = Word.EVENTS, Word.MANUAL, Word.AT_ONCE
_OWN_NS = Word.OWN_NS
_IN_PHASES = (_COLLECTIVE, _POINT_TO_POINT, _PAUSE, _SPAN)  # records whose parent is a phase

SHORTEST_WAIT_NS = 20_000
LONGEST_NAME = 200  # characters of a script's name: one table holds all names, groups and facts
COST_SAMPLE = 17  # our cost is measured in one collective, and in the events of one step, of so
# many: a prime, so that all collectives of a step have their turns
COST_WINDOW = 64  # samples in the mean
TURN_NS = 100_000  # for which the background holds the interpreter's lock at a time
LAST_TURN = 1 << 63  # the beginning of a turn that is not to end

_get_ident = threading.get_ident
_NOTHING = dict.fromkeys(COUNTERS, 0)

#: The cost of reading the thread's clock, which every measured interval includes.
READING_NS = min(-thread_time_ns() + thread_time_ns() for _ in range(32))


class OwnCost:
    """The cost of our calls to the threads that make them, from some of them.

    Samples are added up in two of the shared words, from `at` on, and their mean is that of the
    latest `COST_WINDOW` and a few more before the end of a step (`settle`), which may be many
    seconds ago: calls cost something else now. It is not trimmed: a step's first call may find cold
    caches and cost more than all others. What is paid to be called at all cannot be measured from
    inside; `mechanism` tells its ratio to what is paid inside, of which both are a multiple where
    caches are cold. Nobody knows what our threads, and the caches that we take, cost the job.
    """

    def __init__(self, words: memoryview, at: int, every: int = 1) -> None:
        self._sums = deque([(0, 0)])  # at the ends of steps; the first: before those of the mean
        self.void = False  # whether garbage was collected, in whichever code ran, since `began`
        self._words, self._at = words, at
        self._outside = 0.0  # of what is paid inside, so much more
        self._every = every  # one call in so many is sampled
        self._calls = count(-every // 2).__next__  # not the first, which finds nothing made

    def began(self) -> int:
        """Begin a call: the thread's time if the call is to be sampled, else 0."""
        if self._calls() % self._every:
            return 0
        self.void = False
        return thread_time_ns()

    def add(self, sample_ns: int, *, readings: int = 0) -> None:
        """Take a sample that was measured in `readings` intervals between two clock readings, each
        of which includes one. Both are paid for, in the calls that are sampled."""
        if not self.void:
            ours_ns = round(sample_ns - readings * READING_NS * (1 - 2 / COST_SAMPLE))
            ours_ns = max(ours_ns, 0)  # called before the sum is read: another thread may add to it
            self._words[self._at] += ours_ns
            self._words[self._at + 1] += 1

    def mechanism(self, outside: float) -> None:
        """Set what is paid outside of a call, as a share of what is paid inside."""
        self._outside = outside

    def settle(self, spent_ns: int, samples: int) -> None:
        """Take the sum of all samples (ns), and their number, at the end of the next step."""
        sums = self._sums
        if samples > sums[-1][1]:
            sums.append((spent_ns, samples))
            while samples - sums[1][1] >= COST_WINDOW:
                sums.popleft()

    @property
    def each_ns(self) -> int | None:
        """Recent cost of a call, ns; None before the first sample."""
        return self.of(1) if self._words[self._at + 1] else None

    def of(self, calls: int) -> int:
        """Cost of `calls`, ns; by all samples so far where no step is settled that has any."""
        (first_ns, first), (last_ns, last) = self._sums[0], self._sums[-1]
        if first == last:
            last_ns, last = self._words[self._at : self._at + 2]
        return round(calls * (last_ns - first_ns) / max(last - first, 1) * (1 + self._outside))


def give_way(since_ns: int) -> int:
    """Release the interpreter's lock for the training thread if our turn, since `since_ns`, has
    lasted `TURN_NS`; return the beginning of the turn.

    To release it so that another thread gets it costs a switch of threads, ten times an event. Not
    where another thread computes: each of our turns then costs a thread that waits for the lock up
    to a switch interval, so the rest of the work had better be done in one turn.
    """
    ended_ns = monotonic_ns()
    if ended_ns - since_ns < TURN_NS:
        return since_ns
    sleep(0)
    now_ns = monotonic_ns()
    return now_ns if now_ns - ended_ns < sys.getswitchinterval() * 1e9 else LAST_TURN


#: A function of the account and its arguments.
Event = tuple[Any, ...]


class Recorder:
    """Writes one rank's spool. `ident` is the training thread.

    Only events of the training thread change the account (`clock`, `stack`); `note` takes one, and
    it is applied at once or before the account is next read.
    """

    def __init__(self, spool: Spool, compiled: Compiled | None = None) -> None:
        now = monotonic_ns()
        self.spool = spool
        self.loader_workers: int | None = None  # the fewest of any DataLoader; None without one
        self._stack = PhaseStack(spool, None if compiled is None else compiled.words)
        self.words = self._stack.words
        self._clock = StepClock(self._stack, now)
        self.note: Callable[[Event], None] = self._apply
        self._noted: deque[tuple[int, Event]] = deque()  # with the compiled events before each
        self._applying = threading.RLock()  # reentrant: a signal handler may interrupt, and read
        self.ident = self.words[Word.TRAINING] = _get_ident()
        self.words[_BEGAN] = now
        self.summaries = SummaryLog(spool.summary_view(), spool.regions.summary_capacity)
        self.after = 0  # the last record of the step before the running one
        self.step_flags = 0  # of the records of steps that end from now on
        #: Of the collector, in order; each belongs to the step in which it began.
        self.pauses: deque[Pause] = deque(maxlen=STEP_COLLECTIVES)
        self.cost = OwnCost(self.words, Word.COST_NS, COST_SAMPLE)  # of a collective
        self.event_cost = OwnCost(self.words, Word.EVENT_NS)  # of an event on the training thread
        self.held_ns = 0  # delays that we have applied in it
        self.blocking: dict[int, int] = {}  # thread -> its last collective that blocks the caller
        self._threads: dict[int, int] = {self.ident: 0}
        self._compiled = compiled
        clock = self._clock
        #: What compiled events tell, in the order of `phases.Event`, and how many words more.
        self._tells: list[tuple[Callable[..., object], int]] = [
            (clock.forward_begins, 2), (clock.forward_ends, 0), (clock.backward_begins, 1),
            (clock.backward_ends, 1), (clock.optimizer_begins, 0), (clock.ends, 0),
            (lambda *times: self._stack.add(_SYNC, *times), 1),
            (lambda *times: self._stack.count(_SYNC, *times), 1),
            (lambda at, seq, step, events, own_ns, *more: self.ended(
                at, 0, step, seq, more[:6], events, own_ns, more[6:]), 14),
        ]  # fmt: skip
        self.rest = None if compiled is None else compiled.rest  # of the heartbeat
        self.marks = None if compiled is None else compiled.marks  # see `Compiled`
        #: Takes a step that has ended: the arguments of `StepWork._ended`.
        self.ended: Callable[..., object] = lambda *_: None
        self._put = spool.put
        self.collective = collective_recorder(
            spool.slots, self._clock, training=self.ident, thread_of=self.thread,
            blocks=self._blocks,
        )  # fmt: skip

    # -- the account -----------------------------------------------------------------------------

    @property
    def clock(self) -> StepClock:
        """The account of the running step, after all events so far."""
        self.catch_up()
        return self._clock

    @property
    def stack(self) -> PhaseStack:
        """The phases that are open, after all events so far."""
        self.catch_up()
        return self._stack

    @property
    def step(self) -> int:
        """The step that is open on the training thread; the account may be behind."""
        return self.words[_STEP_WORD]

    @property
    def began_ns(self) -> int:
        """When that step began."""
        return self.words[_BEGAN]

    @property
    def sampled(self) -> bool:
        """Whether the cost of events in that step is measured."""
        return not self.words[_STEP_WORD] % COST_SAMPLE

    @property
    def manual(self) -> bool:
        """Whether `evenstep.step()` or a framework's callback marks the steps."""
        return bool(self.words[_MANUAL])

    @manual.setter
    def manual(self, manual: bool) -> None:
        self.words[_MANUAL] = manual

    def taken_over(self) -> bool:
        """Mark steps by hand from now on; whether an optimizer's mark was that of this step: no
        backward has begun since."""
        marked = not self.manual and bool(self.step and self.words[Word.MARKING])
        self.manual = True
        return marked and not (self.clock.backwards or self._stack.leaf_ns[_BACKWARD])

    @property
    def behind(self) -> int:
        """Events that are noted and not applied."""
        return len(self._noted) + self.words[_NOTED] - self.words[_TOLD]

    def defer(self, *, later: bool) -> None:
        """Apply events `later`, before the account is read, or as they come."""
        self.catch_up()
        self._stack.behind = later
        self.words[_AT_ONCE] = not later
        self.note = self._note if later else self._note_at_once

    def catch_up(self) -> int:
        """Apply noted events; off the training thread, give way to that one, and leave it those
        that somebody waits for.

        Return the beginning of the caller's turn, for `give_way`.
        """
        turn_ns = LAST_TURN if _get_ident() == self.ident else monotonic_ns()
        if turn_ns < LAST_TURN and not self._stack.behind:
            return turn_ns
        with self._applying:
            while self._tell_next():
                turn_ns = give_way(turn_ns)
        return turn_ns

    def _tell_next(self) -> bool:
        """Apply the next event; return whether there was one."""
        words, noted = self.words, self._noted
        told, upto = words[_TOLD], words[_NOTED]  # read first: what is noted later comes after it
        if noted and noted[0][0] <= told:
            self._apply(noted.popleft()[1])
            return True
        if told < upto:
            self._tell(told)
        return told < upto or bool(noted)

    def _tell(self, number: int) -> None:
        """Apply a compiled event."""
        assert self._compiled is not None
        base = number % MOST_EVENTS * EVENT_WORDS
        words = self._compiled.events[base : base + EVENT_WORDS].tolist()
        self.words[_TOLD] = number + 1  # from here on its place may be taken
        function, more = self._tells[words[0]]
        function(*words[1 : 2 + more])

    def _note(self, event: Event) -> None:
        self._noted.append((self.words[_NOTED], event))

    def _note_at_once(self, event: Event) -> None:
        self.catch_up()
        self._apply(event)

    def report(self, event: Callable[[StepClock, int], object]) -> None:
        """Take an event of the training thread that gets the account and the time now."""
        self.note((event, self._clock, monotonic_ns()))

    @staticmethod
    def _apply(event: Event) -> None:
        event[0](*event[1:])

    # -- collectives -----------------------------------------------------------------------------

    def thread(self, ident: int) -> int:
        """Our number of the calling thread, identified by `ident`; 0 is the training thread."""
        if self._compiled is not None:
            return self._compiled.thread()
        known = self._threads.get(ident)
        if known is None:
            known = self._threads[ident] = min(len(self._threads), 0xFFFF)
        return known

    def point_to_point(
        self, enter_ns: int, group: GroupState, op: int, nbytes: int, flags: int, peer: int,
        dtype: int, order: int, tag: int, device: int = HOST_DEVICE,
    ) -> int:  # fmt: skip
        """Record a send or receive; `order` is its number among those of its pair and tag."""
        thread = self.thread(_get_ident())
        return self._put(
            enter_ns, 0, _POINT_TO_POINT, op, self.words[_STEP_WORD], self._stack.parent,
            group.index, order,
            nbytes, nbytes, flags, peer, dtype, 0, thread, 0, 0, tag & 0xFFFFFFFF, 0, device,
        )  # fmt: skip

    def _blocks(self, ident: int, seq: int, enter_ns: int) -> None:
        """Begin a blocking call; the one before on this thread has ended, if unrecorded, by now."""
        left = self.blocking.get(ident)
        if left is not None:
            self.spool.close(left, enter_ns)
        self.blocking[ident] = seq

    def host_waited(self, enter_ns: int, exit_ns: int, *, ident: int) -> None:
        """Record that a thread was blocked in `Work.wait`; its blocking collective has ended."""
        seq = self.blocking.pop(ident, 0)
        if not seq and exit_ns - enter_ns < SHORTEST_WAIT_NS:  # the work had ended before
            if ident == self.ident:
                self.words[_LAST_ENTRY] = 0
            return
        if seq:
            self.spool.add_flags(seq, _HOST_BLOCKED)
            self.spool.close(seq, exit_ns)
        if ident == self.ident:
            times = self.spool.times(seq) if seq else None
            account = self._stack.count if seq else self._stack.add  # a record only where none is
            self.note((account, _SYNC, times[0] if times else enter_ns, exit_ns))
            self.words[_LAST_ENTRY] = 0

    def issued(self, after: int, upto: int) -> list[StepCollective]:
        """Collectives among the records after `after` up to `upto`, if still in the ring.

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

    def pause(
        self, enter_ns: int, exit_ns: int, generation: int, collected: int, called: bool
    ) -> None:
        """Record a pause of the collector. May be called from anywhere, at any time."""
        self._put(
            enter_ns, exit_ns, _PAUSE, generation, self.words[_STEP_WORD], self._stack.parent,
            payload=collected & 0xFFFFFFFF, flags=_CALLED * called,
            name=self.spool.name_id(first_outside(sys._getframe())) if called else 0,
        )  # fmt: skip
        self.pauses.append((enter_ns, exit_ns, called))
        self.cost.void = self.event_cost.void = True

    def pauses_since(self, since_ns: int) -> list[Pause]:
        """The pauses that began since then. Another may come meanwhile: no iterator is held."""
        found: list[Pause] = []
        with suppress(IndexError):
            while (latest := self.pauses[~len(found)])[0] >= since_ns:
                found.append(latest)
        return found[::-1]

    def span_begins(self, name: str) -> int:
        """Begin a user's span; return its record for `spool.close`."""
        thread = self.thread(_get_ident())
        return self._put(
            monotonic_ns(), 0, _SPAN, 0, self.words[_STEP_WORD], self._stack.parent,
            thread=thread, name=self.spool.name_id(name[:LONGEST_NAME]),
        )  # fmt: skip

    def sample(self, metric: str, device: int, value: float) -> None:
        """Record a measurement of the host or a device."""
        self._value(_SAMPLE, metric, value, device)

    def marker(self, name: str, value: float) -> None:
        """Record a number that the user logs for this step (loss, gradient norm)."""
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
        self, now_ns: int, held_ns: int = 0, upto: int = 0, seq: int | None = None
    ) -> ClosedStep:
        """Close the step; `settle` completes it later.

        `held_ns` is the pacing delay inside, `upto` its last record (0: its own), and `seq` its
        own record, where `begin_step` has written that.
        """
        closed = self._clock.end_step(now_ns)
        if seq is None:
            seq = self._put_step(closed.number, closed.start_ns, now_ns, held_ns)
        if closed.samples:
            self.spool.patch(seq, WORD_PARENT, min(closed.samples, 0xFFFFFFFF) << 32)
        closed.seq = seq
        closed.after, closed.upto = self.after, upto or seq
        self.after = closed.upto
        closed.held_ns = held_ns
        return closed

    def _put_step(self, number: int, start_ns: int, end_ns: int, held_ns: int) -> int:
        words = self.words
        if words[_BEGAN] < end_ns:
            words[_BEGAN] = end_ns
        return self._put(
            start_ns, end_ns, _STEP, 0, number, peer=0, held_ns=held_ns, flags=self.step_flags
        )

    def begin_step(
        self, now_ns: int, held_ns: int, meter: ResourceMeter
    ) -> tuple[int, int, Sequence[int], int, int, Sequence[int]]:
        """Begin the next step: records from here on belong to it.

        Return its number, the record of the step that has ended (written at once, in case the
        process dies), at its end the kernel's counters, of it our events and `OWN_NS`, and the sums
        of our costs at its end.
        """
        words, step, counters = self.words, self.step + 1, meter.now()
        seq = self._put_step(step - 1, words[_BEGAN], now_ns, held_ns)
        words[_STEP_WORD] = step
        events, words[_EVENTS] = words[_EVENTS], 0
        own_ns, words[_OWN_NS] = words[_OWN_NS], 0
        return step, seq, counters, events, own_ns, self.spent()

    def spent(self) -> list[int]:
        """The sums of our costs so far: of collectives and their samples, of events and theirs."""
        return self.words[Word.COST_NS : Word.COST_NS + 4].tolist()

    def settle(self, closed: ClosedStep) -> None:
        """Complete a closed step and its record; steps are settled in the order they ended.

        Of its collectives the first `STEP_COLLECTIVES` are kept one by one.
        """
        if closed.phases:
            self._place(closed)
        use, pauses = closed.used, []
        found = self.issued(closed.after, closed.upto)
        while self.pauses and self.pauses[0][0] <= closed.end_ns:
            pauses.append(self.pauses.popleft())
        counted = closed.counted = _NOTHING | {
            **{name: count for name, count in use._asdict().items() if name in _NOTHING},
            "pause_ns": sum(end - start for start, end, _ in pauses),
            "pauses": len(pauses),
            "held_ns": closed.held_ns,
            "samples": closed.samples,
            "collectives": len(found),
            "bytes": sum(seen[3] for seen in found),
        }
        for cost, at in (self.cost, 0), (self.event_cost, 2):
            cost.settle(*closed.spent[at : at + 2])
        ours_ns = closed.own_ns + self.event_cost.of(closed.events)
        kept_after = self.spool.last_number() - self.spool.regions.ring_capacity
        lost = min(max(kept_after, closed.after), closed.upto) - closed.after  # nearly all calls
        counted["agent_ns"] = ours_ns + self.cost.of(len(found) + lost)
        closed.collectives, closed.pauses = found[:STEP_COLLECTIVES], pauses
        words, base = self.spool.words, self.spool.word_of(closed.seq)
        if words[base] == closed.seq:  # still in the ring
            words[base + WORD_GROUP_SEQ] = use.cpu_ns
            words[base + WORD_BYTES_IN] = use.minor_faults
            words[base + WORD_BYTES_OUT] = use.major_faults
            words[base + WORD_PARENT] |= min(use.run_delay_ns // 1000, 0xFFFFFFFF)
            words[base + WORD_KIND] |= min(use.involuntary_switches, 0x7FFFFFFF)

    def _place(self, closed: ClosedStep) -> None:
        """Write the phase of each of a step's records as its parent."""
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

    def store_summary(self, closed: ClosedStep) -> None:
        """Write a settled step's summary."""
        counters = [max(closed.counted[name], 0) for name in COUNTERS]
        realtime_ns = closed.end_ns + time_ns() - monotonic_ns()
        number, start_ns, end_ns = closed.number, closed.start_ns, closed.end_ns
        self.summaries.append(
            StepSummary(number, number, start_ns, end_ns, realtime_ns, closed.phase_ns, counters)
        )
