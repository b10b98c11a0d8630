"""Tells the job's own log that it stands still, and where each of its ranks is.

A rank on which no step ends leaves a note in the job's store, from the background thread. Rank 0
reads the notes of all: who waits in a collective, who is somewhere else, and of whom nothing is
heard. One line is said when somebody waits, and one when steps end again.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from typing import Any

from evenstep.agent.pulse.vigil import Standstill
from evenstep.trace.ranks import format_ranks

log = logging.getLogger("evenstep")

NOTE_S = 6.0  # a step lasts for so long, and its rank leaves a note; …
SAY_S = 9.0  # … rank 0, for so long, and it asks for them, …
HEAR_ROUNDS = 3  # … but not before others have had so many in which to leave theirs
MOST_PLACES = 8  # told in one line


class Alarm:
    """One rank's part; `round` about every second, on the background thread.

    `standstill` gives what the rank knows of its own, None while steps end.
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
        self._said_ns = 0  # since when the job stands still that was told of

    def round(self) -> None:
        """Leave a note, or say how things are. Raises what the store raises."""
        mine, now_ns = self._standstill(), time.monotonic_ns()
        if mine is None:
            self._goes_on(now_ns)
            return
        lasted_s = (now_ns - mine.since_ns) / 1e9
        if lasted_s > NOTE_S and not self._noted and self.store is not None:
            self._noted = self._key(self._rank, mine.step)
            self.store.set(self._noted, json.dumps([mine.inside, mine.at]).encode())
        self._rounds += 1
        heard = self.store is None or self._rounds > HEAR_ROUNDS
        if lasted_s > SAY_S and heard and not self._said_ns and self._rank == 0:
            self._say(mine, lasted_s)

    def _goes_on(self, now_ns: int) -> None:
        self._rounds = 0
        if self._said_ns:
            log.warning("evenstep: steps end again, after %.0f s", (now_ns - self._said_ns) / 1e9)
            self._said_ns = 0
        noted, self._noted = self._noted, ""
        if noted and self.store is not None:
            self.store.delete_key(noted)

    def _say(self, mine: Standstill, lasted_s: float) -> None:
        """One line, if anybody waits for somebody: a long step is nobody's concern."""
        notes = {rank: self._note(rank, mine.step) for rank in range(1, self._world)}
        notes[0] = (mine.inside, mine.at)
        heard = {rank: note for rank, note in notes.items() if note is not None}
        if not any(inside for inside, _ in heard.values()):
            return
        self._said_ns = mine.since_ns
        silent = sorted(notes.keys() - heard.keys()) if self.store is not None else []
        told = [*_places(heard), *_silent(silent)]
        log.warning(
            "evenstep: no step has ended for %.0f s, since step %d: %s",
            lasted_s, mine.step, "; ".join(told[:MOST_PLACES]),
        )  # fmt: skip

    def _note(self, rank: int, step: int) -> tuple[str, str] | None:
        """What a rank wrote of this step or the one beside it: ranks may be a step apart."""
        for near in (step, step + 1, step - 1) if self.store is not None else ():
            key = self._key(rank, near)
            if self.store.check([key]):
                inside, at = json.loads(bytes(self.store.multi_get([key])[0]))
                return str(inside), str(at)
        return None

    def _key(self, rank: int, step: int) -> str:
        return f"{self._prefix}/{step}/r{rank}"


def _places(notes: dict[int, tuple[str, str]]) -> list[str]:
    """Who is where, those first who wait for nobody."""
    ranks: dict[tuple[str, str], list[int]] = {}
    for rank, note in notes.items():
        ranks.setdefault(note, []).append(rank)
    told = []
    for (inside, at), who in sorted(ranks.items()):
        doing = f"in {inside}" if inside else "in no collective"
        told.append(f"{_named(who)} {doing}" + (f", at {at}" if at else ""))
    return told


def _silent(ranks: list[int]) -> list[str]:
    return [f"no word yet from {_named(ranks)}"] if ranks else []


def _named(ranks: list[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {format_ranks(ranks)}"
