"""Log that the job stands still, and where each of its ranks is.

A rank on which no step ends leaves a note in the job's store, from the background thread. Rank 0
reads the notes: which ranks wait in a collective, which are elsewhere, and which left none. It logs
one line when any rank waits, and one when steps end again.

Checkpoints or evaluations that take a share of the training time that `watch` tells are logged,
too: no rank is late then, all stand still.
"""

from __future__ import annotations

import json
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from evenstep import lateness
from evenstep.agent.pulse.vigil import Standstill
from evenstep.agent.recording.steps import ClosedStep
from evenstep.trace.ranks import format_ranks
from evenstep.trace.spool.layout import Phase

log = logging.getLogger("evenstep")

NOTE_S = 6.0  # length of a step after which its rank leaves a note
SAY_S = 9.0  # length of a step after which rank 0 reads the notes, …
HEAR_ROUNDS = 3  # … but not before so many rounds, in which the other ranks leave theirs
MOST_PLACES = 8  # in one line
NAMES = {Phase.CHECKPOINT: "checkpoints", Phase.EVALUATION: "evaluations"}
ENOUGH, KEPT = 2, 8  # periods, each from the end of one interruption to that of the next


class Alarm:
    """One rank's side; `round` runs about every second, on the background thread.

    `standstill` returns the rank's own, None while steps end.
    """

    def __init__(
        self, standstill: Callable[[], Standstill | None], *, rank: int, world: int, prefix: str
    ) -> None:
        self.store: Any = None  # a client of this thread's own, once the ranks have met
        self._standstill = standstill
        self._rank = rank
        self._world = world
        self._prefix = f"{prefix}/still"
        self._noted = ""  # the key of the note that is in the store
        self._rounds = 0  # in which the rank stood still
        self._said_ns = 0  # beginning of the standstill that was logged

    def round(self) -> None:
        """Leave a note, or log the state of the job. Raises what the store raises."""
        mine, now_ns = self._standstill(), time.monotonic_ns()
        if mine is None:
            self._steps_end(now_ns)
            return
        lasted_s = (now_ns - mine.since_ns) / 1e9
        if lasted_s > NOTE_S and not self._noted and self.store is not None:
            self._noted = self._key(self._rank, mine.step)
            self.store.set(self._noted, json.dumps([mine.inside, mine.at]).encode())
        self._rounds += 1
        heard = self.store is None or self._rounds > HEAR_ROUNDS
        if lasted_s > SAY_S and heard and not self._said_ns and self._rank == 0:
            self._say(mine, lasted_s)

    def _steps_end(self, now_ns: int) -> None:
        self._rounds = 0
        if self._said_ns:
            log.warning("evenstep: steps end again, after %.0f s", (now_ns - self._said_ns) / 1e9)
            self._said_ns = 0
        noted, self._noted = self._noted, ""
        if noted and self.store is not None:
            self.store.delete_key(noted)

    def _say(self, mine: Standstill, lasted_s: float) -> None:
        """Log a line if any rank waits in a collective: else the step is merely long."""
        notes = {rank: self._note(rank, mine.step) for rank in range(1, self._world)}
        notes[0] = (mine.inside, mine.at)
        heard = {rank: note for rank, note in notes.items() if note is not None}
        if not any(inside for inside, _ in heard.values()):
            return
        self._said_ns = mine.since_ns
        silent = sorted(notes.keys() - heard.keys()) if self.store is not None else []
        told = _places(heard)
        if silent:
            told.append(f"no word yet from {_name_ranks(silent)}")
        since = f", since step {mine.step}" if mine.step else ""  # 0 also where none is marked
        where = "; ".join(told[:MOST_PLACES])
        log.warning("evenstep: no step has ended for %.0f s%s: %s", lasted_s, since, where)

    def _note(self, rank: int, step: int) -> tuple[str, str] | None:
        """A rank's note of this step or a neighbouring one: ranks may be a step apart."""
        for near in (step, step + 1, step - 1) if self.store is not None else ():
            key = self._key(rank, near)
            if self.store.check([key]):
                inside, at = json.loads(bytes(self.store.multi_get([key])[0]))
                return str(inside), str(at)
        return None

    def _key(self, rank: int, step: int) -> str:
        return f"{self._prefix}/{step}/r{rank}"


def _places(notes: dict[int, tuple[str, str]]) -> list[str]:
    """Where ranks are, first those in no collective."""
    ranks: dict[tuple[str, str], list[int]] = {}
    for rank, note in notes.items():
        ranks.setdefault(note, []).append(rank)
    told = []
    for (inside, at), who in sorted(ranks.items()):
        doing = f"in {inside}" if inside else "in no collective"
        told.append(f"{_name_ranks(who)} {doing}" + (f", at {at}" if at else ""))
    return told


def _name_ranks(ranks: list[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {format_ranks(ranks)}"


class Interruptions:
    """Takes the steps of one rank in order. A phase that more than half of them have is what steps
    are, as a rollout in reinforcement learning, and no interruption."""

    def __init__(self) -> None:
        #: The latest steps with each phase: number, end and the phase's length (ns).
        self._ends = {phase: deque[tuple[int, int, int]](maxlen=KEPT + 1) for phase in NAMES}

    def add(self, closed: ClosedStep) -> None:
        """Take a step; log one line for each phase, once."""
        for phase, ends in [*self._ends.items()]:
            if not closed.phase_ns[phase]:
                continue
            ends.append((closed.number, closed.end_ns, closed.phase_ns[phase]))
            (after, since_ns, first_ns), count = ends[0], len(ends) - 1
            spent_ns = sum(lasted_ns for *_, lasted_ns in ends) - first_ns
            steps, whole_ns = closed.number - after, closed.end_ns - since_ns
            if count >= ENOUGH and 2 * count <= steps and spent_ns > lateness.STOPPED * whole_ns:
                del self._ends[phase]
                log.warning(
                    "evenstep: training stands still for %s, %s each, %.0f %% of the time, "
                    "in %d of %d steps looked at",
                    NAMES[phase], lateness.in_words(spent_ns / count), 100 * spent_ns / whole_ns,
                    count, steps,
                )  # fmt: skip
