"""Published plans, and those that one rank holds: what makes all ranks act alike."""

from __future__ import annotations

import struct
from typing import NamedTuple

from evenstep.pacing.random_trial import LONGEST_SCALE, SPANS

PLAN_STEPS = 32  # a plan covers one window of at least this many steps
PLAN_LEAD_WINDOWS = 2  # and is published so many windows before it takes effect
MOST_PLANS = 4

_PLAN = struct.Struct("<4sQQIIBB")
_PLAN_MAGIC = b"EVP2"


class Plan(NamedTuple):
    """What one rank publishes so that all ranks act alike in steps `first_step` to `last_step`."""

    first_step: int
    last_step: int
    attempt: int
    world: int
    span: int  # of blocks, one of which is left out; 0: nobody is held, 1: always
    scale: int = 0  # blocks are so often doubled

    def pack(self) -> bytes:
        """30 bytes that `unpack` reads on another rank."""
        return _PLAN.pack(_PLAN_MAGIC, *self)

    @classmethod
    def unpack(cls, data: bytes) -> Plan | None:
        """The plan in `data`, or None when it is not one."""
        if len(data) != _PLAN.size:
            return None
        magic, first, last, attempt, world, span, scale = _PLAN.unpack(data)
        known = magic == _PLAN_MAGIC and span in SPANS and scale <= LONGEST_SCALE
        return cls(first, last, attempt, world, span, scale) if known and first <= last else None


class PlanBook:
    """Plans for the steps ahead; one that comes too late to be followed whole is refused.

    So in any step a rank either follows the same plan as the others or holds nothing.
    """

    def __init__(self, *, attempt: int, world: int) -> None:
        self._attempt = attempt
        self._world = world
        self._plans: list[Plan] = []  # invariant: ascending, disjoint, at most MOST_PLANS

    def adopt(self, plan: Plan, *, asked_step: int) -> bool:
        """Take a plan; False if it is not for us, or if a step of it was already asked for."""
        for_us = plan.attempt == self._attempt and plan.world == self._world
        busy_until = max(asked_step, self._plans[-1].last_step if self._plans else -1)
        fits = busy_until < plan.first_step <= plan.last_step and len(self._plans) < MOST_PLANS
        if for_us and fits:
            self._plans.append(plan)
        return for_us and fits

    def at(self, step: int) -> Plan | None:
        """The plan in force at `step`; steps are asked for in order."""
        while self._plans and self._plans[0].last_step < step:
            del self._plans[0]
        if not self._plans or step < self._plans[0].first_step:
            return None
        return self._plans[0]

    def next(self, step: int, span: int, scale: int = 0, *, least_steps: int = 0) -> Plan | None:
        """The plan to publish at `step`: once per window, for a window far enough ahead.

        A window is `PLAN_STEPS` long, doubled until it has `least_steps`, so that plans of quick
        steps reach everybody in time. The first one of a longer window may overlap what was planned
        before; then nobody takes it.
        """
        steps = PLAN_STEPS
        while steps < least_steps:
            steps *= 2
        if step % steps:
            return None
        first = step + PLAN_LEAD_WINDOWS * steps
        return Plan(first, first + steps - 1, self._attempt, self._world, span, scale)
