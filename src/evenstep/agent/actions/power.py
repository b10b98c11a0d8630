"""`power`: a rank that is early could run at lower clocks. Planned and said; not done.

Published gains are 20 to 30 % of energy (Perseus, Chung et al. 2024; EnvPipe, Choi et al. 2023). A
clock takes milliseconds to change and needs privileges; until that has been measured on a device,
what would be done is in the trace and nothing else.
"""

from __future__ import annotations

from evenstep.agent.actions.action import Action, Facts

WORTH = 0.05  # of a step that a rank waits
SPENT = 0.8  # of it


class Power(Action):
    """Says what the clocks could be."""

    name = "power"
    note = "planned only"

    def applies(self, facts: Facts) -> str:
        """Where a rank waits for others step after step: by how much it could be slower."""
        waited = facts.waited_ns / max(1, facts.step_ns)
        if waited < WORTH:
            return ""
        return f"early by {waited:.0%} of a step: clocks of {1 - SPENT * waited:.0%} would do"
