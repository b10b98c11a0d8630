"""Whether phase or gaps pay, by the loss they are there to remove.

A step's loss is what its buckets took too long, plus what was spent on delays and gaps. Compute
does not enter, so its jitter does not hide the answer. Off, the mean μ and deviation σ of the loss
are learned; on, an alarm for a mean above μ (Page 1954) ends a trial that makes it worse, and a
look at the mean ends one that does not help. What failed is tried again after twice the time, so
the number of trials grows with the logarithm of the steps, and the relative harm tends to zero.
"""

from __future__ import annotations

from math import sqrt

LOOK_STEPS = 100
LONG_LOOK = 800
LONGEST_REST_STEPS = 4000
GROWTH = 2
WORTH = 0.005  # of a step: less contention than this is left alone
HELPED = 0.95  # a mean loss above this share of the one without is no help
SLACK = 0.1  # deviations that the alarm forgives per step
#: Steps and deviations of loss beyond which a trial ends. Twice as many gain a little more on
#: average and lose twice as much at worst.
ALARM_STEPS, ALARM_DEVIATIONS = 1.0, 4.0


class LossTrial:
    """Decides whether contention is acted on; fed with every steady step's loss."""

    __slots__ = (
        "_alarm_ns", "_deviation", "_excess", "_look", "_mean", "_rest", "_squares", "_steps",
        "_sum", "_times", "on", "trials", "word",
    )  # fmt: skip

    def __init__(self) -> None:
        self.on = False
        self.word = "untested"
        self.trials = 0
        self._rest = self._look = LOOK_STEPS
        self._mean = self._deviation = 0.0  # of the loss while off
        self._begin()

    def _begin(self) -> None:
        self._steps = 0
        self._sum = self._squares = self._times = self._excess = self._alarm_ns = 0.0

    def learn(self, loss_ns: int, step_ns: int, excess_ns: int) -> None:
        """Take a step's loss, pauses and delays included, and what of it is surely contention."""
        self._steps += 1
        self._sum += loss_ns
        self._squares += loss_ns * loss_ns
        self._times += step_ns
        self._excess += excess_ns
        if self.on:
            self._watch(loss_ns)
        elif self._steps >= self._rest:
            self._conclude_off()

    def _watch(self, loss_ns: int) -> None:
        """The alarm after each step, and the look after so many."""
        self._alarm_ns = max(0.0, self._alarm_ns + loss_ns - self._mean - SLACK * self._deviation)
        step_ns = self._times / self._steps
        if self._alarm_ns > ALARM_STEPS * step_ns + ALARM_DEVIATIONS * self._deviation:
            self._stop()
        elif self._steps >= self._look:
            helped = self._sum / self._steps <= HELPED * self._mean
            (self._go_on if helped else self._stop)()

    def _go_on(self) -> None:
        """It pays: look again after twice the time. The alarm keeps its level."""
        self.word = "pays"
        self._look *= 2
        if self._look >= LONG_LOOK:
            self._rest = LOOK_STEPS
        alarm_ns = self._alarm_ns
        self._begin()
        self._alarm_ns = alarm_ns

    def _stop(self) -> None:
        self.on, self.word = False, "does not pay"
        self._rest = min(LONGEST_REST_STEPS, GROWTH * self._rest)
        self._look = LOOK_STEPS
        self._begin()

    def _conclude_off(self) -> None:
        mean = self._sum / self._steps
        if self._excess < WORTH * self._times or mean <= 0:
            self.word = "nothing to gain"
            self._rest = LOOK_STEPS
        else:
            self._mean = mean
            self._deviation = sqrt(max(0.0, self._squares / self._steps - mean * mean))
            self.on, self.word = True, "on trial"
            self.trials += 1
            self._begin()
