"""The changes from one run to another, with intervals, and whether they are better or worse.

A change whose interval holds zero is no evidence. Intervals are of the steps within each of the two
runs: differences between re-runs of the same job are not in them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from evenstep import words
from evenstep.diagnose.compare.account import DIRECTIONS, PARTS, Account, Array, numbers, parts
from evenstep.diagnose.compare.result import (
    BETTER,
    NO_EVIDENCE,
    WORSE,
    Changed,
    Comparison,
    MetricChange,
    StepTimePart,
    changed,
    locality,
)
from evenstep.diagnose.levels import FEW_STEPS, FEWEST, NAMED
from evenstep.diagnose.sizes.workload import differences
from evenstep.statistics.interval import of_draws

NEGLIGIBLE = 0.001  # of the baseline, or of step time: too small to count, however sure


def compare(baseline: Account, other: Account) -> Comparison:
    """Compare a run with the baseline."""
    findings = changed(baseline.diagnosis, other.diagnosis)
    if not (baseline.steps and other.steps):
        empty = baseline.name if not baseline.steps else other.name
        reason = f"{empty} has no step that every rank finished: there is nothing to compare"
        return Comparison(other.name, NO_EVIDENCE, reason, findings=findings)
    known = baseline.samples is not None and other.samples is not None
    unit = "samples/s" if known else "steps/s"
    changes = _changes(baseline, other, unit)
    return Comparison(
        name=other.name, verdict=changes[0].verdict,
        sentence=sentence(baseline, other, changes, findings), changes=changes, findings=findings,
        difference_ns=float(other.length_ns.mean() - baseline.length_ns.mean()),
        parts=_parts(baseline, other), limits=limits(baseline, other, unit),
    )  # fmt: skip


# -- differences and their intervals ---------------------------------------------------------------

Numbers = dict[str, float]


def _drawn(
    baseline: Account, other: Account, of: Callable[[Account, Array], Numbers]
) -> dict[str, tuple[float, float, Array, Array]]:
    """Each number of both runs, and of their draws, which are independent of each other."""
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
    return {name: (first[name], second[name], first_drawn[name], second_drawn[name])
            for name in first}  # fmt: skip


def _changes(baseline: Account, other: Account, unit: str) -> list[MetricChange]:
    def of(run: Account, at: Array) -> Numbers:
        found = numbers(run, at, unit=unit)
        if baseline.world != other.world:
            found["throughput_per_rank"] = found["throughput"] / run.world
        return found

    drawn = _drawn(baseline, other, of)
    found = {name: _change(name, unit, *drawn[name]) for name in DIRECTIONS if name in drawn}
    whole = found["step_time"]
    return [
        replace(one, verdict=NO_EVIDENCE) if one.unit == "share" and _diluted(one, whole) else one
        for one in found.values()
    ]


def _diluted(part: MetricChange, whole: MetricChange) -> bool:
    """Whether a share of the step is better only because the step became longer, or worse because
    it became shorter, while the time of that part did not move that way."""
    if part.verdict == whole.verdict or NO_EVIDENCE in (part.verdict, whole.verdict):
        return False
    more = part.value * whole.value > part.baseline * whole.baseline
    return part.metric == "compute_share" or more == (part.verdict == BETTER)


def _change(
    name: str, unit: str, before: float, after: float, draws_before: Array, draws_after: Array
) -> MetricChange:
    direction, own_unit = DIRECTIONS[name]
    difference, low, high = of_draws(after - before, draws_after - draws_before)
    relative = relative_low = relative_high = None
    if before > 0 and own_unit != "share":
        safe = np.maximum(draws_before, NAMED * before)  # no ratio to next to nothing
        ratios = np.maximum(draws_after, 0) / safe
        relative, relative_low, relative_high = of_draws(after / before - 1, ratios - 1)
    negligible = NEGLIGIBLE * (1.0 if own_unit == "share" else before)
    return MetricChange(
        metric=name, unit=own_unit or unit, baseline=before, value=after, difference=difference,
        low=low, high=high, relative=relative, relative_low=relative_low,
        relative_high=relative_high, verdict=judged(low, high, direction, negligible=negligible),
    )  # fmt: skip


def judged(low: float, high: float, direction: int, *, negligible: float) -> str:
    """The word for a difference: no evidence where its interval holds a negligible one."""
    if low <= negligible and high >= -negligible:
        return NO_EVIDENCE
    return BETTER if (low > 0) == (direction > 0) else WORSE


def _parts(baseline: Account, other: Account) -> list[StepTimePart]:
    """The difference of the mean step, part by part."""
    split = baseline.above_floor is not None and other.above_floor is not None

    def of(run: Account, at: Array) -> Numbers:
        return parts(run, at, split=split, locality=locality(run.diagnosis))

    drawn, found = _drawn(baseline, other, of), []
    for name in PARTS:
        if name in drawn:
            before, after, draws_before, draws_after = drawn[name]
            change = of_draws(after - before, draws_after - draws_before)
            found.append(StepTimePart(name, before, after, *change))
    return found


# -- in words --------------------------------------------------------------------------------------


def sentence(
    baseline: Account, other: Account, changes: Sequence[MetricChange], findings: Sequence[Changed]
) -> str:
    """The comparison in one sentence: throughput, p99, and the finding that changed most."""
    by_metric = {item.metric: item for item in changes}
    rate, tail = by_metric["throughput"], by_metric["p99"]
    word = "faster" if rate.verdict == BETTER else "slower"
    text = f"{other.name} is {word} than {baseline.name}"
    if rate.verdict == NO_EVIDENCE:
        text = f"no evidence that {other.name} is faster or slower than {baseline.name}"
    text += f": throughput {_relative(rate)}"
    if tail.verdict != NO_EVIDENCE:
        text += f"; p99 of the step time {_relative(tail)}"
    if each := by_metric.get("throughput_per_rank"):
        text += f"; per rank {_relative(each)}"
    named = [item for item in findings if item.verdict != NO_EVIDENCE]
    if named:
        first = max(named, key=lambda item: abs(item.difference))
        text += (
            f"; most changed finding: {first.title}, "
            f"{words.percent(first.baseline)} to {words.percent(first.value)} of step time"
        )
    return text


def _relative(change: MetricChange) -> str:
    if change.relative is None or change.relative_low is None or change.relative_high is None:
        return "unknown"
    low, high = signed(change.relative_low), signed(change.relative_high)
    return f"{signed(change.relative)} % ({low} to {high} %)"


def signed(share: float) -> str:
    """A share in percent with a sign and about two digits: +4.1, -12, +1,230, 0."""
    value = 100 * share
    size = abs(value)
    if size < 0.005:
        return "0"
    places = 0 if size >= 9.95 else 1 if size >= 0.95 else 2
    return f"{value:+,.{places}f}"


def limits(baseline: Account, other: Account, unit: str) -> list[str]:
    """Reasons why the runs may not be comparable, or the intervals are rough."""
    found = [
        f"{run.name} has only {run.steps} steps: its intervals are rough"
        for run in (baseline, other)
        if run.steps < FEW_STEPS
    ]
    fewest = min(baseline.steps, other.steps)
    if fewest // 100 < FEWEST:  # above the p99
        found.append(f"the p99 of {fewest} steps rests on {max(fewest // 100, 1)} of them: rough")
    if baseline.world != other.world:
        found.append(
            f"{baseline.name} has {baseline.world} ranks, {other.name} {other.world}: compare "
            "throughput per rank"
        )
    pair = (baseline, other)
    found += differences([run.script for run in pair], [run.bytes_per_rank for run in pair])
    if unit == "steps/s" and (baseline.samples is None) != (other.samples is None):
        found.append("only one run tells its batch: steps are compared, whatever their size")
    found.append(
        "intervals are of the steps within each run; what differs between two runs of the same "
        "thing is not in them: compare with a re-run as well"
    )
    return found
