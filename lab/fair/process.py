"""The process of a fair trial: forks the ranks, then is the fabric between them.

    python -m lab.fair.process TRIAL

Every job's pulse begins when all ranks step. Ranks die with it, and it dies with the campaign.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

from evenstep.errors import EvenstepError
from lab.board import OVER, Board, Pulse
from lab.fair import disturbances
from lab.fair.jobs import JobState, links_of
from lab.fair.link import Fabric, Link
from lab.fair.rank import Rank
from lab.fair.server import Server
from lab.realtime import end_with_parent, ordinary, precise
from lab.tier import Trial

FAILED = 1
LEAVING_S = 5.0


class Emulation:
    """Ranks as processes, and the links between them."""

    def __init__(self, trial: Trial, board: Board) -> None:
        self._trial, self._board = trial, board
        self._sockets: dict[tuple[int, int], socket.socket] = {}
        self.processes: dict[tuple[int, int], int] = {}
        self._helpers: list[int] = []  # processes that are not ranks

    def _start_hog(self, share: float) -> int:
        """A process that computes for a share of the time, at everybody's priority."""

        def compute() -> None:
            ordinary()
            disturbances.burn(share)

        self._helpers.append(_fork(compute))
        return self._helpers[-1]

    def start(self) -> None:
        """Fork the ranks."""
        for job, described in enumerate(self._trial.scenario.jobs):
            for rank in range(described.ranks):
                here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                self.processes[job, rank] = _fork(partial(self._be, job, rank, there))
                there.close()
                self._sockets[job, rank] = here

    def _be(self, job: int, rank: int, channel: socket.socket) -> None:
        for other in self._sockets.values():
            other.close()
        if self._trial.scenario.jobs[job].work == "train":
            ordinary()
        Rank(self._trial, job, rank, channel).run()

    def serve(self) -> bool:
        """Until all ranks have left; whether all left as they should."""
        server = self._server()
        told = False
        while not server.over:
            server.serve()
            if server.started and not told:
                for job in range(len(self._trial.scenario.jobs)):
                    Pulse(self._trial.folder, job).beat(0)
                told = True
            if server.lost and self._board.block != OVER:
                return False
        return self._all_well()

    def _server(self) -> Server:
        scenario = self._trial.scenario
        network = scenario.network
        links = [Link(network.link_gBps, network.goodput) for _ in range(network.leaves)]
        storage: tuple[int, ...] = ()
        if network.storage_gBps:
            storage = (len(links),)
            links.append(Link(network.storage_gBps))
        jobs = [JobState(job, links_of(job, network)) for job in scenario.jobs]
        return Server(
            Fabric(links, float(time.monotonic_ns())), jobs, self._sockets, self._disturbances(),
            self._board, storage=storage, card=network.nic_gBps,
        )  # fmt: skip

    def _disturbances(self) -> list[disturbances.Disturbance]:
        scenario = self._trial.scenario
        network, seed = scenario.network, scenario.seed
        found: list[disturbances.Disturbance] = []
        if network.background_flows:
            found += [
                disturbances.Flows(
                    link, network.background_flows, network.background_on_ms,
                    network.background_off_ms, key=f"{seed}/background/{link}",
                    begin_ns=time.monotonic_ns(),
                )
                for link in range(network.leaves)
            ]  # fmt: skip
        found += disturbances.of_links(scenario)
        found += disturbances.of_processes(
            scenario, lambda job, rank: self.processes[job, rank], self._start_hog
        )
        return found

    def _all_well(self) -> bool:
        deadline = time.monotonic() + LEAVING_S
        codes = [_code(process, deadline) for process in self.processes.values()]
        return not any(codes)

    def end(self) -> None:
        """No process of ours is left, nor what ranks that train met through."""
        for process in [*self.processes.values(), *self._helpers]:
            disturbances.send([process], signal.SIGKILL)
        for process in [*self.processes.values(), *self._helpers]:
            _code(process, time.monotonic() + LEAVING_S)
        for store in self._trial.folder.glob(".store-*"):
            store.unlink(missing_ok=True)


def _code(process: int, deadline: float) -> int:
    """Exit code of a child; `FAILED` where it is still there at the deadline."""
    while True:
        try:
            found, status = os.waitpid(process, os.WNOHANG)
        except ChildProcessError:  # waited for already
            return 0
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            return FAILED
        time.sleep(0.005)


def _fork(work: Callable[[], object]) -> int:
    """Start a process that does this and nothing else, and dies with us."""
    parent = os.getpid()
    process = os.fork()
    if process:
        return process
    code = FAILED
    try:
        end_with_parent(parent)
        work()
        code = 0
    except SystemExit as error:
        code = int(error.code or 0)
    except EvenstepError as error:
        print(error, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def main() -> int:
    """Read the trial, carry it out."""
    trial = Trial.read(Path(sys.argv[1]))
    gc.collect()
    gc.freeze()
    if trial.scenario.real_time:
        precise()
    with closing(Board(trial.board_path)) as board:
        emulation = Emulation(trial, board)
        try:
            emulation.start()
            return 0 if emulation.serve() else FAILED
        finally:
            emulation.end()


if __name__ == "__main__":
    sys.exit(main())
