"""The tcp tier: torch on gloo over the kernel's own TCP, on hosts that are network namespaces."""

from __future__ import annotations

import os
import sys
import time

from lab.board import Board
from lab.children import python_path
from lab.conductor import Conductor, hog_command, of_processes
from lab.crew import Crew
from lab.pulse import NOT_YET, Pulse
from lab.scenario import Scenario
from lab.tcp import disturbances, needs, network, order, plan
from lab.tcp.layout import address
from lab.tcp.network import Network, NetworkError
from lab.tier import LabError, Trial

ARMS: tuple[str, ...] = ()
STARTING_S = 120.0
LEAVING_S = 5.0
_PORT = "29500"  # of every job's store: each has a host of its own
#: gives the host its name, then becomes the command
_NAMED = 'hostname "$0" && exec "$@"'


def missing(scenario: Scenario) -> str:  # noqa: ARG001 - the same for all
    """What the machine, or this process, lacks."""
    from importlib.util import find_spec

    return needs.missing() or ("" if find_spec("torch") else "it trains with torch; install it")


def start(trial: Trial, board: Board) -> Jobs:  # noqa: ARG001 - the ranks open it themselves
    """Make the network and start all jobs; returns once each of them steps."""
    try:
        jobs = Jobs(trial)
    except NetworkError as error:
        raise LabError(str(error)) from error
    try:
        jobs.begin()
    except BaseException:
        jobs.end()
        raise
    return jobs


def clean() -> list[str]:
    """Remove the namespaces of campaigns that are gone."""
    return [f"namespace {name}" for name in network.clean()]


class Jobs:
    """The jobs of a trial on their hosts."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self.plan = plan.plan(trial.scenario)
        self._crew, self._helpers = Crew(), Crew()
        self._pulses = {
            job: Pulse.create(trial.folder, job) for job in range(len(trial.scenario.jobs))
        }
        self._conductor: Conductor | None = None
        self.network = Network(self.plan.layout)

    def begin(self) -> None:
        """Start everything and wait for the first steps."""
        trial, scenario = self._trial, self._trial.scenario
        trial.write()
        disturbances.background(scenario, self)
        for number, job in enumerate(scenario.jobs):
            order.of(scenario, number).write(order.path_of(trial.folder, number))
            for rank in range(job.ranks):
                self._start_rank(number, rank)
        self._await_steps()
        acting = disturbances.of_links(scenario, self)
        acting += of_processes(scenario, self._pulses, self._start_hog)
        self._conductor = Conductor(acting, self._pulses)

    def _start_rank(self, number: int, rank: int) -> None:
        trial, job = self._trial, self._trial.scenario.jobs[number]
        host = self.plan.hosts[number, rank]
        launcher = {
            "RANK": str(rank), "WORLD_SIZE": str(job.ranks), "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": address(self.plan.hosts[number, 0]),
            "MASTER_PORT": _PORT, "GLOO_SOCKET_IFNAME": "eth0",
            "EVENSTEP_RUN_ID": f"{trial.run_id}-{job.name}",
        }  # fmt: skip
        command = [sys.executable, "-m", "lab.tcp.rank", str(trial.path)]
        self._crew.start(
            f"rank {rank} of {job.name}",
            self._there(host, [*command, str(number)]),
            {**_environment(), **launcher},
            trial.folder / f"{job.name}-{rank}.log",
        )

    def on_host(self, host: int, command: list[str]) -> int:
        """Start a process that is no rank on a host; its id."""
        log = self._trial.folder / "traffic.log"
        return self._helpers.start("other traffic", self._there(host, command), _environment(), log)

    def _start_hog(self, share: float) -> int:
        log = self._trial.folder / "hog.log"
        return self._helpers.start("a CPU hog", hog_command(share), _environment(), log)

    def _there(self, host: int, command: list[str]) -> list[str]:
        """The command, on a host: `exec` all the way, so that its process id is the one started."""
        inside = ["ip", "netns", "exec", self.network.hosts[host]]
        return [*inside, "unshare", "--uts", "sh", "-c", _NAMED, f"host{host}", *command]

    def _await_steps(self) -> None:
        deadline = time.monotonic() + STARTING_S
        while any(pulse.steps == NOT_YET for pulse in self._pulses.values()):
            self.check()
            if time.monotonic() > deadline:
                raise LabError(f"not all jobs stepped within {STARTING_S:.0f} s")
            time.sleep(0.02)

    def check(self) -> None:
        """Raise `LabError` when a process has failed, or a fault could not be carried out."""
        self._crew.check()
        self._helpers.check()
        if self._conductor is not None and self._conductor.failure is not None:
            raise LabError(f"a fault could not be carried out: {self._conductor.failure}")

    def end(self) -> None:
        """Traces are closed, processes ended, the network taken away."""
        if self._conductor is not None:
            self._conductor.close()
        self._crew.end(LEAVING_S)
        self._helpers.end(0.0)
        self.network.close()
        for number, pulse in self._pulses.items():
            pulse.remove(self._trial.folder, number)
            order.path_of(self._trial.folder, number).unlink(missing_ok=True)
        self._trial.path.unlink(missing_ok=True)


def _environment() -> dict[str, str]:
    """Ranks import this very package; nothing of a launcher's or of our own settings is left."""
    foreign = ("EVENSTEP", "TORCHELASTIC", "SLURM")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    return {**kept, "PYTHONPATH": python_path(), "OMP_NUM_THREADS": "1"}
