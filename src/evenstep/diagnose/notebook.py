"""A diagnosis as a piece of HTML: what a notebook shows when it is the last line of a cell."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from evenstep import words

if TYPE_CHECKING:
    from evenstep.diagnose.finding import Diagnosis, Finding

FINDINGS = 8


def html(diagnosis: Diagnosis) -> str:
    """The verdict, the numbers and the findings; whatever a trace's names contain stays text."""
    parts = [f"<p><strong>{_text(diagnosis.verdict)}</strong></p>", _numbers(diagnosis.summary)]
    rows = [_row(finding) for finding in diagnosis.findings[:FINDINGS]]
    if rows:
        parts.append(_table(("finding", "severity", "seen", "cause", "to do"), rows))
    more = len(diagnosis.findings) - len(rows)
    parts += [f"<p>{more} more in <code>findings</code></p>"] if more > 0 else []
    parts += [f"<p><small>{_text(limit)}</small></p>" for limit in diagnosis.limits]
    return f"<div>{''.join(parts)}</div>"


def _numbers(summary: dict[str, Any]) -> str:
    """Step time and shares on one line each, as far as they are known."""
    lines = []
    time, rate = summary.get("step_time") or {}, summary.get("throughput") or {}
    if time.get("mean_ns") is not None:
        line = f"step {words.duration(time['mean_ns'])} mean, {words.duration(time['p99_ns'])} p99"
        if rate.get("value") is not None:
            line += f", {rate['value']:,.4g} {rate['unit']}"
        lines.append(line)
    shares = summary.get("shares") or {}
    lines.append(", ".join(f"{_name(name)} {words.percent(v)}" for name, v in shares.items()))
    return "".join(f"<p>{_text(line)}</p>" for line in lines if line)


def _row(finding: Finding) -> list[str]:
    advice = finding.options[0].action if finding.options else ""
    severity = words.percent(finding.severity or 0.0)
    return [_name(finding.mode), severity, finding.observation, finding.cause, advice]


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    first = "".join(f"<th>{_text(cell)}</th>" for cell in head)
    cells = ("".join(f"<td>{_text(cell)}</td>" for cell in row) for row in rows)
    body = "".join(f"<tr>{row}</tr>" for row in cells)
    return f"<table><thead><tr>{first}</tr></thead><tbody>{body}</tbody></table>"


def _name(name: str) -> str:
    return name.replace("_", " ")


def _text(value: object) -> str:
    return escape(str(value), quote=True)
