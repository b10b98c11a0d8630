"""A pacer's input and output: plain values."""

from __future__ import annotations

import struct
from enum import Enum
from typing import NamedTuple

from evenstep.pacing.random_trial import LONGEST_SCALE, SPANS

PLAN_STEPS = 32  # a plan covers one window of at least this many steps
PLAN_LEAD_WINDOWS = 2  # windows between its publication and its first step
MOST_PLANS = 4

_PLAN = struct.Struct("<4sQQIIBB")
_PLAN_MAGIC = b"EVP2"


class Plan(NamedTuple):
    """The leader's schedule of blocks for all ranks in steps `first_step` to `last_step`."""

    first_step: int
    last_step: int
    attempt: int
    world: int
    span: int  # blocks, one of which is left out; 0: no rank is held, 1: none is left out
    scale: int = 0  # how often the length of a block is doubled

    def pack(self) -> bytes:
        """Encode in 30 bytes."""
        return _PLAN.pack(_PLAN_MAGIC, *self)

    @classmethod
    def unpack(cls, data: bytes) -> Plan | None:
        """Decode, or return None when `data` is not a plan."""
        if len(data) != _PLAN.size:
            return None
        magic, first, last, attempt, world, span, scale = _PLAN.unpack(data)
        known = magic == _PLAN_MAGIC and span in SPANS and scale <= LONGEST_SCALE
        return cls(first, last, attempt, world, span, scale) if known and first <= last else None


class PlanBook:
    """Plans for the steps ahead; one that arrives after its first step has begun is refused.

    So in any step a rank either follows the same plan as the others or is not held.
    """

    def __init__(self, *, attempt: int, world: int) -> None:
        self._job = attempt, world
        self._plans: list[Plan] = []  # invariant: ascending, disjoint, at most MOST_PLANS

    def adopt(self, plan: Plan, *, asked_step: int) -> bool:
        """Take a plan; False if it is of another job, or if one of its steps was asked for."""
        busy_until = max(asked_step, self._plans[-1].last_step if self._plans else -1)
        fits = busy_until < plan.first_step <= plan.last_step and len(self._plans) < MOST_PLANS
        if adopted := fits and (plan.attempt, plan.world) == self._job:
            self._plans.append(plan)
        return adopted

    def at(self, step: int) -> Plan | None:
        """The plan in force at `step`; steps are asked for in order."""
        while self._plans and self._plans[0].last_step < step:
            del self._plans[0]
        return self._plans[0] if self._plans and step >= self._plans[0].first_step else None

    def next(self, step: int, span: int, scale: int = 0, *, least_steps: int = 0) -> Plan | None:
        """The plan to publish at `step`: one per window, `PLAN_LEAD_WINDOWS` ahead.

        A window is `PLAN_STEPS` long, doubled until it has `least_steps`, so that plans of quick
        steps reach every rank in time. The first plan of a longer window may overlap those before
        it; then every rank refuses it.
        """
        steps = PLAN_STEPS
        while steps < least_steps:
            steps *= 2
        if step % steps:
            return None
        first = step + PLAN_LEAD_WINDOWS * steps
        return Plan(first, first + steps - 1, *self._job, span, scale)


class Slowest(NamedTuple):
    """The slowest rank in steps `first_step` to `last_step`; may arrive steps later.

    For one step (first = last) its work is exact. For a window it must be a low quantile, so that
    slack derived from it is too small rather than too large.
    """

    first_step: int
    last_step: int
    work_ns: int  # M1 = max over ranks of own work u_i


class StepObservation(NamedTuple):
    """One finished step as one rank measured it. `None` means unknown, never zero."""

    step: int
    step_ns: int  # the whole step, own delay included
    work_ns: int  # u_i: own work since the last collective ended, own delay excluded
    wait_ns: int | None = None  # before the first byte of the step's first collective
    margin_ns: int = 0  # how far above the floor's lower bound a transfer without wait may lie
    in_flight_ns: int | None = None  # of the first collective; None where its end is not trusted
    floor_lower_ns: int | None = None  # of the same collective
    delay_ns: int = 0  # realised before this step, by the host's clock
    spread_ns: int | None = None  # first to last arrival, where it is shared
    steady: bool = True  # False around checkpoints, evaluation and compilation
    batch: int | None = None
    slowest: Slowest | None = None

    @property
    def waited(self) -> bool:
        """Whether this rank certainly waited for another, so its delay cost the job nothing."""
        if self.in_flight_ns is None or self.floor_lower_ns is None:
            return False
        return self.in_flight_ns > self.floor_lower_ns + self.margin_ns


class Reason(str, Enum):
    """Why a rank is held before a step, or is not."""

    __str__ = str.__str__  # not the member's name

    OFF = "pacing is off"
    KILLED = "stopped by the kill switch"
    LEARNING = "still learning what a normal step looks like"
    UNSTEADY = "a checkpoint, an evaluation or a change is near"
    NO_PLAN = "no published plan for this step"
    GUARD_BLOCK = "a block left out by the trial"
    GUARD_OFF = "the trial has not found that pacing pays here"
    CANNOT_TELL = "cannot tell wait from slow transfer"
    BALANCED = "the imbalance is below its threshold"
    LAST = "this rank is not early"
    LEDGER = "what pacing may lose is used up"
    SLACK = "spends persistent slack"
    SPREAD = "arrivals are spread beyond the threshold"
    VARIABILITY = "waits vary beyond the threshold"


class Decision(NamedTuple):
    """How long the host holds a step; in mode `observe` only `proposed_ns` is set."""

    delay_ns: int
    reason: Reason
    plan: Plan | None = None  # to be published by this rank now
    proposed_ns: int = 0  # the delay that mode `on` would apply after the same observations
