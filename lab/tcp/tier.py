"""The tcp tier: torch on gloo over the kernel's own TCP, on hosts that are network namespaces."""

from __future__ import annotations

import sys

from lab.children import environment
from lab.fair.disturbances import Disturbance
from lab.jobs import LaunchedJobs
from lab.scenario import Scenario
from lab.tcp import disturbances, network, order, plan
from lab.tcp.layout import address
from lab.tcp.network import Network
from lab.tier import Trial

ARMS: tuple[str, ...] = ()
LEAVING_S = 5.0
_PORT = "29500"  # of every job's store: each has a host of its own
#: gives the host its name, then becomes the command
_NAMED = 'hostname "$0" && exec "$@"'


def missing(scenario: Scenario) -> str:  # noqa: ARG001 - the same for all
    """What the machine, or this process, lacks."""
    from importlib.util import find_spec

    return network.missing() or ("" if find_spec("torch") else "it trains with torch; install it")


def start(trial: Trial) -> NetworkedJobs:
    """Make the network and start all jobs; returns once each of them steps."""
    return NetworkedJobs.begun(trial)


def clean() -> list[str]:
    """Remove the namespaces of campaigns that are gone."""
    return [f"namespace {name}" for name in network.clean()]


class NetworkedJobs(LaunchedJobs):
    """Each rank on a host of its own."""

    def __init__(self, trial: Trial) -> None:
        super().__init__(trial)
        self.plan = plan.plan(trial.scenario)
        self.network = Network(self.plan.layout)

    def launch(self) -> None:
        """The other traffic, and the ranks."""
        disturbances.background(self.trial.scenario, self)
        for number, job in enumerate(self.trial.scenario.jobs):
            order.of(self.trial.scenario, number).write(order.path_of(self.trial.folder, number))
            for rank in range(job.ranks):
                self._start_rank(number, rank)

    def disturbances(self) -> list[Disturbance]:
        """Those of links, and of processes."""
        return [*disturbances.of_links(self.trial.scenario, self), *super().disturbances()]

    def leave(self) -> None:
        """Traces are closed, processes ended, the network taken away."""
        self.ranks.end(LEAVING_S)
        self.helpers.end(0.0)
        self.network.close()
        for number in self.pulses:
            order.path_of(self.trial.folder, number).unlink(missing_ok=True)

    def on_host(self, host: int, command: list[str]) -> int:
        """Start a process that is no rank on a host; its id."""
        log = self.trial.folder / "traffic.log"
        return self.helpers.start("other traffic", self._there(host, command), environment(), log)

    def _start_rank(self, number: int, rank: int) -> None:
        trial, job = self.trial, self.trial.scenario.jobs[number]
        launcher = {
            "RANK": str(rank), "WORLD_SIZE": str(job.ranks), "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": address(self.plan.hosts[number, 0]),
            "MASTER_PORT": _PORT, "GLOO_SOCKET_IFNAME": "eth0",
            "EVENSTEP_RUN_ID": f"{trial.run_id}-{job.name}",
        }  # fmt: skip
        command = [sys.executable, "-m", "lab.tcp.rank", str(trial.path), str(number)]
        self.ranks.start(
            f"rank {rank} of {job.name}",
            self._there(self.plan.hosts[number, rank], command),
            environment(**launcher),
            trial.folder / f"{job.name}-{rank}.log",
        )

    def _there(self, host: int, command: list[str]) -> list[str]:
        """The command, on a host: `exec` all the way, so that its process id is the one started."""
        inside = ["ip", "netns", "exec", self.network.hosts[host]]
        return [*inside, "unshare", "--uts", "sh", "-c", _NAMED, f"host{host}", *command]
