"""Pauses at a collective's entry, and what a step's gradient collectives ("buckets") took.

A pause follows a bucket that has completed, on the training thread alone: never on a thread of the
autograd engine, never while an earlier collective of the step is in flight. The order of
collectives stays as it is, since the thread that issues them is the one that sleeps.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import NamedTuple

from evenstep.agent.recorder import Recorder
from evenstep.pacing import Gaps
from evenstep.pacing.waits import AFTER_PAUSE_NS, Collective, Pause
from evenstep.trace.spool.layout import WORD_ENTER, WORD_EXIT, Actuator, Flag, Kind

LEAST_NS = 20_000  # callbacks that come together were held back: what they say is not trusted

_get_ident = threading.get_ident


class Buckets(NamedTuple):
    """A step's buckets: the collectives of the group and operation that moved most."""

    kind: tuple[int, int]  # (group, operation)
    durations_ns: tuple[int | None, ...]
    sizes: tuple[int, ...]
    serial: int  # how many had completed when the next one was entered


NO_BUCKETS = Buckets((-1, -1), (), (), 0)


def buckets_of(finished: Sequence[Collective], pauses: Sequence[Pause]) -> Buckets:
    """The buckets among a step's finished collectives, in order."""
    if len(finished) < 2:
        return NO_BUCKETS
    moved: dict[tuple[int, int], int] = {}
    for group, op, nbytes, _, _, _ in finished:
        moved[group, op] = moved.get((group, op), 0) + nbytes
    kind = max(moved, key=moved.__getitem__)
    durations: list[int | None] = []
    sizes = []
    reach = serial = 0
    for group, op, nbytes, enter_ns, exit_ns, upper in finished:
        if (group, op) != kind:
            continue
        serial += 0 < reach <= enter_ns
        took = exit_ns - max(enter_ns, reach)
        told = took >= LEAST_NS and not (upper and pauses and _held_back(exit_ns, pauses))
        durations.append(took if told else None)
        sizes.append(nbytes)
        reach = max(reach, exit_ns)
    return Buckets(kind, tuple(durations), tuple(sizes), serial)


def _held_back(exit_ns: int, pauses: Sequence[Pause]) -> bool:
    return any(start <= exit_ns <= end + AFTER_PAUSE_NS for start, end in pauses)


class GapGate:
    """Called before each collective; sleeps where the rule of the running step says so."""

    __slots__ = (
        "_at", "_bucket", "_kind", "_recorder", "_rule", "paused_ns",
    )  # fmt: skip

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._rule: Gaps | None = None
        self._kind = (-1, -1)
        self.paused_ns = 0  # in the running step
        self._at = 0  # collectives of the step looked at so far
        self._bucket = -1

    def open(self, rule: Gaps | None, kind: tuple[int, int]) -> None:
        """What the step that begins now may pause, after buckets of this kind."""
        self._rule, self._kind = rule, kind
        self._at, self._bucket = 0, -1

    def take_paused(self) -> int:
        """What the step that is ending has paused."""
        paused, self.paused_ns = self.paused_ns, 0
        return paused

    def __call__(self) -> None:
        """A collective is about to be issued on this thread."""
        if self._rule is not None and _get_ident() == self._recorder.ident:
            self._pause(self._rule)

    def _pause(self, rule: Gaps) -> None:
        """Sleep if the newest collective is a bucket that has completed and asks for it."""
        issued = self._recorder.collectives
        newest = 0  # a bucket that is the last thing issued, and was not looked at yet
        for seq, group, op, _, _ in issued[self._at :]:
            if (group, op) == self._kind:
                self._bucket += 1
                newest = seq
            else:
                newest = 0
        self._at = len(issued)
        if not newest:
            return
        spool = self._recorder.spool
        base = spool.word_of(newest)
        enter_ns, exit_ns = spool.words[base + WORD_ENTER], spool.words[base + WORD_EXIT]
        if spool.words[base] != newest or not exit_ns:
            self._rule = None  # buckets overlap: nothing more in this step
            return
        pause_ns = rule.after(self._bucket, exit_ns - enter_ns, self.paused_ns)
        if pause_ns > 0:
            self._sleep(pause_ns)

    def _sleep(self, pause_ns: int) -> None:
        begin_ns = time.monotonic_ns()
        time.sleep(pause_ns * 1e-9)
        end_ns = time.monotonic_ns()
        self.paused_ns += end_ns - begin_ns
        self._recorder.spool.put(
            begin_ns,
            end_ns,
            int(Kind.PACING),
            int(Actuator.BETWEEN_BUCKETS),
            self._recorder.stack.step,
            held_ns=pause_ns,
            flags=int(Flag.APPLIED),
        )
