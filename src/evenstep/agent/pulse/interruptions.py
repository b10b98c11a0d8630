"""Log that checkpoints or evaluations take a share of the training time worth a look.

No rank is late then: all stand still. A phase that more than half of the steps have is what steps
are, as a rollout in reinforcement learning, and no interruption.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from evenstep.agent.recording.steps import ClosedStep
from evenstep.trace.spool.layout import Phase

log = logging.getLogger("evenstep")

NAMES = {Phase.CHECKPOINT: "checkpoints", Phase.EVALUATION: "evaluations"}
ENOUGH = 2  # periods, each with the interruption at its end


class _Periods(NamedTuple):
    """Periods so far: when the first began, after which step, how many, and time interrupted."""

    since_ns: int
    after: int
    complete: int = 0
    spent_ns: int = 0


class Interruptions:
    """Takes the steps of one rank in order; `threshold`: the share of the time that counts."""

    def __init__(self, threshold: float) -> None:
        self._threshold = threshold
        self._periods: dict[Phase, _Periods] = {}
        self._said: set[Phase] = set()

    def add(self, closed: ClosedStep) -> None:
        """Take a step, and log one line, once for each kind, when it is certain enough."""
        for phase in NAMES.keys() - self._said:
            lasted_ns = closed.phase_ns[phase]
            if not lasted_ns:
                continue
            known = self._periods.get(phase, _Periods(closed.end_ns, closed.number, -1, -lasted_ns))
            since_ns, after, count, spent_ns = known
            count, spent_ns = count + 1, spent_ns + lasted_ns
            self._periods[phase] = _Periods(since_ns, after, count, spent_ns)
            steps, whole_ns = closed.number - after, closed.end_ns - since_ns
            if count >= ENOUGH and 2 * count <= steps and spent_ns > self._threshold * whole_ns:
                self._said.add(phase)
                log.warning(
                    "evenstep: training stands still for %s, %.3g s each, %.0f %% of the time, "
                    "in %d of %d steps looked at",
                    NAMES[phase], spent_ns / count / 1e9, 100 * spent_ns / whole_ns, count, steps,
                )  # fmt: skip
