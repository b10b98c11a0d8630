"""A collective rehearsed: carried out once message by message, to know how long it takes.

Where messages share links, ranks get out of step, and a collective can be faster than its rounds
one after the other; two in a row overlap. What that comes to is simulated exactly for collectives
of few messages; for the others the rounds' lengths stand, which are never too short by more than
what unequal messages on one link make of it.
"""

from __future__ import annotations

import numpy as np

from evenstep.simulate.flows import Flow
from evenstep.simulate.messages import Fluid, Party, program_of
from evenstep.simulate.network import Network

MOST_MESSAGES = 3000
COPIES = 3  # in a row: the last two are far enough from the start


def rehearsed(network: Network, flow: Flow) -> Flow:
    """The flow with what a rehearsal shows, where it needs one and is small enough for it."""
    messages = sum(len(stage.round.source) * stage.round.repeats for stage in flow.stages)
    if not flow.stages or messages > MOST_MESSAGES or is_unshared(flow):
        return flow
    fluid = Fluid(network.capacity)
    ranks = len(flow.tail_ns)
    party = Party(program_of([flow] * COPIES), np.zeros((COPIES, ranks)), ranks=ranks)
    fluid.start(party)
    fluid.run(lambda: party.left == 0)
    ends = party.ends.max(axis=1)
    return flow.timed(float(ends[0]), float(ends[-1] - ends[-2]))


def is_unshared(flow: Flow) -> bool:
    """Whether it is one round of rings, no link of which carries two messages."""
    single = len(flow.stages) == 1 and flow.stages[0].round.ring is not None
    return single and int(np.bincount(flow.stages[0].routes.link).max(initial=0)) <= 1
