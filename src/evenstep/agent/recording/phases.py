"""A training thread's time by phase: phases may nest, and only leaf time is counted.

`PhaseStack` keeps the account of the running step. Time outside all phases is `Phase.OTHER`, so the
leaf times of a step add up to its length. It takes times and never reads a clock. It shares words
of memory with compiled kernels; without those the words are private memory, and the recorder is the
same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from evenstep.trace.spool.layout import WORD_GROUP_SEQ, Kind, Phase
from evenstep.trace.spool.spool import Spool

MOST_PHASES = 4096  # of a step, that become parents of its records


class Word:
    """Indices of the shared words, 8 bytes each (`Word` in recorder.cpp). Plain numbers: members of
    an enumeration take a starting process a millisecond."""

    ARMED = 0  # 0: kernels pass every call through
    NUMBER = 1  # last sequence number taken
    STEP = 2  # of new records
    PARENT = 3  # of new records
    TRAINING = 4  # the training thread's `threading.get_ident()`
    LAST_ENTRY = 5  # ns: entry of the newest non-blocking collective, or end of backward's compute
    BLOCKING = 6  # record of the training thread's newest blocking collective
    CAPTURES = 7  # CUDA graphs being captured
    KEPT = 8  # works without a future, whose end has to be polled
    FAILURES = 9  # of compiled code
    COST_NS = 10  # what our code took in sampled calls
    COST_SAMPLES = 11
    EVENT_NS = 12  # the same in sampled events
    EVENT_SAMPLES = 13
    NOTED = 14  # compiled events so far
    TOLD = 15  # of which the account has been told so many
    BEGAN = 16  # ns: beginning of the step that is open on the training thread
    DEVICES = 17  # devices with timers
    SCHEDULE = 18  # descriptor of the kernel's account of the training thread, plus one; 0: none
    MARKING = 19  # identity of the optimizer that marks the steps; 0: none yet
    MANUAL = 20  # whether the script or a framework marks them instead
    ATTENDED = 21  # the first step that Python has to begin
    AT_ONCE = 22  # whether somebody waits for what the account is told
    EVENTS = 23  # of hooks in the running step
    OWN_NS = 24  # thread time, in the running step, of what ended the one before
    SCHEDULE_DEVICE = 25  # of that account's file: the number may become another file's
    SCHEDULE_INODE = 26
    WAITS = 27  # whether Python is told of waits for collectives


WORDS = Word.WAITS + 1


class Event:
    """What compiled code tells the account, with its time and more (`Event` in recorder.cpp)."""

    FORWARD_BEGINS = 0
    FORWARD_ENDS = 1
    BACKWARD_BEGINS = 2
    BACKWARD_ENDS = 3
    OPTIMIZER_BEGINS = 4
    PHASE_ENDS = 5
    WAITED = 6
    BLOCKED = 7
    STEP_ENDED = 8
    NONE = 9


EVENT_WORDS = 16  # of each of the `MOST_EVENTS` latest
MOST_EVENTS = 4096

#: Beats until a time (ns), until the step has lasted so long (ns; 0: no limit), or until a
#: descriptor can be read.
Rest = Callable[[int, int, int], None]


class Compiled(NamedTuple):
    """The parts of a recorder that compiled kernels provide."""

    words: memoryview
    events: memoryview
    thread: Callable[[], int]  # our number of the calling thread
    #: Makes a function that ends a step, given the thread's time, or has the given one end it.
    marks: Callable[[Any, Callable[[int], None]], Callable[[int], None]]
    rest: Rest | None  # without the interpreter's lock; None where Python writes the beats


PHASES = len(Phase)
_PHASE_KIND = int(Kind.PHASE)
_PARENT, _STEP = Word.PARENT, Word.STEP


@dataclass(slots=True, eq=False)
class OpenPhase:
    """An open phase. `nested_ns` of it, up to `claimed_ns`, are counted as other phases."""

    phase: int
    seq: int
    enter_ns: int
    claimed_ns: int
    nested_ns: int = 0


class PhaseStack:
    """Phases of the step that is open on the training thread.

    `words` are shared with compiled kernels. Where the account is behind the thread (see
    `Recorder.defer`), it writes none of them but a step that they have not reached.
    """

    def __init__(self, spool: Spool, words: memoryview | None = None) -> None:
        unshared = memoryview(bytearray(8 * WORDS)).cast("Q")  # without compiled kernels
        self.words = unshared if words is None else words
        self._spool = spool
        self._open: list[OpenPhase] = []
        self.step = 0
        self.leaf_ns = [0] * PHASES
        self.parent = 0  # record of the innermost open phase
        self.boundary_ns = 0  # end of the last outermost phase: time from here is not counted yet
        self.behind = False  # whether events lie in the past
        #: Then the step's ended phases, as (enter, exit, record).
        self.ended: deque[tuple[int, int, int]] = deque(maxlen=MOST_PHASES)

    def __len__(self) -> int:
        return len(self._open)

    @property
    def current(self) -> int:
        """The innermost open phase, `Phase.OTHER` where there is none."""
        return self._open[-1].phase if self._open else 0

    @property
    def nested_ns(self) -> int:
        """Time of the innermost open phase that is counted as other phases."""
        return self._open[-1].nested_ns if self._open else 0

    def enter(self, phase: int, now_ns: int) -> None:
        """Begin a phase inside the innermost open one; its record has no exit until `leave`."""
        seq = self._spool.put(now_ns, 0, _PHASE_KIND, phase, self.step, self.parent)
        self._open.append(OpenPhase(phase, seq, now_ns, now_ns))
        self._set_parent(seq)

    def _set_parent(self, seq: int) -> None:
        self.parent = seq
        if not self.behind:
            self.words[_PARENT] = seq

    def leave(self, now_ns: int, *, nested_ns: int | None = None) -> None:
        """End the innermost phase, if there is one.

        `nested_ns`: where `now_ns` is in the past, its time counted as other phases by then.
        """
        if not self._open:
            return
        ended = self._open.pop()
        inside = ended.nested_ns if nested_ns is None else nested_ns
        duration = max(now_ns - ended.enter_ns, 0)
        leaf = max(duration - inside, 0)
        self.leaf_ns[ended.phase] += leaf
        self._spool.patch(ended.seq, WORD_GROUP_SEQ, leaf)
        self._spool.close(ended.seq, now_ns)
        if self.behind:
            self.ended.append((ended.enter_ns, now_ns, ended.seq))
        self._claim(max(now_ns, ended.claimed_ns), leaf + ended.nested_ns)
        self._set_parent(self._open[-1].seq if self._open else 0)

    def add(
        self, phase: int, enter_ns: int, exit_ns: int, flags: int = 0, *, inside_ns: int = 0
    ) -> None:
        """Record a phase that is over, inside the innermost open one; `inside_ns` of it have been
        recorded before."""
        leaf = self.count(phase, enter_ns, exit_ns) - inside_ns
        self._spool.put(
            enter_ns, exit_ns, _PHASE_KIND, phase, self.step, self.parent, 0, leaf, 0, 0, flags
        )

    def count(self, phase: int, enter_ns: int, exit_ns: int) -> int:
        """Count an interval as a phase's without a record of its own (a blocking collective).

        Time counted before stays as it is; return the newly counted time.
        """
        claimed_ns = self._open[-1].claimed_ns if self._open else self.boundary_ns
        duration = exit_ns - (enter_ns if enter_ns > claimed_ns else claimed_ns)
        if duration < 0:
            return 0
        self.leaf_ns[phase] += duration
        self._claim(exit_ns, duration)
        return duration

    def recount(
        self, phase: int, leaf_ns: list[int], since_ns: int, now_ns: int, *, inside_ns: int = 0
    ) -> None:
        """Record all since an earlier account of the step as one phase, without the waits in it,
        which are for other ranks; no phase is open."""
        waited_ns = self.leaf_ns[Phase.SYNC] - leaf_ns[Phase.SYNC]
        self.leaf_ns, self.boundary_ns = leaf_ns, since_ns
        self.add(phase, since_ns, now_ns, inside_ns=inside_ns + waited_ns)
        self.leaf_ns[phase] -= waited_ns
        self.leaf_ns[Phase.SYNC] += waited_ns

    def close_all(self, records: list[int], now_ns: int) -> None:
        """End collectives that are over; one that has an exit keeps it."""
        for seq in records:
            self._spool.close(seq, now_ns)

    def _claim(self, exit_ns: int, duration_ns: int) -> None:
        if self._open:
            innermost = self._open[-1]
            innermost.nested_ns += duration_ns
            if exit_ns > innermost.claimed_ns:
                innermost.claimed_ns = exit_ns
        elif exit_ns > self.boundary_ns:
            self.boundary_ns = exit_ns

    def restart(self, step: int, now_ns: int, *, across: frozenset[int]) -> list[int]:
        """Begin the next step's account; return the leaf times of the one that ends, in ns.

        An open phase in `across` is split in two at the boundary; others end.
        """
        split = [part.phase for part in self._open if part.phase in across]
        while self._open:
            self.leave(now_ns)
        leaf, self.leaf_ns = self.leaf_ns, [0] * PHASES
        self.step = step
        if self.words[_STEP] < step:
            self.words[_STEP] = step
        self.boundary_ns = now_ns
        for phase in split:
            self.enter(phase, now_ns)
        return leaf
