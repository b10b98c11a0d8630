"""Conditions a comparison must not meet: `slower:2%` ends a pipeline with exit code 1.

A condition is met where the change is beyond the limit *and* its interval does not hold zero: noise
alone fails nobody.
"""

from __future__ import annotations

from typing import NamedTuple

from evenstep.diagnose.compare.result import WORSE, Comparison
from evenstep.errors import UsageError

#: Name in a condition: number it looks at, and whether the limit is relative or of step time.
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
    """What must not get worse by more than `limit`: relative, or a share of step time."""

    text: str
    name: str
    limit: float


def parse(text: str) -> list[Condition]:
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


def met(condition: Condition, comparison: Comparison) -> str | None:
    """Why the condition is met, in words; None where it is not."""
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
            return (
                f"{condition.text}: {item.title} of {comparison.name} weighs "
                f"{100 * item.difference:.3g} % of step time more"
            )
    return None
