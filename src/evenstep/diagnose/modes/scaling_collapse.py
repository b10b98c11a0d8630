"""`scaling_collapse`: throughput per rank falls as ranks are added; asked of several runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from evenstep.diagnose.finding import Diagnosis, Finding, Projection, When, Where
from evenstep.diagnose.lateness.case import Case
from evenstep.diagnose.levels import NAMED, SEVERAL, SMALLEST_SHARE
from evenstep.diagnose.modes.intervention import FACTORS
from evenstep.diagnose.predict.scaling import (
    Curve,
    ScalingPoint,
    curve,
    differences,
    kind_of,
    last_doubling,
    resample,
    stretches,
)
from evenstep.diagnose.sentences import make_finding, say
from evenstep.statistics.interval import Share, of_draws
from evenstep.trace.columns import Array


def find(case: Case) -> list[Finding]:
    """Nothing: one run has one size; see `diagnose_together`."""
    del case
    return []


def collapse(curve: Curve, unit: str, largest: Finding | None = None) -> list[Finding]:
    """The finding of a scaling curve; `largest`: the finding that costs most in the largest run."""
    share, law, n, x = curve.lost, curve.law, curve.ranks, curve.throughput
    if len(n) < 2 or share.value < SMALLEST_SHARE:
        return []
    coupled, shapes = law.coherency * n[-1] > law.contention, stretches(curve)
    names = {each.shape for each in shapes}
    odd = [shape for shape in ("oscillatory", "cliff") if shape in names]
    numbers: dict[str, Any] = {
        "most": n[-1], "last": x[-1], "fewest": n[0], "first": x[0], "unit": unit,
        "each": curve.efficiency, "peak": law.peak, "knee": law.knee,
        "shapes": ", then ".join(f"{each.shape} from {each.begins:,} ranks" for each in shapes),
        "why": say(f"scaling_collapse.{[*odd, 'coupled' if coupled else 'serial'][0]}"),
        "largest": say(
            "scaling_collapse.largest",
            mode=largest.mode.replace("_", " "), share=largest.severity,
        ) if largest else "",
    }  # fmt: skip
    options: dict[str, Share | None] = {}
    if (fewer := curve.recommended) is not None:
        there = float(law.throughput(fewer))
        saved = max(0.0, 1 - float(x[-1] / n[-1]) / (there / fewer))
        options["fewer"] = Share(saved, np.nan, np.nan)
        numbers |= {"fewer": fewer, "speed": there / x[-1], "cost": fewer / n[-1]}
    remedy = list(largest.options[:1]) if largest else []
    finding = make_finding(
        "scaling_collapse", share, numbers=numbers, where=Where(), when=When(),
        projected=_project(curve), options=options if remedy else options | {"alone": share},
    )  # fmt: skip
    return [replace(finding, options=[*finding.options, *remedy])]


def _project(curve: Curve) -> list[Projection]:
    """Share lost at larger sizes, by the law and the fits to the draws."""
    start, laws = curve.throughput[0] / curve.ranks[0], (curve.law, *curve.laws)
    points = []
    for ranks in (int(curve.ranks[-1]) * factor for factor in FACTORS):
        value, *each = (1 - float(law.throughput(ranks)) / ranks / start for law in laws)
        ends = np.clip(of_draws(value, np.array(each or [value])), 0, 1)
        points.append(Projection(ranks, *(round(float(end), 4) for end in ends)))
    return points


# -- several runs together -------------------------------------------------------------------------


OF_THE_LARGEST = (
    "throughput", "step_time", "shares", "overlapped_communication", "communication_to_compute",
)  # fmt: skip


def diagnose_together(points: Sequence[ScalingPoint]) -> Diagnosis:
    """The diagnosis of runs of several sizes: how throughput scales, and up to which size it pays.

    The summary's `scaling` has the curve; its other numbers are those of the largest run. Runs
    without a finished step, of one size or of several scripts leave only a line in `limits`.
    """
    run = {"runs": [one.run for one in points]}
    usable = sorted((one for one in points if len(one.step_ns)), key=lambda one: one.ranks)
    unfinished = len(points) - len(usable)
    limits = [f"runs without a finished step: {unfinished}"] if unfinished else []
    sizes, scripts = len({one.ranks for one in usable}), [one.script for one in usable]
    alike = ["the runs are all of one size: nothing can be said about scaling"] * (sizes < 2)
    apart = alike or differences(scripts, [one.bytes_per_rank for one in usable])
    limits += apart
    if alike or len({*scripts} - {""}) > 1:
        summary = _summary(usable, None, f"no scaling to judge: {apart[0]}")
        return Diagnosis(run, summary, [], limits)
    kind = kind_of(usable)
    unit, amounts = _amounts(usable, kind)
    means = np.array([float(one.step_ns.mean()) for one in usable])
    draws = amounts / resample(usable) * 1e9
    measured = curve([one.ranks for one in usable], list(amounts / means * 1e9), draws)
    worst = [one for one in usable[-1].diagnosis.findings if one.severity >= NAMED]
    largest = max(worst, key=lambda one: one.severity, default=None)
    findings = collapse(measured, unit, largest)
    limits += _limits(usable, sizes, kind)
    scaling = {"kind": kind, **describe(measured, unit)}
    return Diagnosis(run, _summary(usable, scaling, _verdict(measured, findings)), findings, limits)


def _amounts(points: Sequence[ScalingPoint], kind: str | None) -> tuple[str, Array]:
    """The unit of throughput, and the amount of it in one step of each run."""
    samples = [point.samples for point in points]
    if all(samples):
        return "samples/s", np.array(samples, float)
    if kind == "strong":
        return "steps/s", np.ones(len(points))
    return "rank-steps/s", np.array([point.ranks for point in points], float)


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
    """A scaling curve as plain values: points, law, shapes and the last doubling."""
    start = measured.throughput[0] / measured.ranks[0]
    doubling, law = last_doubling(measured), measured.law
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
            **{key: measured.interval(key) for key in ("contention", "coherency", "peak", "knee")},
        },
        "shapes": [one._asdict() for one in stretches(measured)],
        "last_doubling": doubling and doubling._asdict(),
        "recommended_ranks": measured.recommended,
    }


def _limits(points: Sequence[ScalingPoint], sizes: int, kind: str | None) -> list[str]:
    known = all(point.samples for point in points)
    holding = {
        "few": sizes < SEVERAL,
        "unknown": kind is None,
        "inferred": kind is not None and not known,
    }
    return [say(f"scaling_collapse.{name}", kind=kind) for name, holds in holding.items() if holds]


def _verdict(measured: Curve, findings: Sequence[Finding]) -> str:
    n, x = measured.ranks, measured.throughput
    start = (
        f"From {n[0]:,} to {n[-1]:,} ranks throughput grows {x[-1] / x[0]:.3g}-fold "
        f"({100 * measured.efficiency:.0f} % scaling efficiency)"
    )
    if not findings:
        return f"{start}: it scales."
    fewer = measured.recommended
    advice = f" More ranks than about {fewer:,} are not worth their cost." if fewer else ""
    return f"{start}. Why: {findings[0].cause.partition(';')[0]}.{advice}"
