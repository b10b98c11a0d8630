"""The floor of a collective: its time in flight when no rank waits for another.

Every in-flight time is the floor plus something, so a minimum never lies below the floor, but it
may lie above. A rank that is always early never sees the floor in the first collective of a step;
it does in back-to-back collectives, which all ranks enter together. Hence a floor is accepted when

* it was observed in back-to-back collectives of the same group, operation and size,
* it lies on the line a + b * bytes through such floors of the same group and operation, or
* it follows, roughly, from the pace of an overlapped burst after its first member has ended.

Otherwise there is no floor, and wait cannot be separated from slow transfer.
"""

from __future__ import annotations

from bisect import insort
from typing import NamedTuple, TypeAlias

FOLLOW_GAP_NS = 1_000_000  # longest gap between two back-to-back collectives of a group
LOWEST = 3  # order statistics kept per epoch
EPOCH = 256  # samples; a floor that rose is accepted after two epochs
FEWEST_BACK_TO_BACK = 3  # samples before their minimum counts as the floor
CONFIDENCE = 0.9
REFRESH = 16  # samples after which a floor is estimated again although its minimum is the same
QUANTUM_NS = 20_000  # what stamping and thread switches add to a transfer at least
_NEVER = 1 << 62

Size: TypeAlias = tuple[int, int]  # (bytes, collectives in the burst)
Kind: TypeAlias = tuple[int, int]  # (group, operation)


class Floor(NamedTuple):
    """The floor of one kind and size, with its uncertainty."""

    value_ns: int
    lower_ns: int  # the true floor lies above this, with `CONFIDENCE` and given the basis
    margin_ns: int  # a transfer without wait rarely takes longer than lower_ns + margin_ns


class FloorSamples:
    """The smallest in-flight times of the current and the previous epoch of one kind and size."""

    __slots__ = (
        "back_to_back", "count", "current", "floor", "gate_ns", "kind", "minimum_ns", "noise_ns",
        "previous", "size", "tail_ns", "valid_until",
    )  # fmt: skip

    def __init__(self, kind: Kind, size: Size) -> None:
        self.kind = kind
        self.size = size
        self.count = 0
        self.back_to_back = 0  # how many of the samples were
        self.current: list[int] = []  # invariant: ascending, at most LOWEST
        self.previous: list[int] = []
        self.minimum_ns = _NEVER  # of both epochs
        self.gate_ns = _NEVER  # a sample as long as this or longer is not among the lowest
        self.noise_ns = 0  # slow median of back-to-back samples less the minimum
        self.tail_ns: int | None = None  # slow median of a burst at the pace of its tail
        self.floor: Floor | None = None  # as last estimated
        self.valid_until = 0  # invariant: `floor` is up to date while count is below this

    def add(self, in_flight_ns: int, follows: bool) -> None:
        """Take a trusted sample; `follows`: the collective was back-to-back."""
        self.count = count = self.count + 1
        if in_flight_ns < self.gate_ns:
            self.valid_until = 0
            insort(self.current, in_flight_ns)
            del self.current[LOWEST:]
            if len(self.current) == LOWEST:
                self.gate_ns = self.current[-1]
            self.minimum_ns = min(self.minimum_ns, in_flight_ns)
        if follows:
            self.back_to_back += 1
            noise = self.noise_ns
            step = (noise if noise > QUANTUM_NS else QUANTUM_NS) >> 4
            if in_flight_ns - self.minimum_ns <= noise:
                step = -step if noise > step else -noise
            self.noise_ns = noise + step
        if count % EPOCH == 0:
            self.previous, self.current, self.gate_ns = self.current, [], _NEVER
            self.minimum_ns = self.previous[0]

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

    def add_tail(self, whole_ns: int) -> None:
        """Take the time a whole burst would last at the pace of its tail."""
        if self.tail_ns is None:
            self.tail_ns = whole_ns
        else:
            step = max(1, self.tail_ns >> 5)
            self.tail_ns += step if whole_ns > self.tail_ns else -step


class FloorTable:
    """The floors of one rank by group, operation and size; when full, the oldest is dropped."""

    def __init__(self, max_keys: int = 512) -> None:
        self.max_keys = max_keys
        self.samples: dict[tuple[int, int, int, int], FloorSamples] = {}

    def samples_of(self, group: int, op: int, nbytes: int, count: int = 1) -> FloorSamples:
        """The samples of one kind and size, empty when it is new."""
        key = group, op, nbytes, count
        if key not in self.samples:
            if len(self.samples) >= self.max_keys:
                del self.samples[next(iter(self.samples))]
            self.samples[key] = FloorSamples((group, op), (nbytes, count))
        return self.samples[key]

    def floor_of(self, samples: FloorSamples) -> Floor | None:
        """The floor of `samples`, or None when wait cannot be separated from slow transfer."""
        if samples.count >= samples.valid_until:
            samples.floor = self._estimate(samples)
            samples.valid_until = samples.count + min(REFRESH, samples.count)
        return samples.floor

    def _estimate(self, samples: FloorSamples) -> Floor | None:
        if samples.observed:
            return samples.floor_at(samples.minimum_ns, samples.lower_ns())
        # How many members of a burst move at once is unknown: no share of its tail is certain.
        value_ns, certain = self._on_line(samples) or (samples.tail_ns, 0.0)
        if value_ns is None:
            return None
        value_ns = min(value_ns, samples.minimum_ns)
        return samples.floor_at(value_ns, int(value_ns * certain))

    def _on_line(self, samples: FloorSamples) -> tuple[int, float] | None:
        """The floor on the line through observed ones of its kind, and the share that is certain.

        One size leaves the split between latency and bandwidth open: then half is certain.
        """
        points = [
            (other.size[0], other.minimum_ns)
            for other in self.samples.values()
            if other.kind == samples.kind and other.size[1] == 1 and other.observed
        ]
        if not points:
            return None
        latency, per_byte = fit_line(points)
        nbytes, count = samples.size
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
