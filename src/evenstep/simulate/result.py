"""The result of a simulated run, and its JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import numpy as np

from evenstep.allreduce import RING_PASSES, bus_factor
from evenstep.documents import Document, Meta
from evenstep.scenario.scenario import AVERAGING, Scenario
from evenstep.simulate.fabric.flows import Flow
from evenstep.simulate.fabric.placement import Placement
from evenstep.simulate.job import outlook
from evenstep.simulate.job.engine import StepSums
from evenstep.simulate.job.fabric_map import FabricMap, LinkLoads, fabric_map
from evenstep.simulate.job.strategies import Convergence, StalenessDistribution, convergence
from evenstep.simulate.wires.carriage import alone_ns
from evenstep.trace.columns import Array

SCHEMA = "evenstep.simulation/1"
MOST_LINKS = 8
APART = ("asynchronous", "stale_synchronous", "partial_reduce")  # a rank goes on without others
SPARING = ("backup_workers", "partial_reduce")  # strategies that leave the latest ranks out


@dataclass(frozen=True, slots=True)
class StepTime:
    """Step time of the job, from end to end of its last rank. CV: population σ over mean."""

    mean_ns: float
    cv: float
    p50_ns: float
    p99_ns: float
    min_ns: float
    max_ns: float


@dataclass(frozen=True, slots=True)
class Shares:
    """Shares of the ranks' time, which sum to 1. Communication that compute hides is not in it."""

    compute: float
    exposed_communication: float
    wait: float
    input: float
    held: float


@dataclass(frozen=True, slots=True)
class CollectiveUse:
    """One kind of collective of a step."""

    computed: ClassVar[tuple[str, ...]] = ("busbw_gBps",)

    operation: str
    algorithm: str
    bytes: float
    groups: int
    size: int
    alone_ns: float  # when all enter together and nobody else is on the links

    @property
    def busbw_gBps(self) -> float | None:  # noqa: N802
        """What each rank's link would carry in a ring, as nccl-tests defines it; None: no ring."""
        if self.operation not in RING_PASSES or not self.alone_ns:
            return None
        return self.bytes / self.alone_ns * bus_factor(self.operation, self.size)


@dataclass(frozen=True, slots=True)
class LinkUse:
    """What one link carried."""

    link: str
    capacity_gBps: float  # noqa: N815
    bytes: float
    others_bytes: float  # of it, of neighbours
    utilisation: float  # mean over the run
    peak: float  # share of the capacity used in the round that loads it most


@dataclass(frozen=True)
class Result(Document):
    """A simulated run. `steps` counts the finished ones behind the warm-up."""

    schema: ClassVar[str] = SCHEMA
    computed: ClassVar[tuple[str, ...]] = ("fabric",)

    name: str
    ranks: int
    nodes: int
    steps: int
    partial: bool
    step_time: StepTime
    throughput: float
    unit: str
    tflops_per_gpu: float | None  # of what the model asks for; None: not known
    mfu: float | None  # model FLOPs utilisation (Chowdhery et al. 2022): of a GPU's peak
    efficiency: float  # compute without noise over the mean step time
    shares: Shares
    collectives: tuple[CollectiveUse, ...]
    links: tuple[LinkUse, ...]
    pacing: dict[str, Any] | None
    convergence: Annotated[
        Convergence | None,
        Meta(
            "What a strategy does to the optimisation; null where it is that of waiting for "
            "everybody."
        ),
    ]  # staleness and stability; never accuracy
    energy: dict[str, float | None] | None  # as `outlook.energy`, per unit of throughput
    goodput: dict[str, Any] | None  # shares of weeks, as `reliability.Goodput`
    step_ns: Array = field(repr=False, compare=False)  # of every step
    loads: LinkLoads = field(repr=False, compare=False)
    placement: Placement = field(repr=False, compare=False)

    def fabric_map(self) -> FabricMap:
        """The fabric with the load of every link, to be drawn."""
        return fabric_map(self.loads.network, self.placement, self.loads)

    @property
    def fabric(self) -> list[dict[str, Any]]:
        """Its links by kind, in numbers."""
        return self.fabric_map().summary()


