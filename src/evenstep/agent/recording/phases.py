"""Where a training thread's time goes: phases that may nest, of which only the leaf is counted.

`PhaseStack` keeps the running step's account. What no phase claims is `Phase.OTHER`, so the leaf
times of a step add up to its length. It is fed with times and never reads a clock. The words it
shares with kernels that were compiled for it are a few bytes of our own where there are none: the
recorder is the same either way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple

from evenstep.trace.spool.layout import WORD_GROUP_SEQ, Kind, Phase
from evenstep.trace.spool.spool import Spool

MOST_WAITS = 64
MOST_PHASES = 4096  # of a step, whose places are known


class Word(IntEnum):
    """Which word means what: 8 bytes each, in this order (`Word` in recorder.cpp)."""

    ARMED = 0  # 0: kernels pass everything through
    NUMBER = 1  # last sequence number taken
    STEP = 2  # of new records
    PARENT = 3  # record that new records lie in
    TRAINING = 4  # the training thread's `threading.get_ident()`
    LAST_ENTRY = 5  # ns, of the newest collective that did not block; or its backward computed to
    BLOCKING = 6  # the training thread's newest one that did
    CAPTURES = 7  # CUDA graphs being captured
    KEPT = 8  # works whose end somebody has to look for
    FAILURES = 9  # of compiled code
    COST_NS = 10  # its thread time, in the calls that were sampled
    COST_SAMPLES = 11
    CALLS = 12  # of kernels so far
    BEGAN = 13  # ns, of the step that is open on the training thread
    DEVICES = 14  # whose times are read
    WAITS = 15  # how many pairs (enter_ns, exit_ns) follow, of waits nobody has told Python of
    WAIT_PAIRS = 16


WORDS = Word.WAIT_PAIRS + 2 * MOST_WAITS


#: Beats until it is time (ns), the step has lasted for so long (ns; 0: however long) or a file has
#: something to read.
Rest = Callable[[int, int, int], None]


class Compiled(NamedTuple):
    """What compiled kernels take out of Python's hands."""

    words: memoryview
    thread: Callable[[], int]  # our number of the calling thread
    rest: Rest | None  # without the interpreter's lock; None where beats are Python's to write


def unshared() -> memoryview:
    """The words of a recorder that no compiled kernel feeds."""
    return memoryview(bytearray(8 * WORDS)).cast("Q")


PHASES = len(Phase)
_PHASE_KIND = int(Kind.PHASE)
_PARENT, _STEP = int(Word.PARENT), int(Word.STEP)


class OpenPhase:
    """A phase that has begun. `nested_ns` of it, the last until `claimed_ns`, count elsewhere."""

    __slots__ = ("claimed_ns", "enter_ns", "nested_ns", "phase", "seq")

    def __init__(self, phase: int, seq: int, enter_ns: int) -> None:
        self.phase = phase
        self.seq = seq
        self.enter_ns = enter_ns
        self.nested_ns = 0
        self.claimed_ns = enter_ns


class PhaseStack:
    """Phases of the step that is open on the training thread.

    `words` are those shared with compiled kernels. Where the account is behind the thread (see
    `Recorder.defer`), nothing in them is its to write but a step that they have not reached.
    """

    def __init__(self, spool: Spool, words: memoryview | None = None) -> None:
        self.words = unshared() if words is None else words
        self._spool = spool
        self._open: list[OpenPhase] = []
        self.step = 0
        self.leaf_ns = [0] * PHASES
        self.parent = 0  # record of the innermost open phase: what new records lie in
        self.boundary_ns = 0  # end of the last outermost phase: from here nothing is claimed
        self.behind = False  # what is told lies in the past: then …
        #: … the step's phases, as (enter, exit, record)
        self.ended: deque[tuple[int, int, int]] = deque(maxlen=MOST_PHASES)

    def __len__(self) -> int:
        return len(self._open)

    @property
    def current(self) -> int:
        """The innermost open phase, `Phase.OTHER` where there is none."""
        return self._open[-1].phase if self._open else 0

    @property
    def nested_ns(self) -> int:
        """What is counted elsewhere of the innermost open phase."""
        return self._open[-1].nested_ns if self._open else 0

    def enter(self, phase: int, now_ns: int) -> None:
        """Begin a phase inside whatever is open; its record shows as open until `leave`."""
        seq = self._spool.put(now_ns, 0, _PHASE_KIND, phase, self.step, self.parent)
        self._open.append(OpenPhase(phase, seq, now_ns))
        self._lies_in(seq)

    def _lies_in(self, seq: int) -> None:
        self.parent = seq
        if not self.behind:
            self.words[_PARENT] = seq

    def leave(self, now_ns: int, *, nested_ns: int | None = None) -> None:
        """End the innermost phase; without one, nothing happens.

        `nested_ns`: how much of what lies in it is before `now_ns`, where that is in the past.
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
        self._lies_in(self._open[-1].seq if self._open else 0)

    def add(self, phase: int, enter_ns: int, exit_ns: int, flags: int = 0) -> None:
        """Record a phase that is over already, inside whatever is open."""
        leaf = self.count(phase, enter_ns, exit_ns)
        self._spool.put(
            enter_ns, exit_ns, _PHASE_KIND, phase, self.step, self.parent, 0, leaf, 0, 0, flags
        )

    def count(self, phase: int, enter_ns: int, exit_ns: int) -> int:
        """Count a stretch as a phase's without a record of its own (a blocking collective).

        What is counted already stays where it is; returns what was new.
        """
        claimed_ns = self._open[-1].claimed_ns if self._open else self.boundary_ns
        duration = exit_ns - (enter_ns if enter_ns > claimed_ns else claimed_ns)
        if duration < 0:
            return 0
        self.leaf_ns[phase] += duration
        self._claim(exit_ns, duration)
        return duration

    def rewind(self, leaf_ns: list[int], boundary_ns: int) -> None:
        """Go back to an earlier account of the step; nothing is open."""
        self.leaf_ns = leaf_ns
        self.boundary_ns = boundary_ns

    def close_all(self, records: list[int], now_ns: int) -> None:
        """End collectives that are known to be over; one that has its exit keeps it."""
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
        """End the step's account and begin the next one's; returns the ended leaf times, in ns.

        An open phase is split in two at the boundary if it may lie `across` one; others end.
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
