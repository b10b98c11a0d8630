"""Tell somebody of findings that cost more than they should: a function, or a webhook."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from evenstep.diagnose.finding import Diagnosis, Finding
from evenstep.export.posting import post

SCHEMA = "evenstep.alert/1"
THRESHOLD = 0.05


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
    run = {key: diagnosis.run.get(key) for key in ("run_id", "attempt", "world")}
    run_id = run.get("run_id") or "run"

    def send(finding: Finding) -> None:
        text = f"evenstep: {finding.mode.replace('_', ' ')} in {run_id}: {finding.observation}"
        document: dict[str, Any] = {"schema": SCHEMA, "run": run, "text": text}
        post(url, {**document, "finding": finding.to_json()}, purpose="a finding")

    return on_finding(diagnosis, send, above=above)
