"""What a tier must do: make jobs and links real, follow the board, leave a trace of each job.

A tier measures nothing. It starts its processes, lets every rank pace by the arm of the block that
is on, and ends everything when the board says so. What is counted comes from the traces: all
processes run on one machine, so their monotonic clock is the campaign's.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

import msgspec

from evenstep.errors import EvenstepError
from evenstep.pacing import PacerSettings
from evenstep.pacing.token import TOKEN
from evenstep.trace.spool.files import read_own, write_whole
from lab.arms import BASELINE, Arm, Schedule
from lab.scenario import Scenario

if TYPE_CHECKING:
    from evenstep.diagnose.finding import Finding
    from lab.outcome import ArmOutcome

MODULES = {
    "fair": "lab.fair.tier",
    "tcp": "lab.tcp.tier",
    "mpi": "lab.mpi.tier",
}
_FILE = ".trial"
_MOST_BYTES = 1 << 20
LOG = "lab.log"  # in a run's folder: what its processes said


class LabError(EvenstepError):
    """A process of the laboratory has failed; the message holds the end of what it said."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One run of a scenario, as a tier is given it."""

    scenario: Scenario
    schedule: Schedule
    folder: Path  # of the run; each job's trace goes to `job_folder`
    board_path: Path
    run_id: str  # names this run in everything that outlives a process

    def links(self, job: int) -> list[tuple[str, bool] | None]:
        """Of each arm in which a job holds the token: the link's name, and whether it is tried."""
        paced = self.scenario.jobs[job].paced
        return [
            (f"lab-{self.run_id}-{number}", arm.guarded)
            if paced and arm.controller == TOKEN
            else None
            for number, arm in enumerate(self.schedule.arms)
        ]

    @property
    def path(self) -> Path:
        """Where the processes of the trial find it."""
        return self.folder / _FILE

    def write(self) -> None:
        """Put it there."""
        write_whole(self.path, msgspec.json.encode(self, enc_hook=str))

    @classmethod
    def read(cls, path: Path) -> Trial:
        """The inverse: plain values, never a program, and of this user's own making."""
        return msgspec.json.decode(read_own(path, _MOST_BYTES), type=cls, dec_hook=_path)

    def job_folder(self, job: int) -> Path:
        """Where the trace of a job goes: a run folder that `evenstep diagnose` reads."""
        return self.folder / self.scenario.jobs[job].name

    def pacers(self, job: int, rank: int, **more: Any) -> list[PacerSettings]:
        """The settings of each arm's pacer on a rank; nobody is held of a job that is not paced.

        Each job has a run's name of its own: the blocks of its trial are drawn from it.
        """
        here, pacing = self.scenario.jobs[job], self.scenario.pacing
        arms = self.schedule.arms if here.paced else (Arm(BASELINE),) * len(self.schedule.arms)
        return [
            arm.settings(
                max_delay=pacing.max_delay, imbalance=pacing.imbalance, objective=pacing.objective,
                sharing=pacing.sharing, guarded=pacing.guarded, rank=rank, world=here.ranks,
                run_id=f"{self.run_id}-{here.name}", **more,
            )
            for arm in arms
        ]  # fmt: skip


def _path(_: type[Path], text: str) -> Path:
    return Path(text)


class Running(Protocol):
    """The processes of a trial."""

    def check(self) -> None:
        """Raise `LabError` when a process has failed; the message holds the end of what it said."""

    def end(self) -> None:
        """Wait a little for the processes (the board says `OVER`), end those that are left, and
        take down whatever else was set up. Called exactly once, whatever happened; must not raise.
        """


class Tier(Protocol):
    """A way to make links real."""

    ARMS: tuple[str, ...]  # arms of its own

    def missing(self, scenario: Scenario) -> str:
        """Why it cannot be run here, as one sentence with the mend; "" where it can."""

    def start(self, trial: Trial) -> Running:
        """Start everything; returns once all ranks step."""

    def clean(self) -> list[str]:
        """Remove what earlier runs of this tier have left behind (of processes that are gone);
        returns what was removed, in words."""


def findings(scenario: Scenario, arms: Sequence[ArmOutcome]) -> list[Finding]:
    """What a comparison says of a job beyond gains, where the tier knows how to tell."""
    tell = getattr(tier(scenario.fabric), "findings", None)
    return [] if tell is None else list(tell(scenario, arms))


def tier(name: str) -> Tier:
    """The tier of a fabric; its module offers the functions of `Tier`."""
    return cast(Tier, importlib.import_module(MODULES[name]))
