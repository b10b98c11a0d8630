"""Keeping `torch.compile` out of our code.

Dynamo looks at every Python frame that begins while a compiled model runs, also at ours, which
torch calls from inside a collective. Traced, our reading of a tensor's size becomes a graph and
fails. Dynamo has a list of folders that it leaves alone: ours is added once it has been imported.
"""

from __future__ import annotations

from collections.abc import Callable

from evenstep.agent.arming import arm, disarm

RULES = "torch._dynamo.trace_rules"


def keep_out() -> Callable[[], None]:
    """Have Dynamo leave our folder alone, now or when it is imported; returns how not to wait.

    What it was told it keeps: an entry in its list harms nobody.
    """
    arm(_leave_us_alone, target=RULES)
    return lambda: disarm(RULES)


def _leave_us_alone() -> None:
    from torch._dynamo import trace_rules

    trace_rules.add("evenstep")
