"""One rank on the emulated fabric: sleeps for compute, or trains, and exchanges by permission."""

from __future__ import annotations

import gc
import math
import random
import socket
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from evenstep.agent.exchange.messages import Orders
from evenstep.trace.spool.folder import RunFolder
from evenstep.trace.spool.identity import Identity
from evenstep.trace.spool.layout import Phase
from lab.board import OVER
from lab.fair.jobs import leaf_of
from lab.fair.messages import EXCHANGE, MOST_BYTES, READ, Ask, Grant, Report, grant_of, pack
from lab.fair.training import Training
from lab.faults import RankFaults
from lab.rank_host import RECORDS_OF_A_STEP, RankHost, open_spool
from lab.realtime import sleep_until
from lab.scenario import Job
from lab.tier import Trial

FORWARD, BACKWARD, OPTIMIZER = 0.33, 0.62, 0.05  # of the compute
LEAST = 0.05  # of its mean that a random length never falls below

now_ns = time.monotonic_ns


class Rank:
    """A rank and its place."""

    def __init__(self, trial: Trial, job: int, rank: int, channel: socket.socket) -> None:
        self._scenario = trial.scenario
        self._job = trial.scenario.jobs[job]
        self._rank, self._channel = rank, channel
        world = self._job.ranks
        faults = [fault for fault in trial.scenario.faults if fault.job == job]
        self._faults = RankFaults(faults, rank, world, seed=trial.scenario.seed)
        self._lengths = lengths(self._job, f"{trial.scenario.seed}/{job}/{rank}")
        self._sizes = sizes(self._job, f"{trial.scenario.seed}/{job}")
        folder = RunFolder(trial.job_folder(job))
        spool = open_spool(folder, _identity(trial, job, rank), records=records(trial, self._job))
        self.host = RankHost(
            spool, rank=rank, world=world, settings=trial.pacers(job, rank),
            arm_of=trial.schedule.arm_at, links=trial.links(job),
        )  # fmt: skip
        self._report = Report()
        self._planned_ns = 0  # up to here time is spent as it should be
        self._training = _training(trial, job, rank)
        self._garbage = _garbage() if any(f.kind == "collector" for f in faults) else []

    def run(self) -> None:
        """Step until the board says that it is over."""
        self._planned_ns = now_ns() + int(self._job.start_ms * 1e6)
        sleep_until(self._planned_ns)
        grant, step = Grant(), 0
        while grant.block != OVER:
            grant = self._step(step, next(self._lengths))
            self._count(partial(self._outside, step))
            self._end_step(grant, step)
            step += 1
        if self._training is not None:
            self._training.close()
        self.host.close("ended")

    def _step(self, step: int, length_s: float) -> Grant:
        with self.host.phase(Phase.INPUT):
            self._count(self._read)
            self._spend(0.0, "input", step)
        with self.host.phase(Phase.FORWARD):
            self._count(self._forward)
            self._spend(FORWARD * length_s, "forward", step)
        with self.host.phase(Phase.BACKWARD):
            self._count(self._backward)
            self._spend(BACKWARD * length_s, "backward", step)
            grant = self._exchange(next(self._sizes))
            self._planned_ns = now_ns()
        with self.host.phase(Phase.OPTIMIZER):
            if self._training is not None:
                self._count(self._training.update)
            self._spend(OPTIMIZER * length_s, "optimizer", step)
        return grant

    def _spend(self, seconds: float, phase: str, step: int) -> None:
        """Compute for so long. What our own code took since is part of it."""
        self._planned_ns += int((seconds + self._faults.extra_s(phase, step)) * 1e9)
        sleep_until(self._planned_ns)

    def _count(self, work: Callable[[], None]) -> None:
        """Do something that takes its own time beside the compute."""
        begin = now_ns()
        work()
        self._planned_ns += now_ns() - begin

    def _forward(self) -> None:
        if self._training is not None:
            self.host.recorder.marker("loss", self._training.forward())

    def _backward(self) -> None:
        if self._training is not None:
            self._training.backward()

    def _read(self) -> None:
        if self._job.input_bytes and self._scenario.network.storage_gBps:
            self._ask(Ask(READ, False, now_ns(), self._job.input_bytes))

    def _exchange(self, buckets: list[float]) -> Grant:
        """All buckets, one after the other; the first says what the last step was like."""
        grant = Grant()
        for number, nbytes in enumerate(buckets):
            ask = Ask(
                EXCHANGE,
                number == len(buckets) - 1,
                0,
                nbytes,
                self._report if number == 0 else Report(),
                self.host.plan if number == 0 else None,
            )
            grant = self.host.bucket(round(nbytes), partial(self._enter, ask, number))
        return grant

    def _enter(self, ask: Ask, number: int) -> Grant:
        grant = self._ask(ask._replace(sent_ns=now_ns()))
        if self._training is not None:
            self._training.reduce(number)
        return grant

    def _ask(self, ask: Ask) -> Grant:
        self._channel.send(pack(ask))
        data = self._channel.recv(MOST_BYTES)
        if not data:
            raise SystemExit(1)  # the fabric is gone
        return grant_of(data)

    def _end_step(self, grant: Grant, step: int) -> None:
        host = self.host
        self._planned_ns += host.end_step(grant.block, Orders(grant.plan, grant.slowest))
        self._report = Report(step, host.work_ns)

    def _outside(self, step: int) -> None:
        """What happens between two steps: pauses, checkpoints, evaluations."""
        pause_s = self._faults.collects_s(step)
        if pause_s:
            end = now_ns() + int(pause_s * 1e9)
            while now_ns() < end:
                gc.collect()
        for kind, phase in (("checkpoint", Phase.CHECKPOINT), ("evaluation", Phase.EVALUATION)):
            alone_s = self._faults.alone_s(kind, step)
            if alone_s:
                with self.host.phase(phase):
                    time.sleep(alone_s)


