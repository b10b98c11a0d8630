"""What one rank waited for the others in a step, read from its own collectives.

Overlapped collectives share one wait. Where ends are exact (device events) each collective begins
when the previous one ended, so nothing is counted twice. Where an end is only an upper bound (a
callback on the host) it says nothing once the rank has entered its next collective: such a run is
one *burst*, told by its last member alone. The wait then counts from the last entry, and counts as
one only beyond what lies between first and last entry.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from evenstep.pacing.floor import FOLLOW_GAP_NS, Floor, FloorTable

AFTER_PAUSE_NS = 1_000_000  # callbacks held back by a collector run within this time after it

Collective: TypeAlias = tuple[int, int, int, int, int, bool]
"""(group, op, bytes, enter_ns, exit_ns, exit is an upper bound), in order of entry."""

Pause: TypeAlias = tuple[int, int]
"""(start_ns, end_ns) of a collector pause of this rank, in order."""

NO_COLLECTIVE = "no collective in this step"
PAUSED = "the end fell into or right after a collector pause"
FIRST_ONLY = "only ever the first of a step: wait and slow transfer look the same"


class StepWait(NamedTuple):
    """How long a rank waited in one step; None where that cannot be told, with the reason."""

    first_ns: int | None  # before the first byte of the first collective
    total_ns: int | None  # of the whole step, overlapped collectives sharing one wait
    in_flight_ns: int | None  # of the first collective or burst; None where its end is not trusted
    floor_lower_ns: int | None  # of the same
    margin_ns: int  # a transfer without wait rarely exceeds floor_lower_ns + margin_ns
    since_last_ns: int | None  # first entry minus the last end before: own work and own delay
    reason: str = ""


class WaitEstimator:
    """Tells wait from transfer, step by step, from what one rank sees; memory is bounded."""

    def __init__(self) -> None:
        self.floors = FloorTable()
        self._last_end: int | None = None

    def step(self, collectives: Sequence[Collective], pauses: Sequence[Pause] = ()) -> StepWait:
        """What one finished step says; call it once per step, in order."""
        account = _Account()
        floors, find = self.floors, self.floors.known.get
        count = len(collectives)
        at = busy = 0  # busy: the end of everything entered so far
        group_before = None
        while at < count:
            group, op, nbytes, enter, end, upper = collectives[at]
            follows = group == group_before and 0 <= enter - busy <= FOLLOW_GAP_NS
            group_before = group
            at += 1
            if upper and at < count and collectives[at][3] < end:
                at, ended = self._burst(collectives, at - 1, busy, follows, account, pauses)
                if ended > busy:
                    busy = ended
                continue
            if upper and pauses and _held_back(end, pauses):
                account.leave_out(PAUSED)
            else:
                lowest = find((group, op, nbytes, 1)) or floors.at(group, op, nbytes)
                if enter >= busy:
                    in_flight = end - enter
                    lowest.see(in_flight, follows)
                else:
                    in_flight = end - busy if end > busy else 0
                known = lowest.known if lowest.count < lowest.fresh else floors.of(lowest)
                # Most collectives of a step are back-to-back and on time: nothing to enter.
                if known is None or not account.began or in_flight > known[0] + known[2]:
                    account.add(in_flight, 0, known)
            if end > busy:
                busy = end
        return self._conclude(account, collectives, busy)

    def _burst(
        self,
        collectives: Sequence[Collective],
        at: int,
        busy: int,
        follows: bool,
        account: _Account,
        pauses: Sequence[Pause],
    ) -> tuple[int, int]:
        """Judge the burst at `at`; returns where the next begins and when this one ended.

        `busy` is the end of what was in flight before: up to there the time is counted already.
        """
        group, op, first_bytes, start, first_end, _ = collectives[at]
        nbytes, reach, after = first_bytes, first_end, at + 1
        while after < len(collectives) and collectives[after][3] < reach:
            nbytes += collectives[after][2]
            reach = max(reach, collectives[after][4])
            after += 1
        last, end = collectives[after - 1][3], collectives[after - 1][4]
        if pauses and _held_back(end, pauses):
            account.leave_out(PAUSED)
            return after, reach
        lowest = self.floors.at(group, op, nbytes, after - at)
        if last >= busy:
            lowest.see(end - last, follows)
            if end > first_end and nbytes > first_bytes:
                lowest.see_tail((end - first_end) * nbytes // (nbytes - first_bytes))
        account.add(max(0, end - max(last, busy)), last - start, self.floors.of(lowest))
        return after, end

    def _conclude(self, account: _Account, collectives: Sequence[Collective], end: int) -> StepWait:
        since = None
        if collectives and self._last_end is not None:
            since = collectives[0][3] - self._last_end
        if collectives:
            self._last_end = end
        return account.close(since)


class _Account:
    """The sums of one step."""

    __slots__ = ("began", "first", "first_floor", "in_flight", "reason", "total")

    def __init__(self) -> None:
        self.began = False
        self.first: int | None = None
        self.first_floor: Floor | None = None
        self.in_flight: int | None = None
        self.total = 0
        self.reason = ""

    def leave_out(self, reason: str) -> None:
        """Enter a collective that tells nothing."""
        self.began = True
        self.reason = self.reason or reason

    def add(self, in_flight: int, spread: int, floor: Floor | None) -> None:
        """Enter a collective or burst whose own entries are `spread` apart."""
        wait = None
        if floor is None:
            self.reason = self.reason or FIRST_ONLY
        else:
            wait = max(0, in_flight - floor.value_ns)
            if wait > floor.margin_ns + spread:
                self.total += wait
        if not self.began:
            self.began = True
            self.first, self.in_flight, self.first_floor = wait, in_flight, floor

    def close(self, since_ns: int | None) -> StepWait:
        """The step's verdict."""
        floor = self.first_floor
        lower, margin = (None, 0) if floor is None else (floor.lower_ns, floor.margin_ns)
        reason = self.reason if self.began else NO_COLLECTIVE
        total = None if reason else self.total
        return StepWait(self.first, total, self.in_flight, lower, margin, since_ns, reason)


def _held_back(end: int, pauses: Sequence[Pause]) -> bool:
    """Whether a callback at `end` may have been held back by one of the pauses."""
    return any(start <= end <= stop + AFTER_PAUSE_NS for start, stop in pauses)
