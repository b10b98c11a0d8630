"""A collective rehearsed: carried out once message by message, to know how long it takes.

Where messages share links, ranks get out of step, and a collective can be faster than its rounds
one after the other; two in a row overlap. What that comes to is simulated exactly for collectives
of few messages; for the others the rounds' lengths stand, which are never too short by more than
what unequal messages on one link make of it.

How much it differs depends on who is late, so a whole run of few messages needs no rehearsal and
no coflows: it is carried out message by message throughout.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evenstep.simulate.fabric.flows import Flow
from evenstep.simulate.fabric.network import Network
from evenstep.simulate.wires.messages import Fluid
from evenstep.simulate.wires.neighbours import Timeline
from evenstep.simulate.wires.parties import Party, program_of

MOST_MESSAGES = 3000
MOST_OF_RUN = 100_000  # messages of a run, at some 20 µs each
MOST_LEARNED_FROM = 40_000  # messages of a larger run's first steps
LESSONS = 8  # steps at least
COPIES = 3  # in a row: the last two are far enough from the start


def affordable(
    flows: Sequence[Flow], steps: int, compute_ns: float, others: Timeline | None
) -> bool:
    """Whether a run moves so few messages that each can be followed."""
    own = steps * sum(messages_of(flow) for flow in flows)
    if others is None:
        return own <= MOST_OF_RUN
    length_ns = steps * (compute_ns + sum(flow.duration_ns for flow in flows))
    return own + others.messages(length_ns) <= MOST_OF_RUN


def teachable(flows: Sequence[Flow]) -> bool:
    """Whether some steps can be followed message by message, to learn from."""
    return LESSONS * sum(messages_of(flow) for flow in flows) <= MOST_LEARNED_FROM


def messages_of(flow: Flow) -> int:
    """Messages of one collective."""
    return sum(len(stage.round.source) * stage.round.repeats for stage in flow.stages)


def rehearsed(network: Network, flow: Flow) -> Flow:
    """The flow with what a rehearsal shows, where it needs one and is small enough for it."""
    if not flow.stages or messages_of(flow) > MOST_MESSAGES or is_unshared(flow):
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
