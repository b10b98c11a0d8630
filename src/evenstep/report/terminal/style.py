"""Lines of a terminal: their width, their colour, and where they break."""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from evenstep.words import duration, printable, shortened

NARROWEST = 40
WIDEST = 100
DIGITS = 4  # of a simulation, which has no noise of measuring
_LABEL = 8

#: Where a line must not break: between a number and its unit.
_BEFORE_UNIT = re.compile(r"(?<=\d) (?=(?:%|ns|µs|ms|s|MHz)(?!\w))")


def wants_color() -> bool:
    """Whether standard output is a terminal that nobody asked to keep plain."""
    plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
    return not plain and sys.stdout is not None and sys.stdout.isatty()


def precise(length_ns: float | None) -> str:
    """A time of a simulation."""
    return duration(length_ns, digits=DIGITS)


def table(rows: Sequence[Sequence[str]], *, gap: str = "  ") -> list[str]:
    """Rows of cells as lines, each column as wide as its widest cell, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        gap.join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows
    ]


@dataclass(slots=True, frozen=True)
class Style:
    """How wide lines are, and whether they have colour."""

    width: int
    color: bool

    @classmethod
    def of(cls, width: int | None, color: bool | None) -> Style:
        """As asked; else as the terminal (80 columns when there is none) and `NO_COLOR` say."""
        columns = width or shutil.get_terminal_size((80, 24)).columns
        return cls(max(min(columns, WIDEST), NARROWEST), wants_color() if color is None else color)

    def paint(self, text: str, code: str) -> str:
        """The text in a colour (an SGR code), where there is colour."""
        return f"\x1b[{code}m{text}\x1b[0m" if self.color and code and text else text

    def wrap(self, text: str, *, first: str = "", indent: int = 0, code: str = "") -> list[str]:
        """Lines of at most `width` columns; colour is added after the widths are settled."""
        lines = textwrap.wrap(
            _BEFORE_UNIT.sub("\u00a0", text),
            self.width,
            initial_indent=first.ljust(indent),
            subsequent_indent=" " * indent,
            break_on_hyphens=False,
        )
        return [self.paint(line.replace("\u00a0", " "), code) for line in lines]

    def field(self, label: str, text: str, *, code: str = "", most: int | None = None) -> list[str]:
        """A labelled paragraph of a finding: the label in its own narrow column, `most` lines."""
        if not text:
            return []
        head = "   " + label.ljust(_LABEL)
        lines = self.wrap(printable(text), first=head, indent=len(head))
        count = len(text.split()) if most is not None else 0
        while most is not None and len(lines) > most and count > 1:
            count -= 1
            lines = self.wrap(printable(shortened(text, count)), first=head, indent=len(head))
        head, rest = lines[0][: len(head)], lines[0][len(head) :]
        tail = [self.paint(rest, code), *(self.paint(line, code) for line in lines[1:])]
        return [self.paint(head, "2") + tail[0], *tail[1:]]
