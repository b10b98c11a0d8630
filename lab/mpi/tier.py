"""The mpi tier: real ranks of a busy-polling MPI under `mpiexec`, no privilege needed."""

from __future__ import annotations

import shutil
import signal
import sys
import time
from importlib.util import find_spec
from pathlib import Path

from lab.children import environment
from lab.fair.disturbances import send
from lab.jobs import LaunchedJobs
from lab.mpi.finding import BLOCKING, findings
from lab.scenario import Scenario
from lab.tier import Trial

__all__ = ["ARMS", "clean", "findings", "missing", "start"]

ARMS = (BLOCKING,)  # ranks look now and then and sleep, instead of spinning
ENDING_S = 10.0


def missing(scenario: Scenario) -> str:  # noqa: ARG001 - the same for all
    """What the machine lacks."""
    absent = [name for name in ("mpi4py", "numpy") if find_spec(name) is None]
    if absent or _mpiexec() is None:
        lacks = " and ".join(absent) or "mpiexec"
        return f'it needs {lacks}; install an MPI: pip install "evenstep[mpi]"'
    return ""


def start(trial: Trial) -> SpinningJobs:
    """Start all jobs; returns once each of them steps."""
    return SpinningJobs.begun(trial)


def clean() -> list[str]:
    """Nothing outlives the campaign: ranks die with their `mpiexec`, and that with its parent."""
    return []


class SpinningJobs(LaunchedJobs):
    """Each under an `mpiexec` of its own."""

    def launch(self) -> None:
        """Start them one after the other, as far apart as they ask for."""
        for number, job in enumerate(self.trial.scenario.jobs):
            time.sleep(job.start_ms * 1e-3)
            rank = [sys.executable, "-m", "lab.mpi.rank", str(self.trial.path), str(number)]
            self.ranks.start(
                job.name,
                [str(_mpiexec()), "-n", str(job.ranks), *rank],
                environment(EVENSTEP="0"),
                self.trial.folder / f"{job.name}.log",
            )

    def leave(self) -> None:
        """The ranks leave together, those that a fault has stopped too; what does not is killed."""
        for job, pulse in self.pulses.items():
            ranks = map(pulse.process, range(self.trial.scenario.jobs[job].ranks))
            send([process for process in ranks if process], signal.SIGCONT)
        self.helpers.end(0.0)
        if not self.ranks.wait(ENDING_S):
            self.ranks.end(1.0)


def _mpiexec() -> Path | None:
    """The launcher that belongs to this Python, else the one on PATH."""
    beside = Path(sys.executable).with_name("mpiexec")
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    return None if found is None else Path(found)
