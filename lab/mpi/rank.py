"""One rank under `mpiexec`: computes for real, exchanges buckets over MPI, paces by the arm's rule.

`mpiexec -n 4 python -m lab.mpi.rank TRIAL JOB`. Compute is processor time, not wall time:
it takes longer where somebody else has the core. What the ranks tell each other beyond the buckets
(the block, and the slowest rank's work) travels in one more all-reduce behind the last bucket, in
every arm alike.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

from evenstep.agent.sampler import Sampler
from evenstep.host.sources.cpu import CpuSource
from evenstep.trace.spool.folder import RunFolder
from evenstep.trace.spool.identity import Identity
from evenstep.trace.spool.layout import Phase
from lab.board import OVER, Board, Pulse
from lab.fair.rank import BACKWARD, FORWARD, OPTIMIZER, lengths, records
from lab.faults import RankFaults
from lab.mpi.finding import BLOCKING
from lab.mpi.news import Heard, News
from lab.rank_host import RankHost, open_spool
from lab.realtime import end_with_parent
from lab.tier import Trial

POLL_S = 50e-6  # what a sleep of the kernel takes at least, unless a process asks for less
SAMPLED_S = 1.0  # between two looks at how many tasks want a core
_CHUNK = 3000  # turns of an empty loop: about .1 ms between two looks at the processor's clock


class Rank:
    """A rank of one job."""

    def __init__(self, trial: Trial, number: int, communicator: Any) -> None:
        job = trial.scenario.jobs[number]
        self._rank, self._world = communicator.Get_rank(), communicator.Get_size()
        self._job, self._communicator = job, communicator
        self._board = Board(trial.board_path)
        self._pulse = Pulse(trial.folder, number)
        self._pulse.enter(self._rank, os.getpid())
        key = f"{trial.scenario.seed}/{number}/{self._rank}"
        self._lengths = lengths(job, key)
        faults = [fault for fault in trial.scenario.faults if fault.job == number]
        self._faults = RankFaults(faults, self._rank, self._world, seed=trial.scenario.seed)
        self._arms = trial.schedule.arms
        self._arm_at = trial.schedule.arm_at
        elements = max(1, job.gradient_bytes // 4 // job.buckets)
        self._gradient = np.zeros(elements, np.float32)
        self._sum = np.zeros_like(self._gradient)
        self._ways = {"": communicator.Allreduce, BLOCKING: partial(polled, communicator)}
        self._exchange = self._ways[""]  # which polls without rest, and keeps its core busy
        identity = Identity(
            f"{trial.run_id}-{job.name}", 0, self._rank, self._rank, self._world, 0, "lab"
        )
        spool = open_spool(
            RunFolder(trial.job_folder(number)), identity.header(), records=records(trial, job)
        )
        self._host = RankHost(
            spool,
            rank=self._rank,
            world=self._world,
            settings=trial.pacers(number, self._rank),
            arm_of=self._arm_at,
        )
        self._sampler = Sampler(
            [CpuSource(threading.get_native_id())], self._host.recorder.sample, period_s=SAMPLED_S
        )
        self._report = (-1, 0)  # step and work of the step before

    def run(self) -> None:
        """Step until rank 0 has seen that it is over: the ranks end together."""
        self._sampler.start()
        step, block = 0, 0
        while block != OVER:
            self._compute(step)
            for _ in range(self._job.buckets):
                self._host.bucket(self._gradient.nbytes, self._reduce)
            heard = self._told()
            with self._host.phase(Phase.OPTIMIZER):
                self._spend(OPTIMIZER, "optimizer", step)
            self._host.end_step(heard.block, heard.orders)
            self._report = (step, self._host.work_ns)
            block = heard.block
            self._exchange = self._ways[self._arms[self._arm_at(block)].own]
            step += 1
            if self._rank == 0:
                self._pulse.beat(step)
        self._sampler.stop()
        self._host.close("ended")

    def _compute(self, step: int) -> None:
        self._length_s = next(self._lengths)
        with self._host.phase(Phase.INPUT):
            time.sleep(self._faults.extra_s("input", step))
        with self._host.phase(Phase.FORWARD):
            self._spend(FORWARD, "forward", step)
        with self._host.phase(Phase.BACKWARD):
            self._spend(BACKWARD, "backward", step)

    def _spend(self, share: float, phase: str, step: int) -> None:
        burn(share * self._length_s + self._faults.extra_s(phase, step))

    def _reduce(self) -> None:
        self._exchange(self._gradient, self._sum, MPI.SUM)

    def _told(self) -> Heard:
        """Which block is on next, and what the others say of the step before."""
        leads = self._rank == 0
        plan = self._host.plan if leads else None
        mine = News(self._board.block if leads else None, *self._report, plan)
        said = mine.pack()
        heard = np.empty_like(said)
        self._exchange(said, heard, MPI.MAX)
        return Heard.of(heard)


def polled(communicator: Any, send: Any, receive: Any, operation: Any) -> None:
    """An all-reduce that leaves the core to others while there is nothing to do."""
    request = communicator.Iallreduce(send, receive, op=operation)
    while not request.Test():
        time.sleep(POLL_S)


def burn(seconds: float) -> None:
    """Compute for so much processor time of this thread."""
    if seconds <= 0:
        return
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        for _ in range(_CHUNK):
            pass


def main(argv: list[str]) -> None:
    """Run one rank of a job."""
    end_with_parent(os.getppid())
    trial = Trial.read(Path(argv[0]))
    if trial.scenario.jobs[int(argv[1])].pinned:
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[MPI.COMM_WORLD.Get_rank() % len(cores)]})
    Rank(trial, int(argv[1]), MPI.COMM_WORLD).run()


if __name__ == "__main__":
    main(sys.argv[1:])
