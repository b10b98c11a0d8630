"""What every rule for a rank's own delay looks like to the pacer.

A rule is made fresh at the start and after each change of world or batch, so it has no reset of its
own.
"""

from __future__ import annotations

from typing import Protocol

from evenstep.pacing.observation import Proposal, StepObservation


class Controller(Protocol):
    """Turns finished steps into a delay."""

    @property
    def actuator(self) -> str:
        """Where the delay is applied, as in `Decision.actuator`."""

    def learn(self, seen: StepObservation, *, due: bool) -> None:
        """Take a finished steady step; `due`: its delay was left to this rule."""

    def propose(self, *, threshold_ns: int, bound_ns: int) -> Proposal:
        """What to hold before the next step; asked twice, it answers the same."""
