"""Log that checkpoints or evaluations take a share of the training time that `watch` tells, too.

No rank is late then: all stand still. A phase that more than half of the steps have is what steps
are, as a rollout in reinforcement learning, and no interruption.
"""

from __future__ import annotations

import logging
from collections import deque

from evenstep import lateness
from evenstep.agent.recording.steps import ClosedStep
from evenstep.trace.spool.layout import Phase

log = logging.getLogger("evenstep")

NAMES = {Phase.CHECKPOINT: "checkpoints", Phase.EVALUATION: "evaluations"}
ENOUGH, KEPT = 2, 8  # periods, each from the end of one interruption to that of the next


class Interruptions:
    """Takes the steps of one rank in order."""

    def __init__(self) -> None:
        #: The latest steps with each phase: number, end and the phase's length (ns).
        self._ends = {phase: deque[tuple[int, int, int]](maxlen=KEPT + 1) for phase in NAMES}

    def add(self, closed: ClosedStep) -> None:
        """Take a step; log one line for each phase, once."""
        for phase, ends in [*self._ends.items()]:
            if not closed.phase_ns[phase]:
                continue
            ends.append((closed.number, closed.end_ns, closed.phase_ns[phase]))
            (after, since_ns, first_ns), count = ends[0], len(ends) - 1
            spent_ns = sum(lasted_ns for *_, lasted_ns in ends) - first_ns
            steps, whole_ns = closed.number - after, closed.end_ns - since_ns
            if count >= ENOUGH and 2 * count <= steps and spent_ns > lateness.STOPPED * whole_ns:
                del self._ends[phase]
                log.warning(
                    "evenstep: training stands still for %s, %s each, %.0f %% of the time, "
                    "in %d of %d steps looked at",
                    NAMES[phase], lateness.in_words(spent_ns / count), 100 * spent_ns / whole_ns,
                    count, steps,
                )  # fmt: skip
