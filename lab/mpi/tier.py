"""The mpi tier: real ranks of a busy-polling MPI under `mpiexec`, no privilege needed."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from importlib.util import find_spec
from pathlib import Path

from lab.board import Board
from lab.children import python_path
from lab.conductor import Conductor, hog_command, of_processes
from lab.crew import Crew
from lab.fair.disturbances import Disturbance, send
from lab.mpi.finding import BLOCKING, findings
from lab.pulse import NOT_YET, Pulse
from lab.scenario import Scenario
from lab.tier import LabError, Trial

__all__ = ["ARMS", "clean", "findings", "missing", "start"]

ARMS = (BLOCKING,)  # ranks look now and then and sleep, instead of spinning
STARTING_S = 60.0
ENDING_S = 10.0


def missing(scenario: Scenario) -> str:  # noqa: ARG001 - the same for all
    """What the machine lacks."""
    absent = [name for name in ("mpi4py", "numpy") if find_spec(name) is None]
    if absent or _mpiexec() is None:
        lacks = " and ".join(absent) or "mpiexec"
        return f'it needs {lacks}; install an MPI: pip install "evenstep[mpi]"'
    return ""


def start(trial: Trial, board: Board) -> Ranks:  # noqa: ARG001 - the ranks open it themselves
    """Start all jobs; returns once each of them steps."""
    ranks = Ranks(trial)
    try:
        ranks.begin()
    except BaseException:
        ranks.end()
        raise
    return ranks


def clean() -> list[str]:
    """Nothing outlives the campaign: ranks die with their `mpiexec`, and that with its parent."""
    return []


class Ranks:
    """The jobs of a trial, each under an `mpiexec` of its own."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self._crew, self._hogs = Crew(), Crew()
        self._pulses = {
            job: Pulse.create(trial.folder, job) for job in range(len(trial.scenario.jobs))
        }
        self._conductor: Conductor | None = None

    def begin(self) -> None:
        """Start everything and wait for the first steps."""
        trial = self._trial
        trial.write()
        for number, job in enumerate(trial.scenario.jobs):
            time.sleep(job.start_ms * 1e-3)
            self._crew.start(
                job.name,
                [str(_mpiexec()), "-n", str(job.ranks), sys.executable, "-m",
                 "lab.mpi.rank", str(trial.path), str(number)],
                _environment(),
                trial.folder / f"{job.name}.log",
            )  # fmt: skip
        self._await_steps()
        self._conductor = Conductor(self._disturbances(), self._pulses)

    def _await_steps(self) -> None:
        deadline = time.monotonic() + STARTING_S
        while any(pulse.steps == NOT_YET for pulse in self._pulses.values()):
            self._crew.check()
            if time.monotonic() > deadline:
                raise LabError(f"not all ranks stepped within {STARTING_S:.0f} s")
            time.sleep(0.02)

    def _disturbances(self) -> list[Disturbance]:
        def start_hog(share: float) -> int:
            log = self._trial.folder / "hog.log"
            return self._hogs.start("a CPU hog", hog_command(share), _environment(), log)

        return of_processes(self._trial.scenario, self._pulses, start_hog)

    def check(self) -> None:
        """Raise `LabError` when a job has failed, or what disturbs it."""
        self._crew.check()
        if self._conductor is not None and self._conductor.failure is not None:
            raise LabError(f"a fault could not be carried out: {self._conductor.failure}")

    def end(self) -> None:
        """The ranks leave together; what does not is killed."""
        if self._conductor is not None:
            self._conductor.close()
        self._resume()
        self._hogs.end(0.0)
        if not self._crew.wait(ENDING_S):
            self._crew.end(1.0)
        for job, pulse in self._pulses.items():
            pulse.remove(self._trial.folder, job)
        self._trial.path.unlink(missing_ok=True)

    def _resume(self) -> None:
        """Ranks that a fault has stopped cannot leave."""
        for job, pulse in self._pulses.items():
            for rank in range(self._trial.scenario.jobs[job].ranks):
                if pulse.process(rank):
                    send([pulse.process(rank)], signal.SIGCONT)


def _mpiexec() -> Path | None:
    """The launcher that belongs to this Python, else the one on PATH."""
    beside = Path(sys.executable).with_name("mpiexec")
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    return None if found is None else Path(found)


def _environment() -> dict[str, str]:
    """Ranks import this very package; nobody observes them but the laboratory."""
    return {**os.environ, "PYTHONPATH": python_path(), "EVENSTEP": "0", "OMP_NUM_THREADS": "1"}
