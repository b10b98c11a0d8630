"""The harm ledger: a deterministic bound on what pacing may cost the job.

Lemma. With u_i the own work and d_i the delay of rank i, a step loses M2 - M1 = max(u_i + d_i) -
max(u_i). The rank k that arrives last has M2 - M1 <= d_k, and it sees no wait. So if every rank
books its own d_i unless it certainly waited afterwards, the sum over ranks is at least the loss of
the job, whatever the workload does. A rank is held no longer than the room left in its ledger, so
its bookings never exceed its allowance, and the loss of the job never exceeds share * elapsed +
credit.

Time that a host oversleeps is booked as well, and may exceed the room by that much.
"""

from __future__ import annotations

from evenstep.pacing.observation import StepObservation


class RankLedger:
    """One rank's part of the job's allowance: (share * elapsed + credit) / ranks."""

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

    def book(self, seen: StepObservation) -> None:
        """Enter a finished step."""
        self.elapsed_ns += max(0, seen.step_ns)
        if seen.delay_ns > 0 and not seen.waited:
            self.loss_ns += seen.delay_ns
