"""A pacer's input and output: plain values."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from evenstep.pacing.plans import Plan


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
