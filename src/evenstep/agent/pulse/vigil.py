"""Looks at where the training thread is when its rank may be late, or stands still.

The thread's Python frames are read through `sys._current_frames`: nothing is stopped, no value of a
variable is looked at. There are three occasions, and a bound for each:

- a burst now and then, late or not, of the length of two steps so that it holds a whole one: what
  a rank does that is late in every step shows against what the others do in theirs;
- a burst while a step is overdue: what holds a single step up;
- single looks, further and further apart, while no step ends at all.

A burst leaves one record for each stack that was seen (`Kind.STACK`), with how often.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

from evenstep.agent.pulse.frames import frames_of
from evenstep.agent.recording.recorder import Recorder
from evenstep.trace.spool.layout import (
    WORD_EXIT,
    WORD_GROUP_SEQ,
    WORD_KIND,
    WORD_STEP,
    Kind,
    Op,
)

SEPARATOR = " < "  # between the frames of a stack, innermost first
MOST_LOOKS, FEWEST_LOOKS = 40, 6  # of a burst …
SHORTEST_NS = 2_000_000  # … at least between two of them, …
SPARING = 8  # … and so many times what the interpreter's lock was waited for at the latest
FIRST_GAP_NS, GAP_NS = 1_000_000_000, 15_000_000_000  # between bursts: twice as long each time
OVERDUE_GAP_NS = 3_000_000_000  # between bursts because a step is overdue
OVERDUE, OVERDUE_NS = 1.5, 20_000_000  # a step that lasts so many usual ones, and so much more
STUCK_NS, STUCK_STEPS = 500_000_000, 20  # no step for so long, and so many of the longest
UNKNOWN_STEP_NS = 500_000_000  # where no step has ended yet: what imports, compiles and loads
MOST_STACKS = 256  # different ones in a trace

#: In which the collective is sought that a rank stands still in: samples go on.
LATEST_RECORDS = 1024

_STACK = int(Kind.STACK)
_OPERATIONS = (int(Kind.COLLECTIVE), int(Kind.POINT_TO_POINT))


class Standstill(NamedTuple):
    """A rank on which no step ends."""

    step: int
    since_ns: int  # when the step began
    inside: str  # the collective it has entered and not left, "" for none
    at: str  # the innermost frame that is not the framework's own


class Vigil:
    """One rank's, on the heartbeat's thread. `durations` gives the latest steps' lengths (ns)."""

    def __init__(self, recorder: Recorder, durations: Callable[[], Sequence[int]]) -> None:
        self.standstill: Standstill | None = None
        self._recorder = recorder
        self._durations = durations
        self._step = -1
        self._again_ns = 0  # how long the step has to last before it is looked at once more
        self._due_ns = 0  # of the next look of a burst, or of the next burst, late or not
        self._gap_ns = FIRST_GAP_NS
        self._spared_ns = 0  # until then no step is overdue
        self._known: set[str] = set()
        self._seen: dict[tuple[str, int, int], list[int]] = {}  # stack, phase, step: the looks
        self._looks = 0  # of the burst under way, …
        self._until_ns = 0  # … and its end; 0 without one
        self._usual_ns = 0

    def look(self, now_ns: int) -> tuple[int, int]:
        """Look if it is time to.

        When it will be again, and how long the step has to last for it to be sooner (0: however
        long).
        """
        recorder = self._recorder
        step, lasted_ns = recorder.step, now_ns - recorder.began_ns
        if step != self._step:
            self._step, self._again_ns, self.standstill = step, 0, None
        if self._until_ns:
            return self._go_on(now_ns), 0
        durations = sorted(self._durations())
        stuck_ns = max(STUCK_NS, STUCK_STEPS * (durations[-1] if durations else UNKNOWN_STEP_NS))
        if lasted_ns > stuck_ns:
            self._stands_still(now_ns, lasted_ns)
            return now_ns - lasted_ns + self._again_ns, 0
        if not durations:
            return now_ns + GAP_NS, stuck_ns
        usual_ns = durations[len(durations) // 2]
        self._due_ns = self._due_ns or now_ns + FIRST_GAP_NS
        overdue_ns = int(OVERDUE * usual_ns) + OVERDUE_NS
        spared = now_ns < self._spared_ns
        if now_ns >= self._due_ns or (lasted_ns >= overdue_ns and not spared):
            self._until_ns, self._due_ns, self._usual_ns = now_ns + 2 * usual_ns, now_ns, usual_ns
            return self._go_on(now_ns), 0
        if spared:
            return min(self._due_ns, self._spared_ns), stuck_ns
        return self._due_ns, min(overdue_ns, stuck_ns)

    # -- bursts ----------------------------------------------------------------------------------

    def _go_on(self, now_ns: int) -> int:
        """One look of a burst, and when the next is due; its last one writes it down."""
        late_ns = now_ns - self._due_ns
        self._take(now_ns)
        if self._looks < MOST_LOOKS and now_ns < self._until_ns:
            burst_ns = 2 * self._usual_ns
            every_ns = min(SPARING * late_ns, burst_ns // FEWEST_LOOKS)
            self._due_ns = now_ns + max(every_ns, burst_ns // MOST_LOOKS, SHORTEST_NS)
            return self._due_ns
        self._write()
        self._until_ns = 0
        self._due_ns = now_ns + self._gap_ns
        self._spared_ns = now_ns + OVERDUE_GAP_NS
        self._gap_ns = min(2 * self._gap_ns, GAP_NS)
        return now_ns

    def _take(self, now_ns: int) -> list[str]:
        frame = sys._current_frames().get(self._recorder.ident)
        if frame is None:
            return []
        frames = frames_of(frame)
        if not frames:  # the interpreter is ending
            return []
        stack = self._recorder.stack
        seen = self._seen.setdefault((SEPARATOR.join(frames), stack.current, stack.step), [])
        seen.append(now_ns)
        self._looks += 1
        return frames

    def _write(self) -> int:
        """One record for each stack: first and last look, how many, and how many in all; the
        number of the last, 0 without one."""
        spool, newest = self._recorder.spool, 0
        for (text, phase, step), looks in self._seen.items():
            if len(self._known) < MOST_STACKS or text in self._known:
                self._known.add(text)
                newest = spool.put(
                    looks[0], looks[-1], _STACK, phase, step,
                    payload=len(looks), bytes_in=self._looks, name=spool.name_id(text),
                )  # fmt: skip
        self._seen, self._looks = {}, 0
        return newest

    # -- standing still --------------------------------------------------------------------------

    def _stands_still(self, now_ns: int, lasted_ns: int) -> None:
        """Look now, and again when it has lasted twice as long."""
        if lasted_ns < self._again_ns:
            return
        self._again_ns = 2 * lasted_ns
        frames = self._take(now_ns)
        inside = self._inside(self._write())
        at = next((frame for frame in frames if not frame.startswith("<")), "")
        self.standstill = Standstill(self._step, now_ns - lasted_ns, inside, at)

    def _inside(self, newest: int) -> str:
        """The first collective or message of the step, of the latest records, without an end."""
        spool = self._recorder.spool
        words = spool.words
        for seq in range(max(newest - LATEST_RECORDS, 1), newest):
            base = spool.word_of(seq)
            if words[base] != seq or words[base + WORD_EXIT]:
                continue
            kind, op = words[base + WORD_KIND] >> 48 & 0xFF, words[base + WORD_KIND] >> 56
            if kind in _OPERATIONS and words[base + WORD_STEP] & 0xFFFFFFFF == self._step:
                return f"{Op(op).name.lower()} {words[base + WORD_GROUP_SEQ]}"
        return ""
