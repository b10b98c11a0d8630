"""Sample the stack of the training thread when its rank may be late or stands still.

The thread's Python frames are read through `sys._current_frames`: nothing is stopped, no value of a
variable is read. Samples are taken on three occasions:

- in a regular burst, late or not, of the length of two steps, which covers a whole one: it shows
  how a rank that is late in every step differs from the others;
- in a burst while a step is overdue: it shows what delays a single step;
- one by one, further and further apart, while no step ends.

A burst leaves one record for each different stack (`Kind.STACK`), with its number of samples, and
such records of another thread that computed in Python since the burst before. A sample that had to
wait for the interpreter's lock counts for all that were due meanwhile: it shows who held it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

from evenstep.agent.pulse.frames import frames_of_thread
from evenstep.agent.recording.recorder import Recorder
from evenstep.host.sysfs import read_text
from evenstep.trace.frames import SEPARATOR, called_there, distance, own_place
from evenstep.trace.spool.layout import WORD_EXIT, WORD_GROUP_SEQ, WORD_KIND, WORD_STEP, Kind, Op

MOST_LOOKS, FEWEST_LOOKS = 40, 6  # samples of a burst
SHORTEST_NS = 2_000_000  # between two samples
SPARING = 8  # shortest time between two samples, in turns that rivals get for one
FIRST_GAP_NS, GAP_NS = 1_000_000_000, 15_000_000_000  # between regular bursts: doubled each time
OVERDUE_GAP_NS = 3_000_000_000  # between bursts of overdue steps
OVERDUE, OVERDUE_NS = 1.5, 20_000_000  # an overdue step: longer than 1.5 median ones and 20 ms
STUCK_NS, STUCK_STEPS = 500_000_000, 20  # a standstill: both so long, and 20 of the longest steps
UNKNOWN_STEP_NS = 500_000_000  # assumed before the first step has ended: imports, compilation
MOST_STACKS = 256  # different ones in a trace
BUSY = 0.5  # of the time: with the lock for as long, a thread takes it from another every time
OURS = "evenstep-"  # begins the names of our own threads

#: Latest records that are searched for the collective a rank stands still in.
LATEST_RECORDS = 1024

_STACK = int(Kind.STACK)
_OPERATIONS = (int(Kind.COLLECTIVE), int(Kind.POINT_TO_POINT))


class Standstill(NamedTuple):
    """A rank on which no step ends."""

    step: int
    since_ns: int  # when the step began
    inside: str  # the collective that it has entered and not left, "" for none
    at: str  # where the script was, and a package that it had called; "" unknown


class Vigil:
    """Samples one rank, on the heartbeat's thread; `durations`: lengths of the latest steps, ns."""

    def __init__(self, recorder: Recorder, durations: Callable[[], Sequence[int]]) -> None:
        self.standstill: Standstill | None = None
        self._recorder = recorder
        self._durations = durations
        self._step = -1
        self._again_ns = 0  # length of a stuck step at which the next sample is due
        self._due_ns = 0  # time of the next sample of a burst, or of the next regular burst
        self._gap_ns = FIRST_GAP_NS
        self._spared_ns = 0  # until then no burst of an overdue step begins
        self._known: set[str] = set()
        # times of samples, each as often as it counts, by stack, phase, step and whether it is ours
        self._seen: dict[tuple[str, int, int, bool], list[int]] = {}
        self._rivals, self._rival = Rivals(), 0  # a thread that is sampled, too; 0: none
        self._looks = 0  # samples of the running burst
        self._last_ns = 0  # time of its last sample
        self._until_ns = 0  # end of the running burst; 0 without one
        self._usual_ns = 0  # the median step

    def look(self, now_ns: int) -> tuple[int, int]:
        """Take a sample if one is due.

        Return when to look again, and the length of a step after which to do so sooner (0: never).
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
            self._until_ns, self._usual_ns = now_ns + 2 * usual_ns, usual_ns
            self._due_ns = self._last_ns = now_ns
            self._rival = self._rivals.busiest(recorder.ident, now_ns)
            return self._go_on(now_ns), 0
        if spared:
            return min(self._due_ns, self._spared_ns), stuck_ns
        return self._due_ns, min(overdue_ns, stuck_ns)

    # -- bursts ----------------------------------------------------------------------------------

    def _go_on(self, now_ns: int) -> int:
        """Take a sample of a burst, the last of which writes the records; when to look again."""
        late_ns, burst_ns = now_ns - self._due_ns, 2 * self._usual_ns
        shortest_ns = max(burst_ns // MOST_LOOKS, SHORTEST_NS)
        self._take(now_ns, round((now_ns - self._last_ns) / shortest_ns))
        if self._looks < MOST_LOOKS and now_ns < self._until_ns:
            turn_ns = late_ns * self._rivals.share  # with the lock, taken from the training thread
            every_ns = min(int(SPARING * turn_ns), burst_ns // FEWEST_LOOKS)
            self._last_ns, self._due_ns = now_ns, now_ns + max(every_ns, shortest_ns)
            return self._due_ns
        self._write()
        self._until_ns = 0
        self._due_ns = now_ns + self._gap_ns
        self._spared_ns = now_ns + OVERDUE_GAP_NS
        self._gap_ns = min(2 * self._gap_ns, GAP_NS)
        return now_ns

    def _take(self, now_ns: int, due: int = 1) -> list[str]:
        """Take a sample, which counts for all that were `due` since the last."""
        frames = frames_of_thread(self._recorder.ident)
        if not frames:  # the interpreter is ending
            return []
        stack, beside = self._recorder.stack, frames_of_thread(self._rival)
        for each, ours in ((frames, True), (beside, False)):
            key = SEPARATOR.join(each), stack.current, stack.step, ours
            if each:
                self._seen.setdefault(key, []).extend([now_ns] * min(max(due, 1), MOST_LOOKS))
        self._looks += 1
        return frames

    def _write(self) -> int:
        """Write one record for each stack: first and last sample, how many, and how many in all;
        return the number of the last record, 0 without one."""
        spool, newest = self._recorder.spool, 0
        counted = sum(len(looks) for (*_, ours), looks in self._seen.items() if ours)
        for (text, phase, step, ours), looks in self._seen.items():
            if len(self._known) < MOST_STACKS or text in self._known:
                self._known.add(text)
                newest = spool.put(
                    looks[0], looks[-1], _STACK, phase, step,
                    payload=len(looks), bytes_in=counted * ours, name=spool.name_id(text),
                )  # fmt: skip
        self._seen, self._looks = {}, 0
        return newest

    # -- standing still --------------------------------------------------------------------------

    def _stands_still(self, now_ns: int, lasted_ns: int) -> None:
        """Take a sample if one is due; the next when the step has lasted twice as long."""
        if lasted_ns < self._again_ns:
            return
        self._again_ns, self._rival = 2 * lasted_ns, 0
        frames = self._take(now_ns)
        inside = self._inside(self._write())
        places = own_place(frames), called_there(frames)
        at = ", in ".join(place for place in places if place and distance(place) < 2)
        self.standstill = Standstill(self._step, now_ns - lasted_ns, inside, at)

    def _inside(self, newest: int) -> str:
        """The step's first collective or message without an end, among the latest records."""
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


