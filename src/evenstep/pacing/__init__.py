"""Pure control: how long a rank waited, whether it should be held, and whether that pays.

`WaitEstimator` reads waits from one rank's own collectives; `Pacer` turns finished steps
(`StepObservation`) into a bounded delay (`Decision`) and can follow a published `Plan`. Nothing
here reads a clock, does I/O or imports torch.
"""

from evenstep.pacing.account import TrialBudget
from evenstep.pacing.observation import Decision, Plan, Reason, Slowest, StepObservation
from evenstep.pacing.pacer import CONTROLLERS, OBJECTIVES, Pacer, PacerSettings
from evenstep.pacing.waits import WaitEstimator

__all__ = [
    "CONTROLLERS", "OBJECTIVES", "Decision", "Pacer", "PacerSettings", "Plan", "Reason", "Slowest",
    "StepObservation", "TrialBudget", "WaitEstimator",
]  # fmt: skip
