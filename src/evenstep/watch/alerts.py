"""Tell somebody of findings that cost more than they should: a function, or a webhook."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypedDict

from evenstep.diagnose.finding import Diagnosis, Finding
from evenstep.documents import Document
from evenstep.export.posting import post

THRESHOLD = 0.05


class AlertRun(TypedDict):
    """Which run."""

    run_id: str | None
    attempt: int | None
    world: int | None


@dataclass(frozen=True)
class Alert(Document):
    """What a webhook is sent of a finding."""

    schema: ClassVar[str] = "evenstep.alert/1"

    run: AlertRun
    text: str
    finding: Finding


def on_finding(
    diagnosis: Diagnosis, call: Callable[[Finding], object], *, above: float = THRESHOLD
) -> list[Finding]:
    """Call a function with every finding whose severity is above a share; those findings."""
    chosen = [finding for finding in diagnosis.findings if (finding.severity or 0.0) > above]
    for finding in chosen:
        call(finding)
    return chosen


def webhook(url: str, diagnosis: Diagnosis, *, above: float = THRESHOLD) -> list[Finding]:
    """POST every such finding as JSON, one request each, worst first.

    Raises `UsageError` where the server cannot be reached or refuses.
    """
    told = diagnosis.run.get
    run: AlertRun = {
        "run_id": told("run_id"), "attempt": told("attempt"), "world": told("world")
    }  # fmt: skip
    run_id = run["run_id"] or "run"

    def send(finding: Finding) -> None:
        text = f"evenstep: {finding.mode.replace('_', ' ')} in {run_id}: {finding.observation}"
        post(url, Alert(run, text, finding).to_json(), purpose="a finding")

    return on_finding(diagnosis, send, above=above)
