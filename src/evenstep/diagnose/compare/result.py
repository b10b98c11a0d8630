"""A comparison of two runs, its JSON, and conditions on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import hypot, inf, log
from typing import Annotated, Any, NamedTuple

from evenstep.diagnose.finding import TERMINAL, Diagnosis, Finding
from evenstep.diagnose.levels import SMALLEST_SHARE
from evenstep.diagnose.sentences import culprits, place_of
from evenstep.documents import Document, Meta, Natural
from evenstep.errors import UsageError
from evenstep.statistics.interval import MOST_CERTAIN

SCHEMA = "evenstep.comparison/1"
BETTER, WORSE, NO_EVIDENCE = "better", "worse", "no evidence"
NOBODY = "no rank in particular"  # of findings without culprits
_SHARES = ("compute", "exposed_communication", "wait", "input", "other")
PARTS = ("compute", "floor", "contention", "transfer", "wait", "locality", "input", "other")
#: Whether more of it is good (+1) or bad (-1), and its unit; None stands for the throughput's.
DIRECTIONS: dict[str, tuple[int, str | None]] = {
    "throughput": (1, None),
    "throughput_per_rank": (1, None),
    "step_time": (-1, "ns"),
    "cv": (-1, "1"),
    "p50": (-1, "ns"),
    "p99": (-1, "ns"),
    **{f"{name}_share": (1 if name == "compute" else -1, "share") for name in _SHARES},
}

Verdict = Annotated[str, Meta(enum=(BETTER, WORSE, NO_EVIDENCE))]


@dataclass(slots=True, frozen=True)
class MetricChange:
    """A number of two runs; low <= difference <= high, and the same of the relative ones.
    `relative` is value over baseline less 1; None for shares."""

    metric: Annotated[str, Meta(enum=tuple(DIRECTIONS))]
    unit: str
    baseline: float
    value: float
    difference: float
    low: float
    high: float
    relative: float | None
    relative_low: float | None
    relative_high: float | None
    verdict: Verdict


@dataclass(slots=True, frozen=True)
class StepTimePart:
    """A part of the step time of two runs, ns per step."""

    part: Annotated[str, Meta(enum=PARTS)]
    baseline_ns: float
    value_ns: float
    difference_ns: float
    low_ns: float
    high_ns: float


@dataclass(slots=True, frozen=True)
class Changed:
    """A finding of either run. Shares of step time; 0 where the run does not have it."""

    mode: str
    title: str
    ranks: Sequence[Natural]
    nodes: Sequence[str]
    change: Annotated[str, Meta(enum=("new", "gone", "kept"))]
    baseline: float
    value: float
    difference: float
    low: float
    high: float
    verdict: Verdict


@dataclass(slots=True, frozen=True)
class Comparison(Document):
    """One run beside the baseline. The parts' differences add up to `difference_ns`."""

    name: str
    verdict: str
    sentence: str
    changes: Sequence[MetricChange] = ()
    findings: Sequence[Changed] = ()
    difference_ns: float | None = None  # of the mean over ranks of a step's length
    parts: Sequence[StepTimePart] = ()
    limits: list[str] = field(default_factory=list)

    def change(self, metric: str) -> MetricChange | None:
        """The change of one number, if both runs have it."""
        return next((item for item in self.changes if item.metric == metric), None)


def normalised_json(found: Comparison) -> dict[str, Any]:
    """Plain values without absolute numbers: ratios to the baseline, and differences of shares."""
    document = found.to_json()
    absolute = ("baseline", "value", "difference", "low", "high")
    document["changes"] = [
        {"metric": item.metric, "ratio": ratio(item.baseline, item.value), "verdict": item.verdict}
        | {name: getattr(item, name) for name in ("relative", "relative_low", "relative_high")}
        for item in found.changes
    ]
    document["findings"] = [
        {name: value for name, value in item.items() if name not in absolute}
        | {"ratio": ratio(item["baseline"], item["value"])}
        for item in document["findings"]
    ]
    base = sum(part.baseline_ns for part in found.parts)
    shares = {part.part: part.difference_ns / base if base else None for part in found.parts}
    document["parts"] = [{"part": name, "share_of_baseline": s} for name, s in shares.items()]
    del document["difference_ns"]
    return document


def ratio(baseline: float, value: float) -> float | None:
    """Value over baseline; None where there was nothing."""
    return value / baseline if baseline > 0 else None


# -- findings of two runs, matched -----------------------------------------------------------------


def pair_findings(baseline: Diagnosis, other: Diagnosis) -> list[Changed]:
    """The findings of both runs: what ended the other one, then the largest differences."""
    left = list(other.findings)
    found = []
    for before in baseline.findings:
        if after := _match(before, left):
            left.remove(after)
        found.append(_pair(before, after))
    found += [_pair(None, after) for after in left]
    found.sort(key=lambda item: -abs(item.difference))
    return sorted(found, key=lambda item: item.mode not in TERMINAL or item.change == "gone")


