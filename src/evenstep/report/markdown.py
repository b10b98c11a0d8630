"""A diagnosis as Markdown, short enough for a chat or an issue."""

from __future__ import annotations

import re
from collections.abc import Iterator

from evenstep.diagnose.finding import Diagnosis
from evenstep.diagnose.sentences import best, partial, sureness, verdict
from evenstep.report.terminal.brief import seen_in
from evenstep.report.terminal.terminal import step_time, where
from evenstep.words import percent, printable

FINDINGS = 5
_MARKS = re.compile(r"([\\`*_\[\]<>|#])")


def render(diagnosis: Diagnosis) -> str:
    """Render the verdict in bold, its cause and remedy, and the findings as a table."""
    return "\n".join(_lines(diagnosis)) + "\n"


def _lines(diagnosis: Diagnosis) -> Iterator[str]:
    said = verdict(diagnosis.findings, diagnosis.summary)
    change = f" ({said.change})" if said.change else ""
    yield f"**{_text(said.head)}**{change}"
    yield ""
    place = "" if said.healthy or not diagnosis.findings else seen_in(diagnosis.findings[0])
    for label, text in (("Why", said.why), ("Do", said.action), ("In", place)):
        if text:
            yield f"- {label}: {_text(text)}"
    yield f"- {step_time(diagnosis, brief=True)}"
    if lacking := partial(diagnosis.summary, diagnosis.limits):
        yield f"- {lacking}"
    if diagnosis.findings and not said.healthy:
        yield from ("", "| cause | where | costs | certainty | remedy |", "|" + " --- |" * 5)
        for finding in diagnosis.findings[:FINDINGS]:
            remedy = best(finding)
            cells = (
                finding.title, where(finding), percent(finding.severity),
                sureness(finding.confidence), remedy.action if remedy else "",
            )  # fmt: skip
            yield "| " + " | ".join(_text(cell) for cell in cells) + " |"


def _text(text: str) -> str:
    """Escape Markdown in text that may contain names from a trace."""
    return _MARKS.sub(r"\\\1", printable(text))
