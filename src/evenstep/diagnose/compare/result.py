"""What a comparison of two runs is made of, and how it is written as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from evenstep.diagnose.compare.findings import Changed
from evenstep.documents import Document

SCHEMA = "evenstep.comparison/1"
BETTER, WORSE, NO_EVIDENCE = "better", "worse", "no evidence"


@dataclass(slots=True, frozen=True)
class MetricChange:
    """A number of two runs. `relative` is value over baseline less 1; None where that has no sense.

    Invariant: low <= difference <= high, and the same of the relative ones.
    """

    metric: str
    unit: str
    baseline: float
    value: float
    difference: float
    low: float
    high: float
    relative: float | None
    relative_low: float | None
    relative_high: float | None
    verdict: str


@dataclass(slots=True, frozen=True)
class StepTimePart:
    """What a part of the step time has become, ns per step."""

    part: str
    baseline_ns: float
    value_ns: float
    difference_ns: float
    low_ns: float
    high_ns: float


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
    """Plain values without an absolute number: ratios to the baseline, and shares' differences."""
    document = found.to_json()
    absolute = ("baseline", "value", "difference", "low", "high")
    document["changes"] = [
        {"metric": item.metric, "ratio": ratio(item.baseline, item.value), "verdict": item.verdict}
        | {name: getattr(item, f"relative{tail}") for name, tail in _RELATIVE.items()}
        for item in found.changes
    ]
    document["findings"] = [
        {name: value for name, value in item.items() if name not in absolute}
        | {"ratio": ratio(item["baseline"], item["value"])}
        for item in document["findings"]
    ]
    base = sum(part.baseline_ns for part in found.parts)
    document["parts"] = [
        {"part": part.part, "share_of_baseline": part.difference_ns / base if base else None}
        for part in found.parts
    ]
    del document["difference_ns"]
    return document


_RELATIVE = {"relative": "", "relative_low": "_low", "relative_high": "_high"}


def ratio(baseline: float, value: float) -> float | None:
    """Value over baseline; None where there was nothing."""
    return value / baseline if baseline > 0 else None
