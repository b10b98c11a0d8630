"""An examination as text: what is wrong first, then in one line each what is fine or unknown."""

from __future__ import annotations

import shutil
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator

from evenstep.doctor.check import Check, Severity
from evenstep.doctor.examination import Examination
from evenstep.report.terminal.style import wants_color

_NARROWEST, _WIDEST = 40, 100
_INDENT = " " * 9
_COLORS = {Severity.PROBLEM: "1;31", Severity.WARNING: "33", Severity.ADVICE: "36"}
_COUNTED = {
    Severity.PROBLEM: ("problem", "problems"),
    Severity.WARNING: ("warning", "warnings"),
    Severity.ADVICE: ("piece of advice", "pieces of advice"),
}


def render(
    found: Examination, *, every: bool = False, width: int | None = None, color: bool | None = None
) -> str:
    """The examination as text of at most `width` columns. `every`: what is fine at length too."""
    columns = width or shutil.get_terminal_size((80, 24)).columns
    page = _Page(max(min(columns, _WIDEST), _NARROWEST), wants_color() if color is None else color)
    lines = [*page.head(found)]
    for severity in (Severity.PROBLEM, Severity.WARNING, Severity.ADVICE):
        for check in found.checks:
            if check.severity == severity:
                lines += ["", *page.wrong(check)]
    fine = [check for check in found.checks if check.severity == Severity.OK]
    unknown = [check for check in found.checks if check.severity == Severity.SKIPPED]
    lines += page.short("fine", fine, every=every)
    lines += page.short("not checked", unknown, every=True)
    return "\n".join(lines) + "\n"


class _Page:
    """Width and colour."""

    def __init__(self, width: int, color: bool) -> None:
        self.width, self.color = width, color

    def head(self, found: Examination) -> Iterator[str]:
        counts = Counter(check.severity for check in found.checks)
        parts = [
            f"{counts[severity]} {words[counts[severity] != 1]}"
            for severity, words in _COUNTED.items()
            if counts[severity]
        ]
        said = ", ".join(parts) or "nothing is wrong"
        fine, unknown = counts[Severity.OK], counts[Severity.SKIPPED]
        yield from self.wrap(
            f"{found.host}: {said}; {fine} checks are fine, {unknown} could not be made.", ""
        )

    def wrong(self, check: Check) -> Iterator[str]:
        """What, why, and how to mend it."""
        first, *rest = self.wrap(f"{check.name}: {check.found}", _INDENT)
        yield self.paint(f"{check.severity.word:<8}", _COLORS[check.severity]) + first[8:]
        yield from rest
        for label, text in (("why", check.why), ("mend", check.mend), ("from", check.source)):
            if text:
                yield from self.labelled(label, text)

    def labelled(self, label: str, text: str) -> Iterator[str]:
        wrapped = self.wrap(text, f"{_INDENT}      ")
        yield f"{_INDENT}{label:<5} " + wrapped[0].lstrip() if wrapped else ""
        yield from wrapped[1:]

    def short(self, title: str, checks: Iterable[Check], *, every: bool) -> Iterator[str]:
        """One line each, or all in one paragraph."""
        listed = list(checks)
        if not listed:
            return
        yield ""
        if every:
            yield f"{title}:"
            for check in listed:
                yield from self.wrap(f"{check.name}: {check.found}", "  ", hanging="    ")
        else:
            names = ", ".join(dict.fromkeys(check.name for check in listed))
            yield from self.wrap(f"{title}: {names}", "")

    def wrap(self, text: str, indent: str, hanging: str | None = None) -> list[str]:
        clean = "".join(c if c.isprintable() else " " for c in text)
        return textwrap.wrap(
            clean, self.width, initial_indent=indent,
            subsequent_indent=indent if hanging is None else hanging, break_on_hyphens=False,
        )  # fmt: skip

    def paint(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.color else text
