"""Findings of two runs, matched: what is new, what is gone, what weighs more or less."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import hypot, inf, log

from evenstep.diagnose.finding import Diagnosis, Finding
from evenstep.diagnose.lateness.case import SMALLEST_SHARE

_MOST_CERTAIN = 0.99  # a confidence is never above it: see `interval.Share.confidence`


@dataclass(slots=True, frozen=True)
class Changed:
    """A finding of either run. Shares of step time; 0 where the run does not have it."""

    mode: str
    ranks: Sequence[int]
    nodes: Sequence[str]
    change: str  # new, gone or kept
    baseline: float
    value: float
    difference: float
    low: float
    high: float
    verdict: str


def changed(baseline: Diagnosis, other: Diagnosis) -> list[Changed]:
    """All findings of both, the largest differences first."""
    left = list(other.findings)
    found = []
    for before in baseline.findings:
        after = _match(before, left)
        if after is not None:
            left.remove(after)
        found.append(_changed(before, after))
    found += [_changed(None, after) for after in left]
    return sorted(found, key=lambda item: -abs(item.difference))


def locality(diagnosis: Diagnosis) -> float:
    """Share of the step time that findings put down to where ranks lie."""
    return min(1.0, sum(f.severity or 0.0 for f in diagnosis.findings if f.mode == "locality"))


def _match(wanted: Finding, among: Sequence[Finding]) -> Finding | None:
    """The finding of the same mode that shares most culprits; any of the mode if none does."""
    same = [finding for finding in among if finding.mode == wanted.mode]
    return max(same, key=lambda finding: _common(wanted, finding), default=None)


def _common(one: Finding, other: Finding) -> float:
    ours, theirs = set(one.where.ranks), set(other.where.ranks)
    return len(ours & theirs) / max(len(ours | theirs), 1)


def _changed(before: Finding | None, after: Finding | None) -> Changed:
    seen = after or before
    assert seen is not None
    (first, first_half), (second, second_half) = _weight(before), _weight(after)
    difference = second - first
    half = hypot(first_half, second_half)
    low, high = difference - half, difference + half
    verdict = "no evidence" if low <= 0 <= high else "worse" if low > 0 else "better"
    return Changed(
        mode=seen.mode,
        ranks=tuple(seen.where.ranks),
        nodes=tuple(seen.where.nodes),
        change="gone" if after is None else "new" if before is None else "kept",
        baseline=first,
        value=second,
        difference=difference,
        low=max(low, -1.0),
        high=min(high, 1.0),
        verdict=verdict,
    )


def _weight(finding: Finding | None) -> tuple[float, float]:
    """Severity and half of its interval, read back from the confidence.

    `interval.Share.confidence` is 1 - exp(-1.5 severity / half). A finding that is not there may
    have been as large as the smallest that is told.
    """
    if finding is None or finding.severity is None:
        return 0.0, SMALLEST_SHARE
    certain = min(max(finding.confidence or 0.0, 0.0), _MOST_CERTAIN)
    half = -1.5 * finding.severity / log(1 - certain) if certain > 0 else inf
    return finding.severity, min(half, 1.0)