def lengths(job: Job, key: str) -> Iterator[float]:
    """A rank's compute times in s, without end: the same for the same key."""
    draw, mean_s = random.Random(key), job.compute_ms * 1e-3
    while True:
        yield mean_s * max(LEAST, _factor(job.noise, job.jitter, draw))


def _factor(noise: str, sigma: float, draw: random.Random) -> float:
    """A random length over its mean, with relative deviation `sigma`."""
    if sigma == 0:
        return 1.0
    if noise == "lognormal":
        spread = math.sqrt(math.log1p(sigma**2))
        return draw.lognormvariate(-spread * spread / 2, spread)
    if noise == "pareto":
        # excess Pareto of index 3 over 1: mean 1/2, variance 3/4
        return 1.0 + sigma * (draw.paretovariate(3) - 1.5) / math.sqrt(0.75)
    return draw.gauss(1, sigma)


def sizes(job: Job, key: str) -> Iterator[list[float]]:
    """The bytes of each bucket, step by step: the same on all ranks."""
    draw, mean = random.Random(key), job.gradient_bytes / job.buckets
    while True:
        yield [
            mean * (max(LEAST, draw.gauss(1, job.bucket_noise)) if job.bucket_noise else 1.0)
            for _ in range(job.buckets)
        ]


def _garbage() -> list[list[Any]]:
    """Objects for a collector to walk: about a millisecond of them."""
    return [[] for _ in range(20_000)]


def records(trial: Trial, job: Job) -> int:
    """Records a rank may write in the longest run there can be, and a fifth more."""
    run = trial.scenario.run
    seconds = min(run.limit_s, trial.schedule.blocks * run.block_s) + 5
    steps = seconds * 1e3 / job.compute_ms
    return int(1.2 * steps * (job.buckets + RECORDS_OF_A_STEP))


def _identity(trial: Trial, job: int, rank: int) -> dict[str, Any]:
    """Every rank on a host of its own, named after its leaf."""
    here = trial.scenario.jobs[job]
    leaf = leaf_of(rank, here, trial.scenario.network)
    identity = Identity(
        f"{trial.run_id}-{here.name}", 0, rank, 0, here.ranks, rank, "lab", here.ranks
    )
    return {**identity.header(), "hostname": f"leaf{leaf}-host{rank}"}


def _training(trial: Trial, job: int, rank: int) -> Training | None:
    """The model of a rank that trains; None for one that sleeps."""
    here = trial.scenario.jobs[job]
    if here.work != "train":
        return None
    store = trial.folder / f".store-{here.name}"
    return Training(here, rank, store, seed=trial.scenario.seed)
