"""What is to be run: jobs, the links they share, what disturbs them, how long. One TOML file.

Every field says what it means in its metadata. What one field alone cannot show wrong is checked by
`Scenario` when it is made.
"""

# ruff: noqa: RUF009 - the fields of a settings class are made by functions of `schema`

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from evenstep.errors import ConfigError
from evenstep.pacing import OBJECTIVES
from evenstep.scenario import schema
from evenstep.scenario.scenario import read
from evenstep.scenario.schema import choice, count, flag, number, numbers, size, table, tables, text
from evenstep.values import refusal
from lab.faults import Fault

FABRICS = ("fair", "tcp", "mpi")
NOISES = ("normal", "lognormal", "pareto")
WORKS = ("sleep", "train")
EXCHANGES = ("all_reduce", "gather")
LONGEST_S = 900.0
MOST_RANKS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """The links that jobs share: one, or an uplink for each leaf."""

    leaves: int = count(1, "leaves; with one, all jobs share a single link", least=1, most=64)
    link_gBps: float = number(  # noqa: N815
        0.1, "capacity of the link, or of each leaf's uplink", above=True
    )
    nic_gBps: float = number(0.0, "what one rank can send; 0: no limit")  # noqa: N815
    goodput: float = number(
        1.0, "share of a link's capacity kept for each further contender", high=1.0, above=True
    )
    background_flows: float = number(0.0, "flows that do not yield, while they are on", high=64)
    background_on_ms: float = number(100.0, "mean time they are on", above=True)
    background_off_ms: float = number(900.0, "mean time they are off", above=True)
    storage_gBps: float = number(  # noqa: N815
        0.0, "what all ranks together can read of their input; 0: no limit"
    )
    oversubscription: float = number(
        1.0, "of tcp: capacity into a leaf over capacity out of it", above=True
    )
    buffer: int = size(0, "of tcp: queue before a link, in bytes; 0: what the kernel takes")
    shaper: str = choice("tbf", "of tcp: what holds a link to its rate", ("tbf", "htb"))
    queue: str = choice("bfifo", "of tcp: queueing", ("bfifo", "pfifo", "red"))
    congestion: str = choice("cubic", "of tcp: congestion control", ("cubic", "reno", "bbr"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A training job: in each step its ranks read, compute, then all-reduce their gradients."""

    name: str = text("", "what it is called; job-0, job-1 … unless given")
    ranks: int = count(2, "ranks", least=2, most=MOST_RANKS)
    copies: int = count(1, "so many jobs like this one", least=1, most=16)
    apart: float = number(0.0, "each copy computes this share longer than the one before", high=2.0)
    compute_ms: float = number(40.0, "forward, backward and optimizer of a rank", above=True)
    jitter: float = number(0.0, "standard deviation of a rank's compute, as a share", high=1.0)
    noise: str = choice("normal", "how a rank's compute is distributed", NOISES)
    gradient_bytes: int = size(1_000_000, "exchanged in a step")
    buckets: int = count(8, "parts they are exchanged in, one after the other", least=1, most=256)
    bucket_noise: float = number(0.0, "standard deviation of a bucket's size, as a share", high=0.5)
    input_bytes: int = size(0, "each rank reads at the start of a step")
    start_ms: float = number(0.0, "begins so much after the others")
    leaves: tuple[int, ...] = numbers("leaves its ranks are dealt out over; all unless given")
    paced: bool = flag(True, "whether the controllers under comparison pace it")
    work: str = choice("sleep", "compute is slept, or trains a model for real", WORKS)
    pinned: bool = flag(False, "of mpi: each rank is bound to one core, in turn")
    exchange: str = choice(
        "all_reduce", "of tcp: gather sends all gradients to rank 0, and the mean back", EXCHANGES
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pacing:
    """How controllers are set; an arm says which, and may say `+sharing`."""

    max_delay: float = number(0.10, "longest delay, as a share of the median step", high=0.5)
    imbalance: float = number(0.03, "slack below this share of a step is left alone", high=1.0)
    objective: str = choice("throughput", "what the guard weighs", OBJECTIVES)
    sharing: bool = flag(False, "all ranks of a job follow one published plan")
    guarded: bool = flag(True, "the guard may switch pacing off")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """How long, and what counts."""

    rounds: int = count(12, "of one block for each arm, in an order drawn anew", least=1, most=999)
    block_s: float = number(5.0, "length of a block", above=True, high=LONGEST_S)
    settle_s: float = number(1.0, "of each block, at its start, that does not count")
    warm_up_rounds: int = count(2, "before those that count: controllers learn", most=100)
    limit_s: float = number(LONGEST_S, "no run is longer", above=True, high=LONGEST_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """All of it; raises `ConfigError` naming the field that does not fit."""

    name: str = text("", "what it is called")
    fabric: str = choice("fair", "the tier: how the links are made", FABRICS)
    seed: int = count(0, "of everything that is drawn")
    network: Network = table(Network, "the links that jobs share")
    jobs: tuple[Job, ...] = tables(Job, "training jobs")
    faults: tuple[Fault, ...] = tables(Fault, "what goes wrong")
    pacing: Pacing = table(Pacing, "how controllers are set")
    run: Run = table(Run, "how long, and what counts")

    def __post_init__(self) -> None:
        object.__setattr__(self, "jobs", _named(self.jobs))
        _check_jobs(self)
        _check_run(self.run)
        for index, fault in enumerate(self.faults):
            fault.check(f"faults[{index}]", [job.ranks for job in self.jobs], self.fabric)
            if fault.link >= self.network.leaves:
                allowed = f"below {self.network.leaves}, the number of network.leaves"
                raise refusal(f"faults[{index}].link", allowed, fault.link)

    @property
    def ranks(self) -> int:
        """Rank processes of all jobs together."""
        return sum(job.ranks for job in self.jobs)

    @property
    def real_time(self) -> bool:
        """Whether what only sleeps may run before ordinary work: the cores have no part in it."""
        cores = any(fault.kind in ("cpu_hog", "slow_core") for fault in self.faults)
        trains = any(job.work == "train" for job in self.jobs)
        return self.fabric != "mpi" and not cores and not trains


def load(path: Path, assignments: Sequence[str] = ()) -> Scenario:
    """A scenario from its file, with `a.b=c` assignments carried out on it."""
    data = read(path)
    try:
        return parse(data, assignments)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def parse(data: dict[str, Any], assignments: Sequence[str] = ()) -> Scenario:
    """A scenario from plain values."""
    for assignment in assignments:
        schema.assign(data, assignment)
    return schema.read(Scenario, data)


def _named(jobs: Sequence[Job]) -> tuple[Job, ...]:
    """Every copy a job of its own, every job with a name."""
    single: list[Job] = []
    for job in jobs:
        for copy in range(job.copies):
            name = job.name or f"job-{len(single)}"
            if job.copies > 1 and job.name:
                name = f"{job.name}-{copy}"
            compute_ms = job.compute_ms * (1 + copy * job.apart)
            single.append(replace(job, name=name, copies=1, apart=0.0, compute_ms=compute_ms))
    return tuple(single)


def _check_jobs(scenario: Scenario) -> None:
    jobs, leaves = scenario.jobs, scenario.network.leaves
    if not jobs:
        raise ConfigError("there is no job; describe at least one under [[jobs]]")
    names = [job.name for job in jobs]
    for index, job in enumerate(jobs):
        if not job.name.replace("-", "").replace("_", "").replace(".", "").isalnum():
            raise refusal(f"jobs[{index}].name", "letters, digits, - _ and .", job.name)
        if job.name in names[:index]:
            raise ConfigError(f"jobs[{index}].name {job.name!r} is taken; give each its own")
        for leaf in job.leaves:
            if leaf not in range(leaves):
                allowed = f"leaves from 0 to {leaves - 1}, as network.leaves is {leaves}"
                raise refusal(f"jobs[{index}].leaves", allowed, leaf)
        if len(set(job.leaves)) > job.ranks:
            raise refusal(f"jobs[{index}].leaves", f"at most {job.ranks}, one for each rank",
                                 list(job.leaves))  # fmt: skip
    if scenario.ranks > MOST_RANKS:
        raise ConfigError(
            f"jobs: {scenario.ranks} ranks are more than {MOST_RANKS}, which is what one machine "
            "can be trusted with; take fewer ranks or copies"
        )


def _check_run(run: Run) -> None:
    if run.settle_s >= run.block_s:
        raise refusal("run.settle_s", f"below run.block_s, which is {run.block_s:g}", run.settle_s)
    if run.limit_s < run.block_s:
        raise refusal("run.limit_s", f"at least run.block_s, which is {run.block_s:g}", run.limit_s)
