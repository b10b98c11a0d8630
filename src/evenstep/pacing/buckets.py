"""What one rank's bucket durations say about others on its links.

The reference is how long a bucket of mean size takes alone: the 10 % quantile over 300 steps of
each step's quickest bucket. What lies clearly above it is contended. Noise of the buckets
themselves is read from the quicker half of each step and widens the threshold.
"""

from __future__ import annotations

from operator import gt
from typing import NamedTuple, cast

from evenstep.pacing.window import RollingWindow

FEWEST_BUCKETS = 4
WINDOW = 300  # steps
FEWEST_STEPS = 32  # before the reference is believed
QUIET = (
    0.10  # θ: contended above (1 + θ) times the reference; wider where buckets vary by themselves
)
LOUD = 0.35
NOISE_FACTOR = 3.0
LARGE = 0.5  # smaller buckets than this share of the mean are mostly latency: they tell nothing
MEMORY = 1 / 64  # weight of the newest step where the first bucket is judged
CONFIRMED = 0.5
LOUDER = 3.0  # times what contention adds to a second bucket: more is wait
SAMPLE = 8  # one step in so many counts for the reference, once there is one
MOST_NS = 1 << 62
RENEWAL = 32  # steps after which it is worked out anew

Sizes = tuple[int, ...]
_new = tuple.__new__  # a third of what a named tuple's own costs, once a step


class Contended(NamedTuple):
    """One step's buckets against the reference."""

    total_ns: int  # all buckets that tell something, as they were
    excess_ns: int  # over all contended buckets
    lead_ns: int  # over the leading run of contended buckets
    whole: bool  # every bucket was contended
    alone_ns: int  # what all buckets take alone
    clouded: bool = False  # the bucket after the first was contended, and what the first one took
    #                        longer may be contention as well as wait