def summed_up(
    scenario: Scenario,
    account: StepSums,
    *,
    flows: list[Flow],
    loads: LinkLoads,
    placement: Placement,
    compute_ns: float,
    pacing: dict[str, Any] | None,
    staleness: StalenessDistribution | None,
) -> Result:
    """Build the result from the sums of a run. Links are counted over all steps."""
    step = account.step_ns[account.counted]
    strategy, (amount, unit) = scenario.strategy, _amount(scenario)
    weeks = outlook.operate(scenario)
    mean = float(step.mean()) if len(step) else 0.0
    reached = scenario.work.teraflop / mean * 1e9 if mean else 0.0
    peak = scenario.cluster.gpu_tflops
    return Result(
        name=scenario.name,
        ranks=scenario.ranks,
        nodes=-(-scenario.ranks // scenario.cluster.gpus_per_node),
        steps=len(step),
        partial=account.done < scenario.run.steps,
        step_time=_step_time(step),
        throughput=amount * account.steps_per_s(together=strategy.kind not in APART),
        unit=unit,
        tflops_per_gpu=reached or None,
        mfu=reached / peak if reached and peak else None,
        efficiency=compute_ns / mean if mean else 0.0,
        shares=_shares(account),
        collectives=tuple(
            CollectiveUse(one.operation, one.algorithm, one.bytes, groups, size, alone_ns(one))
            for one in flows
            for groups, size in [one.members.shape]
        ),
        links=_links(loads),
        pacing=pacing,
        convergence=convergence(
            staleness,
            local_steps=strategy.every if strategy.kind in AVERAGING else 1,
            discarded=strategy.backups / scenario.ranks if strategy.kind in SPARING else 0.0,
        ),
        energy=outlook.energy(scenario, account, amount, weeks),
        goodput=weeks,
        step_ns=account.step_ns,
        loads=loads,
        placement=placement,
    )


def _amount(scenario: Scenario) -> tuple[float, str]:
    """Progress of a step: samples of the ranks that are waited for; without samples, one step less
    the share of ranks that are not."""
    samples, strategy = scenario.work.samples_per_rank, scenario.strategy
    spared = strategy.backups if strategy.kind in SPARING else 0
    if not samples:
        return 1.0 - spared / scenario.ranks, "steps/s"
    return float(samples * (scenario.ranks - spared)), "samples/s"


def _step_time(step: Array) -> StepTime:
    if not len(step):
        return StepTime(*(0.0,) * 6)
    mean = float(step.mean())
    deviation = float((step - mean).std())
    if deviation <= 1e-9 * mean:  # rounding of the clock, not of the job
        deviation = 0.0
    low, high = float(step.min()), float(step.max())
    p50, p99 = (float(np.quantile(step, q)) for q in (0.5, 0.99))
    return StepTime(mean, deviation / mean if mean else 0.0, p50, p99, low, high)


def _shares(account: StepSums) -> Shares:
    totals = {name: float(total.sum()) for name, total in account.totals.items()}
    whole = totals["work"] + totals["blocked"] + totals["held"] or 1.0
    return Shares(
        compute=(totals["work"] - totals["input"]) / whole,
        exposed_communication=(totals["blocked"] - totals["waited"]) / whole,
        wait=totals["waited"] / whole,
        input=totals["input"] / whole,
        held=totals["held"] / whole,
    )


def _links(loads: LinkLoads) -> tuple[LinkUse, ...]:
    """The busiest links of the run, the busiest first."""
    network, carried, mean = loads.network, loads.bytes, loads.mean
    columns = (network.capacity, carried, loads.others_bytes, mean, loads.peak)
    worst = np.argsort(-mean, kind="stable")[:MOST_LINKS]
    return tuple(
        LinkUse(network.name(int(link)), *(float(column[link]) for column in columns))
        for link in worst
        if carried[link] > 0
    )
