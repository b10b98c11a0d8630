"""`power`: an early rank could run at lower clocks. Only proposed, never applied.

Published gains are 20 to 30 % of energy (Perseus, Chung et al. 2024; EnvPipe, Choi et al. 2023). A
clock takes milliseconds to change and needs privileges; until that has been measured on a device,
the proposal is written into the trace and nothing is changed.
"""

from __future__ import annotations

from evenstep.agent.actions.action import Action, Facts

WORTH = 0.05  # smallest share of a step spent waiting that is worth a proposal
SPENT = 0.8  # share of the wait by which the rank could be slower


class Power(Action):
    """Proposes lower clocks."""

    name = "power"
    note = "planned only"

    def applies(self, facts: Facts) -> str:
        """Where a rank waits for others step after step."""
        waited = facts.waited_ns / max(1, facts.step_ns)
        if waited < WORTH:
            return ""
        return f"early by {waited:.0%} of a step: clocks of {1 - SPENT * waited:.0%} would do"
