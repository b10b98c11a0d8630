"""Send findings above a severity to a webhook."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, TypedDict

from evenstep.diagnose.finding import Diagnosis, Finding
from evenstep.documents import Document
from evenstep.export.posting import post


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


def webhook(url: str, diagnosis: Diagnosis, *, above: float) -> int:
    """POST every finding of a higher severity as JSON, one request each, worst first; return how
    many. Raises `UsageError` if the server cannot be reached or refuses."""
    fact = diagnosis.run.get
    run: AlertRun = {
        "run_id": fact("run_id"), "attempt": fact("attempt"), "world": fact("world")
    }  # fmt: skip
    told = [finding for finding in diagnosis.findings if (finding.severity or 0.0) > above]
    for finding in told:
        mode = finding.mode.replace("_", " ")
        text = f"evenstep: {mode} in {run['run_id'] or 'run'}: {finding.observation}"
        post(url, Alert(run, text, finding).to_json(), purpose="a finding")
    return len(told)
