"""Send findings above a severity to a function or a webhook."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypedDict

from evenstep.diagnose.finding import Diagnosis, Finding
from evenstep.documents import Document
from evenstep.export.posting import post

THRESHOLD = 0.05


class AlertRun(TypedDict):
    """The run of an alert."""

    run_id: str | None
    attempt: int | None
    world: int | None


@dataclass(frozen=True)
class Alert(Document):
    """The JSON that a webhook receives for a finding."""

    schema: ClassVar[str] = "evenstep.alert/1"

    run: AlertRun
    text: str
    finding: Finding


def on_finding(
    diagnosis: Diagnosis, call: Callable[[Finding], object], *, above: float = THRESHOLD
) -> list[Finding]:
    """Call a function with every finding of a higher severity, and return these findings."""
    chosen = [finding for finding in diagnosis.findings if (finding.severity or 0.0) > above]
    for finding in chosen:
        call(finding)
    return chosen


def webhook(url: str, diagnosis: Diagnosis, *, above: float = THRESHOLD) -> list[Finding]:
    """POST every such finding as JSON, one request each, worst first.

    Raises `UsageError` if the server cannot be reached or refuses.
    """
    fact = diagnosis.run.get
    run: AlertRun = {
        "run_id": fact("run_id"), "attempt": fact("attempt"), "world": fact("world")
    }  # fmt: skip
    run_id = run["run_id"] or "run"

    def send(finding: Finding) -> None:
        text = f"evenstep: {finding.mode.replace('_', ' ')} in {run_id}: {finding.observation}"
        post(url, Alert(run, text, finding).to_json(), purpose="a finding")

    return on_finding(diagnosis, send, above=above)
