"""A diagnosis in at most fifteen lines: culprit, cost, cause and remedy; one line if healthy.

`terminal.render` renders the whole diagnosis.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from evenstep import words
from evenstep.diagnose.finding import TERMINAL, Diagnosis, Finding
from evenstep.diagnose.levels import NAMED
from evenstep.diagnose.sentences import Verdict, best, partial, sureness, verdict
from evenstep.report.terminal.sentences import growth, pacing_in_brief
from evenstep.report.terminal.style import Style
from evenstep.report.terminal.terminal import bar, legend, scaling, step_time, where
from evenstep.words import capital, cells, duration, is_known, percent, plural, printable, seen_at

OTHERS = 3  # findings after the first with a line each
LINES = 2  # of cause, remedy and place
GREEN, BOLD, DIM = "32", "1", "2"
FINDINGS = 5
_MARKS = re.compile(r"([\\`*_\[\]<>|#])")


def render(diagnosis: Diagnosis, *, width: int | None = None, color: bool | None = None) -> str:
    """Render the diagnosis in at most `width` columns; the text ends with a newline."""
    style = Style.of(width, color)
    said = verdict(diagnosis.findings, diagnosis.summary)
    if said.healthy:
        lines = [*_healthy(diagnosis, style), *scaling(diagnosis, style)]
        return "\n".join([*lines, *_notices(diagnosis, style)]) + "\n"
    sections = [
        list(_head(said, diagnosis, style)),
        list(_numbers(diagnosis, style)),
        list(scaling(diagnosis, style)),
        [*_other_findings(diagnosis, style), *_where_more(diagnosis, style)],
    ]
    return "\n\n".join("\n".join(section) for section in sections if section) + "\n"


def _healthy(diagnosis: Diagnosis, style: Style) -> Iterator[str]:
    summary = diagnosis.summary
    mean_ns = (summary.get("step_time") or {}).get("mean_ns")
    parts = [f"Healthy: nothing costs {percent(NAMED)} of step time"]
    parts += [f"{duration(mean_ns)} a step"] if is_known(mean_ns) else []
    parts += [f"{plural(summary['ranks'], 'rank')}, {plural(summary['steps'], 'step')}"]
    yield from style.wrap(" · ".join(parts), code=GREEN)
    yield from _growth(diagnosis, style)


def _head(said: Verdict, diagnosis: Diagnosis, style: Style) -> Iterator[str]:
    change = f", {said.change}" if said.change else ""
    yield from style.wrap(printable(said.head + change), code=BOLD)
    yield from style.field("why", said.why, most=LINES)
    yield from style.field("do", said.action, code=GREEN, most=LINES)
    first = next(iter(diagnosis.findings), None)
    if first is None or not (first.mode in TERMINAL or first.severity >= NAMED):
        return
    yield from style.field("in", seen_in(first), most=LINES)
    if first.mode not in TERMINAL:
        yield from style.field("sure", _sureness(first))


def seen_in(finding: Finding) -> str:
    """Where in the code culprits were seen: "train.py:15 load (85 % of samples)"; "" unknown."""
    late = finding.where.ranks
    theirs = [each for each in finding.stacks if not late or each.rank in late]
    if theirs and finding.mode not in TERMINAL and theirs[0].share < 1:
        return f"{seen_at(theirs[0].frames)} ({percent(theirs[0].share)} of samples)"
    return words.seen_by((each.rank, each.frames) for each in theirs)


def _sureness(finding: Finding) -> str:
    remedy = best(finding)
    low, high = (remedy.low, remedy.high) if remedy else (None, None)
    sure = sureness(finding.confidence)
    if low is None or high is None or not low <= finding.severity <= high:
        return sure
    return f"{sure}; {percent(low)} to {percent(high)}" if percent(low) != percent(high) else sure


def _numbers(diagnosis: Diagnosis, style: Style) -> Iterator[str]:
    shares = diagnosis.summary.get("shares") or {}
    known = {key: value for key, value in shares.items() if is_known(value)}
    if known:
        drawn = cells(known, style.width)
        yield bar(known, style)
        yield from legend({name: share for name, share in known.items() if drawn[name]}, style)
    if diagnosis.summary.get("steps"):
        yield from style.wrap(step_time(diagnosis, brief=True))
    yield from _growth(diagnosis, style)


def _growth(diagnosis: Diagnosis, style: Style) -> Iterator[str]:
    for text in growth(diagnosis.summary.get("growth")):
        yield from style.wrap(text)


def _other_findings(diagnosis: Diagnosis, style: Style) -> Iterator[str]:
    rest = diagnosis.findings[1:]
    for place, finding in enumerate(rest[:OTHERS], start=2):
        text = f"{finding.title}: {percent(finding.severity)}, {sureness(finding.confidence)}"
        yield from style.wrap(printable(text), first=f"{place}. ", indent=3)
    if len(rest) > OTHERS:
        yield f"   and {plural(len(rest) - OTHERS, 'smaller finding')}"


def _where_more(diagnosis: Diagnosis, style: Style) -> Iterator[str]:
    yield from _notices(diagnosis, style)
    unknown = len(diagnosis.limits)
    limits = f"{plural(unknown, 'thing')} this trace cannot tell; " if unknown else ""
    yield from style.wrap(f"{limits}diagnose --verbose: all, --html FILE: a page", code=DIM)


def _notices(diagnosis: Diagnosis, style: Style) -> Iterator[str]:
    yield from style.wrap(partial(diagnosis.summary, diagnosis.limits))
    if paced := diagnosis.summary.get("pacing"):
        yield from style.wrap(capital(pacing_in_brief(paced)))
    if notice := diagnosis.run.get("preempted"):
        told = f"attempt {notice['attempt']} was preempted ({notice['signal']} at {notice['at']})"
        yield from style.wrap(capital(printable(told)))


def markdown(diagnosis: Diagnosis) -> str:
    """Render the verdict in bold, its cause and remedy, and the findings as a table."""
    return "\n".join(_markdown_lines(diagnosis)) + "\n"


def _markdown_lines(diagnosis: Diagnosis) -> Iterator[str]:
    said = verdict(diagnosis.findings, diagnosis.summary)
    change = f" ({said.change})" if said.change else ""
    yield f"**{_escaped(said.head)}**{change}"
    yield ""
    place = "" if said.healthy or not diagnosis.findings else seen_in(diagnosis.findings[0])
    for label, text in (("Why", said.why), ("Do", said.action), ("In", place)):
        if text:
            yield f"- {label}: {_escaped(text)}"
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
            yield "| " + " | ".join(_escaped(cell) for cell in cells) + " |"


def _escaped(text: str) -> str:
    """Escape Markdown in text that may contain names from a trace."""
    return _MARKS.sub(r"\\\1", printable(text))
