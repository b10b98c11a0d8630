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
from evenstep.agent.pulse.heartbeat import PERIOD_S
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
MOST_LOOKS = 40  # of a burst …
SHORTEST_S, LONGEST_S = 0.002, 0.05  # … and between two of them
FIRST_GAP_S, GAP_S = 1.0, 15.0  # between bursts: twice as long each time
OVERDUE_GAP_S = 3.0  # between bursts because a step is overdue
OVERDUE, OVERDUE_NS = 1.5, 20_000_000  # a step that lasts so many usual ones, and so much more
STUCK_NS, STUCK_STEPS = 500_000_000, 20  # no step for so long, and so many of the longest
UNKNOWN_STEP_NS = 500_000_000  # where no step has ended yet: what imports, compiles and loads
MOST_STACKS = 256  # different ones in a trace

LATEST_RECORDS = (
    1024  # in which the collective is sought that a rank stands still in: samples go on
)

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
        self._due_ns = 0  # of the next burst, late or not
        self._gap_s = FIRST_GAP_S
        self._spared_ns = 0  # until then no step is overdue
        self._aimed = False  # the next look is when the step would be overdue: every other one is
        self._known: set[str] = set()
        self._seen: dict[tuple[str, int, int], list[int]] = {}  # stack, phase, step: the looks
        self._looks = 0  # of the burst under way, …
        self._every_s = 0.0  # … how far apart, and 0 without one
        self._until_ns = 0

    def look(self, now_ns: int) -> float:
        """Look if it is time to; seconds until it may be time again."""
        step, lasted_ns = self._recorder.stack.step, now_ns - self._recorder.clock.start_ns
        if step != self._step:
            self._step, self._again_ns, self.standstill = step, 0, None
        if self._every_s:
            return self._go_on(now_ns)
        durations = self._durations()
        longest_ns = max(durations, default=UNKNOWN_STEP_NS)
        if lasted_ns > max(STUCK_NS, STUCK_STEPS * longest_ns):
            self._stands_still(now_ns, lasted_ns)
            return PERIOD_S
        if not durations:
            return PERIOD_S
        usual_ns = sorted(durations)[len(durations) // 2]
        self._due_ns = self._due_ns or now_ns + int(FIRST_GAP_S * 1e9)
        left_ns = OVERDUE * usual_ns + OVERDUE_NS - lasted_ns  # until the step is overdue
        if now_ns >= self._due_ns or (left_ns <= 0 and now_ns >= self._spared_ns):
            return self._begin(now_ns, usual_ns)
        self._aimed = not self._aimed and now_ns >= self._spared_ns
        return min(max(left_ns / 1e9, 0.0), PERIOD_S) if self._aimed else PERIOD_S

    # -- bursts ----------------------------------------------------------------------------------

    def _begin(self, now_ns: int, usual_ns: int) -> float:
        self._every_s = min(max(2 * usual_ns / 1e9 / MOST_LOOKS, SHORTEST_S), LONGEST_S)
        self._until_ns = now_ns + 2 * usual_ns
        return self._go_on(now_ns)

    def _go_on(self, now_ns: int) -> float:
        """One look of a burst; its last one writes it down."""
        self._take(now_ns)
        if self._looks < MOST_LOOKS and now_ns < self._until_ns:
            return self._every_s
        self._write()
        self._every_s = 0.0
        self._due_ns = now_ns + int(self._gap_s * 1e9)
        self._spared_ns = now_ns + int(OVERDUE_GAP_S * 1e9)
        self._gap_s = min(2 * self._gap_s, GAP_S)
        return PERIOD_S

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
