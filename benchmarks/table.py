"""The table of results in `README.md`: rendered, and renewed row by row."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.measure import Row

COLUMNS = ("what", "bar", "measured", "command", "machine")


def cells(row: Row, machine: str) -> tuple[str, ...]:
    """The row's cells; a bar that was missed says so."""
    missed = " **(bar missed)**" if row.met is False else ""
    return row.what, row.bar, row.measured + missed, f"`{row.command}`", machine


def line(texts: Sequence[str]) -> str:
    """One line of a Markdown table."""
    return "| " + " | ".join(text.replace("|", "\\|") for text in texts) + " |"


def render(rows: Sequence[Row], machine: str, *, head: bool = True) -> str:
    """The rows as a Markdown table of their own; without the head, more of its rows."""
    lines = [line(COLUMNS), line(["---"] * len(COLUMNS))] if head else []
    return "\n".join(lines + [line(cells(row, machine)) for row in rows])


def renew(page: str, rows: Sequence[Row], machine: str) -> str:
    """The page with these rows in its table: in the place of those of the same name, else below.

    Raises `ValueError` where the page has no such table.
    """
    lines = page.splitlines()
    head = line(COLUMNS)
    if head not in lines:
        raise ValueError(f"the page has no table that begins with {head}")
    first = lines.index(head) + 2
    last = first
    while last < len(lines) and lines[last].startswith("|"):
        last += 1
    table = {_name(text): text for text in lines[first:last]}
    for row in rows:
        text = line(cells(row, machine))
        table[_name(text)] = text
    return "\n".join(lines[:first] + list(table.values()) + lines[last:]) + "\n"


def _name(text: str) -> str:
    return text.split(" | ")[0].removeprefix("| ")
