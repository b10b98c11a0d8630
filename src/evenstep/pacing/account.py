"""What the trials of one job may lose, and what pacing did."""

from __future__ import annotations

from math import inf
from typing import Any, NamedTuple

CREDIT = 3.0  # steps that a job may lose to trials
SHARE = 0.0005  # ... and of every step


class TrialBudget:
    """What the trials of one job may lose together, in steps, and whose turn it is."""

    __slots__ = ("_last", "_open", "booked", "holder", "steps")

    def __init__(self) -> None:
        self.steps = 0
        self._last = -1
        self.booked = 0.0  # by trials that have ended
        self.holder: object = None  # the one action on trial
        self._open: dict[object, float] = {}

    def tick(self, step: int) -> None:
        """A step has ended, whoever says so first: their numbers differ by one at most."""
        if step > self._last:
            self._last = step
            self.steps += 1

    @property
    def granted(self) -> float:
        """Steps that may have been lost by now, in all."""
        return CREDIT + SHARE * self.steps

    def room(self, trial: object = None) -> float:
        """Steps that this trial may have lost by now."""
        others = sum(max(0.0, loss) for each, loss in self._open.items() if each is not trial)
        return self.granted - self.booked - others

    def book(self, trial: object, loss: float) -> None:
        """Enter what a running trial has lost so far, less what it gained."""
        self._open[trial] = loss

    def close(self, trial: object) -> None:
        """The trial is over: what it lost stays booked; what it gained buys nothing."""
        self.booked += max(0.0, self._open.pop(trial, 0.0))
        self.release(trial)

    def release(self, trial: object) -> None:
        """Let another action have its trial."""
        if self.holder is trial:
            self.holder = None


class TrialVerdict(NamedTuple):
    """What a trial knows. Gains are shares of what a step takes without; positive is better."""

    word: str  # "untested", "on trial", "pays", "does not pay", "undecided"
    pairs: int = 0
    gain: float = 0.0  # mean over pairs
    low: float = -inf  # the interval holds at all times (95 %)
    high: float = inf

    @property
    def plain(self) -> dict[str, Any]:
        """As JSON knows it: an interval with an end that nothing refutes is none."""
        known = -inf < self.low and self.high < inf
        return self._asdict() if known else {**self._asdict(), "low": None, "high": None}


class PacingAccount(NamedTuple):
    """Sums of one rank's pacing since the job began, and where its trial stands."""

    steps: int
    held_steps: int
    held_ns: int
    booked_ns: int  # at most this was lost on account of this rank
    allowance_ns: int
    verdict: TrialVerdict
