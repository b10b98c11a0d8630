"""Pure control: how long a rank waited, whether it should be held, and whether that pays.

`WaitEstimator` reads waits from one rank's own collectives; `Pacer` turns finished steps
(`StepObservation`) into a bounded delay (`Decision`) and can follow a published `Plan`. Nothing
here reads a clock, does I/O or imports torch.
"""

from evenstep.pacing.account import PacingAccount, TrialBudget, TrialVerdict
from evenstep.pacing.floor import Floor, FloorTable
from evenstep.pacing.observation import (
    PLAN_LEAD_WINDOWS,
    PLAN_STEPS,
    Decision,
    Plan,
    Reason,
    Slowest,
    StepObservation,
)
from evenstep.pacing.pacer import Pacer
from evenstep.pacing.random_trial import RandomTrial
from evenstep.pacing.settings import CONTROLLERS, MODES, OBJECTIVES, PacerSettings
from evenstep.pacing.waits import StepWait, WaitEstimator
from evenstep.pacing.window import RollingWindow

__all__ = [
    "CONTROLLERS",
    "MODES",
    "OBJECTIVES",
    "PLAN_LEAD_WINDOWS",
    "PLAN_STEPS",
    "Decision",
    "Floor",
    "FloorTable",
    "Pacer",
    "PacerSettings",
    "PacingAccount",
    "Plan",
    "RandomTrial",
    "Reason",
    "RollingWindow",
    "Slowest",
    "StepObservation",
    "StepWait",
    "TrialBudget",
    "TrialVerdict",
    "WaitEstimator",
]
