"""A trace with its label, and what the diagnosis made of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Finding = dict[str, Any]
SEVERE = 0.05  # from here a finding counts: the command line's own threshold
LEAST_LOSS = 0.055  # injected causes below it need not be found above the threshold


@dataclass(frozen=True, kw_only=True)
class Label:
    """What was injected. `mode` None: nothing. `culprits` None: nobody in particular."""

    mode: str | None
    culprits: frozenset[int] | None = None
    lost: float | None = None  # share of the step time, by the counterfactual
    alone: bool = True  # else others have a part in that loss, and it is not compared
    besides: frozenset[str] = frozenset()  # modes that may be true as well, without a culprit


@dataclass(frozen=True, kw_only=True)
class Example:
    """A labelled trace; `diagnosis` makes the trace and returns what `diagnose --json` prints."""

    name: str
    label: Label
    diagnosis: Callable[[], dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Judged:
    """An example and its findings, worst first."""

    example: Example
    findings: list[Finding]

    @property
    def first(self) -> str | None:
        """The mode of the worst finding above the threshold; None without one."""
        return str(self.judged[0]["mode"]) if self.judged else None

    @property
    def judged(self) -> list[Finding]:
        """Findings above the threshold, but for what may be true as well."""
        besides = self.example.label.besides - {self.example.label.mode}
        return [
            finding
            for finding in self.findings
            if finding["severity"] > SEVERE
            and (finding["mode"] not in besides or finding["where"]["ranks"])
        ]

    @property
    def right_mode(self) -> bool:
        """Whether the injected cause comes first, or nothing where there is none."""
        return self.first == self.example.label.mode

    @property
    def counts(self) -> bool:
        """Whether what was injected is large enough to be above the threshold for sure."""
        lost = self.example.label.lost
        return lost is None or lost >= LEAST_LOSS

    @property
    def right_culprit(self) -> bool | None:
        """Whether the finding names just the culprits; None where there are none, or no finding."""
        label = self.example.label
        if label.culprits is None or not self.right_mode:
            return None
        return frozenset(self.judged[0]["where"]["ranks"]) == label.culprits

    @property
    def error(self) -> float | None:
        """Attributed less injected loss, as a share of the injected; None where not comparable."""
        label = self.example.label
        if label.lost is None or not label.alone or not self.counts or not self.right_mode:
            return None
        mine = [f for f in self.findings if f["mode"] == label.mode and _about(f, label.culprits)]
        return float(sum(finding["severity"] for finding in mine) / label.lost - 1)


def _about(finding: Finding, culprits: frozenset[int] | None) -> bool:
    """Whether a finding is about these ranks, where there are any."""
    return not culprits or bool(culprits & set(finding["where"]["ranks"]))


def judged(example: Example) -> Judged:
    """Diagnose an example."""
    return Judged(example=example, findings=example.diagnosis()["findings"])