class Buckets:
    """The reference of one rank's buckets, and what each step's exceed it by."""

    __slots__ = (
        "_age", "_alone_ns", "_even", "_first", "_first_two", "_later", "_least", "_limits_ns",
        "_middle", "_sizes", "_spread", "_telling", "_usual", "_weights", "reference_ns",
        "threshold_ns",
    )  # fmt: skip

    def __init__(self) -> None:
        self._least = RollingWindow(WINDOW // SAMPLE)
        self._middle = RollingWindow(WINDOW // SAMPLE)
        self._spread = RollingWindow(WINDOW // SAMPLE)  # of the quicker half above the quickest
        self._sizes: Sizes = ()
        self._weights: tuple[float, ...] = ()
        self._first = self._first_two = 0.0  # recent excess of the first bucket, and what the
        #                                      second one confirms of it
        self._later = 0.0  # what the first one takes longer than the second
        self._usual = 0.0  # what contention adds to a second bucket where there is any
        self._telling: list[int] = []  # which buckets tell something
        self._even = True  # all of one size
        self._limits_ns: list[int] = []  # of each bucket, where sizes differ; longer is contended
        self._alone_ns = 0
        self._age = 0
        self.reference_ns = 0  # of a bucket of mean size; 0: not known yet
        self.threshold_ns = 0

    @property
    def weights(self) -> tuple[float, ...]:
        """Size of each bucket over the mean; 0 for one too small to tell anything."""
        return self._weights

    def learn(
        self, durations_ns: tuple[int | None, ...], sizes: Sizes, *, free: bool = True
    ) -> Contended | None:
        """Take a finished step; None where its buckets cannot be judged.

        `free`: nothing was done about contention. Only then does it sweep over all buckets, and the
        first one can be told from wait by the second.
        """
        told = cast("tuple[int, ...]", durations_ns)
        try:
            total_ns = sum(told)
        except TypeError:  # one of them is None: quicker than to look for it
            return None
        if len(told) != len(self._weights) or sizes != self._sizes:
            self._restart(len(told), sizes)
        if len(self._telling) < FEWEST_BUCKETS:
            return None
        self._age = age = self._age + 1
        if age <= FEWEST_STEPS or age % SAMPLE == 0:
            self._sample(told)
        if not self.reference_ns:
            return None
        later_ns: float
        if self._even:
            if sorted(told)[-1] > self.threshold_ns:  # quicker than the maximum
                return self._judge_even(told, total_ns, free)
            later_ns = told[0] - told[1]
        else:
            if any(map(gt, told, self._limits_ns)):
                return self._judge(told, free)
            weights, (first, second, *_) = self._weights, self._telling
            later_ns = told[first] / weights[first] - told[second] / weights[second]
            total_ns = sum(map(told.__getitem__, self._telling))
        if free:
            if self._first:
                self._first *= 1 - MEMORY
                self._first_two *= 1 - MEMORY
            self._later += MEMORY * (later_ns - self._later)
        return _new(Contended, (total_ns, 0, 0, False, self._alone_ns, False))

    def _sample(self, durations_ns: tuple[int, ...]) -> None:
        """Let a step count for the reference: every so many, since the quantiles move slowly."""
        ordered = sorted(durations_ns if self._even else self._normalised(durations_ns))
        middle = ordered[len(ordered) // 2]
        self._least.push(ordered[0])
        self._middle.push(middle)
        self._spread.push(middle - ordered[0])
        known = self.reference_ns > 0
        if len(self._least) >= FEWEST_STEPS and not (known and self._age % RENEWAL):
            self._renew()

    def _restart(self, count: int, sizes: Sizes) -> None:
        self._sizes, self._age, self.reference_ns = sizes, 0, 0
        self._least.clear()
        self._middle.clear()
        self._spread.clear()
        if len(sizes) == count and sum(sizes) > 0:
            mean = sum(sizes) / count
            self._weights = tuple(size / mean if size >= LARGE * mean else 0.0 for size in sizes)
        else:
            self._weights = (1.0,) * count
        self._telling = [bucket for bucket, weight in enumerate(self._weights) if weight]
        self._even = min(self._weights, default=0) == max(self._weights, default=0)

    def _normalised(self, durations_ns: tuple[int, ...]) -> list[int]:
        """Durations of buckets that tell something, as if of mean size."""
        return [int(t / w) for t, w in zip(durations_ns, self._weights, strict=True) if w]

    def _renew(self) -> None:
        noise = self._spread.quantile(0.25)
        quick = self._least.quantile(0.1) + noise
        self.reference_ns = max(1, min(quick, self._middle.quantile(0.03)))
        theta = min(LOUD, max(QUIET, NOISE_FACTOR * noise / self.reference_ns))
        self.threshold_ns = int((1 + theta) * self.reference_ns)
        self._alone_ns = int(sum(self._weights) * self.reference_ns)
        if not self._even:
            self._limits_ns = [
                int(self.threshold_ns * weight) if weight else MOST_NS for weight in self._weights
            ]

    def _judge(self, durations_ns: tuple[int, ...], free: bool) -> Contended:
        reference, threshold = self.reference_ns, self.threshold_ns
        took = 0.0
        over: list[float] = []  # of every bucket that tells something
        each: list[float] = []
        for t, w in zip(durations_ns, self._weights, strict=True):
            if w:
                took += t
                each.append(t / w)
                over.append(t - reference * w if t > threshold * w else 0.0)
        return self._verdict(int(took), over, each[0] - each[1], free)

    def _judge_even(self, durations_ns: tuple[int, ...], total_ns: int, free: bool) -> Contended:
        """The same, quicker, where all buckets are of one size."""
        reference, threshold = self.reference_ns, self.threshold_ns
        over: list[float] = [t - reference if t > threshold else 0 for t in durations_ns]
        return self._verdict(total_ns, over, durations_ns[0] - durations_ns[1], free)

    def _verdict(self, took_ns: int, over: list[float], later_ns: float, free: bool) -> Contended:
        clouded = over[1] > 0 and self._is_clouded(over)
        self._judge_first(over, later_ns, free)
        clean = over.index(0.0) if 0.0 in over else len(over)
        excess_ns, whole = int(sum(over)), clean == len(over)
        lead_ns = excess_ns if whole else int(sum(over[:clean]))
        return _new(Contended, (took_ns, excess_ns, lead_ns, whole, self._alone_ns, clouded))

    def _is_clouded(self, over: list[float]) -> bool:
        """Whether contention as others make it could be all that lengthened the first bucket."""
        second = over[1]
        self._usual += (MEMORY if self._usual else 1.0) * (second - self._usual)
        return over[0] <= LOUDER * max(second, self._usual)

    def _judge_first(self, over: list[float], later_ns: float, free: bool) -> None:
        """Take the wait for late ranks out of the first bucket's excess, as far as it can be told.

        Its mean is what the first bucket takes longer than the second: contention that comes and
        goes lengthens either as often.
        """
        confirmed = min(over[0], over[1])
        if free:
            self._first += MEMORY * (over[0] - self._first)
            self._first_two += MEMORY * (confirmed - self._first_two)
            self._later += MEMORY * (later_ns - self._later)
        over[0] = max(0.0, over[0] - self.first_wait_ns) if self.first_is_trusted else confirmed

    @property
    def first_wait_ns(self) -> int:
        """What of the first bucket is wait for late ranks, on average."""
        return max(0, int(self._later))

    @property
    def first_is_trusted(self) -> bool:
        """Whether an excess of the first bucket is contention rather than wait for late ranks."""
        return self._first_two >= CONFIRMED * self._first
