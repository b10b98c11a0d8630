"""All published systems, and the error to expect of a simulation, by the systems like it.

For steps by the predicted rows of `explain published`, each of a system calibrated on its other
rows: iteration times, MFU, efficiencies and gains of overlap. A test holds that their presets,
simulated, give the same errors. For all-reduces by measured rows, simulated on presets of the
machines, with nothing calibrated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from evenstep.reproduce.published import collectives, training, uptime
from evenstep.reproduce.published.rows import PublishedRow, System
from evenstep.scenario.scenario import Scenario


def systems() -> list[System]:
    """All published systems, with their predictions."""
    across = map(collectives.across_nodes, ("several", "p5"))
    return [collectives.one_node(), *across, *training.systems(), uptime.llama3(), uptime.rsc()]


# -- errors to expect ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorEstimate:
    """Absolute relative errors of rows of one kind of work that nothing is fitted to, as shares."""

    kind: str  # as `work.kind`
    rows: int
    median: float
    worst: float
    calibrated: bool  # whether other rows of the same systems were fitted


def estimate(scenario: Scenario) -> ErrorEstimate | None:
    """The error to expect of a scenario's predictions; None where no measured system is like it."""
    work = scenario.work
    if scenario.strategy.kind != "synchronous" or scenario.noise or scenario.neighbours:
        return None
    if work.kind == "collective":
        if not _is_measured(scenario):
            return None
        systems = [collectives.one_node()]
        if scenario.ranks > scenario.cluster.gpus_per_node:
            systems = [collectives.across_nodes(key) for key in ("several", "p5")]
        return _estimate(work.kind, [row for one in systems for row in one.rows], False)
    plain = work.schedule == "1f1b" and work.expert_parallel == work.context_parallel == 1
    accumulates = work.kind == "ddp" and work.micro_batches > 1
    rows = [row for system in training.systems() if system.kind == work.kind
            for row in system.predicted]  # fmt: skip
    return _estimate(work.kind, rows, True) if rows and plain and not accumulates else None


def _is_measured(scenario: Scenario) -> bool:
    """Whether an all-reduce is within the sizes and machines that were measured."""
    sizes = [*collectives.NVLS_US, *(pair.mib * collectives.MIB for pair in collectives.SEVERAL)]
    return (
        scenario.work.operation == "all_reduce"
        and scenario.collectives.algorithm == "nccl"
        and min(sizes) <= scenario.work.gradient_bytes <= max(sizes)
        and scenario.cluster.gpus_per_node in (4, 8)
        and scenario.ranks >= 8
    )


def _estimate(kind: str, rows: Sequence[PublishedRow], calibrated: bool) -> ErrorEstimate:
    errors = [abs(row.error) for row in rows]
    return ErrorEstimate(
        kind=kind, rows=len(errors), median=median(errors), worst=max(errors),
        calibrated=calibrated,
    )  # fmt: skip
