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

from evenstep import checkpoints
from evenstep.reproduce.published import training
from evenstep.reproduce.published.rows import PublishedRow, System
from evenstep.scenario.scenario import Scenario
from evenstep.simulate import formulas
from evenstep.simulate.formulas import HOUR_NS

#: Unexpected interruptions of Llama 3 405B in 54 days on 16,384 GPUs (Grattafiori et al. 2024).
LLAMA3_CAUSES = {
    "GPU": 148, "HBM": 72, "software": 54, "network": 35, "host maintenance": 32, "other": 78,
}  # fmt: skip
LLAMA3_NODES, LLAMA3_DAYS = 2048, 54.0
#: Bytes a parameter of a checkpoint takes: bf16 weights, fp32 weights and two fp32 moments.
CHECKPOINT_BYTES = 2 + 4 + 4 + 4
#: Sustained throughput of Llama 3's checkpoint storage (Grattafiori et al. 2024, section 3.3.1).
STORAGE_BYTES_PER_S = 2e12
#: From a failure to training again. Not published; ten minutes to find, replace and load.
RESTART_NS = 600e9


def llama3() -> System:
    """From interruptions to the share of the time that is effective."""
    parts = formulas.observed_parts(  # 8 GPUs and their memory a node, one of the others
        LLAMA3_CAUSES, nodes=LLAMA3_NODES, days=LLAMA3_DAYS, per_node={"GPU": 8, "HBM": 8},
        software=("software",),
    )  # fmt: skip
    mtbf = formulas.mtbf_ns(parts, LLAMA3_NODES)
    write = 405e9 * CHECKPOINT_BYTES / STORAGE_BYTES_PER_S * 1e9
    interval = checkpoints.daly(write, mtbf)
    useful = checkpoints.shares(write, mtbf, interval=interval, restart=RESTART_NS).useful
    slack = checkpoints.longest_restart(write, mtbf, goal=0.9)
    rows = [
        PublishedRow("hours between interruptions", 3.1, mtbf / HOUR_NS, "h"),
        PublishedRow("effective training time, more than", 0.90, useful, "share", bound=True,
                     note=f"holds up to {slack / 60e9:.0f} minutes of restart"),
    ]  # fmt: skip
    return System.of("interruptions", rows, write_s=write / 1e9)


def rsc() -> System:
    """What one measured rate says about jobs far larger than any that ran."""
    rows = [
        PublishedRow(f"mean time to failure, {gpus:,} GPUs", hours,
                     formulas.mttf_ns(6.50, gpus=gpus) / HOUR_NS, "h")
        for gpus, hours in ((16384, 1.8), (131072, 0.23))
    ]  # fmt: skip
    return System.of("rsc", rows)


def systems() -> list[System]:
    """All published systems, with their predictions."""
    across = map(training.across_nodes, ("several", "p5"))
    return [training.one_node(), *across, *training.systems(), llama3(), rsc()]


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
        systems = [training.one_node()]
        if scenario.ranks > scenario.cluster.gpus_per_node:
            systems = [training.across_nodes(key) for key in ("several", "p5")]
        return _estimate(work.kind, [row for one in systems for row in one.rows], False)
    plain = work.schedule == "1f1b" and work.expert_parallel == work.context_parallel == 1
    accumulates = work.kind == "ddp" and work.micro_batches > 1
    rows = [row for system in training.systems() if system.kind == work.kind
            for row in system.predicted]  # fmt: skip
    return _estimate(work.kind, rows, True) if rows and plain and not accumulates else None


def _is_measured(scenario: Scenario) -> bool:
    """Whether an all-reduce is within the sizes and machines that were measured."""
    sizes = [*training.NVLS_US, *(pair.mib * training.MIB for pair in training.SEVERAL)]
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