def locality(diagnosis: Diagnosis) -> float:
    """Share of the step time lost to the placement of ranks."""
    return min(1.0, sum(f.severity or 0.0 for f in diagnosis.findings if f.mode == "locality"))


def _match(wanted: Finding, among: Sequence[Finding]) -> Finding | None:
    """The finding of the same cause with most culprits in common, if any has that cause."""
    ours = set(wanted.where.ranks)
    same = [finding for finding in among if _cause(finding) == _cause(wanted)]

    def common(finding: Finding) -> float:
        theirs = set(finding.where.ranks)
        return len(ours & theirs) / max(len(ours | theirs), 1)

    return max(same, key=common, default=None)


def _cause(finding: Finding) -> str:
    """The title without its place."""
    return finding.title.removesuffix(place_of(finding.where, finding.when))


def _pair(before: Finding | None, after: Finding | None) -> Changed:
    seen = after or before
    assert seen is not None
    (first, first_half), (second, second_half) = _weight(before), _weight(after)
    difference = second - first
    half = hypot(first_half, second_half)
    low, high = difference - half, difference + half
    verdict = NO_EVIDENCE if low <= 0 <= high else WORSE if low > 0 else BETTER
    moved = before is not None and before.title != seen.title
    both = [culprits(one.where, one.when) or NOBODY for one in (before, seen) if one]
    return Changed(
        mode=seen.mode, title=f"{' → '.join(both)}: {_cause(seen)}" if moved else seen.title,
        ranks=tuple(seen.where.ranks), nodes=tuple(seen.where.nodes),
        change="gone" if after is None else "new" if before is None else "kept", baseline=first,
        value=second, difference=difference, low=max(low, -1.0), high=min(high, 1.0),
        verdict=verdict,
    )  # fmt: skip


def _weight(finding: Finding | None) -> tuple[float, float]:
    """Severity and half of its interval, by the confidence: 1 - exp(-1.5 severity / half), see
    `interval.Estimate.confidence`. An absent finding may be as large as the smallest reported."""
    if finding is None or finding.severity is None:
        return 0.0, SMALLEST_SHARE
    certain = min(max(finding.confidence or 0.0, 0.0), MOST_CERTAIN)
    half = -1.5 * finding.severity / log(1 - certain) if certain > 0 else inf
    return finding.severity, min(half, 1.0)


# -- conditions that a comparison must not meet ----------------------------------------------------
# `slower:2%` ends a pipeline with exit code 1. A condition is met where the change is beyond the
# limit *and* its interval does not hold zero: noise alone fails no pipeline.


#: Name in a condition: its number, and whether the limit is relative or a share of step time.
CONDITIONS: dict[str, tuple[str, bool]] = {
    "slower": ("throughput", True),
    "slower-per-rank": ("throughput_per_rank", True),
    "step": ("step_time", True),
    "cv": ("cv", True),
    "p50": ("p50", True),
    "p99": ("p99", True),
    "wait": ("wait_share", False),
    "communication": ("exposed_communication_share", False),
    "input": ("input_share", False),
    "other": ("other_share", False),
}
FINDING = "finding"  # a finding that is new, or weighs more
EXPECTED = f"NAME:LIMIT such as slower:2% with one of {', '.join([*CONDITIONS, FINDING])}"


class Condition(NamedTuple):
    """A number that must not get worse by more than `limit`: relative, or a share of step time."""

    text: str
    name: str
    limit: float


def parse_conditions(text: str) -> list[Condition]:
    """One condition, or several with commas. Raises `UsageError` saying what is expected."""
    return [_parse(part.strip()) for part in text.split(",")]


def _parse(text: str) -> Condition:
    name, _, amount = text.partition(":")
    known = name in CONDITIONS or name == FINDING
    try:
        limit = float(amount.removesuffix("%")) / (100 if amount.endswith("%") else 1)
    except ValueError:
        limit = -1.0
    if not known or not 0 <= limit < float("inf"):
        raise UsageError(f"--fail-if {text!r} is not understood; give {EXPECTED}")
    return Condition(text, name, limit)


def reason_met(condition: Condition, comparison: Comparison) -> str | None:
    """The reason why the condition is met; None where it is not."""
    if condition.name == FINDING:
        return _finding(condition, comparison)
    metric, relative = CONDITIONS[condition.name]
    if metric == "throughput_per_rank" and comparison.change(metric) is None:
        metric = "throughput"  # as many ranks in both
    change = comparison.change(metric)
    if change is None or change.verdict != WORSE:
        return None
    if relative and change.relative is None:
        return f"{condition.text}: {comparison.name} has {metric} where the baseline has none"
    amount = abs(change.relative if relative and change.relative is not None else change.difference)
    if amount <= condition.limit:
        return None
    return f"{condition.text}: {comparison.name} is worse by {100 * amount:.3g} % ({metric})"


def _finding(condition: Condition, comparison: Comparison) -> str | None:
    for item in comparison.findings:
        if item.verdict == WORSE and item.difference > condition.limit:
            more = f"{100 * item.difference:.3g} % of step time more"
            return f"{condition.text}: {item.title} of {comparison.name} weighs {more}"
    return None
