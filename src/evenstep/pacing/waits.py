"""How long one rank waited for the others in a step, estimated from its own collectives.

Overlapped collectives share one wait. Where ends are exact (device events) the transfer of a
collective begins when the one before ended, so no time is counted twice. Where an end is only an
upper bound (a callback on the host) it tells nothing once the rank has entered its next collective:
collectives that overlap so are one *burst*, and only the end of the last is used. Time in flight
then counts from the last entry; the excess over the floor is a wait only where it is longer than
the time between first and last entry.

The floor of a collective is its time in flight when no rank waits for another. Every in-flight time
is the floor plus something, so a minimum never lies below the floor, but it may lie above. A rank
that is always early never sees the floor in the first collective of a step; it does in back-to-back
collectives, which all ranks enter together. Hence a floor is accepted when

* it was observed in back-to-back collectives of the same group, operation and size,
* it lies on the line a + b * bytes through such floors of the same group and operation, or
* it follows, roughly, from the pace of an overlapped burst after its first member has ended.

Otherwise there is no floor, and wait cannot be separated from slow transfer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

FOLLOW_GAP_NS = 1_000_000  # longest gap between two back-to-back collectives of a group
LOWEST = 3  # order statistics kept per epoch
EPOCH = 256  # samples; a floor that rose is accepted after two epochs
FEWEST_BACK_TO_BACK = 3  # samples before their minimum counts as the floor
CONFIDENCE = 0.9
MOST_LEFT = 64  # samples taken at once; a quarter of those before, if that is fewer
QUANTUM_NS = 20_000  # what stamping and thread switches add to a transfer at least
_NEVER = 1 << 62

Key: TypeAlias = tuple[int, int, int, int]  # group, operation, bytes, collectives in the burst
AFTER_PAUSE_NS = 1_000_000  # callbacks held back by a collector run within this time after it


class Floor(NamedTuple):
    """The floor of one kind and size, with its uncertainty."""

    value_ns: int
    lower_ns: int  # the true floor lies above this, with `CONFIDENCE` and given the basis
    margin_ns: int  # a transfer without wait rarely takes longer than lower_ns + margin_ns


class FloorSamples:
    """The smallest in-flight times of the current and the previous epoch of one kind and size.

    Trusted samples are appended to `led` or `followed` and subtracted from `left`, until `take`.
    """

    __slots__ = (
        "back_to_back", "count", "current", "floor", "followed", "key", "led", "left", "noise_ns",
        "previous", "tail_ns",
    )  # fmt: skip

    def __init__(self, key: Key) -> None:
        self.key = key
        self.followed: list[int] = []  # of back-to-back collectives
        self.led: list[int] = []  # of others
        self.left = 0  # samples until they are taken
        self.count = 0  # taken
        self.back_to_back = 0  # how many of the samples were
        self.current: list[int] = []  # invariant: ascending, at most LOWEST
        self.previous: list[int] = []
        self.noise_ns = 0  # slow median of back-to-back samples less the minimum
        self.tail_ns: int | None = None  # slow median of a burst at the pace of its tail
        self.floor: Floor | None = None  # as last estimated

    def take(self) -> None:
        """Take the samples since the last time."""
        followed, before = self.followed, self.count
        self.count += len(self.led) + len(followed)
        self.current = sorted(self.current + self.led + followed)[:LOWEST]
        if followed:
            self.back_to_back += len(followed)
            excess_ns = sorted(followed)[len(followed) // 2] - self.minimum_ns
            step_ns = max(self.noise_ns, QUANTUM_NS) // 2
            self.noise_ns = max(self.noise_ns - step_ns, min(self.noise_ns + step_ns, excess_ns))
        if self.count // EPOCH > before // EPOCH:
            self.previous, self.current = self.current, []
        self.left = max(1, min(MOST_LEFT, self.count // 4))
        self.led.clear()
        followed.clear()

    @property
    def minimum_ns(self) -> int:
        """Of both epochs."""
        return min(self.current[:1] + self.previous[:1], default=_NEVER)

    @property
    def lower_ns(self) -> int:
        """Lower bound of the floor: x1 - c/(1-c) (x2 - x1) (Robson and Whitlock 1964)."""
        low = sorted(self.current + self.previous)
        if len(low) < 2:
            return 0
        step = CONFIDENCE / (1.0 - CONFIDENCE) * (low[1] - low[0])
        return max(0, int(low[0] - step))

    @property
    def observed(self) -> bool:
        """Whether the minimum is the floor."""
        return self.back_to_back >= FEWEST_BACK_TO_BACK

    def floor_at(self, value_ns: int, lower_ns: int) -> Floor:
        """The floor at a value above `lower_ns`, with the margin that noise leaves."""
        margin_ns = max(QUANTUM_NS, value_ns // 10, 3 * self.noise_ns)
        return Floor(value_ns, lower_ns, value_ns - lower_ns + margin_ns)

    def add_tail(self, nbytes: int, end_ns: int, first_bytes: int, first_end_ns: int) -> None:
        """Take how long a burst would last at its pace after the end of its first member."""
        if end_ns > first_end_ns and nbytes > first_bytes:
            whole_ns = (end_ns - first_end_ns) * nbytes // (nbytes - first_bytes)
            tail_ns = whole_ns if self.tail_ns is None else self.tail_ns
            step = max(1, tail_ns >> 5)
            self.tail_ns = tail_ns + (whole_ns > tail_ns) * step - (whole_ns < tail_ns) * step


class FloorTable:
    """The floors of one rank by group, operation and size; when full, the oldest is dropped."""

    def __init__(self, max_keys: int = 512) -> None:
        self.max_keys = max_keys
        self.samples: dict[Key, FloorSamples] = {}

    def samples_of(self, key: Key) -> FloorSamples:
        """The samples of one kind and size, empty when it is new."""
        if key not in self.samples:
            if len(self.samples) >= self.max_keys:
                del self.samples[next(iter(self.samples))]
            self.samples[key] = FloorSamples(key)
        return self.samples[key]

    def floor_of(self, samples: FloorSamples) -> Floor | None:
        """The floor of `samples`, or None when wait cannot be separated from slow transfer."""
        if samples.led or samples.followed:
            samples.take()
        value_ns: int | None = samples.minimum_ns
        lower_ns = samples.lower_ns
        if not samples.observed:
            # How many members of a burst move at once is unknown: no share of its tail is certain.
            value_ns, certain = self._on_line(samples.key) or (samples.tail_ns, 0.0)
            value_ns = None if value_ns is None else min(value_ns, samples.minimum_ns)
            lower_ns = int((value_ns or 0) * certain)
        samples.floor = None if value_ns is None else samples.floor_at(value_ns, lower_ns)
        return samples.floor

    def _on_line(self, key: Key) -> tuple[int, float] | None:
        """The floor on the line through observed ones of its kind, and the share that is certain.

        One size leaves the split between latency and bandwidth open: then half is certain.
        """
        group, op, nbytes, count = key
        points = [
            (other[2], samples.minimum_ns)
            for other, samples in self.samples.items()
            if (*other[:2], other[3]) == (group, op, 1) and samples.observed
        ]
        if not points:
            return None
        latency, per_byte = fit_line(points)
        return int(count * latency + per_byte * nbytes), 0.8 if len(points) > 1 else 0.5


def fit_line(points: list[tuple[int, int]]) -> tuple[float, float]:
    """Fit floor = a + b * bytes by least squares, a, b >= 0 (alpha-beta model, Hockney 1994)."""
    n = len(points)
    mean_x = sum(x for x, _ in points) / n
    mean_y = sum(y for _, y in points) / n
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    most = mean_y / mean_x if mean_x > 0 else 0.0  # at which a = 0; one size takes all of it
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else most
    slope = max(0.0, min(slope, most))
    return mean_y - slope * mean_x, slope


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
