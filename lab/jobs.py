"""The jobs of a trial as processes: started, waited for, watched and ended alike in every tier."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from lab.board import NOT_YET, Pulse
from lab.children import environment
from lab.conductor import Conductor, hog_command
from lab.crew import Crew
from lab.fair.disturbances import Disturbance, of_processes
from lab.tier import LabError, Trial

if TYPE_CHECKING:
    from typing import Self

STARTING_S = 120.0
_POLL_S = 0.02


class LaunchedJobs:
    """The running jobs of a trial (`Running`). A tier says how ranks are launched, what disturbs
    them, and how they leave."""

    def __init__(self, trial: Trial) -> None:
        self.trial = trial
        self.ranks, self.helpers = Crew(), Crew()
        self.pulses = {
            job: Pulse.create(trial.folder, job) for job in range(len(trial.scenario.jobs))
        }
        self._conductor: Conductor | None = None

    @classmethod
    def begun(cls, trial: Trial) -> Self:
        """Start everything; returns once each job steps. Raises `LabError`."""
        jobs = cls(trial)
        try:
            trial.write()
            jobs.launch()
            jobs._await_steps()
            jobs._conductor = Conductor(jobs.disturbances(), jobs.pulses)
        except BaseException:
            jobs.end()
            raise
        return jobs

    def launch(self) -> None:
        """Start the ranks."""
        raise NotImplementedError

    def disturbances(self) -> list[Disturbance]:
        """What disturbs them from this process."""
        return of_processes(
            self.trial.scenario, lambda job, rank: self.pulses[job].process(rank), self._start_hog
        )

    def leave(self) -> None:
        """The ranks end, and what was set up for them."""
        raise NotImplementedError

    def check(self) -> None:
        """Raise `LabError` when a process has failed, or a fault could not be carried out."""
        self.ranks.check()
        self.helpers.check()
        if self._conductor is not None and self._conductor.failure is not None:
            raise LabError(f"a fault could not be carried out: {self._conductor.failure}")

    def end(self) -> None:
        """No process is left, nor what it was told by."""
        if self._conductor is not None:
            self._conductor.close()
        self.leave()
        for pulse in self.pulses.values():
            pulse.remove()
        self.trial.path.unlink(missing_ok=True)

    def _await_steps(self) -> None:
        deadline = time.monotonic() + STARTING_S
        while any(pulse.steps == NOT_YET for pulse in self.pulses.values()):
            self.check()
            if time.monotonic() > deadline:
                raise LabError(f"not all jobs stepped within {STARTING_S:.0f} s")
            time.sleep(_POLL_S)

    def _start_hog(self, share: float) -> int:
        log = self.trial.folder / "hog.log"
        return self.helpers.start("a CPU hog", hog_command(share), environment(), log)
