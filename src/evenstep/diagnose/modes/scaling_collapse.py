"""`scaling_collapse`: throughput per rank falls as ranks are added; asked of several runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.diagnose.finding import Diagnosis, Evidence, Finding, Projection, When, Where
from evenstep.diagnose.lateness.case import Case
from evenstep.diagnose.levels import NAMED, SEVERAL, SMALLEST_SHARE
from evenstep.diagnose.measure.recurrence import FACTORS
from evenstep.diagnose.sentences import say, worded
from evenstep.diagnose.sizes import workload
from evenstep.diagnose.sizes.scaling import (
    Curve,
    Doubling,
    Law,
    curve,
    fit,
    last_doubling,
    stretches,
)
from evenstep.diagnose.sizes.workload import ScalingPoint
from evenstep.statistics.interval import Share
from evenstep.trace.trace import Trace

Array = npt.NDArray[Any]


def find(case: Case) -> list[Finding]:
    """Nothing: one run has one size; see `diagnose_together`."""
    del case
    return []


def collapse(curve: Curve, unit: str, largest: Finding | None = None) -> list[Finding]:
    """The finding of a scaling curve; `largest`: what costs most in the largest run by itself."""
    share = lost(curve)
    if len(curve.ranks) < 2 or share.value < SMALLEST_SHARE:
        return []
    law, n, x = curve.law, curve.ranks, curve.throughput
    numbers: dict[str, Any] = {
        "most": n[-1], "last": x[-1], "fewest": n[0], "first": x[0], "unit": unit,
        "each": float((x[-1] / n[-1]) / (x[0] / n[0])),
        "shapes": ", then ".join(f"{s.shape} from {s.begins:,} ranks" for s in stretches(curve)),
        "why": _why(curve, law),
        "largest": say(
            "scaling_collapse.largest",
            mode=largest.mode.replace("_", " "), share=largest.severity,
        ) if largest else "",
    }  # fmt: skip
    options: dict[str, Share | None] = {}
    if (fewer := recommended(curve)) is not None:
        there = float(law.throughput(np.array([fewer]))[0])
        saved = max(0.0, 1 - float(x[-1] / n[-1]) / (there / fewer))
        options["fewer"] = Share(saved, np.nan, np.nan)
        numbers |= {"fewer": fewer, "speed": there / x[-1], "cost": fewer / n[-1]}
    theirs = list(largest.options[:1]) if largest else []
    finding = worded(
        "scaling_collapse",
        share,
        numbers=numbers,
        where=Where(),
        when=When(),
        projected=_projected(curve, law),
        options=options if theirs else options | {"alone": share},
        evidence=_evidence(curve, last_doubling(curve)),
    )
    return [replace(finding, options=[*finding.options, *theirs])]


def lost(curve: Curve) -> Share:
    """Share of the largest run's time that the smallest one's efficiency would save."""

    def efficiency(throughput: Array) -> float:
        each = throughput / curve.ranks
        return float(each[-1] / each[0])

    value = 1 - efficiency(curve.throughput)
    if not len(curve.draws):
        return Share(max(value, 0.0), max(value, 0.0), max(value, 0.0))
    low, high = np.quantile([1 - efficiency(draw) for draw in curve.draws], [0.025, 0.975])
    return Share(max(value, 0.0), max(float(min(low, value)), 0.0), max(float(high), value, 0.0))


def recommended(curve: Curve) -> int | None:
    """The most ranks worth using, where that is fewer than were used; None else.

    At the peak more ranks do less; past the knee one adds less than half of what the first did.
    """
    law = curve.law
    bounds = [bound for bound in (law.peak, law.knee) if bound is not None]
    if not bounds or min(bounds) >= curve.ranks[-1]:
        return None
    return max(int(min(bounds)), 1)


def _why(curve: Curve, law: Law) -> str:
    n = float(curve.ranks[-1])
    serial, coupled = law.contention * (n - 1), law.coherency * n * (n - 1)
    shapes = [one.shape for one in stretches(curve)]
    what = "coupled" if coupled > serial else "serial"
    if shapes[0] == "oscillatory" or "cliff" in shapes:
        what = "oscillatory" if shapes[0] == "oscillatory" else "cliff"
    return say(f"scaling_collapse.{what}")


def _projected(curve: Curve, law: Law) -> list[Projection]:
    start = curve.throughput[0] / curve.ranks[0]
    laws = [fit(curve.ranks, draw) for draw in curve.draws] or [law]
    points = []
    for factor in FACTORS:
        n = int(curve.ranks[-1]) * factor
        each = [1 - float(one.throughput(np.array([n]))[0]) / n / start for one in laws]
        value = 1 - float(law.throughput(np.array([n]))[0]) / n / start
        low, high = np.quantile(each, [0.025, 0.975])
        ends = (min(float(low), value), value, max(float(high), value))
        low_, value_, high_ = (round(min(max(end, 0.0), 1.0), 4) for end in ends)
        points.append(Projection(n, value_, low_, high_))
    return points


def _evidence(curve: Curve, doubling: Doubling | None) -> list[Evidence]:
    n, x = curve.ranks, curve.throughput
    items = [
        Evidence("scaling_efficiency", (x[-1] / n[-1]) / (x[0] / n[0]), 1.0, "share"),
        Evidence("contention_sigma", curve.law.contention, 0.0, "1"),
        Evidence("coherency_kappa", curve.law.coherency, 0.0, "1"),
        Evidence("peak", curve.law.peak, None, "ranks"),
        Evidence("knee", curve.law.knee, None, "ranks"),
    ]
    if doubling is not None:
        items.append(Evidence("gain_of_the_last_doubling", doubling.gain, 1.0, "share"))
        items.append(Evidence("worth_of_a_rank_added", doubling.marginal, 1.0, "ranks"))
        items.append(Evidence("cost_of_added_work", doubling.marginal_cost, 1.0, "factor"))
    return items


# -- several runs together -------------------------------------------------------------------------


OF_THE_LARGEST = (
    "throughput", "step_time", "shares", "overlapped_communication", "communication_to_compute",
)  # fmt: skip


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
    scripts, moved = [one.script for one in usable], [one.bytes_per_rank for one in usable]
    limits += [*workload.differences(scripts, moved), *_limits(usable, sizes, kind)]
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
    if len(sizes) < SEVERAL:
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
