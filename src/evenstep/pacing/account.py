"""How much one job may lose: to trials on average, and to slack in any case."""

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


class RankLedger:
    """One rank's part of what pacing may cost a job in any run: (share * time + credit) / ranks.

    With u_i the own work and d_i the delay of rank i, a step loses max(u_i + d_i) - max(u_i). The
    rank k that arrives last has at least that d_k, and sees no wait. So if every rank books its own
    d_i unless it certainly waited afterwards, all together book at least the loss of the job,
    whatever the workload does. No rank is held for longer than the room left in its ledger, but for
    what a host oversleeps.
    """

    __slots__ = ("credit_ns", "elapsed_ns", "loss_ns", "ranks", "share")

    def __init__(self, *, share: float, ranks: int) -> None:
        self.share = share
        self.ranks = ranks
        self.credit_ns = 0  # initial allowance of a young job
        self.elapsed_ns = 0
        self.loss_ns = 0  # invariant: <= allowance_ns, beyond overshoot of the host's sleep

    @property
    def allowance_ns(self) -> float:
        """Upper limit of this rank's bookings by now."""
        return (self.share * self.elapsed_ns + self.credit_ns) / self.ranks

    @property
    def room_ns(self) -> int:
        """Longest delay allowed before the next step."""
        return max(0, int(self.allowance_ns) - self.loss_ns)

    def book(self, step_ns: int, delay_ns: int, *, waited: bool) -> None:
        """Enter a finished step, its delay, and whether the rank certainly waited afterwards."""
        self.elapsed_ns += max(0, step_ns)
        if not waited:
            self.loss_ns += max(0, delay_ns)
