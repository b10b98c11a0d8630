"""The floor of a collective: how long it is in flight when nobody is waited for.

Every in-flight time is the floor plus something, so a minimum never undershoots the floor. The
question is whether it has come down to it. A rank that is always early never sees the floor in the
first collective of a step; right after a collective all ranks enter together, so in back-to-back
ones it does. Hence a floor is believed when it

* was seen in back-to-back collectives of the same group, operation and size,
* lies on the line a + b * bytes through such floors of the same group and operation, or
* follows, roughly, from how the rest of an overlapped burst went by once the first byte had moved.

Otherwise there is no floor: wait cannot be told from slow transfer.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

FOLLOW_GAP_NS = 1_000_000  # entered so soon after the one before of its group: back-to-back
LOWEST = 3  # order statistics kept per epoch
EPOCH = 256  # samples; a floor that rose is believed after two epochs
FOLLOWERS = 3  # back-to-back samples before a floor counts as seen
CONFIDENCE = 0.9
REFRESH = 16  # samples between two looks at a floor that nothing new has lowered
QUANTUM_NS = 20_000  # what stamping and thread switches add to a transfer at least
_NEVER = 1 << 62

Size: TypeAlias = tuple[int, int]  # (bytes, collectives in the burst)
Kind: TypeAlias = tuple[int, int]  # (group, operation)


class Floor(NamedTuple):
    """The floor of one kind and size, and how far it can be trusted."""

    value_ns: int
    lower_ns: int  # the true floor lies above this, with `CONFIDENCE` and given the basis
    margin_ns: int  # a transfer without any wait rarely exceeds lower_ns + margin_ns


class Lowest:
    """The smallest samples of the current and the previous epoch of one kind and size."""

    __slots__ = (
        "count", "current", "followers", "fresh", "gate", "kind", "known", "least_ns", "noise_ns",
        "previous", "size", "tail_ns",
    )  # fmt: skip

    def __init__(self, kind: Kind, size: Size) -> None:
        self.kind = kind
        self.size = size
        self.count = 0
        self.followers = 0  # how many of the samples were back-to-back
        self.current: list[int] = []  # invariant: ascending, at most LOWEST
        self.previous: list[int] = []
        self.least_ns = _NEVER  # of both epochs
        self.gate = _NEVER  # samples from here on change nothing
        self.noise_ns = 0  # slow median of what back-to-back samples exceed the minimum by
        self.tail_ns: int | None = None  # a slow median: a burst at the pace of its tail
        self.known: Floor | None = None
        self.fresh = 0  # `known` holds while count is below this

    def see(self, in_flight_ns: int, follows: bool) -> None:
        """Take one trusted sample."""
        self.count = count = self.count + 1
        if in_flight_ns < self.gate:
            self._insert(in_flight_ns)
        if follows:
            self.followers += 1
            noise = self.noise_ns
            step = (noise if noise > QUANTUM_NS else QUANTUM_NS) >> 4
            if in_flight_ns - self.least_ns > noise:
                self.noise_ns = noise + step
            else:
                self.noise_ns = noise - step if noise > step else 0
        if count % EPOCH == 0:
            self.previous, self.current, self.gate = self.current, [], _NEVER
            self.least_ns = self.previous[0]

    def _insert(self, in_flight_ns: int) -> None:
        self.fresh = 0
        low = self.current
        low.append(in_flight_ns)
        low.sort()
        if len(low) > LOWEST:
            low.pop()
        if len(low) == LOWEST:
            self.gate = low[-1]
        self.least_ns = min(self.least_ns, in_flight_ns)

    def lower_ns(self) -> int:
        """Below the end of the distribution: x1 - c/(1-c) (x2 - x1) (Robson and Whitlock 1964)."""
        low = sorted(self.current + self.previous)
        if len(low) < 2:
            return 0
        step = CONFIDENCE / (1.0 - CONFIDENCE) * (low[1] - low[0])
        return max(0, int(low[0] - step))

    @property
    def seen(self) -> bool:
        """Whether the minimum has come down to the floor."""
        return self.followers >= FOLLOWERS

    def see_tail(self, whole_ns: int) -> None:
        """Take how long a burst would last at the pace of its tail."""
        if self.tail_ns is None:
            self.tail_ns = whole_ns
        else:
            step = max(1, self.tail_ns >> 5)
            self.tail_ns += step if whole_ns > self.tail_ns else -step


def margin_ns(value_ns: int, lower_ns: int, noise_ns: int) -> int:
    """How far above its lower bound a transfer without wait may lie."""
    return value_ns - lower_ns + max(QUANTUM_NS, value_ns // 10, 3 * noise_ns)


class FloorTable:
    """The floors of all kinds and sizes of one rank; memory is bounded, the oldest goes."""

    def __init__(self, max_keys: int = 512) -> None:
        self.max_keys = max_keys
        self.known: dict[tuple[int, int, int, int], Lowest] = {}

    def at(self, group: int, op: int, nbytes: int, count: int = 1) -> Lowest:
        """The samples of one kind and size, opened when it is new."""
        found = self.known.get((group, op, nbytes, count))
        if found is None:
            if len(self.known) >= self.max_keys:
                del self.known[next(iter(self.known))]
            found = Lowest((group, op), (nbytes, count))
            self.known[group, op, nbytes, count] = found
        return found

    def of(self, lowest: Lowest) -> Floor | None:
        """The floor of these, or None when wait cannot be told from slow transfer."""
        if lowest.count >= lowest.fresh:
            lowest.known = self._weigh(lowest)
            lowest.fresh = lowest.count + min(REFRESH, lowest.count)
        return lowest.known

    def _weigh(self, lowest: Lowest) -> Floor | None:
        if lowest.seen:
            least, lower = lowest.least_ns, lowest.lower_ns()
            return Floor(least, lower, margin_ns(least, lower, lowest.noise_ns))
        line = self._line(lowest)
        if line is not None:
            return _unseen(*line, lowest)
        if lowest.tail_ns is not None:
            # Nobody here knows how many of a burst move at once: off by up to the whole value.
            return _unseen(lowest.tail_ns, 0.0, lowest)
        return None

    def _line(self, lowest: Lowest) -> tuple[int, float] | None:
        """Value and the share of it that is sure, from back-to-back floors of the same kind."""
        points = [
            (other.size[0], other.least_ns)
            for other in self.known.values()
            if other.kind == lowest.kind and other.size[1] == 1 and other.seen
        ]
        if not points:
            return None
        latency, per_byte = fit_line(points)
        nbytes, count = lowest.size
        # One size leaves the split between latency and bandwidth open: then half of it is sure.
        return int(count * latency + per_byte * nbytes), 0.8 if len(points) > 1 else 0.5


def fit_line(points: list[tuple[int, int]]) -> tuple[float, float]:
    """Least squares of floor = a + b * bytes with a, b >= 0 (alpha-beta model, Hockney 1994)."""
    n = len(points)
    mean_x = sum(x for x, _ in points) / n
    mean_y = sum(y for _, y in points) / n
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    if spread == 0.0:
        return (0.0, mean_y / mean_x) if mean_x > 0 else (mean_y, 0.0)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    slope = max(0.0, min(slope, mean_y / mean_x))
    return mean_y - slope * mean_x, slope


def _unseen(value: int, sure: float, lowest: Lowest) -> Floor:
    """A floor that was not seen here; what was seen can only lower it."""
    value = min(value, lowest.least_ns) if lowest.count else value
    lower = int(value * sure)
    return Floor(value, lower, margin_ns(value, lower, lowest.noise_ns))
