"""The fair tier: rank processes on emulated links, no privilege needed."""

from __future__ import annotations

import sys

from lab.children import environment
from lab.fair.disturbances import Disturbance
from lab.jobs import LaunchedJobs
from lab.scenario import Scenario
from lab.tier import LOG, Trial

ARMS: tuple[str, ...] = ()
ENDING_S = 10.0


def missing(scenario: Scenario) -> str:
    """Nothing is needed but torch where ranks train."""
    from importlib.util import find_spec

    if any(job.work == "train" for job in scenario.jobs) and find_spec("torch") is None:
        return 'jobs with work = "train" need torch; install it, or take work = "sleep"'
    return ""


def start(trial: Trial) -> EmulatedJobs:
    """Start the emulation; returns once every job steps."""
    return EmulatedJobs.begun(trial)


def clean() -> list[str]:
    """Nothing outlives the campaign: every process of this tier dies with its parent."""
    return []


class EmulatedJobs(LaunchedJobs):
    """One process, which forks the ranks and disturbs them itself."""

    def launch(self) -> None:
        """Start it."""
        self.ranks.start(
            "the emulated fabric",
            [sys.executable, "-m", "lab.fair.process", str(self.trial.path)],
            environment(EVENSTEP="0"),
            self.trial.folder / LOG,
        )

    def disturbances(self) -> list[Disturbance]:
        """None from here."""
        return []

    def leave(self) -> None:
        """Give the ranks a moment to finish their step."""
        if not self.ranks.wait(ENDING_S):
            self.ranks.end(0.0)
