"""How long one rank waited for the others in a step, estimated from its own collectives.

Overlapped collectives share one wait. Where ends are exact (device events) the transfer of a
collective begins when the one before ended, so no time is counted twice. Where an end is only an
upper bound (a callback on the host) it tells nothing once the rank has entered its next collective:
collectives that overlap so are one *burst*, and only the end of the last is used. Time in flight
then counts from the last entry; the excess over the floor is a wait only where it is longer than
the time between first and last entry.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from evenstep.pacing.floor import FOLLOW_GAP_NS, Floor, FloorTable

AFTER_PAUSE_NS = 1_000_000  # callbacks held back by a collector run within this time after it

Collective: TypeAlias = tuple[int, int, int, int, int, bool]
"""(group, op, bytes, enter_ns, exit_ns, whether exit_ns is an upper bound), in order of entry."""

Pause: TypeAlias = tuple[int, int, bool]
"""(start_ns, end_ns, whether the script called it) of a collector pause of this rank, in order."""


class StepWait(NamedTuple):
    """How long a rank waited in one step; None where that is unknown."""

    first_ns: int | None  # before the first byte of the first collective
    total_ns: int | None  # in the whole step; overlapped collectives share one wait
    in_flight_ns: int | None  # of the first collective or burst; None where its end is not trusted
    floor_lower_ns: int | None  # of the same
    margin_ns: int  # a transfer without wait rarely takes longer than floor_lower_ns + margin_ns
    since_last_ns: int | None  # first entry less the last end before it: own work and own delay


class WaitEstimator:
    """Separates wait from transfer, step by step, on one rank; memory is bounded."""

    def __init__(self) -> None:
        self.floors = FloorTable()
        self._last_end: int | None = None

    def step(self, collectives: Sequence[Collective], pauses: Sequence[Pause] = ()) -> StepWait:
        """Estimate the wait of a finished step; call it once per step, in order."""
        sums = _StepSums()
        floors, find = self.floors, self.floors.samples.get
        count = len(collectives)
        after = busy = 0  # busy: the end of everything entered so far
        group_before = None
        while (at := after) < count:
            group, op, nbytes, start, end, upper = collectives[at]
            follows = group == group_before and 0 <= start - busy <= FOLLOW_GAP_NS
            group_before, last, reach, after = group, start, end, at + 1
            while upper and after < count and collectives[after][3] < reach:  # a burst
                _, _, more, last, end, _ = collectives[after]
                nbytes += more
                reach = max(reach, end)
                after += 1
            if upper and pauses and _held_back(end, pauses):
                sums.began, sums.known = True, False  # it ended in or right after a pause
                busy = max(busy, reach)
                continue
            key = (group, op, nbytes, after - at)
            samples = find(key) or floors.samples_of(*key)
            in_flight = end - (last if last > busy else busy)
            if last >= busy:
                samples.add(in_flight, follows)
                if after > at + 1:
                    _, _, first_bytes, _, first_end, _ = collectives[at]
                    if end > first_end and nbytes > first_bytes:
                        tail_ns = (end - first_end) * nbytes // (nbytes - first_bytes)
                        samples.add_tail(tail_ns)
            valid = samples.count < samples.valid_until
            floor = samples.floor if valid else floors.floor_of(samples)
            # Most collectives of a step are back-to-back and on time: `add` would do nothing.
            if floor is None or not sums.began or in_flight > floor[0] + floor[2]:
                sums.add(max(0, in_flight), last - start, floor)
            if end > busy:
                busy = end
        since = None
        if collectives:
            if self._last_end is not None:
                since = collectives[0][3] - self._last_end
            self._last_end = busy
        return sums.close(since)


class _StepSums:
    """The waits of one step so far."""

    __slots__ = ("began", "first", "first_floor", "in_flight", "known", "total")

    def __init__(self) -> None:
        self.began = False
        self.first: int | None = None
        self.first_floor: Floor | None = None
        self.in_flight: int | None = None
        self.total = 0
        self.known = True  # whether all waits are

    def add(self, in_flight: int, spread: int, floor: Floor | None) -> None:
        """Enter a collective, or a burst with `spread` between its first and last entry."""
        wait = None
        if floor is None:  # only ever the first of a step: wait and slow transfer look the same
            self.known = False
        else:
            wait = max(0, in_flight - floor.value_ns)
            if wait > floor.margin_ns + spread:
                self.total += wait
        if not self.began:
            self.began = True
            self.first, self.in_flight, self.first_floor = wait, in_flight, floor

    def close(self, since_ns: int | None) -> StepWait:
        floor = self.first_floor
        lower, margin = (None, 0) if floor is None else (floor.lower_ns, floor.margin_ns)
        total = self.total if self.began and self.known else None
        return StepWait(self.first, total, self.in_flight, lower, margin, since_ns)


def _held_back(end: int, pauses: Sequence[Pause]) -> bool:
    """Whether a callback at `end` may have been held back by one of the pauses."""
    return any(start <= end <= stop + AFTER_PAUSE_NS for start, stop, _ in pauses)
