"""The same scenario in the simulator.

Jobs on one link with nothing wrong are a `reproduce.link_worlds` world, which can be paced as well.
Everything else is a scenario of the engine for each job in turn (see `translation`). Nothing is
fitted to what is compared. `fixed_ns` is what an exchange takes on this machine beyond its time on
the link.
"""

from __future__ import annotations

from typing import Any

from evenstep.reproduce import link_worlds
from evenstep.reproduce.link_pacing import paced
from evenstep.reproduce.link_worlds import UNIT_NS
from evenstep.simulate import simulation
from lab.arms import arm
from lab.fair.jobs import ring_bytes
from lab.scenario import Job, Scenario
from lab.single import JobFigures
from lab.translation import MS, STEPS, as_simulated, longest


def predicted(scenario: Scenario, fixed_ns: float = 0.0, *, steps: int = STEPS) -> list[JobFigures]:
    """What the simulator says of each job without pacing. Raises `UsageError` where a part of the
    scenario has no counterpart there."""
    if is_link_world(scenario):
        outcome = link_worlds.unpaced(link_world(scenario, fixed_ns), steps)
        return [
            _of_times(job, times * UNIT_NS)
            for job, times in zip(scenario.jobs, outcome.times, strict=True)
        ]
    return [_by_engine(scenario, index, fixed_ns, steps) for index in range(len(scenario.jobs))]


def predicted_gains(scenario: Scenario, name: str, fixed_ns: float = 0.0) -> list[float] | None:
    """Change of each job's throughput by an arm; None where only the engine knows the scenario."""
    if not is_link_world(scenario):
        return None
    world, pacing, chosen = link_world(scenario, fixed_ns), scenario.pacing, arm(name)
    before = link_worlds.unpaced(world, STEPS)
    if not chosen.controller:
        return [0.0 for _ in scenario.jobs]
    after = paced(
        world, STEPS, controller=chosen.controller, sharing=chosen.sharing or pacing.sharing,
        guarded=chosen.guarded and pacing.guarded, max_delay=pacing.max_delay,
        imbalance=pacing.imbalance, objective=pacing.objective,
    )  # fmt: skip
    return [before.mean(job) / after.mean(job) - 1 for job in range(len(scenario.jobs))]


# -- jobs on one link ------------------------------------------------------------------------------


def is_link_world(scenario: Scenario) -> bool:
    """Whether `reproduce.link_worlds` knows everything there is in it."""
    network = scenario.network
    plain = not scenario.faults and network.leaves == 1 and not network.nic_gBps
    return plain and all(
        job.buckets == link_worlds.BUCKETS
        and job.noise == "normal"
        and not (job.input_bytes and network.storage_gBps)
        for job in scenario.jobs
    )


def link_world(scenario: Scenario, fixed_ns: float = 0.0) -> link_worlds.LinkWorld:
    """The scenario as jobs on one link; a unit of time is `UNIT_NS`."""
    network = scenario.network
    jobs = tuple(
        link_worlds.LinkJob(
            compute=(job.compute_ms * MS + job.buckets * fixed_ns) / UNIT_NS,
            exchange=exchange_ns(job, network.link_gBps) / UNIT_NS,
            jitter=job.jitter,
            noise=job.bucket_noise,
            ranks=job.ranks,
            paced=job.paced,
        )
        for job in scenario.jobs
    )
    return link_worlds.LinkWorld(
        jobs=jobs,
        goodput=network.goodput,
        flows=network.background_flows,
        on=network.background_on_ms * MS / UNIT_NS,
        off=network.background_off_ms * MS / UNIT_NS,
        seed=scenario.seed + 1,
    )


def exchange_ns(job: Job, link_gBps: float) -> float:  # noqa: N803
    """What a step's exchange takes alone on a link."""
    return ring_bytes(job.gradient_bytes, job.ranks) / link_gBps


def _of_times(job: Job, times_ns: Any) -> JobFigures:
    mean = float(times_ns.mean())
    latest = job.compute_ms * MS * (longest(job) - 1)
    return JobFigures(job.name, mean / MS, float(times_ns.std() / mean), latest / mean)


# -- the engine ------------------------------------------------------------------------------------


def _by_engine(scenario: Scenario, job: int, fixed_ns: float, steps: int) -> JobFigures:
    result = simulation.simulate(as_simulated(scenario, job, fixed_ns, steps=steps))
    return JobFigures(
        scenario.jobs[job].name,
        result.step_time.mean_ns / MS,
        result.step_time.cv,
        result.shares.wait,
    )
