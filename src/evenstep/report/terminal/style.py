"""Width, colour and wrapping of terminal lines."""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass

from evenstep.words import duration, printable, shorten

NARROWEST = 40
WIDEST = 100
DIGITS = 4  # of simulated times, which have no measurement noise
_LABEL = 8

#: Spaces at which a line must not break: between a number and its unit.
_BEFORE_UNIT = re.compile(r"(?<=\d) (?=(?:%|[nµm]?s|MHz|rank-hours|(?:step|sample)s/s)(?!\w))")


def unbroken(text: str) -> str:
    """The text with no-break spaces between numbers and their units."""
    return _BEFORE_UNIT.sub("\u00a0", text)


def wants_color() -> bool:
    """Whether standard output is a terminal and colour is not disabled."""
    plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
    return not plain and sys.stdout is not None and sys.stdout.isatty()


def precise(length_ns: float | None) -> str:
    """Render a simulated time."""
    return duration(length_ns, digits=DIGITS)


def exact(share: float) -> str:
    """Render a simulated share, always with one decimal."""
    return f"{100 * share:.1f} %"


def table(
    rows: Sequence[Sequence[str]], *, gap: str = "  ", left: Container[int] = ()
) -> list[str]:
    """Render rows as lines of columns, right-aligned but for those in `left`."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    forms = [f"{'<' if at in left else '>'}{width}" for at, width in enumerate(widths)]
    return [gap.join(map(format, row, forms)) for row in rows]


@dataclass(slots=True, frozen=True)
class Style:
    """The width of lines, and whether they have colour."""

    width: int
    color: bool

    @classmethod
    def of(cls, width: int | None, color: bool | None) -> Style:
        """Return the given style; None means that of the terminal (80 columns without one)."""
        columns = width or shutil.get_terminal_size((80, 24)).columns
        return cls(max(min(columns, WIDEST), NARROWEST), wants_color() if color is None else color)

    def paint(self, text: str, code: str) -> str:
        """Colour text with an SGR code, if colour is on."""
        return f"\x1b[{code}m{text}\x1b[0m" if self.color and code and text else text

    def wrap(self, text: str, *, first: str = "", indent: int = 0, code: str = "") -> list[str]:
        """Wrap text to `width` columns; colour is added after wrapping."""
        lines = textwrap.wrap(
            unbroken(text),
            self.width,
            initial_indent=first.ljust(indent),
            subsequent_indent=" " * indent,
            break_on_hyphens=False,
        )
        return [self.paint(line.replace("\u00a0", " "), code) for line in lines]

    def items(self, sentences: Iterable[str]) -> Iterator[str]:
        for sentence in sentences:
            yield from self.wrap(printable(sentence), first=" - ", indent=3)

    def field(self, label: str, text: str, *, code: str = "", most: int | None = None) -> list[str]:
        """Render a labelled paragraph of a finding, shortened to at most `most` lines."""
        if not text:
            return []
        head = "   " + label.ljust(_LABEL)
        lines = self.wrap(printable(text), first=head, indent=len(head))
        count = len(text.split()) if most is not None else 0
        while most is not None and len(lines) > most and count > 1:
            count -= 1
            lines = self.wrap(printable(shorten(text, count)), first=head, indent=len(head))
        head, rest = lines[0][: len(head)], lines[0][len(head) :]
        tail = [self.paint(rest, code), *(self.paint(line, code) for line in lines[1:])]
        return [self.paint(head, "2") + tail[0], *tail[1:]]


PLAIN = Style(80, color=False)  # of what is as wide on every terminal
