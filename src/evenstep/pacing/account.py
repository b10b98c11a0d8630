"""How much the trials of one job may lose, and how much pacing has done."""

from __future__ import annotations

from math import inf
from typing import Any, NamedTuple

CREDIT = 3.0  # steps that a job may lose to trials
SHARE = 0.0005  # ... and of every step


class TrialBudget:
    """Loss allowed to all trials of a job together, in steps; one trial runs at a time."""

    __slots__ = ("_last", "_open", "booked", "holder", "steps")

    def __init__(self) -> None:
        self.steps = 0
        self._last = -1
        self.booked = 0.0  # by trials that have ended
        self.holder: object = None  # the action on trial
        self._open: dict[object, float] = {}  # losses of running trials

    def tick(self, step: int) -> None:
        """Count a step once, whichever action reports it first; their numbers differ by one."""
        if step > self._last:
            self._last = step
            self.steps += 1

    @property
    def granted(self) -> float:
        """Steps that all trials may have lost by now."""
        return CREDIT + SHARE * self.steps

    def room(self, trial: object = None) -> float:
        """Steps that this trial may have lost by now."""
        others = sum(max(0.0, loss) for each, loss in self._open.items() if each is not trial)
        return self.granted - self.booked - others

    def book(self, trial: object, loss: float) -> None:
        """Enter the net loss of a running trial so far, in steps."""
        self._open[trial] = loss

    def close(self, trial: object) -> None:
        """End the trial: a loss stays booked, a gain is not credited."""
        self.booked += max(0.0, self._open.pop(trial, 0.0))
        self.release(trial)

    def release(self, trial: object) -> None:
        """Let another action begin its trial."""
        if self.holder is trial:
            self.holder = None


class TrialVerdict(NamedTuple):
    """Result of a trial so far. Gains are shares of a step without the action; > 0 is better."""

    word: str  # "untested", "on trial", "pays", "does not pay", "undecided"
    pairs: int = 0
    gain: float = 0.0  # mean over pairs
    low: float = -inf  # 95 % confidence sequence: valid at all times
    high: float = inf

    @property
    def plain(self) -> dict[str, Any]:
        """The fields for JSON; an interval with an infinite end becomes null."""
        known = -inf < self.low and self.high < inf
        return self._asdict() if known else {**self._asdict(), "low": None, "high": None}


class PacingAccount(NamedTuple):
    """Sums of one rank's pacing since the job began, with the verdict of its trial."""

    steps: int
    held_steps: int
    held_ns: int
    booked_ns: int  # upper bound of the job's loss due to this rank
    allowance_ns: int
    verdict: TrialVerdict
