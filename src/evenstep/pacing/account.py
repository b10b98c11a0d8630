"""What pacing did and cost so far, for the report."""

from __future__ import annotations

from typing import NamedTuple

from evenstep.pacing.guard import Verdict


class PacingAccount(NamedTuple):
    """Sums since the job began, and where the guards stand."""

    steps: int
    held_steps: int
    held_ns: int
    booked_ns: int  # at most this was lost on account of this rank (or of the job, with its ledger)
    allowance_ns: int
    verdict: Verdict
    gaps_ns: int = 0  # paused between buckets
    contention: str = ""  # what the trial of phase or gaps has concluded; "" without one
    applicable: float | None = None  # share of buckets that gaps can follow
