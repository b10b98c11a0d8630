"""The result of a simulated run, and its JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar

import numpy as np

from evenstep import checkpoints
from evenstep.allreduce import RING_PASSES, bus_factor
from evenstep.documents import Document, Meta
from evenstep.scenario import scenario as scenarios
from evenstep.scenario.parts import OPERATIONS, Energy, Part, Reliability
from evenstep.scenario.scenario import AVERAGING, SPARING, UNSYNCHRONISED, Scenario
from evenstep.simulate import formulas
from evenstep.simulate.fabric.flows import Flow
from evenstep.simulate.fabric.placement import Placement
from evenstep.simulate.job.engine import StepSums
from evenstep.simulate.job.fabric_map import FabricMap, LinkLoads, fabric_map
from evenstep.simulate.job.strategies import Convergence, StalenessDistribution, convergence
from evenstep.simulate.wires.carriage import alone_ns
from evenstep.trace.columns import Array

SCHEMA = "evenstep.simulation/1"
MOST_LINKS = 8
APART = (*UNSYNCHRONISED, "partial_reduce")  # a rank goes on without others
NODE = "node"
MOST_NS = 36_500.0 * formulas.DAY_NS  # a hundred years: MTBF of a job without failures
SECOND_NS = 1e9


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
    energy: dict[str, float | None] | None  # per unit of throughput, by `energy`
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


def without_effect(scenario: Scenario, used: Iterable[Flow | CollectiveUse]) -> Iterator[str]:
    """What is set but changes nothing in a job, each as a sentence, such as an algorithm by which
    none of the collectives that a step uses goes."""
    yield from scenarios.without_effect(scenario)
    asked = scenario.collectives
    field = "nccl_algo" if asked.algorithm == "nccl" else "algorithm"
    name = getattr(asked, field)
    taken = {one.algorithm.partition("/")[0] for one in used if one.operation in OPERATIONS}
    if taken and name not in ("", "auto", *taken):
        others = " and ".join(sorted(taken))
        yield f"collectives.{field} {name} without effect: the step's go by {others}"


def summed_up(
    scenario: Scenario, account: StepSums, *, flows: list[Flow], loads: LinkLoads,
    placement: Placement, compute_ns: float, pacing: dict[str, Any] | None,
    staleness: StalenessDistribution | None,
) -> Result:  # fmt: skip
    """Build the result from the sums of a run. Links are counted over all steps."""
    step = account.step_ns[account.counted]
    strategy, (amount, unit) = scenario.strategy, _amount(scenario)
    weeks = operate(scenario)
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
            discarded=_spared(scenario) / scenario.ranks,
        ),
        energy=energy(scenario, account, amount, weeks),
        goodput=weeks,
        step_ns=account.step_ns,
        loads=loads,
        placement=placement,
    )


def _amount(scenario: Scenario) -> tuple[float, str]:
    """Progress of a step: samples of the ranks that are waited for; without samples, one step less
    the share of ranks that are not."""
    samples, spared = scenario.work.samples_per_rank, _spared(scenario)
    if not samples:
        return 1.0 - spared / scenario.ranks, "steps/s"
    return float(samples * (scenario.ranks - spared)), "samples/s"


def _spared(scenario: Scenario) -> int:
    """Ranks that are not waited for: all of each replica that is not."""
    strategy = scenario.strategy
    return strategy.backups * scenario.replica_ranks if strategy.kind in SPARING else 0


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


def operate(scenario: Scenario) -> dict[str, Any] | None:
    """Shares of the time over weeks, with failures, checkpoints, restarts and slow nodes.

    None where nothing fails and no node turns slow. Without an interval, that of Daly (2006).
    """
    given = scenario.reliability
    parts = _parts(given)
    nodes = -(-scenario.ranks // scenario.cluster.gpus_per_node)
    turns = given.slow_nodes_per_1000_node_days / 1000 * nodes if given.slow_factor > 1 else 0.0
    broken = formulas.failures_per_day(parts, nodes) if parts else 0.0
    if not broken and not turns:
        return None
    mtbf_ns = min(formulas.interval_ns(broken), MOST_NS)
    write_ns, shares = given.write_s * SECOND_NS, formulas.by_cause(parts)
    job = formulas.OperatingConditions(
        interval_ns=given.checkpoint_every_s * SECOND_NS or checkpoints.daly(write_ns, mtbf_ns),
        write_ns=write_ns,
        mtbf_ns=mtbf_ns,
        detect_ns=given.detect_s * SECOND_NS,
        restart_ns=(given.restart_s + given.restore_s) * SECOND_NS,
        node_share=min(1.0, sum(
            shares[part.name] * (given.node_share if part.name == NODE else part.hardware)
            for part in parts
        )),
        repair_ns=given.repair_h * formulas.HOUR_NS,
        spares=given.spares,
        slow_every_ns=formulas.interval_ns(turns),
        slowdown=given.slow_factor if turns else 1.0,
        notice_ns=given.notice_s * SECOND_NS,
    )  # fmt: skip
    found = formulas.expected_goodput(job)
    return {
        **found._asdict(),
        "reruns": found.reruns,
        "lost_hours_per_day": 24 * found.lost,
        "by_cause": shares,
        "mtbf_ns": job.mtbf_ns,
        "checkpoint_interval_ns": job.interval_ns,
    }


def _parts(given: Reliability) -> tuple[Part, ...]:
    """Parts that fail: those named, and whole nodes at their own rate."""
    parts = [
        replace(part, name=part.name or f"part {index}") for index, part in enumerate(given.parts)
    ]
    rate = given.failures_per_1000_node_days / 1000 / 24e-6
    return tuple(parts + [Part(name=NODE, failures_per_million_hours=rate)] * bool(rate))


def energy(
    scenario: Scenario, account: StepSums, amount: float, weeks: dict[str, Any] | None
) -> dict[str, float | None] | None:
    """Energy E = Σ time × power × PUE and cost of the counted steps, `amount` units each; None
    where neither power nor price is given.

    The PUE multiplies everything for cooling and supply (ISO/IEC 30134-2). A useful unit also
    carries its part of what failures, checkpoints and restarts use over weeks. A rank that polls
    while waiting draws nearly as much as one that communicates, so waiting costs energy, too.
    """
    given = scenario.energy
    if replace(given, pue=1.0) == Energy():
        return None
    of = {name: float(total.sum()) for name, total in account.totals.items()}
    sending_ns = max(of["blocked"] - of["waited"], 0.0)
    time_ns = np.array([of["work"] + of["held"], sending_ns, of["waited"]])
    watts = np.array([given.compute_watts, given.communicate_watts, given.spin_wait_watts])
    joules = time_ns * 1e-9 * (watts + given.node_share_watts) * given.pue
    whole, total_ns = float(joules.sum()), float(time_ns.sum())
    cost = total_ns / formulas.HOUR_NS * given.price_per_hour
    units = amount * (account.counted.stop - account.counted.start)
    found = {
        "joules": whole,
        "joules_waiting": float(joules[2]),
        "cost": cost,  # in the currency of the price
        "joules_per_unit": whole / units if units else None,
        "cost_per_unit": cost / units if units else None,
        "mean_watts": whole / total_ns * 1e9 if total_ns else 0.0,  # of a rank
    }
    if weeks is not None:  # down, a rank draws what its node does; else what it does on average
        useful, down = weeks["useful"] * units, weeks["restarting"] + weeks["waiting"]
        idle = down * given.node_share_watts * given.pue * total_ns * 1e-9
        drawn = whole * (1 - down) + idle
        found["joules_per_useful_unit"] = drawn / useful if useful else None
        found["cost_per_useful_unit"] = cost / useful if useful else None
    return found
