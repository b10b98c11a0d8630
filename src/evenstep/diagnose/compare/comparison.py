"""What changed from one run to another, how sure that is, and whether it is better or worse.

Every number has the interval of its difference; "no evidence" is said where zero lies in it. The
intervals are those of the steps within the two runs: what differs between two runs of the very same
thing is not in them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from evenstep.diagnose.compare import findings as comparison_findings
from evenstep.diagnose.compare.account import SHARES, Account, Array, numbers, parts
from evenstep.diagnose.compare.result import (
    BETTER,
    NO_EVIDENCE,
    WORSE,
    Comparison,
    MetricChange,
    StepTimePart,
)
from evenstep.diagnose.compare.words import limits, sentence
from evenstep.statistics.interval import middle

SMALLEST_BASE = 0.05  # of the baseline: what draws of it are taken to be at least in a ratio
NEGLIGIBLE = 0.001  # of the baseline, or of step time: no one's concern, however sure it is

#: Whether more of it is good (+1) or bad (-1), and its unit; None stands for the throughput's.
DIRECTIONS: dict[str, tuple[int, str | None]] = {
    "throughput": (1, None),
    "throughput_per_rank": (1, None),
    "step_time": (-1, "ns"),
    "cv": (-1, "1"),
    "p50": (-1, "ns"),
    "p99": (-1, "ns"),
    **{f"{name}_share": (1 if name == "compute" else -1, "share") for name in SHARES},
}


def compare(baseline: Account, other: Account) -> Comparison:
    """What the other run has become against the baseline."""
    findings = comparison_findings.changed(baseline.diagnosis, other.diagnosis)
    if not (baseline.steps and other.steps):
        empty = baseline.name if not baseline.steps else other.name
        reason = f"{empty} has no step that every rank finished: there is nothing to compare"
        return Comparison(other.name, NO_EVIDENCE, reason, findings=findings)
    unit = _unit(baseline, other)
    changes = _changes(baseline, other, unit)
    total, split = _split(baseline, other)
    verdict = changes[0].verdict
    return Comparison(
        name=other.name,
        verdict=verdict,
        sentence=sentence(baseline, other, changes, findings),
        changes=changes,
        findings=findings,
        difference_ns=total,
        parts=split,
        limits=limits(baseline, other, unit),
    )


def _unit(baseline: Account, other: Account) -> str:
    """Samples per second where both runs tell them."""
    known = baseline.samples is not None and other.samples is not None
    return "samples/s" if known else "steps/s"


# -- differences and their intervals ---------------------------------------------------------------

Numbers = dict[str, float]


def _drawn(
    baseline: Account, other: Account, of: Callable[[Account, Array], Numbers]
) -> tuple[Numbers, Numbers, dict[str, Array], dict[str, Array]]:
    """Numbers of both runs, and of their draws; each run has a stream of its own."""
    tables = []
    for stream, run in enumerate((baseline, other)):
        rows = [of(run, at) for at in run.draws(stream)]
        point = of(run, np.arange(run.steps))
        drawn = {name: np.array([row[name] for row in rows]) for name in point}
        centred = {name: values + (point[name] - values.mean()) for name, values in drawn.items()}
        spread = {
            name: point[name] + run.widening * (values - point[name])
            for name, values in centred.items()
        }
        tables.append((point, spread))
    (first, first_drawn), (second, second_drawn) = tables
    return first, second, first_drawn, second_drawn


def _changes(baseline: Account, other: Account, unit: str) -> list[MetricChange]:
    def of(run: Account, at: Array) -> Numbers:
        found = numbers(run, at, unit=unit)
        if baseline.world != other.world:
            found["throughput_per_rank"] = found["throughput"] / run.world
        return found

    before, after, drawn_before, drawn_after = _drawn(baseline, other, of)
    return [
        _change(name, unit, before[name], after[name], drawn_before[name], drawn_after[name])
        for name in DIRECTIONS
        if name in before
    ]


def _change(
    name: str, unit: str, before: float, after: float, draws_before: Array, draws_after: Array
) -> MetricChange:
    direction, own_unit = DIRECTIONS[name]
    difference = after - before
    low, high = _interval(difference, draws_after - draws_before)
    relative = relative_low = relative_high = None
    if before > 0 and own_unit != "share":
        relative = after / before - 1
        safe = np.maximum(draws_before, SMALLEST_BASE * before)
        ratios = np.maximum(draws_after, 0) / safe
        relative_low, relative_high = _interval(relative, ratios - 1)
    return MetricChange(
        metric=name,
        unit=own_unit or unit,
        baseline=before,
        value=after,
        difference=difference,
        low=low,
        high=high,
        relative=relative,
        relative_low=relative_low,
        relative_high=relative_high,
        verdict=judged(low, high, direction, negligible=NEGLIGIBLE * _scale(own_unit, before)),
    )


def _scale(unit: str | None, baseline: float) -> float:
    """What a difference is small beside."""
    return 1.0 if unit == "share" else baseline


def _interval(value: float, draws: Array) -> tuple[float, float]:
    """95 % of the draws, and the value itself."""
    low, high = middle(draws)
    return min(low, value), max(high, value)


def judged(low: float, high: float, direction: int, *, negligible: float) -> str:
    """The word for a difference: none where its interval holds one that is negligible."""
    if low <= negligible and high >= -negligible:
        return NO_EVIDENCE
    return BETTER if (low > 0) == (direction > 0) else WORSE


def _split(baseline: Account, other: Account) -> tuple[float, list[StepTimePart]]:
    """The difference of the mean step, part by part."""
    split = baseline.above_floor is not None and other.above_floor is not None

    def of(run: Account, at: Array) -> Numbers:
        return parts(run, at, split=split, locality=comparison_findings.locality(run.diagnosis))

    before, after, drawn_before, drawn_after = _drawn(baseline, other, of)
    order = ("compute", "floor", "contention", "transfer", "wait", "locality", "input", "other")
    found = []
    for name in order:
        if name in before:
            difference = after[name] - before[name]
            low, high = _interval(difference, drawn_after[name] - drawn_before[name])
            found.append(StepTimePart(name, before[name], after[name], difference, low, high))
    return float(other.length_ns.mean() - baseline.length_ns.mean()), found
