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
        floors, find = self.floors, self.floors.samples.get
        count = len(collectives)
        after = busy = total = 0  # busy: the end of everything entered so far
        known = True  # whether all waits are
        first: tuple[int | None, Floor | None] | None = None  # time in flight, and floor
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
            # it ended in or right after a pause, which may have held its callback back
            if upper and pauses and any(a <= end <= b + AFTER_PAUSE_NS for a, b, _ in pauses):
                first, known = first or (None, None), False
                busy = max(busy, reach)
                continue
            key = (group, op, nbytes, after - at)
            samples = find(key) or floors.samples_of(key)
            in_flight = end - (last if last > busy else busy)
            if last >= busy:
                (samples.followed if follows else samples.led).append(in_flight)
                if after > at + 1:
                    samples.add_tail(nbytes, end, collectives[at][2], collectives[at][4])
                samples.left -= 1
            floor = samples.floor if samples.left > 0 else floors.floor_of(samples)
            if floor is None:  # only ever the first of a step: wait and slow transfer look the same
                known = False
            elif (wait := in_flight - floor[0]) > floor[2] + last - start:
                total += wait
            if first is None:
                first = max(0, in_flight), floor
            if end > busy:
                busy = end
        before, self._last_end = self._last_end, busy if collectives else self._last_end
        since = collectives[0][3] - before if collectives and before is not None else None
        return _step_wait(first or (None, None), total if first and known else None, since)


def _step_wait(
    first: tuple[int | None, Floor | None], total_ns: int | None, since_last_ns: int | None
) -> StepWait:
    in_flight, floor = first
    if floor is None or in_flight is None:
        return StepWait(None, total_ns, in_flight, None, 0, since_last_ns)
    value, lower, margin = floor
    return StepWait(max(0, in_flight - value), total_ns, in_flight, lower, margin, since_last_ns)
