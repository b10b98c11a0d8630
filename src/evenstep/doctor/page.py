"""An examination as text: what is wrong first, then in one line each what is fine or unknown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from evenstep.doctor.check import Check, Severity
from evenstep.doctor.examination import Examination
from evenstep.report.terminal.style import Style
from evenstep.words import printable

_COLORS = {Severity.PROBLEM: "1;31", Severity.WARNING: "33", Severity.ADVICE: "36"}
_COUNTED = {
    Severity.PROBLEM: ("problem", "problems"),
    Severity.WARNING: ("warning", "warnings"),
    Severity.ADVICE: ("piece of advice", "pieces of advice"),
}
_WORD = 9  # columns of a severity, before what was found


def render(
    found: Examination, *, every: bool = False, width: int | None = None, color: bool | None = None
) -> str:
    """The examination as text of at most `width` columns. `every`: what is fine at length too."""
    style = Style.of(width, color)
    by_severity = {
        one: [check for check in found.checks if check.severity == one] for one in Severity
    }
    fine, unknown = by_severity[Severity.OK], by_severity[Severity.SKIPPED]
    parts = [
        f"{len(by_severity[one])} {words[len(by_severity[one]) != 1]}"
        for one, words in _COUNTED.items()
        if by_severity[one]
    ]
    lines = style.wrap(
        f"{printable(found.host)}: {', '.join(parts) or 'nothing is wrong'}; {len(fine)} checks "
        f"are fine, {len(unknown)} could not be made."
    )
    for check in (check for one in _COUNTED for check in by_severity[one]):
        lines += ["", *_explained(check, style)]
    lines += _short("fine", fine, style, every=every)
    lines += _short("not checked", unknown, style, every=True)
    return "\n".join(lines) + "\n"


def _explained(check: Check, style: Style) -> Iterator[str]:
    """What, why, and how to mend it."""
    word = check.severity.word
    first, *rest = style.wrap(printable(f"{check.name}: {check.found}"), first=word, indent=_WORD)
    yield style.paint(word, _COLORS[check.severity]) + first[len(word) :]
    yield from rest
    for label, text in (("why", check.why), ("mend", check.mend), ("from", check.source)):
        if text:
            head = " " * _WORD + label
            yield from style.wrap(printable(text), first=head, indent=_WORD + 6)


def _short(title: str, checks: Sequence[Check], style: Style, *, every: bool) -> Iterator[str]:
    """One line each, or all in one paragraph."""
    if not checks:
        return
    yield ""
    if every:
        yield f"{title}:"
        for check in checks:
            text = printable(f"{check.name}: {check.found}")
            yield from style.wrap(text, first="  ", indent=2)
    else:
        yield from style.wrap(f"{title}: {', '.join(dict.fromkeys(c.name for c in checks))}")