class Rivals:
    """Python threads that compute beside the training thread, which waits for them to let go of the
    interpreter's lock: how long each had run or waited for a core when last seen (schedstat in the
    kernel's sched-stats.rst)."""

    def __init__(self) -> None:
        self.share = 0.0  # of the time, for which the busiest wanted a core; 1 where not known yet
        self._seen: dict[int, tuple[int, int]] = {}  # by native number: when, and for how long

    def busiest(self, ident: int, now_ns: int) -> int:
        """The thread, other than `ident`, this one and ours, that wanted a core for most of the
        time since the last call; 0 for none."""
        before, self._seen, self.share, found = self._seen, {}, 0.0, (BUSY, 0)
        for thread in threading.enumerate():
            mine = thread.ident in (None, ident, threading.get_ident())
            if mine or thread.name.startswith(OURS):
                continue
            number = thread.native_id or 0
            account = read_text(f"/proc/self/task/{number}/schedstat", held=True) or ""
            wanted = sum(map(int, account.split()[:2]))
            since_ns, earlier = before.get(number, (now_ns, wanted))
            self._seen[number] = now_ns, wanted
            share = (wanted - earlier) / max(now_ns - since_ns, 1)
            self.share = max(self.share, share if number in before else 1.0)
            found = max(found, (share, thread.ident or 0))
        return found[1]
