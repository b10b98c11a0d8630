"""IY, the intruder yields: a delay common to the job, before its next step.

Two jobs whose exchanges meet lose both; one of them must go later. The one that collides at the
*start* of its exchange arrived second and yields, by as much as it met there; contention at the end
means that somebody came in: hold. An integrator takes over what is needed in every step, where the
other job is a little slower.
"""

from __future__ import annotations

import random
from collections import deque

from evenstep.pacing.buckets import Contended

FRESH_STEPS = 3  # Q: leads to be seen since the last jump
WORTH = 0.03  # of the exchange alone; a smaller lead is left alone
INTEGRAL = 0.1
DECAY = 0.9
LEAST_JUMP = 0.5  # where every bucket met others nobody knows who came first: draw


class Phase:
    """How long the job's next step is held so that its exchange meets nobody."""

    __slots__ = ("_leads", "_random", "delay_ns", "integral_ns")

    def __init__(self, run_id: str, attempt: int) -> None:
        self._random = random.Random(f"{run_id}/{attempt}")
        self._leads: deque[int] = deque(maxlen=FRESH_STEPS)
        self.integral_ns = 0.0
        self.delay_ns = 0  # before the next step

    def learn(self, seen: Contended) -> None:
        """Take the contention of the last step and work out the next delay."""
        leads = self._leads
        leads.append(seen.lead_ns)
        if len(leads) < FRESH_STEPS:
            self.delay_ns = int(self.integral_ns)
            return
        jump = 0.0
        if min(leads) > WORTH * seen.alone_ns:
            lead = seen.lead_ns
            jump = lead * (self._random.uniform(LEAST_JUMP, 1.0) if seen.whole else 1.0)
            self.integral_ns += INTEGRAL * min(lead, seen.alone_ns / 2)
            leads.clear()
        else:
            self.integral_ns *= DECAY
        self.delay_ns = int(jump + self.integral_ns)

    def pause(self) -> None:
        """A step without delay: what is seen in it says nothing about the next one with it."""
        self._leads.clear()
        self.delay_ns = int(self.integral_ns)

    def rest(self) -> None:
        """Forget everything: the delay was not applied."""
        self._leads.clear()
        self.integral_ns = 0.0
        self.delay_ns = 0
