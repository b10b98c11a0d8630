"""What a comparison of spinning with blocking says of a job: the remedies, each as it was measured.

No trace shows what a rank's spinning takes from another; running the same job both ways does.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from evenstep.diagnose.finding import Effect, Evidence, Finding, Option, When, Where
from lab.arms import BASELINE
from lab.outcome import ArmOutcome, Interval, JobOutcome
from lab.scenario import Scenario

BLOCKING = "blocking"
METHOD = "measured: both ways in alternating blocks of one run, {rounds} rounds"


def findings(scenario: Scenario, arms: Sequence[ArmOutcome]) -> list[Finding]:
    """One for each job that a blocking wait surely makes faster, worst first."""
    by_name = {arm.name: arm for arm in arms}
    if BLOCKING not in by_name or BASELINE not in by_name:
        return []
    found = [
        _finding(scenario, number, arms)
        for number, job in enumerate(by_name[BLOCKING].jobs)
        if (job.gain.low or 0.0) > 0
    ]
    return sorted(found, key=lambda finding: -finding.severity)


def _finding(scenario: Scenario, number: int, arms: Sequence[ArmOutcome]) -> Finding:
    here = {arm.name: arm.jobs[number] for arm in arms}
    job, cores = scenario.jobs[number], len(os.sched_getaffinity(0))
    spinning, blocking = here[BASELINE], here[BLOCKING]
    share = _share(blocking.gain)
    return Finding(
        mode="runtime_jitter",
        layer="runtime",
        severity=share[0] or 0.0,
        confidence=0.95,  # the interval's
        observation=(
            f"{job.name}: a step takes {spinning.step_ns / 1e6:.1f} ms while ranks spin in their "
            f"collectives, {blocking.step_ns / 1e6:.1f} ms when they sleep there"
        ),
        cause=(
            f"CPU oversubscription: {scenario.ranks} ranks on {cores} cores wait by spinning, and "
            "so keep those cores from the ranks that still compute"
        ),
        where=Where(),
        when=When([], "chronic"),
        effect=Effect(share[0] or 0.0),
        options=_options(here, arms),
        evidence=[
            Evidence("step_spinning", round(spinning.step_ns), round(blocking.step_ns), "ns"),
            Evidence("ranks", scenario.ranks, cores, "ranks"),
        ],
    )


def _options(here: dict[str, JobOutcome], arms: Sequence[ArmOutcome]) -> list[Option]:
    """What was measured to help, most first; then what was not measured."""
    measured = [
        Option(
            *(_action(arm.name), *_share(here[arm.name].gain)),
            cost=_cost(arm.name),
            method=METHOD.format(rounds=arm.rounds),
        )
        for arm in arms
        if arm.name == BLOCKING or (_paces(arm.name) and (here[arm.name].gain.low or 0.0) > 0)
    ]
    return [
        *sorted(measured, key=lambda option: -(option.gain or 0.0)),
        Option(
            "a core for every rank: fewer ranks on the node, or more cores for them",
            None,
            None,
            None,
            "a restart with another placement",
            "not measured",
        ),
    ]


def _paces(arm: str) -> bool:
    return not arm.startswith(BASELINE)


def _action(arm: str) -> str:
    if arm == BLOCKING:
        return (
            "let ranks block while they wait, or poll with a sleep between (MPICH: build with "
            "ch3:sock or poll MPI_Test yourself; Open MPI: mpi_yield_when_idle 1)"
        )
    return f"pacing by {arm}: hold the early ranks back while the late one computes"


def _cost(arm: str) -> str:
    if arm == BLOCKING:
        return "a collective ends up to 50 µs later; matters only where a core is free"
    return "a setting; the cores are given back only while a rank is held"


def _share(gain: Interval) -> tuple[float | None, float | None, float | None]:
    """A gain of throughput as the share of the step it gives back: 1 - 1 / (1 + gain)."""
    ends = (gain.value, gain.low, gain.high)
    value, low, high = (None if end is None else end / (1 + end) for end in ends)
    return value, low, high
