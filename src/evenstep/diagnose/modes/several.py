"""Several runs of one workload at different sizes, diagnosed together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.diagnose.finding import Diagnosis, Finding
from evenstep.diagnose.modes.scaling_collapse import collapse, recommended
from evenstep.diagnose.sizes import workload
from evenstep.diagnose.sizes.scaling import Curve, curve
from evenstep.diagnose.sizes.scaling_shape import Doubling, last_doubling, stretches
from evenstep.diagnose.sizes.workload import ScalingPoint
from evenstep.trace.trace import Trace

Array = npt.NDArray[Any]

OF_THE_LARGEST = (
    "throughput", "step_time", "shares", "overlapped_communication", "communication_to_compute",
)  # fmt: skip
FEWEST_FOR_LAW = 3
NAMED = 0.05  # severity from which the loss makes the headline


def diagnose_together(runs: Sequence[tuple[Trace, Diagnosis]]) -> Diagnosis:
    """What the runs say beyond each alone: how throughput scales, and how far it pays.

    The summary's `scaling` has the curve; its other numbers are those of the largest run. Runs
    without a finished step, and runs that are all of one size, leave only a line in `limits`.
    """
    points = [workload.point(trace, diagnosis) for trace, diagnosis in runs]
    usable = sorted((one for one in points if len(one.step_ns)), key=lambda one: one.ranks)
    limits = [f"runs without a finished step: {len(points) - len(usable)}"] * (
        len(usable) < len(points)
    )
    sizes = sorted({one.ranks for one in usable})
    if len(sizes) < 2:
        limits.append("the runs are all of one size: nothing can be said about scaling")
        return Diagnosis(_run(runs), _summary(usable, None, "no scaling to judge"), [], limits)
    kind = workload.kind_of(usable)
    unit, amounts = _amounts(usable, kind)
    means = np.array([float(one.step_ns.mean()) for one in usable])
    draws = amounts / workload.resampled(usable) * 1e9
    measured = curve([one.ranks for one in usable], list(amounts / means * 1e9), draws)
    findings = collapse(measured, unit, _largest(usable[-1]))
    limits += [*workload.differences(usable), *_limits(usable, sizes, kind)]
    scaling = {"kind": kind, **describe(measured, unit)}
    verdict = _verdict(measured, findings)
    return Diagnosis(_run(runs), _summary(usable, scaling, verdict), findings, limits)


def _amounts(points: Sequence[ScalingPoint], kind: str | None) -> tuple[str, Array]:
    """The unit of throughput, and how much of it one step of each run is."""
    samples = [point.samples for point in points]
    if all(samples):
        return "samples/s", np.array(samples, float)
    if kind == "strong":
        return "steps/s", np.ones(len(points))
    return "rank-steps/s", np.array([point.ranks for point in points], float)


def _largest(point: ScalingPoint) -> Finding | None:
    worst = max(point.diagnosis.findings, key=lambda one: one.severity, default=None)
    return worst if worst is not None and worst.severity >= NAMED else None


def _run(runs: Sequence[tuple[Trace, Diagnosis]]) -> dict[str, Any]:
    return {
        "runs": [
            {"run_id": trace.run.get("run_id"), "attempt": trace.attempt, "world": trace.world}
            for trace, _ in runs
        ]
    }


def _summary(
    points: Sequence[ScalingPoint], scaling: dict[str, Any] | None, verdict: str
) -> dict[str, Any]:
    """The contract's keys, those of the largest run, and `scaling`."""
    largest = points[-1].diagnosis.summary if points else {}
    wasted = [point.diagnosis.summary.get("rank_hours_wasted") or 0.0 for point in points]
    return {
        "verdict": verdict,
        "steps": sum(len(point.step_ns) for point in points),
        "ranks": points[-1].ranks if points else 0,
        "world": points[-1].ranks if points else 0,
        **{key: largest.get(key) for key in OF_THE_LARGEST},
        "rank_hours_wasted": sum(wasted),
        "scaling": scaling,
    }


def describe(measured: Curve, unit: str) -> dict[str, Any]:
    """A scaling curve as plain values: points, law, shapes, and what the last doubling gave."""
    start = measured.throughput[0] / measured.ranks[0]
    doubling = last_doubling(measured)
    law = measured.law
    return {
        "unit": unit,
        "points": [
            {
                "ranks": int(ranks),
                "throughput": float(value),
                "efficiency": float(value / ranks / start),
                "fitted": float(law.throughput(ranks)),
            }
            for ranks, value in zip(measured.ranks, measured.throughput, strict=True)
        ],
        "law": {
            "name": "universal scalability law",
            "rate_of_one_rank": law.rate,
            **{
                name: measured.interval(name)
                for name in ("contention", "coherency", "peak", "knee")
            },
        },
        "shapes": [one._asdict() for one in stretches(measured)],
        "last_doubling": _doubling(doubling),
        "recommended_ranks": recommended(measured),
    }


def _doubling(doubling: Doubling | None) -> dict[str, Any] | None:
    if doubling is None:
        return None
    return {**doubling._asdict(), "ranks": list(doubling.ranks)}


def _limits(points: Sequence[ScalingPoint], sizes: Sequence[int], kind: str | None) -> list[str]:
    lines = []
    if len(sizes) < FEWEST_FOR_LAW:
        lines.append("two sizes carry one parameter of the law: its knee and peak are guesses")
    if kind is None:
        lines.append(
            "whether the runs scale weakly or strongly does not show; every rank is taken to do "
            "the same work at all sizes"
        )
    elif not all(point.samples for point in points):
        lines.append(f"no run knows its batch: {kind} scaling is inferred from compute per rank")
    return lines


def _verdict(measured: Curve, findings: Sequence[Finding]) -> str:
    n, x = measured.ranks, measured.throughput
    each = float((x[-1] / n[-1]) / (x[0] / n[0]))
    start = (
        f"From {n[0]:,} to {n[-1]:,} ranks throughput grows {x[-1] / x[0]:.3g}-fold "
        f"({each:.0%} scaling efficiency)"
    )
    if not findings:
        return f"{start}: it scales."
    fewer = recommended(measured)
    advice = f" Beyond about {fewer:,} ranks more are not worth their cost." if fewer else ""
    return f"{start}. Why: {findings[0].cause.partition(';')[0]}.{advice}"
